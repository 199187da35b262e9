"""What a rolling restart prints: commands on standard output, remarks on standard error; with --json one event a line.

So standard output can be piped to a shell.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kbroker.cli.cluster.roll.cluster_view import BrokerAddress, BrokerProcess, ClusterView
from kbroker.cli.cluster.roll.restart_steps import interrupted_by
from kbroker.cli.common.errors import usage_error
from kbroker.cli.common.formatting import count_text, format_duration, format_timestamp
from kbroker.cli.common.output import print_note
from kbroker.cli.common.partitions.list_offsets import Partition

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
