"""Reads the manifest of an archive of format 1, which consisted of Parquet files below topic=T/date=D/ and this:

    _manifest/NNNNNNNNNNNNNNNNNNNN.json         a commit
    _manifest/NNNNNNNNNNNNNNNNNNNN.state.json   the whole state after that commit

Each is a JSON object on one line, whose last field is the SHA-256 of all bytes before that field. `previous` is the
digest of the commit before; in a state file it is that of the commit with the same number.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kbroker.archive.errors import ArchiveError
from kbroker.archive.offset_ranges import OffsetRange, merge_ranges
from kbroker.archive.storage.storage import Storage
from kbroker.archive.topic_state import Gap, GroupOffsets, TopicInfo
from kbroker.archive.typed_json import read_json

MANIFEST = "_manifest"
_NAME = re.compile(r"(\d{20})(\.state)?\.json")
_DATA_PATH = re.compile(r"topic=([A-Za-z0-9._-]{1,249})/date=[+-]?\d{4,}-\d\d-\d\d/[A-Za-z0-9][A-Za-z0-9._-]*\.parquet")
_DIGEST_PREFIX, _DIGEST_SUFFIX = b',"sha256":"', b'"}\n'


class OldPart(NamedTuple):
    """The rows of one partition in a data file."""

    partition: int
    first: int  # the lowest offset
    last: int  # the highest offset, inclusive
    rows: int


@dataclass(frozen=True)
class OldFile:
    """A data file with rows of one topic and date."""

    path: str  # relative to the archive
    size: int
    sha256: str
    parts: tuple[Mapping[str, Any], ...]

    @property
    def topic(self) -> str:
        match = _DATA_PATH.fullmatch(self.path)
        if match is None:
            raise ValueError(f"a file {self.path!r}")
        return match[1]

    @property
    def partitions(self) -> list[OldPart]:
        return [OldPart(*(part[name] for name in OldPart._fields)) for part in self.parts]


@dataclass
class OldTopic:
    """What an archive has of one topic."""

    files: list[OldFile] = field(default_factory=list)
    covered: dict[int, tuple[OffsetRange, ...]] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    info: TopicInfo | None = None
    groups: dict[str, Mapping[int, int]] = field(default_factory=dict)


@dataclass
class OldArchive:
    """The state of an archive after its last commit."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    groups_ms: int = 0
    files: dict[str, OldFile] = field(default_factory=dict)  # by path
    groups: Mapping[str, Mapping[str, Mapping[int, int]]] = field(default_factory=dict)  # group, topic, partition
    topics: dict[str, OldTopic] = field(default_factory=dict)

    def topic(self, name: str) -> OldTopic:
        return self.topics.setdefault(name, OldTopic())

    def add_commit(self, document: Mapping[str, Any]) -> None:
        """Apply a commit, or take over a state."""
        for path in document.get("remove", ()):
            del self.files[path]
        for item in (*document.get("add", ()), *document.get("files", ())):
            file = read_json(OldFile, item)
            self.files[file.path] = file
        for item in document.get("covered", ()):
            spans = item["spans"] if "spans" in item else [[item["start"], item["end"]]]
            covered = self.topic(item["topic"]).covered
            ranges = (OffsetRange(start, end) for start, end in spans)
            covered[item["partition"]] = merge_ranges([*covered.get(item["partition"], ()), *ranges])
        for item in document.get("gaps", ()):
            self.topic(item["topic"]).gaps.append(Gap(item["partition"], item["start"], item["end"], item["reason"]))
        for name, info in document.get("topics", {}).items():
            self.topic(name).info = read_json(TopicInfo, info)
        if "groups" in document:
            self.groups = read_json(Mapping[str, Mapping[str, Mapping[int, int]]], document["groups"])  # type: ignore[type-abstract]
            self.groups_ms = document.get("groups_ms", document["time_ms"])
        if "settings" in document:
            self.settings = document["settings"]


def read_old_archive(storage: Storage) -> OldArchive:
    """Read the state of the last commit. Raises ArchiveError if a file of the manifest is missing or damaged."""
    matches = [match for entry in storage.list_directory(MANIFEST) if (match := _NAME.fullmatch(entry.name))]
    last = max((int(match[1]) for match in matches if not match[2]), default=-1)
    states = [int(match[1]) for match in matches if match[2] and int(match[1]) <= last]
    if last < 0:
        raise ArchiveError(f"{storage.root}: its directory {MANIFEST} has no commits")
    archive, previous, first = OldArchive(), "", 0
    if states:
        document, previous, _ = _read(storage, f"{MANIFEST}/{max(states):020d}.state.json")
        first = max(states) + 1
        _add(archive, document, storage.uri(f"{MANIFEST}/{max(states):020d}.state.json"))
    for number in range(first, last + 1):
        path = f"{MANIFEST}/{number:020d}.json"
        document, before, digest = _read(storage, path)
        if before != previous:
            raise ArchiveError(f"{storage.uri(path)}: does not continue the commit before it")
        _add(archive, document, storage.uri(path))
        previous = digest
    if archive.settings.get("format") != "kbroker-archive" or archive.settings.get("format_version") != 1:
        raise ArchiveError(f"{storage.root}: the manifest is not that of a kbroker archive of format version 1")
    for file in archive.files.values():
        archive.topic(file.topic).files.append(file)
    for name, topic in archive.topics.items():
        topic.groups = _groups_of(archive.groups, name)
    return archive


def _groups_of(groups: Mapping[str, Mapping[str, Mapping[int, int]]], topic: str) -> dict[str, Mapping[int, int]]:
    result: GroupOffsets = {group: topics[topic] for group, topics in groups.items() if topic in topics}
    return dict(result)


def _add(archive: OldArchive, document: Mapping[str, Any], location: str) -> None:
    try:
        archive.add_commit(document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(location, error) from None


def _read(storage: Storage, path: str) -> tuple[dict[str, Any], str, str]:
    """Return the content of a manifest file, the digest before it, and its own."""
    data = storage.read(path, None)
    try:
        document = json.loads(data)
        text, prefix, end = data.rpartition(_DIGEST_PREFIX)
        digest = hashlib.sha256(text).hexdigest()
        if not prefix or end != digest.encode() + _DIGEST_SUFFIX:
            raise ValueError("checksum mismatch")
        return document, document["previous"], digest
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(storage.uri(path), error) from None


def _damaged(location: str, error: Exception) -> ArchiveError:
    return ArchiveError(f"{location}: damaged, or not a file of an archive's manifest ({error})")


def lost_ranges(files: Iterable[OldFile]) -> list[Gap]:
    """Return the gaps that damaged files leave."""
    return [Gap(part.partition, part.first, part.last + 1, "lost") for file in files for part in file.partitions]
