"""Changes of brokers: which registrations the controller writes, and what they mean for a partition.

A broker registers with an ephemeral node of its own, with a new broker epoch each time. The controller compares these
nodes with the registrations that it has written, which are the ones that count. So a broker that restarted between two
looks is noticed by its epoch (KIP-380).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kbroker.metadata.image import BrokerRegistration, KnownBroker, PartitionRegistration
from kbroker.metadata.replication.partition_change import Election, change_partition


@dataclass(slots=True)
class BrokerChanges:
    """`restarted` have registered again, so their former memberships end; `fenced` have lost their sessions."""

    restarted: dict[int, BrokerRegistration] = field(default_factory=dict)
    unfenced: dict[int, BrokerRegistration] = field(default_factory=dict)
    fenced: dict[int, BrokerRegistration] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.restarted or self.unfenced or self.fenced)

    def after(self, known: Mapping[int, KnownBroker]) -> dict[int, KnownBroker]:
        """Return the brokers after these changes."""
        return {
            **known,
            **{broker_id: KnownBroker(broker, False) for broker_id, broker in self.restarted.items()},
            **{broker_id: KnownBroker(broker, False) for broker_id, broker in self.unfenced.items()},
            **{broker_id: KnownBroker(broker, True) for broker_id, broker in self.fenced.items()},
        }


def plan_broker_changes(nodes: Mapping[int, BrokerRegistration], known: Mapping[int, KnownBroker]) -> BrokerChanges:
    """Compare the brokers that have sessions (`nodes`) with those that the controller knows."""
    changes = BrokerChanges()
    for broker_id in sorted(nodes.keys() | known.keys()):
        node, broker = nodes.get(broker_id), known.get(broker_id)
        if node is None:
            if broker is not None and not broker.fenced:
                changes.fenced[broker_id] = broker.registration
        elif broker is None or node.epoch != broker.registration.epoch:
            changes.restarted[broker_id] = node
        elif broker.fenced:
            changes.unfenced[broker_id] = broker.registration
    return changes


def acceptable_leaders(known: Mapping[int, KnownBroker]) -> frozenset[int]:
    """Return the brokers that may lead partitions and join in-sync replicas: unfenced, and not shutting down."""
    return frozenset(
        broker_id
        for broker_id, broker in known.items()
        if not broker.fenced and not broker.registration.in_controlled_shutdown
    )


def without_brokers(isr: Sequence[int], leaving: Collection[int]) -> list[int]:
    """Return the ISR without brokers that leave one after the other; the last in-sync replica stays."""
    remaining = list(isr)
    for broker_id in leaving:
        if broker_id in remaining and len(remaining) > 1:
            remaining.remove(broker_id)
    return remaining


def settle_partition(
    partition: PartitionRegistration,
    changes: BrokerChanges,
    is_acceptable: Callable[[int], bool],
    election: Election = Election.ONLINE,
) -> PartitionRegistration | None:
    """Return the partition after changes of brokers, None if nothing changes.

    Also repairs what a controller that failed half-way has left: a leader or in-sync replica that is fenced.
    """
    gone = [replica for replica in partition.isr if replica not in changes.restarted and not is_acceptable(replica)]
    isr = without_brokers(partition.isr, [*changes.restarted, *gone])
    return change_partition(partition, is_acceptable, isr=isr, election=election, restarted=changes.restarted.keys())
