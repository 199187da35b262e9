"""Invariants of ISR memberships: which registrations of brokers they belong to, and which of them have lost data.

The controller fences a broker, or registers it again, in the same change that ends its memberships.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.simulation.invariants.broker import BrokenInvariant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kbroker.metadata.image import KnownBroker, PartitionRegistration
    from kbroker.simulation.checker.history import TopicPartition
    from kbroker.simulation.invariants.controller_state import ControllerState

# A partition of a topic id.
Key = tuple[bytes, int]


class Memberships:
    """`state`: what the controller has stored.

    A replica is lossy while it is in the ISR or the ELR with the broker epoch in which its machine lost power or its
    disk. The controller does not know of the loss yet.
    """

    def __init__(self, state: ControllerState) -> None:
        self._state = state
        # By broker and partition: the broker epoch in which the data was lost.
        self._lossy: dict[tuple[int, Key], int] = {}
        # By partition: the partition epoch, and the broker epoch that each member of the ISR had when that began.
        self._members: dict[Key, tuple[int, dict[int, int]]] = {}

    @property
    def has_lossy(self) -> bool:
        return bool(self._lossy)

    def is_lossy(self, broker: int, key: Key) -> bool:
        return (broker, key) in self._lossy

    def lose(self, broker: int) -> None:
        """Record that a machine loses power or its disk."""
        known = self._state.brokers().get(broker)
        for tp, stored in self._state.partitions().items():
            if known is not None and broker in (*stored.registration.isr, *stored.registration.elr):
                self._lossy[broker, (stored.topic_id, tp[1])] = known.registration.epoch

    def check(
        self, tp: TopicPartition, key: Key, stored: PartitionRegistration, brokers: Mapping[int, KnownBroker]
    ) -> None:
        """Raise BrokenInvariant if a broker is in the ISR that has to be fenced, or was registered again meanwhile."""
        for broker, known in brokers.items():
            epoch = self._lossy.get((broker, key))
            has_left = broker not in (*stored.isr, *stored.elr)
            if epoch is not None and (has_left or known.registration.epoch != epoch):
                del self._lossy[broker, key]
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
