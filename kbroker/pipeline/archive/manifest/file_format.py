"""The manifest's files: their names, and commits and states as JSON.

A file is one line: a JSON object whose last field, `sha256`, is of all bytes before that field. `previous` is the
`sha256` of the commit before (in a state: of the commit that it was folded after), so that the commits are a chain.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.manifest import model
from kbroker.pipeline.archive.manifest.model import (
    ArchiveState,
    CoveredRange,
    DataFile,
    Gap,
    ManifestCommit,
    OffsetRange,
    PartitionStats,
    TopicInfo,
)
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.storage import MAX_READ_BYTES, FileTooLargeError, Storage

DIRECTORY = "_manifest"
STATE_EVERY = 100  # commits
NO_TOPIC = "__HIVE_DEFAULT_PARTITION__"  # the directory of rows without one; Spark reads it as null
KINDS = ("create", "append", "compact", "observe")

_NAME = re.compile(r"(\d{20})(\.state)?\.json")
_PATH = re.compile(r"topic=([A-Za-z0-9._-]{1,249})/date=([+-]?\d{4,}-\d\d-\d\d)/[A-Za-z0-9][A-Za-z0-9._-]*\.parquet")
_SHA256 = re.compile("[0-9a-f]{64}")
_SEAL = b',"sha256":"'
_END = b'"}\n'
_SEAL_BYTES = len(_SEAL) + 64 + len(_END)
_PIECE_BYTES = 4 << 20

_T = TypeVar("_T")


def commit_path(number: int) -> str:
    return f"{DIRECTORY}/{number:020d}.json"


def state_path(number: int) -> str:
    return f"{DIRECTORY}/{number:020d}.state.json"


def parsed_name(name: str) -> tuple[int, bool] | None:
    """Of a file in the manifest's directory: the commit's number, and whether it is a state; None for other files."""
    found = _NAME.fullmatch(name)
    return None if found is None else (int(found[1]), found[2] is not None)


def topic_and_date(path: str) -> tuple[str, str] | None:
    """Of a data file by its path; None for a path that no archive has."""
    found = _PATH.fullmatch(path)
    return None if found is None or found[1] == NO_TOPIC else (found[1], found[2])


def read(storage: Storage, path: str) -> bytes:
    """The bytes of a file of the manifest. A file of more than 64 MiB is read only if its checksum is right.

    Raises Absent when it is not there, and PipelineError.
    """
    try:
        return storage.read(path, MAX_READ_BYTES)
    except FileTooLargeError:
        size = storage.size(path)
    if not _is_sealed(storage, path, size):
        raise PipelineError(_damaged(storage.uri(path), f"{size} bytes, and its checksum is another"))
    return storage.read(path, size)


def _is_sealed(storage: Storage, path: str, size: int) -> bool:
    """Whether a file ends with the checksum of what is before it; at most 4 MiB are held at a time."""
    end = size - _SEAL_BYTES
    seal = storage.read_range(path, end, _SEAL_BYTES)
    if not (seal.startswith(_SEAL) and seal.endswith(_END)):
        return False
    digest = hashlib.sha256()
    for start in range(0, end, _PIECE_BYTES):
        digest.update(storage.read_range(path, start, min(_PIECE_BYTES, end - start)))
    return seal[len(_SEAL) : -len(_END)] == digest.hexdigest().encode()


def _damaged(where: str, what: str) -> str:
    return f"{where}: damaged, or no file of an archive's manifest ({what})"


def encode_commit(number: int, commit: ManifestCommit, previous: str) -> bytes:
    """`previous`: the digest of the commit before; empty for the first."""
    document = {"version": model.FORMAT_VERSION, "number": number, "kind": commit.kind, "time_ms": commit.time_ms}
    optional = {
        "add": [_file(file) for file in commit.add],
        "remove": list(commit.remove),
        "covered": [one._asdict() for one in commit.covered],
        "gaps": [one._asdict() for one in commit.gaps],
        "query": None if commit.query is None else {"id": commit.query[0], "batch": commit.query[1]},
        "topics": None if commit.topics is None else _topics(commit.topics),
        "groups": None if commit.groups is None else _groups(commit.groups),
        "settings": None if commit.settings is None else dict(commit.settings),
    }
    document |= {name: value for name, value in optional.items() if value is not None and value != []}
    return _sealed(document | {"previous": previous})


def decode_commit(data: bytes, number: int, where: str) -> tuple[ManifestCommit, str, str]:
    """The commit, the digest of the commit before, and its own. `where`: the file's name for messages.

    Raises PipelineError for a file that is damaged, that is not commit `number`, or of a newer format.
    """
    return _decoded(data, where, lambda document: _commit(document, number))


def encode_state(state: ArchiveState, previous: str) -> bytes:
    """`previous`: the digest of commit `state.number`."""
    document = {
        "version": model.FORMAT_VERSION,
        "number": state.number,
        "kind": "state",
        "time_ms": state.time_ms,
        "settings": dict(state.settings),
        "files": [_file(file) for file in state.files.values()],
        "covered": [
            {"topic": topic, "partition": partition, "spans": [list(span) for span in spans]}
            for (topic, partition), spans in state.covered.items()
        ],
        "gaps": [gap._asdict() for gap in state.gaps],
        "queries": dict(state.queries),
        "topics": _topics(state.topics),
        "groups": _groups(state.groups),
        "groups_ms": state.groups_ms,
    }
    return _sealed(document | {"previous": previous})


def decode_state(data: bytes, number: int, where: str) -> tuple[ArchiveState, str, str]:
    """The state, the digest of the commit that it is after, and its own digest. Raises as decode_commit does."""
    return _decoded(data, where, lambda document: _state(document, number))


def _file(file: DataFile) -> dict[str, Any]:
    parts = [part._asdict() | {"checksum": f"{part.checksum:016x}"} for part in file.parts]
    return {"path": file.path, "size": file.size, "sha256": file.sha256, "parts": parts}


def _topics(topics: Mapping[str, TopicInfo]) -> dict[str, Any]:
    return {name: info._asdict() | {"configs": dict(info.configs)} for name, info in topics.items()}


def _groups(groups: model.GroupOffsets) -> dict[str, Any]:
    return {
        group: {
            topic: {str(partition): offset for partition, offset in offsets.items()} for topic, offsets in of.items()
        }
        for group, of in groups.items()
    }


def _sealed(document: Mapping[str, Any]) -> bytes:
    text = json.dumps(document, separators=(",", ":")).encode()[:-1]
    return text + _SEAL + hashlib.sha256(text).hexdigest().encode() + _END


def _decoded(data: bytes, where: str, build: Callable[[dict[str, Any]], _T]) -> tuple[_T, str, str]:
    try:
        document = json.loads(data)
        version = document["version"]
        if isinstance(version, int) and version > model.FORMAT_VERSION:
            raise PipelineError(f"{where}: format version {version}, written by a newer kbroker than this one")
        text, seal, _ = data.rpartition(_SEAL)
        digest = hashlib.sha256(text).hexdigest()
        if not seal or document.pop("sha256") != digest or not data.endswith(_END):
            raise ValueError("its checksum is another")
        if version != model.FORMAT_VERSION:
            raise ValueError(f"version {version!r}")
        previous = _text(document.pop("previous"))
        return build(document), previous, digest
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = f"no field {error}" if isinstance(error, KeyError) else str(error)
        raise PipelineError(_damaged(where, what)) from None


def _commit(document: dict[str, Any], number: int) -> ManifestCommit:
    get = document.get
    kind = document["kind"]
    if kind not in KINDS or _number(document["number"]) != number:
        raise ValueError(f"{kind!r} commit {document['number']!r} in the place of commit {number}")
    query, topics, groups, settings = get("query"), get("topics"), get("groups"), get("settings")
    return ManifestCommit(
        kind=kind,
        time_ms=_number(document["time_ms"]),
        add=tuple(map(_read_file, get("add", ()))),
        remove=tuple(map(_text, get("remove", ()))),
        covered=tuple(CoveredRange(**_partition(one, "start", "end")) for one in get("covered", ())),
        gaps=tuple(_read_gap(one) for one in get("gaps", ())),
        query=None if query is None else (_text(query["id"]), _number(query["batch"])),
        topics=None if topics is None else _read_topics(topics),
        groups=None if groups is None else _read_groups(groups),
        settings=None if settings is None else dict(settings),
    )


def _state(document: dict[str, Any], number: int) -> ArchiveState:
    if document["kind"] != "state" or _number(document["number"]) != number:
        raise ValueError(f"{document['kind']!r} {document['number']!r} in the place of state {number}")
    files = map(_read_file, document["files"])
    covered = {
        TopicPartition(_text(one["topic"]), _number(one["partition"])): tuple(
            OffsetRange(_number(start), _number(end)) for start, end in one["spans"]
        )
        for one in document["covered"]
    }
    return ArchiveState(
        number=number,
        time_ms=_number(document["time_ms"]),
        settings=dict(document["settings"]),
        files={file.path: file for file in files},
        covered=covered,
        gaps=tuple(_read_gap(one) for one in document["gaps"]),
        queries={_text(query): _number(batch) for query, batch in document["queries"].items()},
        topics=_read_topics(document["topics"]),
        groups=_read_groups(document["groups"]),
        groups_ms=_number(document["groups_ms"]),
    )


def _read_file(one: dict[str, Any]) -> DataFile:
    path, sha256 = one["path"], one["sha256"]
    found = topic_and_date(path)
    if found is None or not _SHA256.fullmatch(sha256):
        raise ValueError(f"a file {path!r} with checksum {sha256!r}")
    return DataFile(path, *found, _number(one["size"]), sha256, tuple(map(_read_part, one["parts"])))


def _read_part(one: dict[str, Any]) -> PartitionStats:
    return PartitionStats._make(
        [*(_number(one[name]) for name in PartitionStats._fields[:-1]), int(_text(one["checksum"]), 16)]
    )


def _read_gap(one: dict[str, Any]) -> Gap:
    return Gap(**_partition(one, "start", "end"), reason=_text(one["reason"]))


def _partition(one: dict[str, Any], *numbers: str) -> dict[str, Any]:
    values = {name: _number(one[name]) for name in ("partition", *numbers)}
    return {"topic": _text(one["topic"]), **values}


def _read_topics(topics: dict[str, Any]) -> dict[str, TopicInfo]:
    return {
        name: TopicInfo(
            _text(info["topic_id"]),
            _number(info["partitions"]),
            {_text(config): _text(value) for config, value in info["configs"].items()},
        )
        for name, info in topics.items()
    }


def _read_groups(groups: dict[str, Any]) -> model.GroupOffsets:
    return {
        group: {topic: {int(p): _number(offset) for p, offset in offsets.items()} for topic, offsets in of.items()}
        for group, of in groups.items()
    }


def _number(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is no number")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{value!r} is no text")
    return value
