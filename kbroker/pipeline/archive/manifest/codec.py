"""Commits and archive states as JSON (pure).

A manifest file is one line: a JSON object whose last field, `sha256`, is the digest of all bytes before that field.
`previous` is the digest of the preceding commit (in a state file: of the commit with the same number), so that the
commits form a hash chain.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.layout import OffsetRange, parse_data_path
from kbroker.pipeline.archive.manifest.model import (
    FORMAT_VERSION,
    ArchiveState,
    CoveredRange,
    DataFile,
    Gap,
    GroupOffsets,
    ManifestCommit,
    PartitionStats,
    TopicInfo,
)
from kbroker.pipeline.errors import PipelineError

KINDS = ("create", "append", "compact", "observe")

# The end of a file: the digest of everything before DIGEST_PREFIX.
DIGEST_PREFIX = b',"sha256":"'
DIGEST_SUFFIX = b'"}\n'
DIGEST_FIELD_BYTES = len(DIGEST_PREFIX) + 64 + len(DIGEST_SUFFIX)

_SHA256 = re.compile("[0-9a-f]{64}")
_T = TypeVar("_T")


class Decoded(NamedTuple, Generic[_T]):
    """A commit or state with its place in the hash chain."""

    content: _T
    previous_digest: str
    digest: str


def encode_commit(number: int, commit: ManifestCommit, previous_digest: str) -> bytes:
    """Return the file of a commit; the digest before the first commit is empty."""
    document = {"version": FORMAT_VERSION, "number": number, "kind": commit.kind, "time_ms": commit.time_ms}
    optional = {
        "add": list(map(_file_json, commit.add)),
        "remove": list(commit.remove),
        "covered": [covered._asdict() for covered in commit.covered],
        "gaps": [gap._asdict() for gap in commit.gaps],
        "query": None if commit.query is None else {"id": commit.query[0], "batch": commit.query[1]},
        "topics": None if commit.topics is None else _topics_json(commit.topics),
        "groups": None if commit.groups is None else _groups_json(commit.groups),
        "settings": None if commit.settings is None else dict(commit.settings),
    }
    document |= {name: value for name, value in optional.items() if value is not None and value != []}
    return _with_digest(document | {"previous": previous_digest})


def decode_commit(data: bytes, number: int, location: str) -> Decoded[ManifestCommit]:
    """Decode the file of commit `number`; `location` is its name in error messages.

    Raises PipelineError if the file is damaged, is not commit `number`, or has a newer format.
    """
    return _decode(data, location, lambda document: _parse_commit(document, number))


def encode_state(state: ArchiveState, digest: str) -> bytes:
    """Return the file of a state; `digest`: the digest of commit `state.commit_number`."""
    document = {
        "version": FORMAT_VERSION,
        "number": state.commit_number,
        "kind": "state",
        "time_ms": state.time_ms,
        "settings": dict(state.settings),
        "files": list(map(_file_json, state.files.values())),
        "covered": [
            {"topic": tp.topic, "partition": tp.partition, "spans": list(map(list, ranges))}
            for tp, ranges in state.covered.items()
        ],
        "gaps": [gap._asdict() for gap in state.gaps],
        "queries": dict(state.last_batches),
        "topics": _topics_json(state.topics),
        "groups": _groups_json(state.groups),
        "groups_ms": state.groups_ms,
    }
    return _with_digest(document | {"previous": digest})


def decode_state(data: bytes, number: int, location: str) -> Decoded[ArchiveState]:
    """Decode the state file of commit `number`. Raises the errors of `decode_commit`."""
    return _decode(data, location, lambda document: _parse_state(document, number))


def damaged(location: str, problem: str) -> PipelineError:
    return PipelineError(f"{location}: damaged, or not a file of an archive's manifest ({problem})")


def _file_json(file: DataFile) -> dict[str, Any]:
    partitions = [stats._asdict() | {"checksum": f"{stats.checksum:016x}"} for stats in file.partitions]
    return {"path": file.path, "size": file.size, "sha256": file.sha256, "parts": partitions}


def _topics_json(topics: Mapping[str, TopicInfo]) -> dict[str, Any]:
    return {name: info._asdict() | {"configs": dict(info.configs)} for name, info in topics.items()}


def _groups_json(groups: GroupOffsets) -> dict[str, Any]:
    return {
        group: {
            topic: {str(partition): offset for partition, offset in offsets.items()}
            for topic, offsets in topics.items()
        }
        for group, topics in groups.items()
    }


def _with_digest(document: Mapping[str, Any]) -> bytes:
    text = json.dumps(document, separators=(",", ":")).encode()[:-1]
    return text + DIGEST_PREFIX + hashlib.sha256(text).hexdigest().encode() + DIGEST_SUFFIX


def _decode(data: bytes, location: str, parse: Callable[[dict[str, Any]], _T]) -> Decoded[_T]:
    try:
        document = json.loads(data)
        version = document["version"]
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise PipelineError(f"{location}: format version {version} was written by a newer version of kbroker")
        text, prefix, _ = data.rpartition(DIGEST_PREFIX)
        digest = hashlib.sha256(text).hexdigest()
        if not prefix or document.pop("sha256") != digest or not data.endswith(DIGEST_SUFFIX):
            raise ValueError("checksum mismatch")
        if version != FORMAT_VERSION:
            raise ValueError(f"version {version!r}")
        previous_digest = _text(document.pop("previous"))
        return Decoded(parse(document), previous_digest, digest)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(location, f"field {error} is missing" if isinstance(error, KeyError) else str(error)) from None


def _parse_commit(document: dict[str, Any], number: int) -> ManifestCommit:
    get = document.get
    kind = document["kind"]
    if kind not in KINDS or _integer(document["number"]) != number:
        raise ValueError(f"{kind!r} commit {document['number']!r} instead of commit {number}")
    query, topics, groups, settings = get("query"), get("topics"), get("groups"), get("settings")
    return ManifestCommit(
        kind=kind,
        time_ms=_integer(document["time_ms"]),
        add=tuple(map(_parse_file, get("add", ()))),
        remove=tuple(map(_text, get("remove", ()))),
        covered=tuple(CoveredRange(*_parse_range(covered)) for covered in get("covered", ())),
        gaps=tuple(map(_parse_gap, get("gaps", ()))),
        query=None if query is None else (_text(query["id"]), _integer(query["batch"])),
        topics=None if topics is None else _parse_topics(topics),
        groups=None if groups is None else _parse_groups(groups),
        settings=None if settings is None else dict(settings),
    )


def _parse_state(document: dict[str, Any], number: int) -> ArchiveState:
    if document["kind"] != "state" or _integer(document["number"]) != number:
        raise ValueError(f"{document['kind']!r} {document['number']!r} instead of state {number}")
    files = map(_parse_file, document["files"])
    covered = {
        TopicPartition(_text(item["topic"]), _integer(item["partition"])): tuple(
            OffsetRange(_integer(start), _integer(end)) for start, end in item["spans"]
        )
        for item in document["covered"]
    }
    return ArchiveState(
        commit_number=number,
        time_ms=_integer(document["time_ms"]),
        settings=dict(document["settings"]),
        files={file.path: file for file in files},
        covered=covered,
        gaps=tuple(map(_parse_gap, document["gaps"])),
        last_batches={_text(query): _integer(batch) for query, batch in document["queries"].items()},
        topics=_parse_topics(document["topics"]),
        groups=_parse_groups(document["groups"]),
        groups_ms=_integer(document["groups_ms"]),
    )


def _parse_file(item: dict[str, Any]) -> DataFile:
    path, sha256 = item["path"], item["sha256"]
    topic_and_date = parse_data_path(path)
    if topic_and_date is None or not _SHA256.fullmatch(sha256):
        raise ValueError(f"a file {path!r} with checksum {sha256!r}")
    return DataFile(path, *topic_and_date, _integer(item["size"]), sha256, tuple(map(_parse_stats, item["parts"])))


def _parse_stats(item: dict[str, Any]) -> PartitionStats:
    integers = (_integer(item[name]) for name in PartitionStats._fields[:-1])
    return PartitionStats._make([*integers, int(_text(item["checksum"]), 16)])


def _parse_gap(item: dict[str, Any]) -> Gap:
    return Gap(*_parse_range(item), _text(item["reason"]))


def _parse_range(item: dict[str, Any]) -> tuple[str, int, int, int]:
    return _text(item["topic"]), _integer(item["partition"]), _integer(item["start"]), _integer(item["end"])


def _parse_topics(topics: dict[str, Any]) -> dict[str, TopicInfo]:
    return {
        name: TopicInfo(
            _text(info["topic_id"]),
            _integer(info["partitions"]),
            {_text(config): _text(value) for config, value in info["configs"].items()},
        )
        for name, info in topics.items()
    }


def _parse_groups(groups: dict[str, Any]) -> GroupOffsets:
    return {
        group: {
            topic: {int(partition): _integer(offset) for partition, offset in offsets.items()}
            for topic, offsets in topics.items()
        }
        for group, topics in groups.items()
    }


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is not an integer")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{value!r} is not a string")
    return value
