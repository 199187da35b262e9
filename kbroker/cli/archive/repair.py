"""`kbroker archive repair`: read again what an archive has lost."""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kbroker.cli.archive.verify import broker_client
from kbroker.cli.common.errors import CliError, print_error, usage_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, TopicNames, argument, option
from kbroker.cli.common.output import print_json, print_note
from kbroker.cli.common.values import count_text

if TYPE_CHECKING:
    from kbroker.archive.offset_ranges import OffsetRange
    from kbroker.archive.repair.repair import TopicRepair


def repair(
    directory: Annotated[str, argument("DIR")],
    bootstrap: Annotated[
        str | None,
        option(
            "--bootstrap -b HOST:PORT,...",
            "One or more brokers of the cluster that has the topics.",
            envvar="KBROKER_BOOTSTRAP",
            show_default=DEFAULT_BOOTSTRAP,
        ),
    ] = None,
    offline: Annotated[
        bool, option("--offline", "Repair from the archive's files only; what they do not have is lost.")
    ] = False,
    topic: TopicNames = None,
    dry_run: Annotated[bool, option("--dry-run", "Show what is to be repaired, and change nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Read again what an archive has lost or what is damaged, and record what is gone as a gap.

    Records come from files of the archive that its tables do not refer to, from the broker, and from damaged files as
    far as they can be read. Exit status: 0 if afterwards nothing is missing but recorded gaps, 1 if records differ from
    the broker's, or if the repair failed.

    Example: kbroker archive repair /data/archive --dry-run
    """
    from kbroker.archive.errors import ArchiveError
    from kbroker.archive.repair.repair import repair as repair_archive

    if offline and bootstrap != os.environ.get("KBROKER_BOOTSTRAP"):
        raise usage_error("--offline excludes --bootstrap")
    with nullcontext() if offline else broker_client(bootstrap or DEFAULT_BOOTSTRAP) as cluster:
        try:
            done = repair_archive(
                directory,
                topic or (),
                cluster,
                dry_run=dry_run,
                progress=print_note if sys.stderr.isatty() else lambda text: None,
            )
        except ArchiveError as error:
            raise CliError(str(error)) from None
    if as_json:
        print_json([_as_json(each) for each in done])
    else:
        for each in done:
            _print(each, dry_run)
    unrepaired = [finding for each in done for finding in each.unrepaired if finding.is_difference]
    raise typer.Exit(1 if unrepaired else 0)


def _as_json(done: "TopicRepair") -> dict[str, Any]:
    return {
        "topic": done.topic,
        "changed": done.is_changed,
        "metadata": done.metadata or None,
        "replaced_files": done.replaced,
        "wanted": done.wanted,
        "rows": done.rows,
        "lost": done.lost,
        "unrepaired": [finding.as_json() for finding in done.unrepaired],
    }


def _print(done: "TopicRepair", dry_run: bool) -> None:
    from kbroker.archive.verification.findings import format_finding

    if done.metadata:
        verb = "will continue" if dry_run else "continues"
        print(f"{done.topic}: the table's metadata was damaged; it {verb} with that of {done.metadata}")
    if done.replaced:
        print(f"{done.topic}: {count_text(len(done.replaced), 'file')} {'to replace' if dry_run else 'replaced'}")
    _print_ranges(done.topic, "to read again" if dry_run else "read again", done.wanted)
    if done.is_changed and not dry_run:
        print(f"{done.topic}: {count_text(done.rows, 'record')} read again")
    _print_ranges(done.topic, "lost, and recorded as a gap", done.lost)
    if not (done.is_changed or done.wanted or done.replaced or done.unrepaired):
        print(f"{done.topic}: nothing to repair")
    for finding in done.unrepaired:
        print_error(f"not repaired: {format_finding(finding)}")


def _print_ranges(topic: str, text: str, ranges: "Mapping[int, Sequence[OffsetRange]]") -> None:
    from kbroker.archive.verification.findings import format_offsets

    for partition, listed in ranges.items():
        print(f"{topic}-{partition}: {format_offsets(listed)}: {text}")
