"""`kbroker archive`: topics as tables. Here are `list` and `describe`, which show what archives contain."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kbroker.cli.archive.compact import compact
from kbroker.cli.archive.convert import convert
from kbroker.cli.archive.erase import erase
from kbroker.cli.archive.expire import expire
from kbroker.cli.archive.relocate import relocate
from kbroker.cli.archive.repair import repair
from kbroker.cli.archive.retry import retry
from kbroker.cli.archive.run import run
from kbroker.cli.archive.verify import verify
from kbroker.cli.common.errors import CliError, print_error
from kbroker.cli.common.options import AsJson, Directory, TopicNames, argument, option, pipeline_errors
from kbroker.cli.common.output import Cell, paginated, print_heading, print_json, print_note, print_table
from kbroker.cli.common.values import count_text, format_size, if_known

if TYPE_CHECKING:
    from kbroker.archive.archive import Archive
    from kbroker.archive.data_files import DataFile
    from kbroker.archive.report import PartitionReport, TopicReport

app = typer.Typer()
app.command("run")(run)
app.command("relocate")(relocate)

_LIST_COLUMNS = ("topic", "partitions", "rows", "offsets", "missing", "files", "size", "first", "last")
_TOPIC_COLUMNS = (
    "topic", "partitions", "rows", "offsets", "without record", "missing", "files", "size", "mean size", "first",
    "last", "commits", "last commit",
)  # fmt: skip
_PARTITION_COLUMNS = (
    "topic", "partition", "covered", "rows", "without record", "missing", "files", "size", "first", "last",
)  # fmt: skip
_GAP_COLUMNS = ("gap in", "partition", "offsets", "missing", "reason")
_CONFIG_COLUMNS = ("topic", "config", "value")
_FILE_COLUMNS = ("file", "rows", "size", "partition", "offsets", "first", "last")
_GROUP_COLUMNS = ("group", "topic", "partition", "offset", "as of")

# In one cell; the others are counted.
MAX_RANGES = 5


@app.command("list")
@paginated
def list_archives(directories: Annotated[list[str], argument("DIR...")], as_json: AsJson = False) -> None:
    """List the topics of archives with rows, files, offsets and times.

    DIR is an archive, or a directory that contains archives. OFFSETS counts the archived offsets; an offset without a
    record, such as that of a transaction marker, has no row. MISSING counts offsets whose records are not in the
    archive: deleted before they could be archived, lost, expired or erased. SIZE is the size of the files.

    Example: kbroker archive list /data/archive
    """
    from kbroker.archive.catalogs import open_archive
    from kbroker.archive.errors import ArchiveError

    documents, has_failed = [], False
    for location in [found for directory in directories for found in find_archives(directory)]:
        topics: list[TopicReport] = []
        try:
            archive = open_archive(location)
            names = archive.topics()
        except ArchiveError as error:
            print_error(str(error))
            has_failed = True
            continue
        for name in names:
            try:
                topics += _report(archive, [name])
            except ArchiveError as error:
                print_error(str(error))
                has_failed = True
        documents.append(archive_json(archive, topics))
        if not as_json:
            print_heading(archive.location, format_totals(topics))
            _print_rows(_LIST_COLUMNS, documents[-1]["topics"])
    if as_json:
        print_json([_without_partitions(document) for document in documents])
    if has_failed:
        raise typer.Exit(1)


def find_archives(location: str) -> list[str]:
    """Return the archive at a location, or else those in its subdirectories. Raises CliError if there are none."""
    from kbroker.archive.catalogs import DATABASE, OLD_MANIFEST, TOPICS
    from kbroker.archive.storage import open_storage

    if location.startswith("catalog:"):
        return [location]
    with pipeline_errors():
        storage = open_storage(location)
        subdirectories = [f"{entry.name}/" for entry in storage.list_directory("") if entry.is_directory]
        found = [
            path
            for path in ("", *subdirectories)
            # An archive of the old format is refused with what to do.
            if any(storage.exists(f"{path}{name}") for name in (DATABASE, f"{TOPICS}.json", OLD_MANIFEST))
        ]
    if not found:
        raise CliError(f"{location}: is not an archive and contains none")
    return [location] if "" in found else [f"{location.rstrip('/')}/{path.rstrip('/')}" for path in found]


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
) -> None:
    """Show an archive's topics with offsets and times, its gaps with their reasons, configs and groups.

    In a plot, the rows of a file are distributed evenly over the time between its first and last timestamp.

    Example: kbroker archive describe /data/archive --partitions
    """
    from kbroker.archive.catalogs import open_archive
    from kbroker.pipeline.plot import plot_archive

    with pipeline_errors():
        archive = open_archive(directory)
        topics = _report(archive, topic or ())
        document = archive_json(archive, topics) | {
            "files": [_file_json(each.topic, file) for each in topics for file in each.data_files] if files else None,
            "groups": _groups_json(topics) if groups else None,
        }
        if plot is not None:
            by_topic = {each.topic: each.data_files for each in topics}
            plot_archive(by_topic, plot, f"{archive.location}: {format_totals(topics)}")
    if as_json:
        print_json(document if partitions else _without_partitions(document))
    else:
        print_heading(archive.location, format_totals(topics))
        _print_description(document, partitions)
    if plot is not None:
        print_note(f"plotted to {plot}")


def _report(archive: "Archive", topics: Sequence[str]) -> "tuple[TopicReport, ...]":
    from kbroker.archive.report import report_topics

    return report_topics(archive, topics)


def format_totals(topics: "Sequence[TopicReport]") -> str:
    """Return `2 topics, 151 rows, 3 files of 2.4 KiB`."""
    from kbroker.archive.report import archive_totals

    totals = archive_totals(topics)
    return (
        f"{count_text(totals.topics, 'topic')}, {count_text(totals.rows, 'row')}, "
        f"{count_text(totals.files, 'file')} of {format_size(totals.file_bytes)}"
    )


def archive_json(archive: "Archive", topics: "Sequence[TopicReport]") -> dict[str, Any]:
    """Return the JSON of an archive, with all partitions."""
    return {
        "archive": archive.location,
        "settings": asdict(archive.settings),
        "topics": list(map(topic_json, topics)),
    }


def topic_json(topic: "TopicReport") -> dict[str, Any]:
    state = topic.state
    return {
        "topic": topic.topic,
        "topic_id": (state.topic and state.topic.topic_id) or None,
        "configs": [{"name": name, "value": value} for name, value in sorted(state.topic.configs.items())]
        if state.topic
        else None,
        "commit": state.commit,
        "committed_ms": state.time_ms or None,
        "rows": topic.rows,
        "file_bytes": topic.file_bytes,
        "files": topic.files,
        "dates": list(topic.dates),
        "offsets": topic.offsets,
        "offsets_without_record": topic.without_record,
        "offsets_missing": topic.missing,
        "gaps": [{"topic": topic.topic, **gap._asdict()} for gap in topic.gaps],
        "from_ms": topic.from_ms,
        "to_ms": topic.to_ms,
        "group_count": len(state.groups),
        "foreign_change": topic.foreign_change,
        "metadata": topic.metadata,
        "partition_count": len(topic.partitions),
        "partitions": list(map(_partition_json, topic.partitions)),
    }


def _partition_json(partition: "PartitionReport") -> dict[str, Any]:
    return {
        "partition": partition.partition,
        "covered": [list(offsets) for offsets in partition.covered],
        "rows": partition.rows,
        "files": partition.files,
        "file_bytes": partition.file_bytes,
        "offsets": partition.offsets,
        "offsets_without_record": partition.without_record,
        "offsets_missing": partition.missing,
        "gaps": [{"start": gap.start, "end": gap.end, "reason": gap.reason} for gap in partition.gaps],
        "from_ms": partition.from_ms,
        "to_ms": partition.to_ms,
    }


def _without_partitions(document: Mapping[str, Any]) -> dict[str, Any]:
    topics = [{name: value for name, value in topic.items() if name != "partitions"} for topic in document["topics"]]
    return {**document, "topics": topics}


def _file_json(topic: str, file: "DataFile") -> dict[str, Any]:
    names = ("path", "partition", "first", "last", "rows", "from_ms", "to_ms")
    values = {name: getattr(file, name) for name in names}
    return {"topic": topic, **values, "file_bytes": file.size, "sha256": file.sha256}


def _groups_json(topics: "Sequence[TopicReport]") -> list[dict[str, Any]]:
    return [
        {
            "group": group,
            "topic": each.topic,
            "partition": partition,
            "offset": offset,
            "as_of_ms": each.state.groups_ms,
        }
        for each in topics
        for group, offsets in sorted(each.state.groups.items())
        for partition, offset in sorted(offsets.items())
    ]


def _print_description(document: Mapping[str, Any], with_partitions: bool) -> None:
    """Print the tables of `describe` from its JSON."""
    settings, topics = document["settings"], document["topics"]
    settings_rows = [(name.replace("_", " "), _setting_text(value)) for name, value in sorted(settings.items())]
    print_table(("property", "value"), settings_rows)
    partitions = [{"topic": topic["topic"], **partition} for topic in topics for partition in topic["partitions"]]
    configs = [
        {"topic": topic["topic"], "config": config["name"], "value": config["value"]}
        for topic in topics
        for config in topic["configs"] or ()
    ]
    for columns, rows in (
        (_TOPIC_COLUMNS, topics),
        (_PARTITION_COLUMNS, partitions if with_partitions else []),
        (_GAP_COLUMNS, [gap for topic in topics for gap in topic["gaps"]]),
        (_CONFIG_COLUMNS, configs),
        (_FILE_COLUMNS, document["files"]),
        (_GROUP_COLUMNS, document["groups"]),
    ):
        if rows:
            print()
            _print_rows(columns, rows)
    for topic in topics:
        if topic["foreign_change"]:
            print_note(f"{topic['topic']}: another program has changed the table: {topic['foreign_change']}")


def _setting_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _print_rows(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of topics, partitions, gaps or files from their JSON."""
    cells = map(_cells, rows)
    print_table(columns, [[row[column] for column in columns] for row in cells])


def _cells(row: Mapping[str, Any]) -> dict[str, Cell]:
    """Return the text of each column that a row of JSON has."""
    size, files, time_ms = row.get("file_bytes"), row.get("files"), row.get("committed_ms")
    start, end = row.get("start", row.get("first")), row.get("end", row.get("last", -1) + 1)
    return {
        **row,
        "partitions": row.get("partition_count"),
        "covered": _ranges_text(row.get("covered", ())),
        "without record": row.get("offsets_without_record"),
        "missing": row.get("offsets_missing", end - (start or 0)),
        "gap in": row.get("topic"),
        "offsets": row.get("offsets") if start is None else f"{start}..{end - 1}",
        "file": row.get("path"),
        # Without a space, so that columns can be split at spaces.
        "size": if_known(_size, size),
        "mean size": _size(size // files) if size is not None and files else None,
        "first": format_utc(row.get("from_ms")),
        "last": format_utc(row.get("to_ms")),
        "commits": row.get("commit"),
        "last commit": format_utc(time_ms),
        "as of": format_utc(row.get("as_of_ms")),
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
app.command("expire")(expire)
app.command("erase")(erase)
app.command("retry")(retry)
app.command("verify")(verify)
app.command("convert")(convert)
app.command("repair")(repair)
