"""What an archive knows of a topic apart from its records, as properties of the topic's table (pure).

Each property is JSON. A commit writes those that it changes together with its files, so both are there or neither.
Offset ranges are [start, end). Times are milliseconds since the epoch.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, NamedTuple, get_type_hints

from kbroker.archive.errors import ArchiveError
from kbroker.archive.offset_ranges import OffsetRange, merge_ranges, subtract_ranges
from kbroker.archive.typed_json import read_json

FORMAT_VERSION = 2
PREFIX = "kbroker."


class Gap(NamedTuple):
    """Offsets whose records are not in the table although they may have existed."""

    partition: int
    start: int
    end: int
    # "retention": deleted from the log before they could be archived; "lost": damaged in the archive and no longer in
    # the log (`archive repair`); "expired": deleted from the archive as too old; "erased": `archive erase`
    reason: str


class TopicInfo(NamedTuple):
    """A topic as the broker described it at the time of a commit."""

    topic_id: str  # the UUID in Kafka's text form; empty if the broker has none
    partitions: int
    configs: Mapping[str, str]  # those set on the topic itself


# group -> partition -> committed offset
GroupOffsets = Mapping[str, Mapping[int, int]]


class LeaderEpoch(NamedTuple):
    """A leader epoch and the first offset that was written in it."""

    epoch: int
    start: int


@dataclass(frozen=True)
class TopicState:
    """What the properties of a topic's table say. The names of the fields are those of the properties."""

    format_version: int = FORMAT_VERSION
    archive: str = ""  # the id of the archive
    commit: int = 0  # counts kbroker's commits
    time_ms: int = 0  # of the latest
    topic: TopicInfo | None = None
    # By partition, ascending and merged: offsets whose records are all archived, except those in `gaps`. An offset
    # without a row had no record to archive: it was a transaction marker, an aborted record, or a record that log
    # compaction had removed.
    covered: Mapping[int, tuple[OffsetRange, ...]] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    groups: GroupOffsets = field(default_factory=dict)
    groups_ms: int = 0  # when the group offsets were read
    leader_epochs: Mapping[int, tuple[LeaderEpoch, ...]] = field(default_factory=dict)

    def resume_offsets(self) -> dict[int, int]:
        """Return the offset at which the archive continues, for each partition that it knows."""
        result = {partition: ranges[-1].end for partition, ranges in self.covered.items() if ranges}
        for gap in self.gaps:
            result[gap.partition] = max(gap.end, result.get(gap.partition, 0))
        return result

    def with_covered(self, covered: Iterable[tuple[int, OffsetRange]], gaps: Iterable[Gap] = ()) -> "TopicState":
        """Return the state after a commit that adds these ranges and gaps.

        Raises ArchiveError if an offset is covered already.
        """
        result = dict(self.covered)
        for partition, added in covered:
            before = result.get(partition, ())
            if subtract_ranges([added], before) != (added,):
                raise ArchiveError(
                    f"offsets {added.start} to {added.end - 1} of partition {partition} are archived already"
                )
            result[partition] = merge_ranges([*before, added])
        return replace(self, covered=result, gaps=(*self.gaps, *gaps))


def encode_properties(state: TopicState, before: TopicState | None = None) -> dict[str, str]:
    """Return the properties of a state; with `before` only those that differ."""
    return {
        PREFIX + name.replace("_", "-"): json.dumps(_plain(getattr(state, name)), separators=(",", ":"))
        for name in (item.name for item in fields(TopicState))
        if before is None or getattr(state, name) != getattr(before, name)
    }


def decode_properties(properties: Mapping[str, str], location: str) -> TopicState:
    """Reverse `encode_properties`. Raises ArchiveError for a table of something else, or of a newer kbroker."""
    own = {
        name.removeprefix(PREFIX).replace("-", "_"): value
        for name, value in properties.items()
        if name.startswith(PREFIX)
    }
    if "format_version" not in own:
        raise ArchiveError(f"{location} is not a table of `kbroker archive run`")
    try:
        version = json.loads(own["format_version"])
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise ArchiveError(f"{location}: format version {version} was written by a newer version of kbroker")
        names = get_type_hints(TopicState)
        return read_json(TopicState, {name: json.loads(value) for name, value in own.items() if name in names})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArchiveError(f"{location}: its properties are damaged ({error})") from None


def _plain(value: Any) -> Any:
    """Return a value with its NamedTuples as lists, and those with mappings in them as objects."""
    if isinstance(value, TopicInfo):
        return value._asdict()
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in sorted(value.items())}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
