"""`kbroker cluster roll`: a rolling restart or upgrade, one broker after the other."""

import time
from collections.abc import Iterable
from typing import Annotated

import typer

from kbroker.cli.cluster.roll.cluster_view import BrokerProcess, ClusterView, out_of_sync
from kbroker.cli.cluster.roll.observer import Observer, first_view
from kbroker.cli.cluster.roll.restart_steps import obstacles, restart_steps
from kbroker.cli.cluster.roll.roll_report import COLUMNS, NOTHING_LEFT, RollReport, cells, step_rows
from kbroker.cli.cluster.roll.rolling_restart import Limits, RollingRestart, since_text
from kbroker.cli.common.completion import complete_brokers
from kbroker.cli.common.confirm import confirm
from kbroker.cli.common.errors import CliError, print_error
from kbroker.cli.common.formatting import count_text
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, Yes
from kbroker.cli.common.output import print_json, print_note, print_table
from kbroker.cli.common.parsing import INT32, parse_duration_ms, parse_time_ms
from kbroker.cli.common.stop_signals import Interrupts

DEFAULT_COMMAND = "ssh {host} sudo systemctl restart kbroker"

BrokerIds = Annotated[
    list[int] | None,
    typer.Argument(
        metavar="[ID...]",
        min=0,
        max=INT32,
        help="Brokers to restart.",
        show_default="all",
        autocompletion=complete_brokers,
    ),
]
Command = Annotated[
    str,
    typer.Option("--command", metavar="TEXT", help="What to print for each broker, with {id}, {host}, {port}, {rack}."),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="TIME", help="Skip brokers that have started since TIME, to continue a rolling restart."
    ),
]
AtOnce = Annotated[
    int,
    typer.Option(
        "--at-once",
        metavar="N",
        min=1,
        max=INT32,
        help="Restart up to N brokers together, if all partitions accept writes.",
    ),
]
RestartTimeout = Annotated[
    str | None,
    typer.Option(
        "--restart-timeout", metavar="DURATION", help="Give up if a restart takes longer.", show_default="no limit"
    ),
]
SyncTimeout = Annotated[
    str | None,
    typer.Option(
        "--sync-timeout",
        metavar="DURATION",
        help="Give up if replicas are not in sync by then.",
        show_default="no limit",
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force", help="Begin even if brokers are away or partitions lack replicas, and do not wait for these."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the order, and do nothing.")]


def roll(
    broker_ids: BrokerIds = None,
    command: Command = DEFAULT_COMMAND,
    since: Since = None,
    at_once: AtOnce = 1,
    restart_timeout: RestartTimeout = None,
    sync_timeout: SyncTimeout = None,
    force: Force = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Guide through a rolling restart or upgrade: print a command for each broker, and wait until it is back.

    It does not run these commands: run each one that it prints on standard output, or pipe them to a shell. It
    continues when the broker has restarted and all replicas are in sync. Racks are restarted one after the other, the
    controller last. It does not begin while a broker is away, or partitions have too few replicas in sync.

    Ctrl-C is harmless, and prints how to continue. With --json, each line of the output is an event.

    Example: kbroker cluster roll --dry-run

    Example: kbroker cluster roll --yes --command 'ssh {host} sudo systemctl restart kbroker' | sh
    """
    now_ms = round(time.time() * 1000)
    since_ms = None if since is None else parse_time_ms(since, now_ms)
    limits = Limits(at_once, _milliseconds(restart_timeout), _milliseconds(sync_timeout))
    observer = Observer(bootstrap)
    view = first_view(observer)
    before = processes_to_replace(view, broker_ids, since_ms)
    steps = restart_steps(view, before, at_once)
    rows, reasons = step_rows(view, steps, command), obstacles(view)
    if dry_run and as_json:
        print_json({"brokers": rows, "obstacles": reasons})
    elif dry_run:
        print_table(COLUMNS, map(cells, rows))
    if reasons and before and not force:
        for reason in reasons:
            print_error(reason)
        raise CliError("a rolling restart would make this worse: see kbroker topics describe --under-min-isr --offline")
    interrupted = sum(row["interrupts"] > 0 for row in rows)
    if interrupted:
        print_note(
            f"{count_text(interrupted, 'broker')} cannot be restarted without interrupting writes to partitions: "
            "kbroker cluster roll --dry-run shows how many"
        )
    if dry_run:
        if not before:
            print_note(NOTHING_LEFT)
        return
    if before:
        confirm(f"Guide through the restart of {count_text(len(before), 'broker')}?", yes)
    else:
        for reason in reasons:
            print_note(reason)
    report = RollReport(command, as_json)
    resume = f"to continue: kbroker cluster roll --since {since_text(now_ms if since_ms is None else since_ms)}"
    tolerated = out_of_sync(view) if force else []
    try:
        with Interrupts() as interrupts:
            RollingRestart(observer, report, limits, before, tolerated, interrupts).run()
    except (KeyboardInterrupt, CliError):
        print_note(resume + "".join(f" {broker}" for broker in broker_ids or ()))
        raise
    report.complete(len(before), round(time.time() * 1000) - now_ms)


def _milliseconds(duration: str | None) -> int | None:
    return None if duration is None else parse_duration_ms(duration)


def processes_to_replace(
    view: ClusterView, broker_ids: Iterable[int] | None, since_ms: int | None
) -> dict[int, BrokerProcess]:
    """Return the processes of the chosen brokers, by default of all that are present, except those started since.

    Raises CliError for a broker that does not exist or is away.
    """
    chosen = list(dict.fromkeys(broker_ids or (broker for broker in view.brokers if broker in view.processes)))
    for broker in chosen:
        if broker not in view.brokers:
            raise CliError(f"there is no broker {broker}")
        if broker not in view.processes:
            raise CliError(f"broker {broker} is away: start it")
    return {
        broker: view.processes[broker]
        for broker in chosen
        if since_ms is None or view.processes[broker].started_ms < since_ms
    }
