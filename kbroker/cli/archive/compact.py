"""`kbroker archive compact`: merge small files while the archive is in use."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date as Date
from typing import TYPE_CHECKING, Annotated

import typer

from kbroker.cli.common.errors import print_error, usage_error
from kbroker.cli.common.options import AsJson, Directory, TopicNames, option, pipeline_errors
from kbroker.cli.common.output import Cell, ProgressBar, print_json, print_table
from kbroker.cli.common.values import count_text, format_size, parse_date, parse_duration_ms, parse_size

if TYPE_CHECKING:
    from kbroker.archive.archive import ArchiveTable
    from kbroker.archive.maintenance.compaction import MergeResult
    from kbroker.archive.maintenance.compaction_plan import MergeBin

MIN_TARGET_BYTES, MAX_TARGET_BYTES = 4096, 2**40

KeepReplaced = Annotated[
    str | None,
    option("--keep-replaced DURATION", "Keep replaced files for readers that began this long ago.", show_default="1h"),
]


def compact(
    directory: Directory,
    topic: TopicNames = None,
    date: Annotated[list[str] | None, option("--date YYYY-MM-DD", "Include this date only; repeatable.")] = None,
    target_size: Annotated[str, option("SIZE", "Size of merged files, such as 128MiB or 1GiB.")] = "128MiB",
    keep_replaced: KeepReplaced = None,
    dry_run: Annotated[bool, option("--dry-run", "Print what would be done, and change nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Merge the small files of each partition and date into files of about the target size.

    The archive can be read and written at the same time: one commit replaces the files, and readers that began before
    it find the old ones until --keep-replaced has passed and maintenance or this command runs again. Files of at least
    half the target size are not merged. Damaged files are never merged: they are reported, and the exit status is 1.

    Example: kbroker archive compact /data/archive --target-size 256MiB
    """
    from kbroker.archive.catalogs import open_archive
    from kbroker.archive.decoding.dead_letters import tables_with_dead_letters
    from kbroker.archive.maintenance.compaction import MergeResult, compact_topic
    from kbroker.archive.maintenance.upkeep import clean_up

    target_bytes = parse_target_size(target_size)
    keep_ms = None if keep_replaced is None else parse_duration_ms(keep_replaced)
    days = [(Date.fromisoformat(parse_date(text)) - Date(1970, 1, 1)).days for text in date or ()]
    result = MergeResult()
    with pipeline_errors():
        tables = tables_with_dead_letters(open_archive(directory), topic or ())
        plans = [(table, _plan(table, target_bytes, days)) for table in tables]
        if dry_run:
            _print_plan(plans, as_json)
            return
        total = sum(each.size for _, bins in plans for each in bins)
        with ProgressBar("compacting", total, shows_bytes=True) as progress:
            for table, bins in plans:
                compact_topic(table, bins, result, progress.advance)
                result.deleted += clean_up(table, time.time_ns() // 1_000_000, keep_ms)
    _print_result(result, as_json)
    if result.damaged:
        raise typer.Exit(1)


def parse_target_size(text: str) -> int:
    """Parse the size of merged files into bytes."""
    size = parse_size(text)
    if not MIN_TARGET_BYTES <= size <= MAX_TARGET_BYTES:
        limits = f"{format_size(MIN_TARGET_BYTES)} to {format_size(MAX_TARGET_BYTES)}"
        raise usage_error(f"the target size must be from {limits}, not {text}")
    return size


def _plan(table: "ArchiveTable", target_bytes: int, days: Sequence[int]) -> "list[MergeBin]":
    from kbroker.archive.maintenance.compaction_plan import periods_of_day, plan_merges

    periods = {number for day in days for number in periods_of_day(table.write_target().period, day)}
    return plan_merges(table.files(), target_bytes, periods)


def _print_plan(plans: "Sequence[tuple[ArchiveTable, list[MergeBin]]]", as_json: bool) -> None:
    if as_json:
        merged = [
            {
                "table": table.location,
                "topic": table.topic,
                "partition": each.partition,
                "bytes": each.size,
                "files": [file.path for file in each.files],
            }
            for table, bins in plans
            for each in bins
        ]
        print_json({"merged": merged})
        return
    rows: list[list[Cell]] = [
        [
            table.topic,
            sum(len(each.files) for each in bins),
            len(bins),
            format_size(sum(each.size for each in bins)),
        ]
        for table, bins in plans
        if bins
    ]
    if rows:
        print_table(("topic", "files", "become", "size"), rows)
    else:
        print("there is nothing to merge")


def _print_result(result: "MergeResult", as_json: bool) -> None:
    if as_json:
        print_json(asdict(result))
    elif result.merged:
        print(
            f"merged {result.merged} files of {format_size(result.bytes_before)} into {result.written} of "
            f"{format_size(result.bytes_after)}, with {count_text(result.rows, 'row')}"
        )
    else:
        print("there is nothing to merge")
    if result.deleted and not as_json:
        print(f"deleted {count_text(result.deleted, 'file')} that nothing needs any more")
    for path, problem in sorted(result.damaged.items()):
        print_error(f"{path}: {problem}; it was not merged, find out more with: kbroker archive verify")
