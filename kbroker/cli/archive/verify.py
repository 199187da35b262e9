"""`kbroker archive verify`: check an archive and compare it with the broker."""

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.options import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    argument,
    option,
)
from kbroker.cli.common.output import DIM, RED, ProgressBar, colored, print_json, print_note
from kbroker.cli.common.values import count_text, format_size, parse_date, parse_integer, parse_time_ms

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from kbroker.archive.verification.findings import VerificationReport, VerificationScope
    from kbroker.client.cluster import ClusterClient

# The number of findings that are printed; --report and --json contain all.
MAX_PRINTED = 100
# Larger than all offsets and times.
_UNBOUNDED = 2**62


def verify(
    directory: Annotated[str, argument("DIR")],
    bootstrap: Annotated[
        str | None,
        option(
            "--bootstrap -b HOST:PORT,...",
            "One or more brokers of the cluster to compare with.",
            envvar="KBROKER_BOOTSTRAP",
            show_default=DEFAULT_BOOTSTRAP,
        ),
    ] = None,
    offline: Annotated[
        bool, option("--offline", "Check the archive only, without comparing it with a broker.")
    ] = False,
    require_broker: Annotated[
        bool, option("--require-broker", "Report a difference if a topic does not exist at the broker.")
    ] = False,
    topic: Annotated[list[str] | None, option("--topic TOPIC", "Verify this topic only; repeatable.")] = None,
    date: Annotated[
        list[str] | None, option("--date YYYY-MM-DD", "Verify records of this date (UTC) only; repeatable.")
    ] = None,
    start: Annotated[
        str | None, option("--from POSITION", "Start at an offset, a time, @MS or a duration ago.")
    ] = None,
    end: Annotated[str | None, option("--to POSITION", "Stop before this offset or time.")] = None,
    report: Annotated[str | None, option("--report FILE", "Write the complete report as JSON to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check an archive, and compare each record with the broker's if the broker still has it.

    Reads every file and changes nothing. Exit status: 0 without differences, 1 with differences or if the verification
    failed, 2 for wrong usage.

    Example: kbroker archive verify /data/archive --from 2026-01-31T12:00 --report report.json
    """
    from kbroker.archive.errors import ArchiveError
    from kbroker.archive.verification.verify import verify as verify_archive

    if offline and (bootstrap != os.environ.get("KBROKER_BOOTSTRAP") or require_broker):
        raise usage_error("--offline excludes --bootstrap and --require-broker")
    scope = _parse_scope(topic or (), date or (), start, end)
    if report is not None:
        _write_report(report, "")  # fails before the verification if the file cannot be written
    with (
        nullcontext() if offline else broker_client(bootstrap or DEFAULT_BOOTSTRAP) as cluster,
        ProgressBar("reading", None, shows_bytes=True) as progress,
    ):
        try:
            result = verify_archive(
                directory,
                scope,
                cluster,
                bootstrap="" if offline else bootstrap or DEFAULT_BOOTSTRAP,
                require_broker=require_broker,
                progress=print_note if sys.stderr.isatty() else lambda text: None,
                advance=progress.advance,
            )
        except ArchiveError as error:
            raise CliError(str(error)) from None
    if report is not None:
        _write_report(report, json.dumps(result.as_json(), indent=2) + "\n")
    if as_json:
        print_json(result.as_json())
    else:
        _print_result(result, report)
    raise typer.Exit(1 if result.differences else 0)


def broker_client(bootstrap: str) -> "AbstractContextManager[ClusterClient]":
    """Connect to a cluster. Raises CliError."""
    from kbroker.cli.common.client import admin_client, parse_bootstrap
    from kbroker.client.cluster import require_reachable

    try:
        require_reachable(parse_bootstrap(bootstrap))
    except OSError as error:
        raise CliError(f"{error}; --offline verifies without a broker") from None
    return admin_client(bootstrap)


def _parse_scope(
    topics: Sequence[str], dates: Sequence[str], start: str | None, end: str | None
) -> "VerificationScope":
    from kbroker.archive.offset_ranges import OffsetRange
    from kbroker.archive.verification.findings import VerificationScope

    first = ("", -_UNBOUNDED) if start is None else _parse_bound(start)
    last = ("", _UNBOUNDED) if end is None else _parse_bound(end)
    kinds = {first[0], last[0]} - {""}
    if len(kinds) > 1:
        raise usage_error("--from and --to must both be offsets, or both be times")
    if first[1] >= last[1]:
        raise usage_error(f"the range from {start} to {end} is empty")
    return VerificationScope(
        frozenset(topics),
        frozenset(map(parse_date, dates)),
        OffsetRange(first[1], last[1]) if "offset" in kinds else None,
        (first[1], last[1]) if "time" in kinds else None,
    )


def _parse_bound(text: str) -> tuple[str, int]:
    """Return `offset` or `time`, and the value."""
    if text.isascii() and text.isdigit():
        return "offset", parse_integer(text, "an offset")
    return "time", parse_time_ms(text.removeprefix("@"), time.time_ns() // 1_000_000)


def _write_report(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}") from None


def _print_result(report: "VerificationReport", report_file: str | None) -> None:
    from kbroker.archive.verification.findings import format_finding

    for finding in [*report.differences, *report.notes][:MAX_PRINTED]:
        text = format_finding(finding) if finding.is_difference else f"note: {format_finding(finding)}"
        print(colored(text, RED if finding.is_difference else DIM))
    if len(report.findings) > MAX_PRINTED:
        complete = f"{report_file} contains all" if report_file else "--report FILE writes all"
        print(f"and {len(report.findings) - MAX_PRINTED} more; {complete}")
    content = f"{count_text(report.rows, 'row')} in {count_text(report.files, 'file')}, {format_size(report.bytes)}"
    print(f"{report.archive}: {count_text(len(report.commits), 'topic')}, {content}, read in {report.seconds:.1f} s")
    if not report.bootstrap:
        print("not compared with a broker")
    elif not report.compared:
        print(f"nothing to compare at {report.bootstrap}: it no longer has any of the archived offsets")
    else:
        unequal = sum(not comparison.equal for comparison in report.compared)
        counts = count_text(report.records_compared, "record"), count_text(len(report.compared), "partition")
        result = f"{unequal} of them differ" if unequal else "all equal"
        print(f"compared with {' of '.join(counts)} at {report.bootstrap}: {result}")
    print(count_text(len(report.differences), "difference") if report.differences else "no difference")
