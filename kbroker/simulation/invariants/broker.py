"""Invariants of a running broker, checked from outside while it runs.

For each partition: log start offset <= LSO <= high watermark <= log end offset; the leader is in the ISR; leader epoch,
high watermark, LSO and log start offset do not go back within a process; the next process has a higher leader epoch.
Below the recovery point, and under flush.before.ack below the high watermark, all data is on the disk; under
flush.before.ack clients see no later records. For the bytes of each log: batches have correct CRCs and no gaps between
them; leader epochs, and the epochs of each producer, do not go back; the sequences of a producer epoch have no gaps and
no repetitions; the leader epoch cache and the producers' state are those of the log. The LSO is the first offset of the
first transaction that is open in the log, or whose marker is not below the high watermark. In a cluster the state
of coordinators is that of their logs (coordinators.py); the checker compares what clients of a lone broker see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.simulation.checker.history import TopicPartition
from kbroker.simulation.disk.log_files import durable_end
from kbroker.simulation.invariants.coordinators import CoordinatorInvariants
from kbroker.simulation.invariants.log_checker import LogChecker
from kbroker.storage.file_names import LOG, parse_segment_file
from kbroker.storage.log.leader_epoch_cache import NO_EPOCH

if TYPE_CHECKING:
    from kbroker.replica.partition import Partition
    from kbroker.simulation.runtime.machine import Machine
    from kbroker.storage.log.log import Log


class BrokenInvariant(AssertionError):
    """The broker violates an invariant."""


class _PartitionState:
    """The state of `partition` at the last check of this process.

    `truncations`: how often its log was truncated; positions may go back then.
    `unsynced_end`: the high watermark when flush.before.ack was first seen, -1 without it. Records below it may have
    been acknowledged before the config was set."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.truncations = partition.log.truncations
        self.unsynced_end = -1
        self.leader_epoch = -1
        self.high_watermark = 0
        self.last_stable = 0
        self.log_start = 0


class Invariants:
    """The invariants of one process on a machine. `check` runs between two callbacks of its event loop, repeatedly.
    `before`: the invariants of the previous process. `replicated`: the broker has followers, or is one: its logs may be
    truncated, and the positions of a partition go back with a new leader epoch."""

    def __init__(self, machine: Machine, before: Invariants | None = None, *, replicated: bool = False) -> None:
        self._machine = machine
        self._replicated = replicated
        # The last leader epoch of each partition in previous processes.
        self._previous_leader_epochs: dict[tuple[bytes, int], int] = {} if before is None else before.leader_epochs()
        # By topic id and partition, because a topic can be deleted and created again with the same name.
        self._states: dict[tuple[bytes, int], _PartitionState] = {}
        self._logs: dict[tuple[bytes, int], LogChecker] = {}
        self._coordinators = CoordinatorInvariants()

    def leader_epochs(self) -> dict[tuple[bytes, int], int]:
        """Return the last leader epoch of each partition."""
        return {**self._previous_leader_epochs, **{key: state.leader_epoch for key, state in self._states.items()}}

    def check(self, *, durability: bool = True) -> None:
        """Raise BrokenInvariant if an invariant does not hold. `durability`: also check synced data, which is
        slower."""
        services = self._machine.services
        if services is None:
            return
        partitions = services.replicas.partitions.values()
        existing = {(partition.topic_id, partition.tp.partition): partition for partition in partitions}
        for key, state in list(self._states.items()):
            # If a topic gets another partition with an index that was removed, it is a new object.
            if existing.get(key) is not state.partition:
                del self._states[key]
                self._logs.pop(key, None)
        for partition in partitions:
            # Before the broker is registered, its partitions are open without a role.
            has_role = partition.leader_epoch != NO_EPOCH
            if has_role and not partition.is_closed and partition.log.health.offline is None:
                tp = partition.tp.topic, partition.tp.partition
                self._check_state(tp, partition, services.replicas.maintenance.appends_suspended)
                if not partition.log.is_truncating:
                    self._check_bytes(tp, partition)
                if durability:
                    self._check_durability(tp, partition)
        error = self._coordinators.check(services, self._machine.disk) if self._replicated else None
        if error is not None:
            raise BrokenInvariant(f"{self._machine.name}, {error}")

    def _check_state(self, tp: TopicPartition, partition: Partition, appends_suspended: bool) -> None:
        log = partition.log
        offsets = [log.log_start_offset, partition.last_stable_offset, partition.high_watermark, log.log_end_offset]
        # DeleteRecords may move the log start above a high watermark that waits for a sync.
        if offsets[1:] != sorted(offsets[1:]) or offsets[0] > log.log_end_offset:
            self._fail(tp, f"log start, LSO, HW, LEO are {offsets}")
        if partition.is_leader and partition.state.local_id not in partition.state.isr:
            self._fail(tp, f"the leader is not in the ISR {partition.state.isr}")
        key = (partition.topic_id, tp[1])
        if key not in self._states and not log.is_truncating:
            self._check_dropped(tp, partition)
        state = self._states.setdefault(key, _PartitionState(partition))
        # On a full disk the broker cannot write a new leader epoch, and must not append either.
        unchanged = self._replicated or (appends_suspended and log.log_end_offset == partition.first_offset)
        is_truncated = log.truncations > state.truncations
        if is_truncated:
            # It is checked from its start again.
            self._logs.pop(key, None)
        if self._replicated and (partition.leader_epoch > state.leader_epoch or is_truncated):
            # The log of a follower without records begins at an earlier offset if the leader's log start offset is
            # within a batch, as in Kafka. It is not in sync then.
            state = self._states[key] = _PartitionState(partition)
        if partition.leader_epoch <= self._previous_leader_epochs.get(key, -1) and not unchanged:
            self._fail(tp, f"leader epoch {partition.leader_epoch} was used by an earlier process")
        for name, value in (
            ("leader_epoch", partition.leader_epoch),
            ("high_watermark", partition.high_watermark),
            ("last_stable", partition.last_stable_offset),
            ("log_start", log.log_start_offset),
        ):
            if name == "last_stable" and log.is_truncating:
                # Rebuilt from the log, it is too low until the high watermark is applied at the end of the truncation.
                continue
            if value < getattr(state, name):
                self._fail(tp, f"{name} went back from {getattr(state, name)} to {value}")
            setattr(state, name, value)

    def _check_dropped(self, tp: TopicPartition, partition: Partition) -> None:
        """Check that no segment which recovery or a truncation has removed can come back after a power loss."""
        prefix = f"{partition.log.directory}/"
        for path in self._machine.disk.removed_files():
            parsed = parse_segment_file(path.removeprefix(prefix)) if path.startswith(prefix) else None
            if parsed is not None and parsed[1] == LOG and parsed[0] >= partition.log.log_end_offset:
                self._fail(tp, f"a power loss may bring {path} back")

    def _check_durability(self, tp: TopicPartition, partition: Partition) -> None:
        claimed = partition.log.recovery_point
        state = self._states[partition.topic_id, tp[1]]
        if not partition.flush_before_ack:
            state.unsynced_end = -1
        elif state.unsynced_end < 0:
            state.unsynced_end = partition.high_watermark
        elif partition.is_leader and partition.high_watermark > state.unsynced_end:
            claimed = max(claimed, partition.high_watermark)
        if claimed <= partition.log.log_start_offset:
            return
        end = durable_end(self._machine.disk, partition.log.directory)
        if claimed > end:
            self._fail(
                tp, f"offsets below {claimed} should be synced, but the disk may lose offset {end} and later ones"
            )

    def check_exposed(self, tp: TopicPartition, end: int) -> None:
        """Check, under flush.before.ack, that the offsets below `end` are synced: a client received an acknowledgement
        or a record of them. (`check` compares the recovery point with the disk.)"""
        services = self._machine.services
        partition = None if services is None else services.replicas.get(*tp)
        if partition is None or partition.is_closed or partition.log.health.offline is not None:
            return
        if partition.log.recovery_point < end:
            self._fail(tp, f"a client saw offset {end - 1}, but the recovery point is {partition.log.recovery_point}")

    def _check_bytes(self, tp: TopicPartition, partition: Partition) -> None:
        key = (partition.topic_id, tp[1])
        if key not in self._logs:
            self._logs[key] = LogChecker(skips_unchanged=self._replicated, held_to=_held_to(partition.log))
        checker = self._logs[key]
        error = checker.check_new_batches(self._machine, partition)
        if error:
            self._fail(tp, error)
        if not checker.is_compacted:
            self._check_stable(tp, partition, checker)

    def _check_stable(self, tp: TopicPartition, partition: Partition, checker: LogChecker) -> None:
        """Check the LSO. It may be lower than the log's bytes imply if the first batches of a transaction were deleted
        before they were checked, and at the log start if no file has the high watermark; it must never be higher."""
        high_watermark = partition.high_watermark
        first = checker.first_unstable_offset(high_watermark)
        expected = high_watermark
        if first is not None:
            expected = min(high_watermark, max(first, partition.log.log_start_offset))
        stable = partition.last_stable_offset
        if high_watermark < checker.held_to and stable == partition.log.log_start_offset:
            return
        if stable > expected or (stable < expected and checker.from_start):
            self._fail(tp, f"LSO {stable}; the transactions in the log make it {expected} (HW {high_watermark})")

    def _fail(self, tp: TopicPartition, message: str) -> None:
        raise BrokenInvariant(f"{self._machine.name}, {tp[0]}-{tp[1]}: {message}")


def _held_to(log: Log) -> int:
    """Return up to where a log is unstable that was opened without a high watermark; 0 if it has one.

    Its producer snapshot lacks the transactions that ended before it, perhaps above the high watermark. The log's bytes
    have them, so here it is known which records the broker holds back without need.
    """
    is_unknown = log.producers.had_transactions and log.checkpointed_high_watermark <= log.log_start_offset
    return log.log_end_offset if is_unknown else 0
