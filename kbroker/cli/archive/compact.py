"""`kbroker archive compact`: merge small files while the archive is in use."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from kbroker.cli.common.errors import print_error, usage_error
from kbroker.cli.common.options import (
    AsJson,
    Directory,
    SparkOptions,
    TopicNames,
    open_storages,
    option,
    spark_session_for,
)
from kbroker.cli.common.output import Cell, ProgressBar, print_json, print_table
from kbroker.cli.common.values import count_text, format_size, parse_date, parse_duration_ms, parse_integer, parse_size

if TYPE_CHECKING:
    from kbroker.pipeline.archive.compaction import ArchiveCompactionResult
    from kbroker.pipeline.archive.compaction_plan import MergeBin

MIN_TARGET_BYTES, MAX_TARGET_BYTES = 4096, 2**40


def compact(
    directory: Directory,
    topic: TopicNames = None,
    date: Annotated[list[str] | None, option("--date YYYY-MM-DD", "Include this date only; repeatable.")] = None,
    target_size: Annotated[str, option("SIZE", "Size of merged files, such as 128MiB or 1GiB.")] = "128MiB",
    keep_replaced: Annotated[
        str, option("SECONDS", "Delete replaced files only after SECONDS, or a duration like 10m.")
    ] = "0",
    dry_run: Annotated[bool, option("--dry-run", "Print what would be done, and change nothing.")] = False,
    as_json: AsJson = False,
    *,
    spark: SparkOptions,
) -> None:
    """Merge the small files of each topic and date into files of about the target size.

    The archive can be read and written at the same time: Spark reads either the old files or the new ones. A reader
    that started earlier fails if its files are deleted; --keep-replaced gives it time to finish. Files of at least
    half the target size are not merged. Damaged files are never merged: they are reported, and the exit status is 1.

    Example: kbroker archive compact /data/archive --target-size 256MiB
    """
    from kbroker.pipeline.archive.archive import Archive
    from kbroker.pipeline.archive.compaction import CompactionOptions, clean_up, compact
    from kbroker.pipeline.archive.compaction_plan import plan_merges
    from kbroker.pipeline.archive.leftovers import find_foreign_files, find_leftovers
    from kbroker.pipeline.storage import open_storage

    is_number = keep_replaced.isascii() and keep_replaced.isdigit()
    keep_s = parse_integer(keep_replaced, "the seconds") if is_number else parse_duration_ms(keep_replaced) / 1000
    options = CompactionOptions(parse_target_size(target_size), topic or (), list(map(parse_date, date or ())), keep_s)
    with open_storages([directory], spark) as open_any_storage:
        archive = Archive.open(open_any_storage(directory))
        bins = plan_merges(archive.state(), options.target_bytes, options.topics, options.dates)
        if dry_run:
            _print_plan(bins, len(find_leftovers(archive)), as_json)
            return
        foreign = find_foreign_files(archive)
        if not bins:
            result = clean_up(archive)
    if bins:
        # Imported and started only now, because a Spark session takes seconds to start.
        with (
            spark_session_for("kbroker archive compact", spark) as session,
            ProgressBar("compacting", sum(merge_bin.size for merge_bin in bins), shows_bytes=True) as progress,
        ):
            result = compact(session, Archive.open(open_storage(directory, session)), options, progress.advance)
    _print_result(result, foreign, as_json)
    if result.damaged:
        raise typer.Exit(1)


def parse_target_size(text: str) -> int:
    """Parse the size of merged files into bytes."""
    size = parse_size(text)
    if not MIN_TARGET_BYTES <= size <= MAX_TARGET_BYTES:
        limits = f"{format_size(MIN_TARGET_BYTES)} to {format_size(MAX_TARGET_BYTES)}"
        raise usage_error(f"the target size must be from {limits}, not {text}")
    return size


def _print_plan(bins: "Sequence[MergeBin]", leftovers: int, as_json: bool) -> None:
    if as_json:
        merged = [
            {
                "topic": merge_bin.topic,
                "date": merge_bin.date,
                "bytes": merge_bin.size,
                "files": [file.path for file in merge_bin.files],
            }
            for merge_bin in bins
        ]
        print_json({"merged": merged, "leftovers": leftovers})
        return
    bins_by_date: dict[tuple[str, str], list[MergeBin]] = defaultdict(list)
    for merge_bin in bins:
        bins_by_date[merge_bin.topic, merge_bin.date].append(merge_bin)
    rows: list[list[Cell]] = [
        [
            topic,
            date,
            sum(len(merge_bin.files) for merge_bin in bins_of_date),
            len(bins_of_date),
            format_size(sum(merge_bin.size for merge_bin in bins_of_date)),
        ]
        for (topic, date), bins_of_date in bins_by_date.items()
    ]
    if rows:
        print_table(("topic", "date", "files", "become", "size"), rows)
    else:
        print("there is nothing to merge")
    if leftovers:
        print(f"{count_text(leftovers, 'leftover')} of writers that died would be deleted")


def _print_result(result: "ArchiveCompactionResult", foreign: "Sequence[str]", as_json: bool) -> None:
    if as_json:
        print_json(asdict(result) | {"foreign": list(foreign)})
    elif result.merged:
        print(
            f"merged {result.merged} files of {format_size(result.bytes_before)} into {result.written} of "
            f"{format_size(result.bytes_after)}, with {count_text(result.rows, 'row')}"
        )
    else:
        print("there is nothing to merge")
    if result.left_over and not as_json:
        print(f"deleted {count_text(result.left_over, 'leftover')} of writers that died")
    for path, problem in sorted(result.damaged.items()):
        print_error(f"{path}: {problem}; it was not merged, find out more with: kbroker archive verify")
    if foreign:
        count = count_text(len(foreign), "file")
        print_error(f"{count} not in any commit, which readers that ignore the manifest read as data: {foreign[0]}")
