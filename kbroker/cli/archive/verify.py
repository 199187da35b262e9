"""`kbroker archive verify`: an archive against itself and the broker; exit 0 only where there is no difference."""

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.formatting import count_text, format_size
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson
from kbroker.cli.common.output import print_json, print_note
from kbroker.cli.common.parsing import parse_date, parse_integer, parse_time_ms
from kbroker.cli.common.progress import ProgressBar
from kbroker.cli.common.spark_options import Jars, Master, SparkConf, pipeline_errors, spark_session_for

if TYPE_CHECKING:
    from kbroker.pipeline.archive.verification.findings import Report
    from kbroker.pipeline.archive.verification.verify import Scope

# Of what is printed; the report has everything.
TOLD = 100
# Offsets and times that nothing is beyond.
_OPEN = 2**62

_RED, _DIM, _OFF = "\x1b[31m", "\x1b[2m", "\x1b[0m"


def verify(
    directory: Annotated[str, typer.Argument(metavar="DIR", show_default=False)],
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap",
            "-b",
            envvar="KBROKER_BOOTSTRAP",
            metavar="HOST:PORT",
            help="The broker to compare with, or several: A:9092,B:9092.",
            show_default=DEFAULT_BOOTSTRAP,
        ),
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Without a broker: the archive with itself.")] = False,
    require_broker: Annotated[
        bool, typer.Option("--require-broker", help="It is a difference where the broker has not the topic any longer.")
    ] = False,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Only this; repeat for more.")
    ] = None,
    date: Annotated[
        list[str] | None, typer.Option("--date", metavar="YYYY-MM-DD", help="Only records of this day (UTC); repeat.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="WHERE", help="An offset, or a time: 2026-01-31T12:00, @MS, 15m ago."),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="WHERE", help="Up to this offset or time, exclusive.")
    ] = None,
    report: Annotated[
        str | None, typer.Option("--report", metavar="FILE", help="Write the report there, as JSON.")
    ] = None,
    as_json: AsJson = False,
    master: Master = None,
    jars: Jars = None,
    conf: SparkConf = None,
) -> None:
    """Verify an archive: with itself, and record by record with the broker where that still has the offsets.

    Every file is read. Nothing is changed. Exit 0: no difference; 1: differences, or it could not be done; 2: wrong
    usage.
    """
    if offline and (bootstrap != os.environ.get("KBROKER_BOOTSTRAP") or require_broker):
        raise usage_error("--offline is without a broker: leave out --bootstrap and --require-broker")
    address = "" if offline else bootstrap or DEFAULT_BOOTSTRAP
    scope = _scope(topic or (), date or (), start, end)
    if report is not None:
        _write(report, "")
    _require(directory, address)
    with spark_session_for("kbroker archive verify", master, jars, conf) as session:
        found = _verified(session, directory, address, scope, require_broker)
    if report is not None:
        _write(report, json.dumps(found.as_json(), indent=2) + "\n")
    if as_json:
        print_json(found.as_json())
    else:
        _print(found, report)
    raise typer.Exit(1 if found.differences else 0)


def _verified(session: object, directory: str, address: str, scope: "Scope", require_broker: bool) -> "Report":
    from kbroker.pipeline.archive.verification.verify import verify as verified
    from kbroker.pipeline.storage.location import open_storage

    storage = open_storage(directory, session)  # type: ignore[arg-type]
    talks = sys.stderr.isatty()
    with ProgressBar("reading", None, shows_bytes=True) as work:
        return verified(
            session,  # type: ignore[arg-type]
            storage,
            address,
            scope,
            require_broker=require_broker,
            tell=lambda text: print_note(text) if talks else None,
            advance=work.advance,
        )


def _require(directory: str, address: str) -> None:
    """Before Spark takes its seconds to start: whether there is an archive, and somebody listens."""
    from kbroker.pipeline.archive.verification.verify import require_archive
    from kbroker.pipeline.errors import PipelineError
    from kbroker.pipeline.kafka import BrokerGone, reachable
    from kbroker.pipeline.storage.location import open_storage

    with pipeline_errors():
        storage = None
        with suppress(PipelineError):
            storage = open_storage(directory)
        if storage is not None:  # else it is not of this machine, and asked for later
            require_archive(storage)
        if not address:
            return
        try:
            reachable(address)
        except BrokerGone as error:
            raise CliError(f"{error}; --offline verifies the archive with itself alone") from None


def _scope(topics: Sequence[str], dates: Sequence[str], start: str | None, end: str | None) -> "Scope":
    from kbroker.pipeline.archive.manifest.model import OffsetRange
    from kbroker.pipeline.archive.verification.verify import Scope

    bounds = [None if text is None else _bound(text) for text in (start, end)]
    kinds = {bound[0] for bound in bounds if bound is not None}
    if len(kinds) > 1:
        raise usage_error("--from and --to must both be offsets, or both be times")
    first, last = (
        bound[1] if bound is not None else open_end for bound, open_end in zip(bounds, (-_OPEN, _OPEN), strict=True)
    )
    if first >= last:
        raise usage_error(f"there is nothing from {start} to {end}")
    span = OffsetRange(first, last)
    days = frozenset(map(parse_date, dates))
    return Scope(frozenset(topics), days, span if "offset" in kinds else None, span if "time" in kinds else None)


def _bound(text: str) -> tuple[str, int]:
    if text.isascii() and text.isdigit():
        return "offset", parse_integer(text, "an offset")
    return "time", parse_time_ms(text.removeprefix("@"), time.time_ns() // 1_000_000)


def _write(path: str, text: str) -> None:
    """The report; tried with nothing before the work begins."""
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}") from None


def _print(found: "Report", file: str | None) -> None:
    from kbroker.pipeline.archive.verification.findings import line

    colors = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for finding in [*found.differences, *found.notes][:TOLD]:
        text = line(finding) if finding.is_difference else f"note: {line(finding)}"
        color = _RED if finding.is_difference else _DIM
        print(f"{color}{text}{_OFF}" if colors else text)
    if len(found.findings) > TOLD:
        where = f"; all are in {file}" if file else "; --report FILE has all"
        print(f"and {len(found.findings) - TOLD} more{where}")
    what = f"{count_text(found.rows, 'row')} in {count_text(found.files, 'file')}, {format_size(found.bytes)}"
    print(f"{found.archive}: commit {found.number}, {what}, read in {found.seconds:.1f} s")
    print(_comparison(found))
    print(count_text(len(found.differences), "difference") if found.differences else "no difference")


def _comparison(found: "Report") -> str:
    if not found.bootstrap:
        return "compared with itself alone"
    if not found.compared:
        return f"nothing to compare at {found.bootstrap}: it has none of the archived offsets any longer"
    unequal = sum(not compared.equal for compared in found.compared)
    partitions = count_text(len(found.compared), "partition")
    verdict = f"{unequal} of them differ" if unequal else "all equal"
    return (
        f"compared with {count_text(found.records_compared, 'record')} of {partitions} at {found.bootstrap}: {verdict}"
    )
