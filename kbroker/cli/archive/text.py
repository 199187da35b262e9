"""What `kbroker archive list` and `describe` print of an archive: text for people, values for JSON."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.cli.common.formatting import count_text, format_size
from kbroker.cli.common.output import Cell, print_heading, print_note, print_table

if TYPE_CHECKING:
    from kbroker.pipeline.archive.manifest.model import ArchiveState, DataFile, Gap, OffsetRange
    from kbroker.pipeline.archive.report import PartitionReport, TopicReport

_TOPIC = ("topic", "partitions", "rows", "offsets", "lost", "files", "size", "first", "last")
_LONG_TOPIC = (
    "topic", "partitions", "rows", "offsets", "without record", "lost", "files", "size", "mean size",
    "keys and values", "first", "last",
)  # fmt: skip
_PARTITION = (
    "topic", "partition", "covered", "rows", "without record", "lost", "files", "keys and values", "first", "last",
)  # fmt: skip
_GAP = ("gap in", "partition", "offsets", "lost", "why")
_FILE = ("file", "rows", "size", "partitions", "first", "last")

MOST_RANGES = 5  # of one partition in a table; the rest is counted


class Beside(NamedTuple):
    """What lies in the directory and belongs to no commit: paths."""

    leftovers: Sequence[str]  # of dead writers
    foreign: Sequence[str]  # of nobody we know


class Show(NamedTuple):
    """What a description has besides its topics."""

    partitions: bool
    files: bool
    groups: bool


def archive_json(
    root: str, state: "ArchiveState", topics: "Sequence[TopicReport]", partitions: bool = False
) -> dict[str, Any]:
    """An archive and its topics for programs."""
    from kbroker.pipeline.archive.report import topic_json

    return {
        "archive": root,
        "commit": state.number,
        "committed_ms": state.time_ms,
        "settings": dict(state.settings),
        "topics": [topic_json(topic, partitions) for topic in topics],
    }


def description_json(
    root: str, state: "ArchiveState", topics: "Sequence[TopicReport]", beside: Beside, show: Show
) -> dict[str, Any]:
    """A whole description for programs: `files` and `groups` are null where nobody asked for them."""
    return archive_json(root, state, topics, show.partitions) | {
        "files": [_file_json(file) for file in _files(state, topics)] if show.files else None,
        "group_count": len(state.groups),
        "groups_ms": state.groups_ms if state.groups else None,
        "groups": state.groups if show.groups else None,
        "leftovers": list(beside.leftovers),
        "foreign": list(beside.foreign),
    }


def print_archive(root: str, state: "ArchiveState", topics: "Sequence[TopicReport]") -> None:
    """An archive as `list` shows it."""
    print_heading(root, in_short(topics))
    print_table(_TOPIC, [_topic_row(topic) for topic in topics])


def in_short(topics: "Sequence[TopicReport]") -> str:
    """`2 topics, 151 rows, 3 files of 2.4 KiB`."""
    from kbroker.pipeline.archive.report import summary

    told = summary(topics)
    return (
        f"{count_text(told.topics, 'topic')}, {count_text(told.rows, 'row')}, "
        f"{count_text(told.files, 'file')} of {format_size(told.size)}"
    )


def print_description(
    root: str, state: "ArchiveState", topics: "Sequence[TopicReport]", beside: Beside, show: Show
) -> None:
    """An archive as `describe` shows it: a table for each kind of thing that there is."""
    print_heading(root, in_short(topics))
    print_table(("of the archive", "value"), _archive_rows(state))
    _print_more(_LONG_TOPIC, [_long_topic_row(topic) for topic in topics])
    if show.partitions:
        _print_more(_PARTITION, [_partition_row(topic.topic, one) for topic in topics for one in topic.partitions])
    _print_more(_GAP, [_gap_row(gap) for topic in topics for gap in topic.gaps])
    _print_more(
        ("topic", "config", "value"),
        [[t.topic, name, value] for t in topics if t.info for name, value in sorted(t.info.configs.items())],
    )
    if show.files:
        _print_more(_FILE, [_file_row(file) for file in _files(state, topics)])
    if show.groups:
        _print_more(("group", "topic", "partition", "offset"), _group_rows(state))
    _print_beside(beside)


def _print_more(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    if rows:
        print()
        print_table(columns, rows)


def _archive_rows(state: "ArchiveState") -> list[tuple[str, Cell]]:
    """The settings, whatever they are, and what changes."""
    settings = [(name.replace("_", " "), _plain(value)) for name, value in sorted(state.settings.items())]
    groups = f"{len(state.groups)}, as of {utc(state.groups_ms)}" if state.groups else "0"
    return [
        *settings,
        ("commits", state.number + 1),
        ("last commit", utc(state.time_ms)),
        ("groups with offsets", groups),
    ]


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def _topic_row(topic: "TopicReport") -> list[Cell]:
    lost = sum(one.lost for one in topic.partitions)
    counts: list[Cell] = [topic.topic, len(topic.partitions), topic.rows, topic.offsets, lost, topic.files]
    return [*counts, _size(topic.size), utc(topic.from_ms), utc(topic.to_ms)]


def _long_topic_row(topic: "TopicReport") -> list[Cell]:
    name, partitions, rows, offsets, lost, files, size, first, last = _topic_row(topic)
    mean = _size(topic.size // topic.files) if topic.files else None
    without = topic.without_record
    return [name, partitions, rows, offsets, without, lost, files, size, mean, _size(topic.bytes), first, last]


def _partition_row(topic: str, one: "PartitionReport") -> list[Cell]:
    counts: list[Cell] = [one.rows, one.without_record, one.lost, one.files]
    times = (utc(one.from_ms), utc(one.to_ms))
    return [topic, one.partition, _ranges(one.covered), *counts, _size(one.bytes), *times]


def _ranges(spans: "Sequence[OffsetRange]") -> str:
    told = [f"{span.start}..{span.end - 1}" for span in spans[:MOST_RANGES]]
    return ",".join(told) + (f",+{len(spans) - MOST_RANGES}" if len(spans) > MOST_RANGES else "")


def _gap_row(gap: "Gap") -> list[Cell]:
    return [gap.topic, gap.partition, f"{gap.start}..{gap.end - 1}", gap.end - gap.start, gap.reason]


def _files(state: "ArchiveState", topics: "Sequence[TopicReport]") -> "list[DataFile]":
    shown = {topic.topic for topic in topics}
    return sorted(file for file in state.files.values() if file.topic in shown)


def _file_row(file: "DataFile") -> list[Cell]:
    first, last = _times(file)
    return [file.path, file.rows, _size(file.size), len(file.parts), utc(first), utc(last)]


def _file_json(file: "DataFile") -> dict[str, Any]:
    first, last = _times(file)
    return {
        "path": file.path,
        "rows": file.rows,
        "file_bytes": file.size,
        "sha256": file.sha256,
        "from_ms": first,
        "to_ms": last,
        "partitions": {
            part.partition: {"first": part.first, "last": part.last, "rows": part.rows} for part in file.parts
        },
    }


def _times(file: "DataFile") -> tuple[int | None, int | None]:
    first = min((part.from_ms for part in file.parts), default=None)
    return first, max((part.to_ms for part in file.parts), default=None)


def _group_rows(state: "ArchiveState") -> list[list[Cell]]:
    return [
        [group, topic, partition, offset]
        for group, of_topics in sorted(state.groups.items())
        for topic, offsets in sorted(of_topics.items())
        for partition, offset in sorted(offsets.items())
    ]


def _print_beside(beside: Beside) -> None:
    for paths, what in ((beside.leftovers, "left by dead writers"), (beside.foreign, "that no commit names")):
        if paths:
            more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
            print_note(f"beside the archive, {what}: {', '.join(paths[:3])}{more}")


def _size(size: int) -> str:
    """Without a blank, so that columns can be told apart."""
    return format_size(size).replace(" ", "")


def utc(time_ms: int | None) -> str | None:
    """Milliseconds since 1970 as 2025-10-09T08:53:20Z; what no calendar holds stays a number."""
    if time_ms is None:
        return None
    try:
        return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(time_ms)
