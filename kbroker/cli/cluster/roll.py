"""`kbroker cluster roll`: a rolling restart or upgrade, one broker after the other.

Commands are printed on standard output, which can be piped to a shell, and remarks on standard error; with --json, each
line is an event.
"""

import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from kbroker.cli.cluster.roll_steps import (
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
from kbroker.common import format_address
from protocol.messages.k60_describe_cluster import DescribeClusterBroker

COLUMNS = ("step", "broker", "address", "rack", "state", "started", "version", "leads", "interrupts", "command")
NOTHING_LEFT = "no broker is left to restart"
EVERY_S = 0.5


def restart_command(template: str, broker: int, address: DescribeClusterBroker) -> str:
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
        "address": format_address(address.host, address.port),
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


@dataclass
class RollingRestart:
    """A rolling restart of some brokers, which prints its events.

    `template`: the command that restarts a broker. `before`: the processes that are to be replaced, by broker id.
    `tolerated`: partitions that need not be in sync, as they were not at the beginning. `restart_ms` and `sync_ms`: the
    longest waits, None for no limit.
    """

    observer: Observer
    template: str
    as_json: bool
    at_once: int
    restart_ms: int | None
    sync_ms: int | None
    before: Mapping[int, BrokerProcess]
    tolerated: Collection[Partition]
    interrupts: Interrupts
    # The brokers that were restarted last: they know the in-sync replicas since then.
    last: Sequence[int] = ()

    def run(self) -> None:
        """Return when all brokers were restarted, and all partitions are in sync. Raises CliError after a deadline."""
        began_ms = _now_ms()
        while True:
            view = self._wait_until_in_sync()
            remaining = [broker for broker, old in self.before.items() if not is_restarted(old, view, broker)]
            if not remaining:
                break
            step = restart_steps(view, remaining, self.at_once)[0]
            for place, broker in enumerate(step, len(self.before) - len(remaining) + 1):
                row = view.brokers[broker]
                command = restart_command(self.template, broker, row)
                address = format_address(row.host, row.port)
                text = f"{place} of {len(self.before)}: restart broker {broker} at {address}"
                self._event(text, "restart", broker=broker, command=command)
                if not self.as_json:
                    print(command, flush=True)
            self._wait_until_restarted(step)
            self.last = step
        brokers, duration_ms = len(self.before), _now_ms() - began_ms
        done = f"restarted {count_text(brokers, 'broker')} in {format_duration(duration_ms)}"
        text = f"{done if brokers else NOTHING_LEFT}, and all replicas are in sync"
        self._event(text, "complete", brokers=brokers, duration_ms=duration_ms)

    def _wait_until_in_sync(self) -> ClusterView:
        """Return the state in which all partitions have a leader and all replicas in sync."""
        began, waits = time.monotonic(), False
        while True:
            view = self.observer.read(self.last)
            behind = [] if view is None else out_of_sync(view, self.tolerated)
            if view is not None and not behind:
                if waits:
                    duration_ms = round((time.monotonic() - began) * 1000)
                    text = f"all replicas are in sync after {format_duration(duration_ms)}"
                    self._event(text, "in_sync", duration_ms=duration_ms)
                return view
            count = count_text(len(behind), "partition")
            if not waits:
                text = f"waiting until {count} have all replicas in sync"
                text = text if behind else "waiting until a broker responds"
                self._event(text, "waiting", partitions=len(behind))
                waits = True
            self._pause(began, self.sync_ms, f"{count} not in sync" if behind else "no broker responds")

    def _wait_until_restarted(self, step: Sequence[int]) -> None:
        began, away, left = time.monotonic(), set[int](), list(step)
        while left:
            self._pause(began, self.restart_ms, f"not restarted: broker {', '.join(map(str, left))}")
            view = self.observer.read(left)
            if view is None:
                continue
            for broker in list(left):
                if is_restarted(self.before[broker], view, broker):
                    left.remove(broker)
                    process = view.processes[broker]
                    started = format_timestamp(process.started_ms)
                    text = f"broker {broker} is back: version {process.version}, started {started}"
                    self._event(text, "restarted", broker=broker, **process._asdict())
            # Those whose turn it is come first.
            for broker in sorted(set(view.absent()).difference(away), key=lambda broker: broker not in step):
                if broker in left or broker not in step:
                    away.add(broker)
                    text = f"broker {broker} is away" + ("" if broker in step else ", and it is not its turn")
                    self._event(text, "away", broker=broker, expected=broker in step)

    def _pause(self, began: float, limit_ms: int | None, reason: str) -> None:
        """Wait a moment. Raises CliError if that is too long since `began`."""
        self.interrupts.check()
        if limit_ms is not None and (time.monotonic() - began) * 1000 > limit_ms:
            raise CliError(f"given up after {format_duration(limit_ms)}: {reason}")
        time.sleep(EVERY_S)

    def _event(self, text: str, event: str, **fields: Any) -> None:
        if self.as_json:
            print(json.dumps({"event": event, **fields}), flush=True)
        else:
            print_note(text)


def _now_ms() -> int:
    return round(time.time() * 1000)


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
    now_ms = _now_ms()
    since_ms = None if since is None else parse_time_ms(since, now_ms)
    restart_ms = None if restart_timeout is None else parse_duration_ms(restart_timeout)
    sync_ms = None if sync_timeout is None else parse_duration_ms(sync_timeout)
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
    began = datetime.fromtimestamp((now_ms if since_ms is None else since_ms) / 1000, UTC)
    resume = f"kbroker cluster roll --since {began.isoformat(timespec='milliseconds').replace('+00:00', 'Z')}"
    tolerated = out_of_sync(view) if force else []
    try:
        with Interrupts() as interrupts:
            RollingRestart(
                observer, command, as_json, at_once, restart_ms, sync_ms, before, tolerated, interrupts
            ).run()
    except (KeyboardInterrupt, CliError):
        print_note(" ".join(["to continue:", resume, *map(str, broker_ids or ())]))
        raise


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
