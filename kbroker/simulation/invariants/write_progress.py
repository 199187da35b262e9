"""Progress of writes while disks fill and empty: writes with acks=all go on whenever enough brokers can write.

The limit begins anew with every change: a disk that fills or empties, a broker that stops or has not joined yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.simulation.checker.history import Outcome, Send
from kbroker.simulation.clients.producer import ACKS_ALL
from kbroker.simulation.invariants.broker import BrokenInvariant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kbroker.simulation.checker.history import History, Operation, TopicPartition
    from kbroker.simulation.runtime.machine import Machine
    from kbroker.simulation.scenarios.supervisor import BrokerSupervisor

# How long a partition may acknowledge nothing, in seconds: brokers need one to give up their roles. Another one is for
# clients, which look for the new leader, and repeat their requests with backoffs.
LIMIT_S = 3.0


class WriteProgress:
    """`min_isr`: min.insync.replicas of all topics, whose partitions have a replica on each of the brokers."""

    def __init__(self, supervisors: Sequence[BrokerSupervisor], history: History, min_isr: int) -> None:
        self._supervisors = supervisors
        self._history = history
        self._min_isr = min_isr
        self._seen = 0
        self._pending: dict[TopicPartition, list[Operation]] = {}
        # When a partition acknowledged a write, or was waited for first since then.
        self._progress_s: dict[TopicPartition, float] = {}
        self._able: list[str] = []
        self._able_since_s = 0.0

    def check(self, now_s: float, *, is_quiet: bool) -> None:
        """Raise BrokenInvariant if writes have stopped for too long. `is_quiet`: all brokers have joined."""
        able = [supervisor.machine.name for supervisor in self._supervisors if _can_write(supervisor)]
        if not is_quiet or able != self._able or len(able) < self._min_isr:
            self._able, self._able_since_s = able, now_s
        self._update(now_s)
        for tp, pending in self._pending.items():
            since_s = max(self._able_since_s, self._progress_s[tp])
            if pending and now_s - since_s > LIMIT_S:
                raise BrokenInvariant(
                    f"{tp[0]}-{tp[1]} has acknowledged nothing for {now_s - since_s:.1f} s, although "
                    f"{', '.join(able)} can write: {len(pending)} batches wait, the first is {pending[0].number}"
                )

    def _update(self, now_s: float) -> None:
        """Note the batches that have been sent and acknowledged since the last check."""
        operations = self._history.operations
        for operation in operations[self._seen :]:
            if isinstance(operation.action, Send) and operation.action.acks == ACKS_ALL:
                self._pending.setdefault(operation.action.tp, []).append(operation)
                self._progress_s.setdefault(operation.action.tp, now_s)
        self._seen = len(operations)
        for tp, pending in self._pending.items():
            waiting = [operation for operation in pending if operation.ended is None]
            if any(operation.outcome is Outcome.OK for operation in pending if operation.ended is not None):
                self._progress_s[tp] = now_s
            elif not waiting or waiting[0] is not pending[0]:
                # A batch that was given up does not count. The next one has waited since it was sent.
                first_s = waiting[0].begun_ns / 1e9 if waiting else now_s
                self._progress_s[tp] = max(self._progress_s[tp], first_s)
            self._pending[tp] = waiting


def _can_write(supervisor: BrokerSupervisor) -> bool:
    machine = supervisor.machine
    if machine.services is None or machine.paused or any(part.log.health.offline for part in supervisor.partitions()):
        return False
    return _has_space(machine)


def _has_space(machine: Machine) -> bool:
    disk = machine.disk
    return disk.capacity is None and not disk.read_only and not disk.faults.open
