"""The output of `kbroker archive list` and `describe`, as text and as JSON."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.cli.common.output import Cell, print_heading, print_note, print_table
from kbroker.cli.common.values import count_text, format_size

if TYPE_CHECKING:
    from kbroker.pipeline.archive.layout import OffsetRange
    from kbroker.pipeline.archive.manifest import ArchiveState, DataFile, Gap
    from kbroker.pipeline.archive.report import PartitionReport, TopicReport


_LIST_COLUMNS = ("topic", "partitions", "rows", "offsets", "lost", "files", "size", "first", "last")
_TOPIC_COLUMNS = (
    "topic", "partitions", "rows", "offsets", "without record", "lost", "files", "size", "mean size",
    "keys and values", "first", "last",
)  # fmt: skip
_PARTITION_COLUMNS = (
    "topic", "partition", "covered", "rows", "without record", "lost", "files", "keys and values", "first", "last",
)  # fmt: skip
_GAP_COLUMNS = ("gap in", "partition", "offsets", "lost", "reason")
_CONFIG_COLUMNS = ("topic", "config", "value")
_FILE_COLUMNS = ("file", "rows", "size", "partitions", "first", "last")
_GROUP_COLUMNS = ("group", "topic", "partition", "offset")

MAX_RANGES = 5  # in one cell; the others are counted
_MAX_PATHS = 3


class UncommittedFiles(NamedTuple):
    """Paths in an archive's directory that no commit contains; see leftovers.py."""

    leftovers: Sequence[str]
    foreign: Sequence[str]


class DescriptionOptions(NamedTuple):
    """What a description includes besides the topics."""

    partitions: bool
    files: bool
    groups: bool


def print_archive(root: str, topics: "Sequence[TopicReport]") -> None:
    """Print an archive as `list` does."""
    print_heading(root, format_totals(topics))
    print_table(_LIST_COLUMNS, list(map(_list_row, topics)))


def print_description(
    root: str,
    state: "ArchiveState",
    topics: "Sequence[TopicReport]",
    uncommitted: UncommittedFiles,
    options: DescriptionOptions,
) -> None:
    """Print an archive as `describe` does."""
    print_heading(root, format_totals(topics))
    print_table(("property", "value"), _archive_rows(state))
    _print_if_any(_TOPIC_COLUMNS, list(map(_topic_row, topics)))
    if options.partitions:
        rows = [_partition_row(topic.topic, partition) for topic in topics for partition in topic.partitions]
        _print_if_any(_PARTITION_COLUMNS, rows)
    _print_if_any(_GAP_COLUMNS, [_gap_row(gap) for topic in topics for gap in topic.gaps])
    configs = [
        (topic.topic, name, value) for topic in topics if topic.info for name, value in topic.info.configs.items()
    ]
    _print_if_any(_CONFIG_COLUMNS, sorted(configs))
    if options.files:
        _print_if_any(_FILE_COLUMNS, list(map(_file_row, select_files(state, topics))))
    if options.groups:
        _print_if_any(_GROUP_COLUMNS, _group_rows(state))
    _print_uncommitted("left by writers that died", uncommitted.leftovers)
    _print_uncommitted("not in any commit", uncommitted.foreign)


def format_totals(topics: "Sequence[TopicReport]") -> str:
    """Return `2 topics, 151 rows, 3 files of 2.4 KiB`."""
    from kbroker.pipeline.archive.report import archive_totals

    totals = archive_totals(topics)
    return (
        f"{count_text(totals.topics, 'topic')}, {count_text(totals.rows, 'row')}, "
        f"{count_text(totals.files, 'file')} of {format_size(totals.file_bytes)}"
    )


def select_files(state: "ArchiveState", topics: "Sequence[TopicReport]") -> "list[DataFile]":
    names = {topic.topic for topic in topics}
    return sorted(file for file in state.files.values() if file.topic in names)


def timestamp_range(file: "DataFile") -> tuple[int | None, int | None]:
    """Return the lowest and the highest timestamp of a file's rows."""
    return (
        min((stats.from_ms for stats in file.partitions), default=None),
        max((stats.to_ms for stats in file.partitions), default=None),
    )


def format_utc(time_ms: int | None) -> str | None:
    """Return milliseconds since the epoch as 2025-10-09T08:53:20Z; a number out of range is returned unchanged."""
    if time_ms is None:
        return None
    try:
        return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(time_ms)


def _print_if_any(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    if rows:
        print()
        print_table(columns, rows)


def _archive_rows(state: "ArchiveState") -> list[tuple[str, Cell]]:
    settings = [(name.replace("_", " "), _setting_text(value)) for name, value in sorted(state.settings.items())]
    groups = f"{len(state.groups)}, as of {format_utc(state.groups_ms)}" if state.groups else "0"
    return [
        *settings,
        ("commits", state.commit_number + 1),
        ("last commit", format_utc(state.time_ms)),
        ("groups with offsets", groups),
    ]


def _setting_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def _list_row(topic: "TopicReport") -> list[Cell]:
    lost = sum(partition.lost for partition in topic.partitions)
    counts: list[Cell] = [topic.topic, len(topic.partitions), topic.rows, topic.offsets, lost, topic.files]
    return [*counts, _size(topic.file_bytes), format_utc(topic.from_ms), format_utc(topic.to_ms)]


def _topic_row(topic: "TopicReport") -> list[Cell]:
    name, partitions, rows, offsets, lost, files, size, first, last = _list_row(topic)
    mean = _size(topic.file_bytes // topic.files) if topic.files else None
    record_bytes = _size(topic.bytes)
    return [name, partitions, rows, offsets, topic.without_record, lost, files, size, mean, record_bytes, first, last]


def _partition_row(topic: str, partition: "PartitionReport") -> list[Cell]:
    counts: list[Cell] = [partition.rows, partition.without_record, partition.lost, partition.files]
    times = (format_utc(partition.from_ms), format_utc(partition.to_ms))
    return [topic, partition.partition, _ranges_text(partition.covered), *counts, _size(partition.bytes), *times]


def _ranges_text(ranges: "Sequence[OffsetRange]") -> str:
    texts = [f"{start}..{end - 1}" for start, end in ranges[:MAX_RANGES]]
    return ",".join(texts) + (f",+{len(ranges) - MAX_RANGES}" if len(ranges) > MAX_RANGES else "")


def _gap_row(gap: "Gap") -> list[Cell]:
    return [gap.topic, gap.partition, f"{gap.start}..{gap.end - 1}", gap.end - gap.start, gap.reason]


def _file_row(file: "DataFile") -> list[Cell]:
    first, last = timestamp_range(file)
    return [file.path, file.rows, _size(file.size), len(file.partitions), format_utc(first), format_utc(last)]


def _group_rows(state: "ArchiveState") -> list[list[Cell]]:
    return [
        [group, topic, partition, offset]
        for group, topics in sorted(state.groups.items())
        for topic, offsets in sorted(topics.items())
        for partition, offset in sorted(offsets.items())
    ]


def _print_uncommitted(description: str, paths: Sequence[str]) -> None:
    if paths:
        omitted = f" and {len(paths) - _MAX_PATHS} more" if len(paths) > _MAX_PATHS else ""
        print_note(f"files {description}: {', '.join(paths[:_MAX_PATHS])}{omitted}")


def _size(size: int) -> str:
    """Return a size without a space, so that columns can be split at spaces."""
    return format_size(size).replace(" ", "")


def archive_json(
    root: str, state: "ArchiveState", topics: "Sequence[TopicReport]", partitions: bool = False
) -> dict[str, Any]:
    return {
        "archive": root,
        "commit": state.commit_number,
        "committed_ms": state.time_ms,
        "settings": dict(state.settings),
        "topics": [topic_json(topic, partitions) for topic in topics],
    }


def description_json(
    root: str,
    state: "ArchiveState",
    topics: "Sequence[TopicReport]",
    uncommitted: UncommittedFiles,
    options: DescriptionOptions,
) -> dict[str, Any]:
    """Return the complete description; `files` and `groups` are null unless requested."""
    return archive_json(root, state, topics, options.partitions) | {
        "files": list(map(_file_json, select_files(state, topics))) if options.files else None,
        "group_count": len(state.groups),
        "groups_ms": state.groups_ms if state.groups else None,
        "groups": state.groups if options.groups else None,
        "leftovers": list(uncommitted.leftovers),
        "foreign": list(uncommitted.foreign),
    }


def topic_json(topic: "TopicReport", partitions: bool = True) -> dict[str, Any]:
    """Return a topic with its partitions, or with their number only."""
    return {
        "topic": topic.topic,
        "topic_id": (topic.info and topic.info.topic_id) or None,
        "configs": dict(topic.info.configs) if topic.info else None,
        "rows": topic.rows,
        "bytes": topic.bytes,
        "file_bytes": topic.file_bytes,
        "files": topic.files,
        "dates": list(topic.dates),
        "offsets": topic.offsets,
        "offsets_without_record": topic.without_record,
        "gaps": [gap._asdict() for gap in topic.gaps],
        "from_ms": topic.from_ms,
        "to_ms": topic.to_ms,
        "partitions": list(map(_partition_json, topic.partitions)) if partitions else len(topic.partitions),
    }


def _partition_json(partition: "PartitionReport") -> dict[str, Any]:
    return {
        "partition": partition.partition,
        "covered": [list(offsets) for offsets in partition.covered],
        "rows": partition.rows,
        "bytes": partition.bytes,
        "files": partition.files,
        "offsets": partition.offsets,
        "offsets_without_record": partition.without_record,
        "gaps": [{"start": gap.start, "end": gap.end, "reason": gap.reason} for gap in partition.gaps],
        "from_ms": partition.from_ms,
        "to_ms": partition.to_ms,
    }


def _file_json(file: "DataFile") -> dict[str, Any]:
    from_ms, to_ms = timestamp_range(file)
    return {
        "path": file.path,
        "rows": file.rows,
        "file_bytes": file.size,
        "sha256": file.sha256,
        "from_ms": from_ms,
        "to_ms": to_ms,
        "partitions": {
            stats.partition: {"first": stats.first, "last": stats.last, "rows": stats.rows} for stats in file.partitions
        },
    }
