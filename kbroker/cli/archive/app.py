"""`kbroker archive`: topics as Parquet files. Here are `list` and `describe`, which show what archives contain."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kbroker.cli.archive.compact import compact
from kbroker.cli.archive.repair import repair
from kbroker.cli.archive.run import run
from kbroker.cli.archive.verify import verify
from kbroker.cli.common.errors import CliError, print_error
from kbroker.cli.common.options import AsJson, Directory, SparkOptions, TopicNames, argument, open_storages, option
from kbroker.cli.common.output import Cell, paginated, print_heading, print_json, print_note, print_table
from kbroker.cli.common.values import count_text, format_size, if_known

if TYPE_CHECKING:
    from kbroker.pipeline.archive.manifest import ArchiveState
    from kbroker.pipeline.archive.report import PartitionReport, TopicReport
    from kbroker.pipeline.storage.storage import Storage

app = typer.Typer()
app.command("run")(run)

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

# In one cell, and in one note; the others are counted.
MAX_RANGES, MAX_PATHS = 5, 3


@app.command("list")
@paginated
def list_archives(
    directories: Annotated[list[str], argument("DIR...")], as_json: AsJson = False, *, spark: SparkOptions
) -> None:
    """List the topics of archives with rows, files, offsets and times.

    DIR is an archive, or a directory that contains archives. OFFSETS counts the archived offsets; an offset without a
    record, such as that of a transaction marker, has no row. LOST counts offsets that were deleted before they could be
    archived. SIZE is the size of the files.

    Example: kbroker archive list /data/archive
    """
    from kbroker.pipeline.archive.archive import Archive
    from kbroker.pipeline.archive.report import report_topics
    from kbroker.pipeline.errors import PipelineError

    documents, has_failed = [], False
    with open_storages(directories, spark) as open_storage:
        for storage in (archive for directory in directories for archive in _find_archives(open_storage, directory)):
            try:
                state = Archive.open(storage).state()
            except PipelineError as error:
                print_error(str(error))
                has_failed = True
                continue
            topics = report_topics(state)
            documents.append(archive_json(storage.root, state, topics))
            if not as_json:
                print_heading(storage.root, format_totals(topics))
                _print_rows(_LIST_COLUMNS, documents[-1]["topics"])
    documents = [_without_partitions(document) for document in documents]
    if as_json:
        print_json(documents)
    if has_failed:
        raise typer.Exit(1)


def _find_archives(open_storage: "Callable[[str], Storage]", directory: str) -> "Iterator[Storage]":
    """Yield the archive in a directory, or else those in its subdirectories. Raises CliError if there are none."""
    from kbroker.pipeline.archive.layout import MANIFEST

    storage = open_storage(directory)
    if storage.exists(MANIFEST):
        yield storage
        return
    subdirectories = [
        entry.name
        for entry in storage.list_directory("")
        if entry.is_directory and storage.exists(f"{entry.name}/{MANIFEST}")
    ]
    if not subdirectories:
        raise CliError(f"{directory}: is not an archive and contains none")
    for name in subdirectories:
        yield open_storage(f"{directory.rstrip('/')}/{name}")


@app.command("describe")
@paginated
def describe(
    directory: Directory,
    topic: TopicNames = None,
    partitions: Annotated[bool, option("--partitions", "Show each partition.")] = False,
    files: Annotated[bool, option("--files", "Show each file.")] = False,
    groups: Annotated[bool, option("--groups", "Show the archived offsets of consumer groups.")] = False,
    plot: Annotated[str | None, option("--plot FILE.png", "Plot records and bytes over time to this file.")] = None,
    as_json: AsJson = False,
    *,
    spark: SparkOptions,
) -> None:
    """Show an archive's topics with offsets and times, its gaps with their reasons, configs and groups.

    In a plot, the rows of a file are distributed evenly over the time between its first and last timestamp.

    Example: kbroker archive describe /data/archive --partitions
    """
    from kbroker.pipeline.archive.archive import Archive
    from kbroker.pipeline.archive.leftovers import find_foreign_files, find_leftovers
    from kbroker.pipeline.archive.report import report_topics
    from kbroker.pipeline.plot import plot_archive

    with open_storages([directory], spark) as open_storage:
        archive = Archive.open(open_storage(directory))
        state, root = archive.state(), archive.storage.root
        topics = report_topics(state, topic or ())
        document = archive_json(root, state, topics) | {
            "files": _files_json(state, topics) if files else None,
            "group_count": len(state.groups),
            "groups_ms": state.groups_ms if state.groups else None,
            "groups": state.groups if groups else None,
            "leftovers": list(find_leftovers(archive)),
            "foreign": list(find_foreign_files(archive)),
        }
        if plot is not None:
            plot_archive(state, plot, f"{root}: {format_totals(topics)}", topic or ())
    if as_json:
        print_json(document if partitions else _without_partitions(document))
    else:
        print_heading(root, format_totals(topics))
        _print_description(document, partitions)
    if plot is not None:
        print_note(f"plotted to {plot}")


def format_totals(topics: "Sequence[TopicReport]") -> str:
    """Return `2 topics, 151 rows, 3 files of 2.4 KiB`."""
    from kbroker.pipeline.archive.report import archive_totals

    totals = archive_totals(topics)
    return (
        f"{count_text(totals.topics, 'topic')}, {count_text(totals.rows, 'row')}, "
        f"{count_text(totals.files, 'file')} of {format_size(totals.file_bytes)}"
    )


def archive_json(root: str, state: "ArchiveState", topics: "Sequence[TopicReport]") -> dict[str, Any]:
    """Return the JSON of an archive, with all partitions."""
    return {
        "archive": root,
        "commit": state.commit_number,
        "committed_ms": state.time_ms,
        "settings": dict(state.settings),
        "topics": list(map(topic_json, topics)),
    }


def topic_json(topic: "TopicReport") -> dict[str, Any]:
    return {
        "topic": topic.topic,
        "topic_id": (topic.info and topic.info.topic_id) or None,
        "configs": [{"name": name, "value": value} for name, value in sorted(topic.info.configs.items())]
        if topic.info
        else None,
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
        "partition_count": len(topic.partitions),
        "partitions": list(map(_partition_json, topic.partitions)),
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


def _without_partitions(document: Mapping[str, Any]) -> dict[str, Any]:
    topics = [{name: value for name, value in topic.items() if name != "partitions"} for topic in document["topics"]]
    return {**document, "topics": topics}


def _files_json(state: "ArchiveState", topics: "Sequence[TopicReport]") -> list[dict[str, Any]]:
    names = {topic.topic for topic in topics}
    return [
        {
            "path": file.path,
            "rows": file.rows,
            "file_bytes": file.size,
            "sha256": file.sha256,
            "from_ms": min((stats.from_ms for stats in file.partitions), default=None),
            "to_ms": max((stats.to_ms for stats in file.partitions), default=None),
            "partitions": [
                {"partition": stats.partition, "first": stats.first, "last": stats.last, "rows": stats.rows}
                for stats in file.partitions
            ],
        }
        for file in sorted(file for file in state.files.values() if file.topic in names)
    ]


def _print_description(document: Mapping[str, Any], with_partitions: bool) -> None:
    """Print the tables of `describe` from its JSON."""
    topics = document["topics"]
    groups = document["group_count"]
    print_table(
        ("property", "value"),
        [
            *((name.replace("_", " "), _setting_text(value)) for name, value in sorted(document["settings"].items())),
            ("commits", document["commit"] + 1),
            ("last commit", format_utc(document["committed_ms"])),
            ("groups with offsets", f"{groups}, as of {format_utc(document['groups_ms'])}" if groups else "0"),
        ],
    )
    partitions = [{"topic": topic["topic"], **partition} for topic in topics for partition in topic["partitions"]]
    configs = [
        {"topic": topic["topic"], "config": config["name"], "value": config["value"]}
        for topic in topics
        for config in topic["configs"] or ()
    ]
    offsets = [
        {"group": group, "topic": topic, "partition": partition, "offset": offset}
        for group, by_topic in sorted((document["groups"] or {}).items())
        for topic, by_partition in sorted(by_topic.items())
        for partition, offset in sorted(by_partition.items())
    ]
    for columns, rows in (
        (_TOPIC_COLUMNS, topics),
        (_PARTITION_COLUMNS, partitions if with_partitions else []),
        (_GAP_COLUMNS, [gap for topic in topics for gap in topic["gaps"]]),
        (_CONFIG_COLUMNS, configs),
        (_FILE_COLUMNS, document["files"]),
        (_GROUP_COLUMNS, offsets),
    ):
        if rows:
            print()
            _print_rows(columns, rows)
    for description, name in (("left by writers that died", "leftovers"), ("not in any commit", "foreign")):
        paths = document[name]
        if paths:
            omitted = f" and {len(paths) - MAX_PATHS} more" if len(paths) > MAX_PATHS else ""
            print_note(f"files {description}: {', '.join(paths[:MAX_PATHS])}{omitted}")


def _setting_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def _print_rows(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of topics, partitions, gaps or files from their JSON."""
    cells = map(_cells, rows)
    print_table(columns, [[row[column] for column in columns] for row in cells])


def _cells(row: Mapping[str, Any]) -> dict[str, Cell]:
    """Return the text of each column that a row of JSON has."""
    gaps = row.get("gaps", [row] if "start" in row else [])
    size, files = row.get("file_bytes"), row.get("files")
    return {
        **row,
        "partitions": len(row.get("partitions", ())),
        "covered": _ranges_text(row.get("covered", ())),
        "without record": row.get("offsets_without_record"),
        "lost": sum(gap["end"] - gap["start"] for gap in gaps),
        "gap in": row.get("topic"),
        "offsets": f"{row['start']}..{row['end'] - 1}" if "start" in row else row.get("offsets"),
        "file": row.get("path"),
        # Without a space, so that columns can be split at spaces.
        "size": if_known(_size, size),
        "mean size": _size(size // files) if size is not None and files else None,
        "keys and values": if_known(_size, row.get("bytes")),
        "first": format_utc(row.get("from_ms")),
        "last": format_utc(row.get("to_ms")),
    }


def _size(size: int) -> str:
    return format_size(size).replace(" ", "")


def _ranges_text(ranges: Sequence[Sequence[int]]) -> str:
    texts = [f"{start}..{end - 1}" for start, end in ranges[:MAX_RANGES]]
    return ",".join(texts) + (f",+{len(ranges) - MAX_RANGES}" if len(ranges) > MAX_RANGES else "")


def format_utc(time_ms: int | None) -> str | None:
    """Return milliseconds since the epoch as 2025-10-09T08:53:20Z; a number out of range is returned unchanged."""
    if time_ms is None:
        return None
    try:
        return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(time_ms)


app.command("compact")(compact)
app.command("verify")(verify)
app.command("repair")(repair)
