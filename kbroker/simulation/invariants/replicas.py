"""Invariants of replicas: memberships of the ISR, and logs that have to remain.

The controller fences a broker, or registers it again, in the same change that ends its memberships. The log of a
replica is not deleted while the broker is among the replicas that the controller has stored; while the data of the
coordination service is lost or foreign, the state of before counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.metadata.image import WriteHealth
from kbroker.simulation.checker.history import TopicPartition
from kbroker.simulation.invariants.broker import BrokenInvariant
from kbroker.simulation.invariants.controller_state import ControllerState, Key
from kbroker.simulation.runtime.machine import DATA
from kbroker.storage.file_names import PARTITION_METADATA, parse_partition_dir, parse_stray_dir
from kbroker.storage.metadata_files import decode_topic_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kbroker.metadata.image import KnownBroker, PartitionRegistration
    from kbroker.simulation.disk.disk import SimDisk

UNREGISTERED = -1


def fault_of_failing_brokers(
    old: PartitionRegistration, new: PartitionRegistration, brokers: Mapping[int, KnownBroker]
) -> str | None:
    """Return what is wrong if a broker that cannot write to its disk joins the ISR, or is elected although another can.

    Without another candidate, one that was in sync or eligible may lead again.
    """

    def is_failing(broker_id: int) -> bool:
        broker = brokers.get(broker_id)
        return broker is not None and broker.registration.write_health is WriteHealth.FAILING

    def is_able(broker_id: int) -> bool:
        broker = brokers.get(broker_id)
        if broker is None or broker.fenced or broker.registration.in_controlled_shutdown:
            return False
        return not is_failing(broker_id)

    is_elected = new.leader != old.leader and new.leader >= 0
    if is_elected and is_failing(new.leader) and any(map(is_able, new.isr)):
        return f"it cannot write, and was elected although another one of {new.isr} can write"
    joined = [replica for replica in new.isr if replica not in old.isr and is_failing(replica)]
    if joined and not (is_elected and new.isr == [new.leader]):
        return f"brokers that cannot write have joined the ISR {new.isr}: {joined}"
    return None


class Memberships:
    """`state`: what the controller has stored.

    A replica is lossy while it is in the ISR or the ELR with the broker epoch in which its machine lost power or its
    disk, and until then if it was joining: the controller does not know of the loss yet. So is a replica of a partition
    that was created meanwhile.
    """

    def __init__(self, state: ControllerState) -> None:
        self._state = state
        # By broker and partition: the broker epoch in which the data was lost, and whether it has been in the ISR or
        # the ELR since then (or since the broker was unregistered).
        self._lossy: dict[tuple[int, Key], tuple[int, bool]] = {}
        # By broker: the broker epoch of its last loss.
        self._epochs_of_loss: dict[int, int] = {}
        # By partition: the partition epoch, and the broker epoch that each member of the ISR had when that began.
        self._members: dict[Key, tuple[int, dict[int, int]]] = {}

    @property
    def has_lossy(self) -> bool:
        """Whether a lossy replica is in an ISR or an ELR."""
        return any(is_member for _, is_member in self._lossy.values())

    def forget(self, key: Key) -> None:
        """Record that a partition was removed."""
        self._members.pop(key, None)
        for known in [known for known in self._lossy if known[1] == key]:
            del self._lossy[known]

    def is_lossy(self, broker: int, key: Key) -> bool:
        return (broker, key) in self._lossy

    def lose(self, broker: int) -> None:
        """Record that a machine loses power or its disk."""
        known = self._state.brokers().get(broker)
        # One that was unregistered may still be in the ELR until it registers again.
        epoch = UNREGISTERED if known is None else known.registration.epoch
        self._epochs_of_loss[broker] = epoch
        for tp, stored in self._state.partitions().items():
            if broker in stored.registration.replicas:
                # One that is in neither may be joining: its leader has asked the controller to add it.
                is_member = broker in (*stored.registration.isr, *stored.registration.elr)
                self._lossy[broker, (stored.topic_id, tp[1])] = epoch, is_member

    def note_unregistered(self) -> None:
        """Called after each transaction. A broker that an operator unregisters while its session lasts is registered
        again with the same broker epoch, and may join by what it claimed before."""
        brokers = self._state.brokers() if self._lossy else {}
        for (broker, key), (epoch, _) in self._lossy.items():
            if broker not in brokers:
                self._lossy[broker, key] = epoch, False

    def check(
        self, tp: TopicPartition, key: Key, stored: PartitionRegistration, brokers: Mapping[int, KnownBroker]
    ) -> None:
        """Raise BrokenInvariant if a broker is in the ISR that has to be fenced, or was registered again meanwhile."""
        for broker, known in brokers.items():
            if key not in self._members and self._epochs_of_loss.get(broker) == known.registration.epoch:
                self._lossy[broker, key] = known.registration.epoch, True
            lossy = self._lossy.get((broker, key))
            if lossy is not None:
                epoch, was_member = lossy
                is_member = broker in (*stored.isr, *stored.elr)
                if known.registration.epoch != epoch or (was_member and not is_member):
                    del self._lossy[broker, key]
                else:
                    self._lossy[broker, key] = epoch, is_member
        partition_epoch, epochs = self._members.get(key, (-1, {}))
        current = {broker: brokers[broker].registration.epoch for broker in stored.isr if broker in brokers}
        if partition_epoch != stored.partition_epoch:
            self._members[key] = stored.partition_epoch, current
        for broker in stored.isr:
            if broker not in current or brokers[broker].fenced:
                self._fail(broker, tp, f"it is fenced, and in the ISR {stored.isr}")
            if partition_epoch == stored.partition_epoch and epochs.get(broker) != current[broker]:
                self._fail(
                    broker,
                    tp,
                    f"it is in the ISR {stored.isr} since its broker epoch {epochs.get(broker)}, and has the broker "
                    f"epoch {current[broker]} now",
                )

    def _fail(self, broker: int, tp: TopicPartition, message: str) -> None:
        raise BrokenInvariant(f"broker {broker}, {tp[0]}-{tp[1]}: {message}")


# The directories of logs; by partition of a topic if the file with the topic id is lost.
Directories = dict[Key | TopicPartition, str]


class KeptLogs:
    """The logs that machines have, also those that are set aside, and which of them have to remain."""

    def __init__(self) -> None:
        # The directories of logs by broker, with the disk and the number of changes of its data directory.
        self._found: dict[int, tuple[SimDisk, int, Directories]] = {}
        # The logs that were found of a broker that has been a replica since then.
        self._kept: dict[Key, set[int]] = {}
        # The brokers that have left the replicas: they may delete a log late, when they are replicas again.
        self._left: dict[Key, set[int]] = {}

    def logs(self, broker: int, disk: SimDisk) -> Directories:
        """Return the directory of each log on a disk. One in place comes before one that is set aside."""
        known = self._found.get(broker)
        if known is None or known[0] is not disk or known[1] != disk.changes[DATA]:
            known = self._found[broker] = disk, disk.changes[DATA], _directories(disk)
        return known[2]

    def lose(self, broker: int) -> None:
        """Record that a machine loses power or its disk."""
        for kept in self._kept.values():
            kept.discard(broker)

    def forget(self, key: Key) -> None:
        """Record that a partition was removed."""
        self._left.setdefault(key, set()).update(self._kept.pop(key, ()))

    def note_replicas(self, key: Key, replicas: Sequence[int]) -> None:
        """Record the replicas that a transaction has written."""
        kept = self._kept.setdefault(key, set())
        removed = [broker for broker in kept if broker not in replicas]
        kept.difference_update(removed)
        self._left.setdefault(key, set()).update(removed)

    def fault(
        self, tp: TopicPartition, key: Key, replicas: Sequence[int], logs: Mapping[int, Directories]
    ) -> str | None:
        """Describe a log that was deleted although its broker is one of the replicas; None if there is none."""
        kept, left = self._kept[key], self._left[key]
        for broker in replicas:
            if broker in left:
                continue
            if key in logs[broker]:
                kept.add(broker)
            elif broker in kept and tp not in logs[broker]:
                return f"broker {broker} has deleted its log, and is one of the replicas {replicas}"
        return None


def _directories(disk: SimDisk) -> Directories:
    found: Directories = {}
    for name in sorted(disk.entries(DATA)) if disk.isdir(DATA) else ():
        path, tp, stray = f"{DATA}/{name}", parse_partition_dir(name), parse_stray_dir(name)
        index = tp.partition if tp is not None else stray
        file = f"{path}/{PARTITION_METADATA}"
        topic_id = decode_topic_id(bytes(disk.data(file))) if index is not None and disk.exists(file) else None
        if topic_id is not None and index is not None and (tp is not None or (topic_id, index) not in found):
            found[topic_id, index] = path
        elif topic_id is None and tp is not None and disk.isdir(path):
            found[tp.topic, tp.partition] = path
    return found
