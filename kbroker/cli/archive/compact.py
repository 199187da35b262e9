"""`kbroker archive compact`: small files of an archive become large ones, while others read it and add to it."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from kbroker.cli.archive.list import Directory, TopicNames, storages
from kbroker.cli.common.errors import print_error, usage_error
from kbroker.cli.common.formatting import count_text, format_size
from kbroker.cli.common.options import AsJson
from kbroker.cli.common.output import Cell, print_json, print_table
from kbroker.cli.common.parsing import parse_date, parse_duration_ms, parse_integer
from kbroker.cli.common.progress import ProgressBar
from kbroker.cli.common.spark_options import Jars, Master, SparkConf, spark_session_for

if TYPE_CHECKING:
    from kbroker.pipeline.archive.compaction.compaction import Outcome
    from kbroker.pipeline.archive.compaction.plan import Bin

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])i?b?|b)?", re.IGNORECASE)
LEAST_TARGET, MOST_TARGET = 4096, 2**40


def compact(
    directory: Directory,
    topic: TopicNames = None,
    date: Annotated[
        list[str] | None, typer.Option("--date", metavar="YYYY-MM-DD", help="Only this; repeat for more.")
    ] = None,
    target_size: Annotated[str, typer.Option(metavar="SIZE", help="How large files become: 128MiB, 1GiB.")] = "128MiB",
    keep_replaced: Annotated[
        str, typer.Option(metavar="SECONDS", help="Wait so long before replaced files go; or as 10m.")
    ] = "0",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")] = False,
    as_json: AsJson = False,
    master: Master = None,
    jars: Jars = None,
    conf: SparkConf = None,
) -> None:
    """Merge the small files of each topic and date into files of about the target size.

    Readers and `archive run` go on meanwhile: who reads the archive with Spark sees the old files or the new ones. A
    reader that began before may find its files gone, and fails; --keep-replaced lets it finish. Files half as large
    as the target stay as they are. A damaged file is never merged: it is told, and the exit status is 1.
    """
    from kbroker.pipeline.archive.archive import Archive
    from kbroker.pipeline.archive.compaction.compaction import Wanted, compact, tidy
    from kbroker.pipeline.archive.compaction.plan import plan
    from kbroker.pipeline.storage.location import open_storage

    wanted = Wanted(size_of(target_size), topic or (), [parse_date(one) for one in date or ()], _seconds(keep_replaced))
    with storages([directory], master, jars, conf) as storage_of:
        archive = Archive.open(storage_of(directory))
        bins = plan(archive.state(), wanted.target_size, wanted.topics, wanted.dates)
        if dry_run:
            _print_plan(bins, len(archive.leftovers()), as_json)
            return
        foreign = archive.foreign()
        if not bins:
            outcome = tidy(archive)
    if bins:
        # Only now: it takes seconds to start.
        with (
            spark_session_for("kbroker archive compact", master, jars, conf) as session,
            ProgressBar("compacting", sum(one.size for one in bins), shows_bytes=True) as work,
        ):
            outcome = compact(session, Archive.open(open_storage(directory, session)), wanted, work.advance)
    _print_outcome(outcome, foreign, as_json)
    if outcome.damaged:
        raise typer.Exit(1)


def size_of(text: str) -> int:
    """A number of bytes, as 128MiB, 1.5g or 4096; units are powers of 1024."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise usage_error(f"expected a size as 128MiB or 1GiB, not {text!r}")
    size = int(float(found[1]) * 1024 ** " kmgt".index((found[2] or " ").lower()))
    if not LEAST_TARGET <= size <= MOST_TARGET:
        raise usage_error(
            f"the target size must be from {format_size(LEAST_TARGET)} to {format_size(MOST_TARGET)}, not {text}"
        )
    return size


def _seconds(text: str) -> float:
    return parse_integer(text, "the seconds") if text.isascii() and text.isdigit() else parse_duration_ms(text) / 1000


def _print_plan(bins: "Sequence[Bin]", leftovers: int, as_json: bool) -> None:
    if as_json:
        merged = [{"topic": b.topic, "date": b.date, "bytes": b.size, "files": [f.path for f in b.files]} for b in bins]
        print_json({"merged": merged, "leftovers": leftovers})
        return
    by_date: dict[tuple[str, str], list[Bin]] = defaultdict(list)
    for one in bins:
        by_date[one.topic, one.date].append(one)
    rows: list[list[Cell]] = [
        [topic, date, sum(len(one.files) for one in some), len(some), format_size(sum(one.size for one in some))]
        for (topic, date), some in by_date.items()
    ]
    if rows:
        print_table(("topic", "date", "files", "become", "size"), rows)
    else:
        print("there is nothing to merge")
    if leftovers:
        print(f"{leftovers} left by dead writers would be removed")


def _print_outcome(outcome: "Outcome", foreign: "Sequence[str]", as_json: bool) -> None:
    if as_json:
        print_json(asdict(outcome) | {"foreign": list(foreign)})
    elif outcome.merged:
        print(
            f"merged {outcome.merged} files of {format_size(outcome.bytes_before)} into {outcome.written} of "
            f"{format_size(outcome.bytes_after)}, with {count_text(outcome.rows, 'row')}"
        )
    else:
        print("there is nothing to merge")
    if outcome.left_over and not as_json:
        print(f"removed {outcome.left_over} left by dead writers")
    for path, what in sorted(outcome.damaged.items()):
        print_error(f"{path}: {what}; it was left as it is, find out more with: kbroker archive verify")
    if foreign:
        print_error(
            f"{count_text(len(foreign), 'file')} that no commit names, which other readers take for data: {foreign[0]}"
        )
