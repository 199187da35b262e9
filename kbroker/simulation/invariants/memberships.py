"""Invariants of ISR memberships: which registrations of brokers they belong to, and which of them have lost data.

The controller fences a broker, or registers it again, in the same change that ends its memberships.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.metadata.image import WriteHealth
from kbroker.simulation.invariants.broker import BrokenInvariant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kbroker.metadata.image import KnownBroker, PartitionRegistration
    from kbroker.simulation.checker.history import TopicPartition
    from kbroker.simulation.invariants.controller_state import ControllerState

# A partition of a topic id.
Key = tuple[bytes, int]

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
