"""Guides through a rolling restart: names the brokers to restart, and waits until the cluster is whole again."""

import time
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from kbroker.cli.cluster.roll.cluster_view import BrokerProcess, ClusterView, is_restarted, out_of_sync
from kbroker.cli.cluster.roll.observer import Observer
from kbroker.cli.cluster.roll.restart_steps import restart_steps
from kbroker.cli.cluster.roll.roll_report import RollReport
from kbroker.cli.common.errors import CliError
from kbroker.cli.common.formatting import count_text, format_duration
from kbroker.cli.common.partitions.list_offsets import Partition
from kbroker.cli.common.stop_signals import Interrupts

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
