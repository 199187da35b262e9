"""The content of a manifest: commits, the archive state that results from applying them, and their JSON (pure).

Offset ranges are [start, end). Times are milliseconds since the epoch. Sizes are bytes.

A manifest file is one line: a JSON object whose last field, `sha256`, is the digest of all bytes before that field.
`previous` is the digest of the preceding commit (in a state file: of the commit with the same number), so that the
commits form a hash chain.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from kbroker.archive.typed_json import read_json, require_type
from kbroker.common import TopicPartition
from kbroker.pipeline.archive.layout import OffsetRange, parse_data_path
from kbroker.pipeline.errors import PipelineError

FORMAT = "kbroker-archive"
FORMAT_VERSION = 1
KINDS = ("create", "append", "compact", "observe")

# The end of a file: the digest of everything before DIGEST_PREFIX.
DIGEST_PREFIX = b',"sha256":"'
DIGEST_SUFFIX = b'"}\n'
DIGEST_FIELD_BYTES = len(DIGEST_PREFIX) + 64 + len(DIGEST_SUFFIX)

_SHA256 = re.compile("[0-9a-f]{64}")
_T = TypeVar("_T")


class PartitionStats(NamedTuple):
    """Statistics of one partition's rows in one data file."""

    partition: int
    first: int  # the lowest offset
    last: int  # the highest offset, inclusive
    rows: int
    bytes: int  # of keys and values
    from_ms: int  # the lowest timestamp
    to_ms: int  # the highest timestamp
    checksum: int  # schema.CHECKSUM of the rows: unsigned, 64 bits

    @property
    def offsets(self) -> OffsetRange:
        return OffsetRange(self.first, self.last + 1)

    @classmethod
    def from_json(cls, item: Any) -> "PartitionStats":
        integers = (require_type(int, item[name]) for name in cls._fields[:-1])
        return cls._make([*integers, int(require_type(str, item["checksum"]), 16)])

    def merge(self, other: "PartitionStats") -> "PartitionStats":
        """Return the statistics of the rows of both."""
        return PartitionStats(
            self.partition,
            min(self.first, other.first),
            max(self.last, other.last),
            self.rows + other.rows,
            self.bytes + other.bytes,
            min(self.from_ms, other.from_ms),
            max(self.to_ms, other.to_ms),
            self.checksum ^ other.checksum,
        )


class DataFile(NamedTuple):
    """A committed Parquet file with rows of one topic and one date."""

    path: str  # relative to the archive: topic=T/date=YYYY-MM-DD/NAME.parquet
    topic: str
    date: str  # YYYY-MM-DD of the record timestamps, in UTC
    size: int
    sha256: str  # of the file's bytes
    partitions: tuple[PartitionStats, ...]

    @classmethod
    def from_json(cls, item: Any) -> "DataFile":
        path, sha256 = item["path"], item["sha256"]
        topic_and_date = parse_data_path(path)
        if topic_and_date is None or not _SHA256.fullmatch(sha256):
            raise ValueError(f"a file {path!r} with checksum {sha256!r}")
        size, partitions = require_type(int, item["size"]), tuple(map(PartitionStats.from_json, item["parts"]))
        return cls(path, *topic_and_date, size, sha256, partitions)

    def as_json(self) -> dict[str, Any]:
        parts = [stats._asdict() | {"checksum": f"{stats.checksum:016x}"} for stats in self.partitions]
        return {"path": self.path, "size": self.size, "sha256": self.sha256, "parts": parts}

    @property
    def rows(self) -> int:
        return sum(stats.rows for stats in self.partitions)


class CoveredRange(NamedTuple):
    """Offsets whose records are all archived by a commit.

    An offset without a row had no record to archive: it was a transaction marker, an aborted record, or a record that
    log compaction had removed.
    """

    topic: str
    partition: int
    start: int
    end: int


class Gap(NamedTuple):
    """Offsets that were deleted from the log before they could be archived."""

    topic: str
    partition: int
    start: int
    end: int
    reason: str  # "retention": they were below the log start offset


class QueryBatch(NamedTuple):
    """A batch of a streaming query. Each is committed once."""

    id: str  # of the query
    batch: int


class TopicInfo(NamedTuple):
    """A topic as the broker described it at the time of a commit."""

    topic_id: str  # the UUID in Kafka's text form; empty if the broker has none
    partitions: int
    configs: Mapping[str, str]  # those set on the topic itself


# group -> topic -> partition -> committed offset
GroupOffsets = Mapping[str, Mapping[str, Mapping[int, int]]]


@dataclass(frozen=True)
class ManifestCommit:
    """One atomic change of an archive."""

    kind: str  # "create", "append", "compact", "observe" (only topics and groups)
    time_ms: int
    add: tuple[DataFile, ...] = ()
    remove: tuple[str, ...] = ()  # paths of data files
    covered: tuple[CoveredRange, ...] = ()
    gaps: tuple[Gap, ...] = ()
    query: QueryBatch | None = None
    topics: Mapping[str, TopicInfo] | None = None  # replaces the previous information on these topics
    groups: GroupOffsets | None = None  # replaces all previous group offsets
    settings: Mapping[str, Any] | None = None  # of the archive; in the first commit


@dataclass(frozen=True)
class ArchiveState:
    """The content of an archive after a commit."""

    commit_number: int = -1  # of the latest commit
    time_ms: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)  # id, format, format_version, committed_only, ...
    files: Mapping[str, DataFile] = field(default_factory=dict)  # by path
    covered: Mapping[TopicPartition, tuple[OffsetRange, ...]] = field(default_factory=dict)  # ascending, merged
    gaps: tuple[Gap, ...] = ()
    last_batches: Mapping[str, int] = field(default_factory=dict)  # by streaming query id
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    groups: GroupOffsets = field(default_factory=dict)
    groups_ms: int = 0  # when the group offsets were read


def apply_commit(state: ArchiveState, number: int, commit: ManifestCommit) -> ArchiveState:
    """Return the state after commit `number`.

    Raises PipelineError if the commit contradicts the state: it covers offsets again, or removes an unknown file.
    """
    return apply_commits(state, [(number, commit)])


def apply_commits(state: ArchiveState, commits: Iterable[tuple[int, ManifestCommit]]) -> ArchiveState:
    """Return the state after several commits with their numbers. Raises the errors of `apply_commit`.

    The state is copied once, so that the time is linear in the size of the state and the commits.
    """
    files, last_batches, topics = dict(state.files), dict(state.last_batches), dict(state.topics)
    covered, gaps = dict(state.covered), list(state.gaps)
    number, time_ms, settings = state.commit_number, state.time_ms, state.settings
    groups, groups_ms = state.groups, state.groups_ms
    for number, commit in commits:
        time_ms = commit.time_ms
        _replace_files(files, number, commit)
        _add_covered(covered, commit.covered)
        gaps += commit.gaps
        topics.update(commit.topics or {})
        if commit.query is not None:
            query_id, batch = commit.query
            last_batches[query_id] = batch
        if commit.settings is not None:
            settings = MappingProxyType(dict(commit.settings))
        if commit.groups is not None:
            groups, groups_ms = commit.groups, commit.time_ms
    return ArchiveState(
        commit_number=number,
        time_ms=time_ms,
        settings=settings,
        files=MappingProxyType(files),
        covered=MappingProxyType(covered),
        gaps=tuple(gaps),
        last_batches=MappingProxyType(last_batches),
        topics=MappingProxyType(topics),
        groups=groups,
        groups_ms=groups_ms,
    )


def _replace_files(files: dict[str, DataFile], number: int, commit: ManifestCommit) -> None:
    for path in commit.remove:
        if files.pop(path, None) is None:
            raise PipelineError(f"commit {number} removes {path}, which is not in the archive")
    for file in commit.add:
        if file.path in files:
            raise PipelineError(f"commit {number} adds {file.path}, which is already in the archive")
        files[file.path] = file


def _add_covered(covered: dict[TopicPartition, tuple[OffsetRange, ...]], added: Iterable[CoveredRange]) -> None:
    for topic, partition, start, end in added:
        tp = TopicPartition(topic, partition)
        ranges = covered.get(tp, ())
        if start >= end:
            raise PipelineError(f"{tp}: the covered range [{start}, {end}) is empty")
        if ranges and start < ranges[-1].end:
            raise PipelineError(f"{tp}: offsets from {start} are already archived, up to {ranges[-1].end}")
        if ranges and start == ranges[-1].end:
            ranges, start = ranges[:-1], ranges[-1].start
        covered[tp] = (*ranges, OffsetRange(start, end))


class _CoveredSpans(NamedTuple):
    topic: str
    partition: int
    spans: tuple[OffsetRange, ...]


class Decoded(NamedTuple, Generic[_T]):
    """A commit or state with its place in the hash chain."""

    content: _T
    previous_digest: str
    digest: str


def encode_commit(number: int, commit: ManifestCommit, previous_digest: str) -> bytes:
    """Return the file of a commit; the digest before the first commit is empty."""
    document = {"version": FORMAT_VERSION, "number": number, "kind": commit.kind, "time_ms": commit.time_ms}
    optional = {
        "add": [file.as_json() for file in commit.add],
        "remove": list(commit.remove),
        "covered": [covered._asdict() for covered in commit.covered],
        "gaps": [gap._asdict() for gap in commit.gaps],
        "query": None if commit.query is None else commit.query._asdict(),
        "topics": None if commit.topics is None else _topics_json(commit.topics),
        "groups": commit.groups,
        "settings": commit.settings,
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
        "settings": state.settings,
        "files": [file.as_json() for file in state.files.values()],
        "covered": [_CoveredSpans(*tp, ranges)._asdict() for tp, ranges in state.covered.items()],
        "gaps": [gap._asdict() for gap in state.gaps],
        "queries": state.last_batches,
        "topics": _topics_json(state.topics),
        "groups": state.groups,
        "groups_ms": state.groups_ms,
    }
    return _with_digest(document | {"previous": digest})


def decode_state(data: bytes, number: int, location: str) -> Decoded[ArchiveState]:
    """Decode the state file of commit `number`. Raises the errors of `decode_commit`."""
    return _decode(data, location, lambda document: _parse_state(document, number))


def damaged(location: str, problem: str) -> PipelineError:
    return PipelineError(f"{location}: damaged, or not a file of an archive's manifest ({problem})")


def _topics_json(topics: Mapping[str, TopicInfo]) -> dict[str, Any]:
    return {name: info._asdict() for name, info in topics.items()}


def _with_digest(document: Mapping[str, Any]) -> bytes:
    text = json.dumps(document, separators=(",", ":"), default=dict).encode()[:-1]
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
        previous_digest = require_type(str, document.pop("previous"))
        return Decoded(parse(document), previous_digest, digest)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(location, f"field {error} is missing" if isinstance(error, KeyError) else str(error)) from None


def _parse_commit(document: dict[str, Any], number: int) -> ManifestCommit:
    if document["kind"] not in KINDS or require_type(int, document["number"]) != number:
        raise ValueError(f"{document['kind']!r} commit {document['number']!r} instead of commit {number}")
    return read_json(ManifestCommit, document)


def _parse_state(document: dict[str, Any], number: int) -> ArchiveState:
    if document["kind"] != "state" or require_type(int, document["number"]) != number:
        raise ValueError(f"{document['kind']!r} {document['number']!r} instead of state {number}")
    files = map(DataFile.from_json, document.pop("files"))
    covered = read_json(tuple[_CoveredSpans, ...], document.pop("covered"))
    document |= {"commit_number": number, "last_batches": document["queries"]}
    return replace(
        read_json(ArchiveState, document),
        files={file.path: file for file in files},
        covered={TopicPartition(item.topic, item.partition): item.spans for item in covered},
    )
