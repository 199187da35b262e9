"""Writes that stop although enough brokers can write are found; those that wait for a disk are not."""

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.simulation.checker.history import History, Outcome, Send
from kbroker.simulation.invariants.broker import BrokenInvariant
from kbroker.simulation.scenarios.supervisor import LIMIT_S, WriteProgress

TP = ("t", 0)


class Brokers:
    """Three of them, two of which must be able to write; checked ten times a second."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.history = History(lambda: int(self.now_s * 1e9))
        self.disks = [SimpleNamespace(capacity=None, read_only=False, faults=SimpleNamespace(open=0.0)) for _ in "123"]
        supervisors: Any = [
            SimpleNamespace(
                machine=SimpleNamespace(name=f"broker{number}", services=1, paused=False, disk=disk),
                partitions=list,
            )
            for number, disk in enumerate(self.disks, 1)
        ]
        self._progress = WriteProgress(supervisors, self.history, 2)

    def wait(self, seconds: float, *, is_quiet: bool = True) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += 0.1
            self._progress.check(self.now_s, is_quiet=is_quiet)


def test_a_batch_that_waits_too_long_is_found() -> None:
    brokers = Brokers()
    brokers.wait(10)
    brokers.history.begin("producer", Send(TP, (1,), 0))
    brokers.disks[0].capacity = 0
    with pytest.raises(BrokenInvariant, match="although broker2, broker3 can write: 1 batches wait"):
        brokers.wait(LIMIT_S + 0.5)


def test_acknowledged_writes_are_progress_and_failed_ones_are_not() -> None:
    brokers = Brokers()
    for outcome in (Outcome.OK, Outcome.OK, Outcome.OK, Outcome.FAILED, Outcome.FAILED, Outcome.FAILED):
        first = brokers.history.begin("producer", Send(TP, (1,), 0))
        brokers.wait(2)
        brokers.history.end(first, outcome)
    # Each has waited for less than the limit.
    second = brokers.history.begin("producer", Send(TP, (1,), 0))
    brokers.wait(2)
    brokers.history.begin("producer", Send(TP, (1,), 0, acks=0))
    brokers.history.end(second, Outcome.UNKNOWN)
    brokers.wait(10)


def test_too_few_brokers_and_changes_are_waited_for() -> None:
    brokers = Brokers()
    brokers.history.begin("producer", Send(TP, (1,), 0))
    brokers.disks[0].read_only = True
    brokers.disks[1].faults.open = 1.0
    brokers.wait(20)
    brokers.wait(20, is_quiet=False)
    # Enough can write, but not the same for long.
    brokers.disks[0].read_only = False
    brokers.wait(2.5)
    brokers.disks[2].capacity = 0
    brokers.disks[1].faults.open = 0.0
    brokers.wait(2.5)
    with pytest.raises(BrokenInvariant):
        brokers.wait(1)
