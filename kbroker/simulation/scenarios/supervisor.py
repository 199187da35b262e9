"""Keeps the broker of a machine running, and checks the invariants of each of its processes, and progress of writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kbroker.common import KafkaError
from kbroker.config.values import ConfigError
from kbroker.coordination.interface import CoordinationError
from kbroker.metadata.registration import ForeignCluster
from kbroker.replica.logs.data_directory import ForeignDirectory
from kbroker.simulation.checker.history import Loss, Operation, Outcome, Send, UnsyncedStart
from kbroker.simulation.clients.producer import ACKS_ALL
from kbroker.simulation.disk.log_files import GROUPS_TOPIC, durable_commits, durable_ends, partition_directories
from kbroker.simulation.invariants.broker import BrokenInvariant, Invariants
from kbroker.simulation.runtime.host_loop import HostCrashed
from kbroker.simulation.runtime.machine import DATA
from kbroker.storage.file_names import LOG

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from kbroker.replica.partition import Partition
    from kbroker.simulation.checker.history import History, TopicPartition
    from kbroker.simulation.disk.disk import SimDisk
    from kbroker.simulation.runtime.machine import Machine


# The interval of the checks of whether the broker runs, in seconds.
SUPERVISION_INTERVAL_S = 0.02
# A broker must start within this time once faults are over.
START_TIMEOUT_S = 60.0
RESTART_AFTER_S = (0.01, 1.0)


class NotServing(AssertionError):
    """The broker does not start although faults are over."""


class BrokerSupervisor:
    """Starts the broker of a machine again when it has ended, except within `down`.

    `replicated`: see Invariants. `faults_over`: whether a broker that does not start is an error. `is_installed`: False
    until the machine is part of the cluster. `has_other_metadata` returns whether the coordination service has other
    data than that of the cluster, in which case a broker must not start.
    """

    def __init__(self, machine: Machine, history: History, random: Random, *, replicated: bool = False) -> None:
        self.machine = machine
        self._replicated = replicated
        self.faults_over = False
        self.is_installed = True
        self.has_other_metadata: Callable[[], bool] = lambda: False
        self.invariants = Invariants(machine)
        self._history = history
        self._random = random
        self._down = 0
        self._unsynced_start: Operation | None = None
        # The broker that `invariants` are of.
        self._checked: object = None

    @property
    def serving(self) -> bool:
        return self.machine.services is not None

    @contextmanager
    def down(self) -> Iterator[None]:
        """Keep the broker from being started."""
        self._down += 1
        try:
            yield
        finally:
            self._down -= 1

    async def run(self) -> None:
        """Start the broker whenever it does not run. Raises NotServing if it does not start after the faults."""
        failing_since: float | None = None
        while True:
            if self.is_installed and self.machine.broker is None and not self._down:
                failing_since = await self._start(failing_since)
                await asyncio.sleep(self._random.uniform(*RESTART_AFTER_S))
            await asyncio.sleep(SUPERVISION_INTERVAL_S)

    async def _start(self, failing_since: float | None) -> float | None:
        is_refusal_expected = self.has_other_metadata()
        try:
            await self.machine.start()
        except HostCrashed:
            return None
        except (ForeignCluster, ForeignDirectory) as error:
            if not is_refusal_expected and not self.has_other_metadata():
                raise
            self._history.note("simulation", f"{self.machine.name} does not start: {type(error).__name__}")
            return None
        except ConfigError:
            raise
        except (OSError, CoordinationError, KafkaError) as error:
            self._history.note("simulation", f"{self.machine.name} does not start: {error!r}")
            if not self.faults_over:
                return None
            now = self.machine.sim_loop.time()
            if failing_since is not None and now - failing_since > START_TIMEOUT_S:
                raise NotServing(f"{error!r}") from error
            return failing_since or now
        self._history.note("simulation", f"{self.machine.name} serves")
        unsynced = [(partition.tp.topic, partition.tp.partition) for partition in self._unsynced_partitions()]
        if unsynced:
            self._unsynced_start = self._history.begin("simulation", UnsyncedStart(tuple(unsynced)))
        return None

    def partitions(self) -> list[Partition]:
        """Return the partitions of the running broker."""
        services = self.machine.services
        return [] if services is None else list(services.replicas.partitions.values())

    def _unsynced_partitions(self) -> list[Partition]:
        """Return the partitions whose recovered records are not synced although consumers may only see synced ones."""
        return [
            partition
            for partition in self.partitions()
            if partition.flush_before_ack and partition.high_watermark < partition.first_offset
        ]

    def end_unsynced_start(self) -> None:
        """Record that the partitions of an UnsyncedStart are synced, or that the process has ended."""
        if self._unsynced_start is not None:
            self._history.end(self._unsynced_start, Outcome.OK)
            self._unsynced_start = None

    def check_unsynced_start(self) -> None:
        if not self._unsynced_partitions():
            self.end_unsynced_start()

    def check_invariants(self, *, durability: bool = True) -> None:
        """Raise BrokenInvariant if an invariant of the running process does not hold."""
        broker = self.machine.broker
        if broker is not None:
            if self._checked is not broker:
                self._checked, self.invariants = (
                    broker,
                    Invariants(self.machine, self.invariants, replicated=self._replicated),
                )
            self.invariants.check(durability=durability)


def loss_of(disk: SimDisk, *, power: bool) -> Loss | None:
    """Return what a lone broker may lose with its process; None if that is nothing. After a kill, only data that a
    failed sync left unwritten is lost: the next start reads what is on the disk."""
    ends, commits = durable_ends(disk, DATA), durable_commits(disk, DATA)
    if power:
        return Loss("power loss", ends, commits)
    unwritten = {path.rpartition("/")[0] for path in disk.unwritten() if path.endswith(LOG)}
    if not unwritten:
        return None
    directories = partition_directories(disk, DATA)
    ends = {tp: end for tp, end in ends.items() if directories[tp] in unwritten}
    if not any(tp[0] == GROUPS_TOPIC for tp, path in directories.items() if path in unwritten):
        commits = {}
    return Loss("failed syncs", ends, commits)


# Progress of writes while disks fill and empty: writes with acks=all go on whenever enough brokers can write.
#
# The limit begins anew with every change: a disk that fills or empties, a broker that stops or has not joined yet.

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
