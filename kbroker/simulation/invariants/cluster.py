"""Invariants of several brokers, checked from outside while they run.

- Stored state: the leader is in the ISR; ISR and ELR are among the replicas, and have none in common; leader epochs and
  partition epochs do not go back, and a leader epoch has one leader.
- One broker at most is the leader of a partition in a leader epoch, and its high watermark does not go back in it.
- StrongIsr: below the high watermark of any broker that is or believes to be the leader, the logs of all replicas in
  the stored ISR have the same batches. A machine that lost power, or its disk, is exempt until it has left the ISR.
- Two logs with a batch of the same offset and leader epoch have the same batch.
- What clients received, as an acknowledgement or as a record, is below the log end offset of later leaders; under
  flush.before.ack it is synced on every replica in the ISR.

Compacted logs are compared in their last segment only.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from kbroker.simulation.disk.log_files import INTERNAL, durable_end, partition_directories
from kbroker.simulation.invariants.broker import BrokenInvariant
from kbroker.simulation.invariants.controller_state import ControllerState, StoredPartition
from kbroker.simulation.invariants.stored_log import BatchId, StoredLog
from kbroker.simulation.runtime.machine import DATA

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kbroker.metadata.image import PartitionRegistration
    from kbroker.metadata.store.data_tree import DataTree
    from kbroker.replica.partition import Partition
    from kbroker.simulation.checker.history import TopicPartition
    from kbroker.simulation.runtime.machine import Machine

# A partition of a topic id.
Key = tuple[bytes, int]


class ClusterInvariants:
    """`machines`: the machine of broker id N is the N-th. `tree`: that of the coordination service's leader.

    `durable`: all topics have flush.before.ack. `on_truncated` is called when a log on a machine has been cut.
    """

    def __init__(self, machines: Sequence[Machine], tree: DataTree, *, durable: bool = False) -> None:
        self.on_truncated: Callable[[int, Key], None] = lambda broker, key: None
        self._machines = dict(enumerate(machines, 1))
        self._durable = durable
        self._state = ControllerState(tree)
        self._stored: dict[Key, PartitionRegistration] = {}
        self._logs: dict[tuple[int, Key], StoredLog] = {}
        # The broker that is the leader of a partition in an epoch, and its high watermark.
        self._leaders: dict[tuple[Key, int], tuple[int, int]] = {}
        # Batches by offset and leader epoch, with the broker on which they were found first.
        self._batches: dict[tuple[Key, int, int], tuple[BatchId, int]] = {}
        # The offset up to which a leader's log and that of another broker were compared.
        self._compared: dict[tuple[Key, int, int], int] = {}
        # (broker, partition): the machine has lost data, and is still in the ISR.
        self._lossy: set[tuple[int, Key]] = set()
        # The offset after the last one that a client received.
        self._exposed: dict[TopicPartition, int] = {}

    def missing_replicas(self) -> list[str]:
        """Describe the partitions that have no leader, or replicas that are not in sync."""
        return [
            f"{tp[0]}-{tp[1]}: {stored.registration}"
            for tp, stored in self._state.partitions().items()
            if stored.registration.leader < 0 or len(stored.registration.isr) < len(stored.registration.replicas)
        ]

    @property
    def has_lossy_replica(self) -> bool:
        """Whether a machine that lost power or its disk is still in an ISR."""
        return bool(self._lossy)

    def lose(self, broker: int) -> None:
        """Record that a machine loses power or its disk."""
        for tp, stored in self._state.partitions().items():
            if broker in stored.registration.isr:
                self._lossy.add((broker, (stored.topic_id, tp[1])))

    def forget_exposed(self, tp: TopicPartition, floor: int) -> None:
        """Record that offsets from `floor` on may be lost."""
        self._exposed[tp] = min(floor, self._exposed.get(tp, 0))

    def check_exposed(self, tp: TopicPartition, end: int) -> None:
        """Record that a client received the offsets below `end`. Raises BrokenInvariant."""
        self._exposed[tp] = max(end, self._exposed.get(tp, 0))
        if not self._durable:
            return
        stored = self._state.partitions().get(tp)
        if stored is None:
            return
        for broker in stored.registration.isr:
            partition = self._partition(broker, tp)
            if partition is None or partition.log.offline is not None or partition.log.recovery_point >= end:
                continue
            # After a crash the recovery point may be older than what was synced.
            synced = durable_end(self._machines[broker].disk, partition.log.directory)
            if synced < end and (broker, (stored.topic_id, tp[1])) not in self._lossy:
                self._fail(broker, tp, f"a client saw offset {end - 1}, synced is {synced}")

    def check(self) -> None:
        """Raise BrokenInvariant if an invariant does not hold."""
        directories = {
            id: partition_directories(machine.disk, DATA) if machine.disk.isdir(DATA) else {}
            for id, machine in self._machines.items()
        }
        for tp, stored in self._state.partitions().items():
            key = stored.topic_id, tp[1]
            self._check_stored(tp, key, stored.registration)
            for broker in stored.registration.replicas:
                self._update_log(broker, tp, key, directories[broker].get(tp))
            for broker in self._machines:
                partition = self._partition(broker, tp)
                if partition is not None and partition.is_leader and partition.topic_id == stored.topic_id:
                    self._check_leader(broker, tp, key, partition)
                    self._check_isr(broker, tp, key, partition, stored)

    def _partition(self, broker: int, tp: TopicPartition) -> Partition | None:
        """Return the partition on a running broker if its log is open."""
        services = self._machines[broker].services
        partition = None if services is None else services.replicas.get(*tp)
        return None if partition is None or partition.is_closed else partition

    def _check_stored(self, tp: TopicPartition, key: Key, new: PartitionRegistration) -> None:
        old = self._stored.get(key)
        if old is new:
            return
        self._stored[key] = new
        if new.leader >= 0 and new.leader not in new.isr:
            self._fail(new.leader, tp, f"the leader is not in the ISR {new.isr}")
        # The ISR is empty if the replicas that have all committed records are eligible leaders only (KIP-966).
        if not {*new.isr, *new.elr} <= set(new.replicas) or set(new.isr) & set(new.elr):
            self._fail(new.leader, tp, f"the ISR {new.isr} and the ELR {new.elr} of the replicas {new.replicas}")
        for broker in self._machines:
            if broker not in new.isr or broker == new.leader:
                self._lossy.discard((broker, key))
        if old is None:
            return
        if new.leader_epoch < old.leader_epoch or new.partition_epoch < old.partition_epoch:
            self._fail(new.leader, tp, f"the epochs went back: {old}, then {new}")
        if new.leader_epoch == old.leader_epoch and new.leader not in (old.leader, -1):
            self._fail(new.leader, tp, f"two leaders in epoch {new.leader_epoch}: {old.leader}, {new.leader}")

    def _update_log(self, broker: int, tp: TopicPartition, key: Key, path: str | None) -> None:
        stored = self._logs.setdefault((broker, key), StoredLog())
        for batch in stored.update(self._machines[broker].disk, path):
            if self._is_compacted(tp):
                continue
            known, other = self._batches.setdefault((key, batch.base_offset, batch.leader_epoch), (batch, broker))
            if known != batch:
                self._fail(broker, tp, f"{batch}, but broker {other} has {known}")
        if stored.truncated_to is not None:
            for pair in self._compared:
                if pair[0] == key and broker in pair[1:]:
                    self._compared[pair] = min(self._compared[pair], stored.truncated_to)
            stored.truncated_to = None
            self.on_truncated(broker, key)

    def _is_compacted(self, tp: TopicPartition) -> bool:
        partitions = (self._partition(broker, tp) for broker in self._machines)
        return tp[0] in INTERNAL or any(
            partition is not None and partition.log.config.is_compacted for partition in partitions
        )

    def _check_leader(self, broker: int, tp: TopicPartition, key: Key, partition: Partition) -> None:
        epoch, high_watermark = partition.leader_epoch, partition.high_watermark
        leader, known = self._leaders.get((key, epoch), (broker, 0))
        if leader != broker:
            self._fail(broker, tp, f"broker {leader} is the leader in epoch {epoch} too")
        if high_watermark < known:
            self._fail(broker, tp, f"the high watermark went back from {known} to {high_watermark} in epoch {epoch}")
        self._leaders[key, epoch] = broker, high_watermark
        exposed, log = self._exposed.get(tp, 0), partition.log
        if self._stored[key].leader_epoch == epoch and log.offline is None and log.log_end_offset < exposed:
            self._fail(broker, tp, f"a client received offset {exposed - 1}, and the log ends at {log.log_end_offset}")

    def _check_isr(
        self, leader: int, tp: TopicPartition, key: Key, partition: Partition, stored: StoredPartition
    ) -> None:
        """Compare the log of a presumed leader with those of the ISR, below its high watermark."""
        log, high_watermark = self._logs.get((leader, key)), partition.high_watermark
        if log is None:
            return
        for member in stored.registration.isr:
            other = self._logs.get((member, key))
            if member == leader or other is None or {(member, key), (leader, key)} & self._lossy:
                continue
            start = max(self._compared.get((key, leader, member), 0), log.start, other.start)
            if self._is_compacted(tp):
                start = max(start, log.active_base, other.active_base)
            if start >= high_watermark:
                continue
            expected = _below(log, start, high_watermark)
            found = _below(other, start, high_watermark)
            if found != expected:
                self._fail(
                    member,
                    tp,
                    f"it is in the ISR {stored.registration.isr}, broker {leader} is the leader in epoch "
                    f"{partition.leader_epoch} with the high watermark {high_watermark}, and the logs differ: "
                    f"{_difference(found, expected)}",
                )
            self._compared[key, leader, member] = high_watermark

    def _fail(self, broker: int, tp: TopicPartition, message: str) -> None:
        raise BrokenInvariant(f"broker {broker}, {tp[0]}-{tp[1]}: {message}")


def _below(log: StoredLog, start: int, end: int) -> list[BatchId]:
    return list(takewhile(lambda batch: batch.base_offset < end, log.batches_from(start)))


def _difference(found: list[BatchId], expected: list[BatchId]) -> str:
    """Describe the first difference of two lists."""
    for index, batch in enumerate(expected):
        if index >= len(found):
            return f"it ends before {batch}"
        if found[index] != batch:
            return f"it has {found[index]} instead of {batch}"
    return f"it has {found[len(expected)]}, which the leader does not have"
