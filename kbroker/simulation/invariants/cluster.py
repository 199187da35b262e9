"""Invariants of several brokers, checked from outside while they run.

- Stored state: the leader is in the ISR; ISR and ELR are among the replicas, and have none in common; leader epochs and
  partition epochs do not go back, and a leader epoch has one leader.
- One broker at most is the leader of a partition in a leader epoch, and its high watermark does not go back in it.
- StrongIsr: below the high watermark of any broker that is or believes to be the leader, the logs of all replicas in
  the stored ISR have the same batches. A machine that lost power, or its disk, is exempt until it registers again.
- Two logs with a batch of the same offset and leader epoch have the same batch.
- Reassignments lose no replica before their end, and add none that is not in sync (controller_state.py).
- A plan of reassignments ends when all of its moves are done (controller_state.py).
- A new partition has no replica on a broker that is cordoned.
- A broker that cannot write to its disk neither joins an ISR nor is elected instead of one that can.
- No broker is in an ISR while it is fenced, or since before it registered again (replicas.py).
- No log of a replica is deleted while the broker is among the stored replicas (replicas.py). Logs that are set aside
  count as what they are: the data of the replica.
- What clients received, as an acknowledgement or as a record, is in the log of every replica that may be elected, and
  records that they have deleted are not. Under flush.before.ack it is synced on every replica in the ISR.

Compacted logs are compared in their last segment only.
"""

from __future__ import annotations

from collections import Counter
from itertools import takewhile
from typing import TYPE_CHECKING

from kbroker.metadata.recovery.log_recovery import MAX_UNSEEN_EPOCHS
from kbroker.simulation.disk.log_files import INTERNAL, BatchId, StoredLog, durable_end
from kbroker.simulation.invariants.broker import BrokenInvariant
from kbroker.simulation.invariants.controller_state import ControllerState, Key, Plans, Reassignments, StoredPartition
from kbroker.simulation.invariants.replicas import KeptLogs, Memberships, fault_of_failing_brokers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kbroker.coordination.data_tree import DataTree
    from kbroker.metadata.image import PartitionRegistration
    from kbroker.replica.partition import Partition
    from kbroker.simulation.checker.history import TopicPartition
    from kbroker.simulation.runtime.machine import Machine


class ClusterInvariants:
    """`machines`: the machine of broker id N is the N-th. `tree`: that of the coordination service's leader.

    `durable`: all topics have flush.before.ack.
    """

    def __init__(self, machines: Sequence[Machine], tree: DataTree, *, durable: bool = False) -> None:
        self._machines = dict(enumerate(machines, 1))
        self._durable = durable
        self._state = ControllerState(tree)
        self._stored: dict[Key, PartitionRegistration] = {}
        self._logs: dict[tuple[int, Key], StoredLog] = {}
        self._kept_logs = KeptLogs()
        # The broker that is the leader of a partition in an epoch, and its high watermark.
        self._leaders: dict[tuple[Key, int], tuple[int, int]] = {}
        # Batches by offset and leader epoch, with the broker on which they were found first.
        self._batches: dict[tuple[Key, int, int], tuple[BatchId, int]] = {}
        # The offset up to which a leader's log and that of another broker were compared.
        self._compared: dict[tuple[Key, int, int], int] = {}
        # The highest base offset that an active segment had. Compaction leaves gaps below it, which replicas that copy
        # the log have in their active segments, too.
        self._compactable: dict[Key, int] = {}
        self._memberships = Memberships(self._state)
        # What clients were promised about each partition, as offsets that only grow. Received: acknowledged to
        # acks=all, read, or below the leader's high watermark, so that it can be read. Every replica that may be
        # elected (ISR and ELR) has these records. Deleted: by DeleteRecords, so they must not come back.
        self._received: Counter[Key] = Counter()
        self._deleted: Counter[Key] = Counter()
        self._reassignments = Reassignments()
        self._plans = Plans(self._state)
        # Those that were cordoned when the last transaction was written.
        self._cordoned: frozenset[int] = frozenset()
        # The partitions of an older copy of the metadata, with their partition epochs, until the controller begins to
        # recover them. Their ISRs are not those of the last records.
        self._older: dict[Key, int] = {}

    def missing_replicas(self) -> list[str]:
        """Describe the partitions that have no leader, replicas that are not in sync, or that still move.

        A plan of reassignments that has not ended still moves some, and self-healing will give some back.
        """
        plan = self._state.reassignment_plan()
        running = [f"plan {plan.plan_id} is {plan.state}"] if plan is not None and plan.is_active else []
        running += [
            f"broker {id} is to get {known.history.rebuilt} replicas back"
            for id, known in self._state.brokers().items()
            if known.history.rebuilt
        ]
        running += [f"the partition {key[1]} of {key[0].hex()} is not recovered" for key in self._older]
        return running + [
            f"{tp[0]}-{tp[1]}: {stored.registration}"
            for tp, stored in self._state.partitions().items()
            if stored.registration.leader < 0
            or len(stored.registration.isr) < len(stored.registration.replicas)
            or stored.registration.is_reassigning
        ]

    def outdated_brokers(self) -> list[str]:
        """Describe the running brokers whose metadata image lacks changes that were written."""
        number = self._state.last_change
        return [
            f"broker {id} has the metadata of change {loaded}, the last is {number}"
            for id, machine in self._machines.items()
            if machine.services is not None and (loaded := machine.services.controller.last_change_number) != number
        ]

    @property
    def has_lossy_replica(self) -> bool:
        """Whether a machine that lost power or its disk is still in an ISR."""
        return self._memberships.has_lossy

    def lose(self, broker: int) -> None:
        """Record that a machine loses power or its disk."""
        self._memberships.lose(broker)
        self._kept_logs.lose(broker)

    def use(self, tree: DataTree) -> None:
        """Check the brokers against these nodes from now on."""
        self._state.use(tree)

    def restore(self) -> None:
        """Record that the nodes were replaced by an older copy of them, which a broker must find out."""
        stored = {(stored.topic_id, tp[1]): stored.registration for tp, stored in self._state.partitions().items()}
        self._stored, self._cordoned = stored, self._state.cordoned_brokers()
        self._older = {key: registration.partition_epoch for key, registration in stored.items()}
        self._memberships = Memberships(self._state)
        self._reassignments = Reassignments()
        self._plans = Plans(self._state, self._state.reassignment_plan())

    def _is_older(self, key: Key, registration: PartitionRegistration) -> bool:
        """Return whether the controller goes by an older state of a partition, which it does not know to be older."""
        older = self._older.get(key)
        if older is not None and registration.partition_epoch >= older + MAX_UNSEEN_EPOCHS:
            del self._older[key]
        return key in self._older

    def leader_epoch(self, tp: TopicPartition) -> int | None:
        """Return the leader epoch of a partition, None if it has no leader."""
        stored = self._state.partitions().get(tp)
        return None if stored is None or stored.registration.leader < 0 else stored.registration.leader_epoch

    def check_deleted(self, tp: TopicPartition, log_start: int) -> None:
        """Record that a client's deletion of the records below this offset was acknowledged."""
        stored = self._state.partitions().get(tp)
        if stored is not None:
            key = stored.topic_id, tp[1]
            self._deleted[key] = max(log_start, self._deleted[key])

    def check_exposed(self, tp: TopicPartition, end: int) -> None:
        """Record that a client received the offsets below `end`. Raises BrokenInvariant."""
        stored = self._state.partitions().get(tp)
        if stored is None:
            return
        key = stored.topic_id, tp[1]
        self._received[key] = max(end, self._received[key])
        if not self._durable or self._is_older(key, stored.registration):
            return
        for broker in stored.registration.isr:
            partition = self._partition(broker, tp)
            if partition is None or partition.log.health.offline is not None or partition.log.recovery_point >= end:
                continue
            # After a crash the recovery point may be older than what was synced.
            synced = durable_end(self._machines[broker].disk, partition.log.directory)
            if synced < end and not self._memberships.is_lossy(broker, key):
                self._fail(broker, tp, f"a client saw offset {end - 1}, synced is {synced}")

    def check_stored(self) -> None:
        """Check the stored state. Called after each transaction, since the next one may hide a mistake."""
        partitions = self._state.partitions()
        if len(partitions) < len(self._stored):
            existing = {(stored.topic_id, tp[1]) for tp, stored in partitions.items()}
            for key in self._stored.keys() - existing:
                self._forget(key)
        for tp, stored in partitions.items():
            self._check_stored(tp, (stored.topic_id, tp[1]), stored.registration)
        self._cordoned = self._state.cordoned_brokers()
        self._memberships.note_unregistered()
        fault = self._plans.fault()
        if fault is not None:
            raise BrokenInvariant(fault)

    def _forget(self, key: Key) -> None:
        """Forget a partition that was removed: its topic may get another one with this index."""
        del self._stored[key]
        self._compactable.pop(key, None)
        for broker in self._machines:
            self._logs.pop((broker, key), None)
        self._leaders = {entry: value for entry, value in self._leaders.items() if entry[0] != key}
        self._batches = {entry: value for entry, value in self._batches.items() if entry[0] != key}
        self._compared = {entry: value for entry, value in self._compared.items() if entry[0] != key}
        self._memberships.forget(key)
        self._kept_logs.forget(key)
        self._received.pop(key, None)
        self._deleted.pop(key, None)
        self._reassignments.forget(key)
        self._older.pop(key, None)

    def check(self) -> None:
        """Raise BrokenInvariant if an invariant does not hold."""
        logs = {id: self._kept_logs.logs(id, machine.disk) for id, machine in self._machines.items()}
        leading = self._leading()
        brokers = self._state.brokers()
        for tp, stored in self._state.partitions().items():
            key = stored.topic_id, tp[1]
            self._check_stored(tp, key, stored.registration)
            is_older = self._is_older(key, stored.registration)
            if not is_older:
                self._memberships.check(tp, key, stored.registration, brokers)
            # Also of one that still believes to be the leader, and is no replica any more.
            leaders = leading.get(tp, {})
            for broker in dict.fromkeys((*stored.registration.replicas, *leaders)):
                self._update_log(broker, tp, key, logs[broker].get(key) or logs[broker].get(tp))
            fault = self._kept_logs.fault(tp, key, stored.registration.replicas, logs)
            if fault is not None:
                raise BrokenInvariant(f"{tp[0]}-{tp[1]}: {fault}")
            if is_older:
                continue
            self._check_promises(tp, key, stored.registration)
            for broker, partition in leaders.items():
                if partition.topic_id == stored.topic_id:
                    self._check_leader(broker, tp, key, partition)
                    self._check_isr(broker, tp, key, partition, stored)

    def _leading(self) -> dict[TopicPartition, dict[int, Partition]]:
        """Return the open partitions of the brokers that believe to be their leader."""
        leading: dict[TopicPartition, dict[int, Partition]] = {}
        for broker, machine in self._machines.items():
            for partition in () if machine.services is None else machine.services.replicas.partitions.values():
                if partition.is_leader and not partition.is_closed:
                    leading.setdefault((partition.tp.topic, partition.tp.partition), {})[broker] = partition
        return leading

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
        self._kept_logs.note_replicas(key, new.replicas)
        if new.leader >= 0 and new.leader not in new.isr:
            self._fail(new.leader, tp, f"the leader is not in the ISR {new.isr}")
        # The ISR is empty if the replicas that have all committed records are eligible leaders only (KIP-966).
        if not {*new.isr, *new.elr} <= set(new.replicas) or set(new.isr) & set(new.elr):
            self._fail(new.leader, tp, f"the ISR {new.isr} and the ELR {new.elr} of the replicas {new.replicas}")
        fault = self._reassignments.fault(key, new)
        if fault is not None:
            self._fail(new.leader, tp, fault)
        if old is None:
            if not self._cordoned.isdisjoint(new.replicas):
                self._fail(
                    new.leader,
                    tp,
                    f"it is new, has the replicas {new.replicas}, and cordoned are {set(self._cordoned)}",
                )
            return
        if new.leader_epoch < old.leader_epoch or new.partition_epoch < old.partition_epoch:
            self._fail(new.leader, tp, f"the epochs went back: {old}, then {new}")
        if new.partition_epoch == old.partition_epoch and new != old:
            self._fail(new.leader, tp, f"two states of one partition epoch: {old}, then {new}")
        if new.leader_epoch == old.leader_epoch and new.leader not in (old.leader, -1):
            self._fail(new.leader, tp, f"two leaders in epoch {new.leader_epoch}: {old.leader}, {new.leader}")
        fault = fault_of_failing_brokers(old, new, self._state.brokers())
        if fault is not None:
            self._fail(new.leader, tp, fault)

    def _update_log(self, broker: int, tp: TopicPartition, key: Key, path: str | None) -> None:
        disk = self._machines[broker].disk
        stored = self._logs.get((broker, key))
        if stored is None:
            stored = self._logs[broker, key] = StoredLog()
        batches = stored.update(disk, path)
        self._compactable[key] = max(stored.active_base, self._compactable.get(key, 0))
        for batch in batches:
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
        received, log = self._received[key], partition.log
        if self._stored[key].leader_epoch != epoch or log.health.offline is not None:
            return
        if log.log_end_offset < received:
            self._fail(broker, tp, f"a client received offset {received - 1}, and the log ends at {log.log_end_offset}")
        # Clients can read it now.
        self._received[key] = max(received, high_watermark)

    def _check_promises(self, tp: TopicPartition, key: Key, stored: PartitionRegistration) -> None:
        """Check the logs of the replicas that may be elected against what clients were promised."""
        received, deleted = self._received[key], self._deleted[key]
        for broker in (*stored.isr, *stored.elr):
            if self._memberships.is_lossy(broker, key):
                continue
            end = self._logs[broker, key].end
            if end < received:
                message = f"a client received offset {received - 1}, and the log ends at {end}"
                self._fail(broker, tp, f"it may be elected ({stored}), but {message}")
            partition = self._partition(broker, tp)
            if partition is None or broker not in stored.isr or partition.topic_id != key[0]:
                continue
            start = partition.log.log_start_offset
            if start < deleted:
                message = f"a client deleted the records below offset {deleted}, and the log starts at {start}"
                self._fail(broker, tp, f"it is in the ISR {stored.isr}, but {message}")

    def _check_isr(
        self, leader: int, tp: TopicPartition, key: Key, partition: Partition, stored: StoredPartition
    ) -> None:
        """Compare the log of a presumed leader with those of the ISR, below its high watermark."""
        log, high_watermark = self._logs.get((leader, key)), partition.high_watermark
        if log is None:
            return
        for member in stored.registration.isr:
            other = self._logs.get((member, key))
            if member == leader or other is None or any(self._memberships.is_lossy(id, key) for id in (member, leader)):
                continue
            start = max(self._compared.get((key, leader, member), 0), log.start, other.start)
            if self._is_compacted(tp):
                start = max(start, self._compactable[key])
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
