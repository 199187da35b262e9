"""`kbroker cluster roll`: a rolling restart or upgrade, one broker after the other.

Commands are printed on standard output, which can be piped to a shell, and remarks on standard error; with --json, each
line is an event.
"""

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple

from kbroker.cli.cluster.roll_steps import (
    BrokerAddress,
    BrokerProcess,
    ClusterView,
    Observer,
    first_view,
    interrupted_by,
    is_restarted,
    obstacles,
    out_of_sync,
    restart_steps,
)
from kbroker.cli.common.completion import complete_brokers
from kbroker.cli.common.errors import CliError, print_error, usage_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, Yes, argument, option
from kbroker.cli.common.output import confirm, print_json, print_note, print_table
from kbroker.cli.common.stop_signals import Interrupts
from kbroker.cli.common.values import (
    INT32,
    count_text,
    format_duration,
    format_timestamp,
    parse_duration_ms,
    parse_time_ms,
)
from kbroker.client.requests import Partition

COLUMNS = ("step", "broker", "address", "rack", "state", "started", "version", "leads", "interrupts", "command")
NOTHING_LEFT = "no broker is left to restart"


def restart_command(template: str, broker: int, address: BrokerAddress) -> str:
    """Return the command that restarts a broker. Raises CliError for an unknown placeholder."""
    try:
        return template.format(id=broker, host=address.host, port=address.port, rack=address.rack or "")
    except (LookupError, ValueError, AttributeError):
        raise usage_error(
            f"--command: only {{id}}, {{host}}, {{port}} and {{rack}} are replaced: {template!r}"
        ) from None


def step_rows(view: ClusterView, steps: Sequence[Sequence[int]], template: str) -> list[dict[str, Any]]:
    """Return the brokers of a rolling restart in their order, as JSON.

    `interrupts`: the partitions that refuse writes with acks=all, or have no leader, while the step's brokers are away.
    """
    return [
        _row(view, number, broker, len(interrupted_by(view.partitions, step)), template)
        for number, step in enumerate(steps, 1)
        for broker in step
    ]


def _row(view: ClusterView, step: int, broker: int, interrupts: int, template: str) -> dict[str, Any]:
    address, process = view.brokers[broker], view.processes.get(broker)
    state = "controller" if broker == view.controller else "running"
    return {
        "step": step,
        "broker": broker,
        "address": str(address),
        "rack": address.rack,
        "state": state if view.is_present(broker) else "away",
        "started_ms": process.started_ms if process else None,
        "version": process.version if process else None,
        "leads": sum(part.leader == broker for part in view.partitions.values()),
        "interrupts": interrupts,
        "command": restart_command(template, broker, address),
    }


def cells(row: Mapping[str, Any]) -> list[Any]:
    """Return a row for a table."""
    started_ms = row["started_ms"]
    return [
        None if started_ms is None else format_timestamp(started_ms) if name == "started_ms" else value
        for name, value in row.items()
    ]


class RollReport:
    """Prints the events of a rolling restart. `template`: the command that restarts a broker."""

    def __init__(self, template: str, as_json: bool) -> None:
        self._template = template
        self._as_json = as_json

    def restart(self, broker: int, address: BrokerAddress, place: int, total: int) -> None:
        """Ask for the restart of a broker, the `place`th of `total`."""
        command = restart_command(self._template, broker, address)
        self._event(
            f"{place} of {total}: restart broker {broker} at {address}", "restart", broker=broker, command=command
        )
        if not self._as_json:
            print(command, flush=True)

    def away(self, broker: int, *, unexpected: bool = False) -> None:
        text = f"broker {broker} is away" + (", and it is not its turn" if unexpected else "")
        self._event(text, "away", broker=broker, expected=not unexpected)

    def restarted(self, broker: int, process: BrokerProcess) -> None:
        text = f"broker {broker} is back: version {process.version}, started {format_timestamp(process.started_ms)}"
        self._event(text, "restarted", broker=broker, **process._asdict())

    def waits_for_sync(self, partitions: Sequence[Partition]) -> None:
        text = f"waiting until {count_text(len(partitions), 'partition')} have all replicas in sync"
        self._event(text if partitions else "waiting until a broker responds", "waiting", partitions=len(partitions))

    def in_sync(self, duration_ms: int) -> None:
        self._event(
            f"all replicas are in sync after {format_duration(duration_ms)}", "in_sync", duration_ms=duration_ms
        )

    def complete(self, brokers: int, duration_ms: int) -> None:
        done = f"restarted {count_text(brokers, 'broker')} in {format_duration(duration_ms)}"
        text = f"{done if brokers else NOTHING_LEFT}, and all replicas are in sync"
        self._event(text, "complete", brokers=brokers, duration_ms=duration_ms)

    def _event(self, text: str, event: str, **fields: Any) -> None:
        if self._as_json:
            print(json.dumps({"event": event, **fields}), flush=True)
        else:
            print_note(text)


EVERY_S = 0.5


class Limits(NamedTuple):
    """How many brokers are restarted at once, and the longest waits in milliseconds, None for no limit."""

    at_once: int = 1
    restart_ms: int | None = None
    sync_ms: int | None = None


class RollingRestart:
    """A rolling restart of some brokers. `before`: their processes that are to be replaced, by broker id."""

    def __init__(
        self,
        observer: Observer,
        report: RollReport,
        limits: Limits,
        before: dict[int, BrokerProcess],
        tolerated: Collection[Partition],
        interrupts: Interrupts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tolerated`: partitions that need not be in sync, as they were not at the beginning."""
        self._observer = observer
        self._report = report
        self._limits = limits
        self._before = before
        self._tolerated = tolerated
        self._interrupts = interrupts
        self._clock = clock
        # The brokers that were restarted last: they know the in-sync replicas since then.
        self._last: Sequence[int] = ()

    def run(self) -> None:
        """Return when all brokers were restarted, and all partitions are in sync. Raises CliError after a deadline."""
        while True:
            view = self._wait_until_in_sync()
            remaining = [broker for broker, old in self._before.items() if not is_restarted(old, view, broker)]
            if not remaining:
                return
            step = restart_steps(view, remaining, self._limits.at_once)[0]
            number = len(self._before) - len(remaining)
            for place, broker in enumerate(step, number + 1):
                self._report.restart(broker, view.brokers[broker], place, len(self._before))
            self._wait_until_restarted(step)
            self._last = step

    def _wait_until_in_sync(self) -> ClusterView:
        """Return the state in which all partitions have a leader and all replicas in sync."""
        began, waits = self._clock(), False
        while True:
            view = self._observer.read(self._last)
            behind = None if view is None else out_of_sync(view, self._tolerated)
            if view is not None and not behind:
                if waits:
                    self._report.in_sync(round((self._clock() - began) * 1000))
                return view
            if not waits:
                self._report.waits_for_sync(behind or ())
                waits = True
            what = "no broker responds" if behind is None else f"{count_text(len(behind), 'partition')} not in sync"
            self._pause(began, self._limits.sync_ms, what)

    def _wait_until_restarted(self, step: Sequence[int]) -> None:
        began, away, left = self._clock(), set[int](), list(step)
        while left:
            self._pause(began, self._limits.restart_ms, f"not restarted: {_names(left)}")
            view = self._observer.read(left)
            if view is None:
                continue
            for broker in list(left):
                if is_restarted(self._before[broker], view, broker):
                    left.remove(broker)
                    self._report.restarted(broker, view.processes[broker])
                elif not view.is_present(broker) and broker not in away:
                    away.add(broker)
                    self._report.away(broker)
            # A broker whose turn it is not.
            for broker in set(view.absent()).difference(step, away):
                away.add(broker)
                self._report.away(broker, unexpected=True)

    def _pause(self, began: float, limit_ms: int | None, reason: str) -> None:
        """Wait a moment. Raises CliError if that is too long since `began`."""
        self._interrupts.check()
        if limit_ms is not None and (self._clock() - began) * 1000 > limit_ms:
            raise CliError(f"given up after {format_duration(limit_ms)}: {reason}")
        time.sleep(EVERY_S)


def _names(brokers: Sequence[int]) -> str:
    return f"broker {', '.join(map(str, brokers))}"


def since_text(since_ms: int) -> str:
    """Return a time as `--since` reads it."""
    return datetime.fromtimestamp(since_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


DEFAULT_COMMAND = "ssh {host} sudo systemctl restart kbroker"

BrokerIds = Annotated[
    list[int] | None,
    argument("[ID...]", "Brokers to restart.", max=INT32, show_default="all", complete=complete_brokers),
]
Command = Annotated[str, option("--command TEXT", "What to print for each broker, with {id}, {host}, {port}, {rack}.")]
Since = Annotated[
    str | None, option("--since TIME", "Skip brokers that have started since TIME, to continue a rolling restart.")
]
AtOnce = Annotated[
    int, option("--at-once N", "Restart up to N brokers together, if all partitions accept writes.", min=1, max=INT32)
]
RestartTimeout = Annotated[
    str | None, option("--restart-timeout DURATION", "Give up if a restart takes longer.", show_default="no limit")
]
SyncTimeout = Annotated[
    str | None,
    option("--sync-timeout DURATION", "Give up if replicas are not in sync by then.", show_default="no limit"),
]
Force = Annotated[
    bool, option("--force", "Begin even if brokers are away or partitions lack replicas, and do not wait for these.")
]
DryRun = Annotated[bool, option("--dry-run", "Show the order, and do nothing.")]


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
