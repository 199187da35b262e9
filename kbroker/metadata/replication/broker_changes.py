"""Changes of brokers: which registrations the controller writes, and what they mean for a partition.

A broker registers with an ephemeral node of its own, with a new broker epoch each time. The controller compares these
nodes with the registrations that it has written, which are the ones that count. So it
detects by the epoch that a broker has restarted between two reads (KIP-380).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kbroker.metadata.image import BrokerHistory, BrokerNode, BrokerRegistration, KnownBroker, PartitionRegistration
from kbroker.metadata.replication.partition_change import TopicRules, change_partition
from kbroker.runtime.event_log import EventLogger

log = EventLogger("kbroker.metadata")


@dataclass(slots=True)
class BrokerChanges:
    """`restarted` brokers have registered again, so their ISR memberships end. `fenced` ones have lost their sessions.

    Of the restarted ones, `unclean` cannot prove that they stopped cleanly, so their logs may have lost their ends.
    `replaced_disks` have another log directory, without the records, or were unregistered, so it may be another one.
    `completed` ones were registered by a controller of a version that did not know all that they have registered.
    """

    restarted: dict[int, BrokerRegistration] = field(default_factory=dict)
    unfenced: dict[int, BrokerRegistration] = field(default_factory=dict)
    fenced: dict[int, BrokerRegistration] = field(default_factory=dict)
    unclean: set[int] = field(default_factory=set)
    replaced_disks: set[int] = field(default_factory=set)
    completed: dict[int, BrokerRegistration] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.restarted or self.unfenced or self.fenced or self.completed)

    @property
    def brokers(self) -> frozenset[int]:
        return frozenset((*self.restarted, *self.unfenced, *self.fenced))

    def after(self, known: Mapping[int, KnownBroker], now_ms: int) -> dict[int, KnownBroker]:
        """Return the brokers after these changes, which are made at `now_ms` (wall clock)."""
        after = {
            id: broker._replace(registration=self.completed.get(id, broker.registration))
            for id, broker in known.items()
        }
        for brokers, fenced in ((self.restarted, False), (self.unfenced, False), (self.fenced, True)):
            for broker_id, broker in brokers.items():
                history = known[broker_id].history if broker_id in known else BrokerHistory()
                after[broker_id] = KnownBroker(broker, fenced, history._replace(since_ms=now_ms, is_given_up=False))
        return after


def plan_broker_changes(nodes: Mapping[int, BrokerNode], known: Mapping[int, KnownBroker]) -> BrokerChanges:
    """Compare the brokers that have sessions (`nodes`) with those that the controller knows."""
    changes = BrokerChanges()
    for broker_id in sorted(nodes.keys() | known.keys()):
        node, broker = nodes.get(broker_id), known.get(broker_id)
        if node is None:
            if broker is not None and not broker.fenced:
                changes.fenced[broker_id] = broker.registration
        elif broker is None or node.registration.epoch != broker.registration.epoch:
            _add_restart(changes, node, broker)
        else:
            complete = broker.registration._replace(
                endpoints=node.registration.endpoints, features=node.registration.features
            )
            if broker.fenced:
                changes.unfenced[broker_id] = complete
            elif complete != broker.registration:
                changes.completed[broker_id] = complete
    return changes


def _add_restart(changes: BrokerChanges, node: BrokerNode, broker: KnownBroker | None) -> None:
    registration = node.registration
    changes.restarted[registration.id] = registration
    if broker is None or node.previous_epoch != broker.registration.epoch:
        changes.unclean.add(registration.id)
    old, new = "" if broker is None else broker.registration.directory_id, registration.directory_id
    if broker is None or (old and new and old != new):
        changes.replaced_disks.add(registration.id)


def acceptable_leaders(known: Mapping[int, KnownBroker]) -> frozenset[int]:
    """Return the brokers that may lead partitions and join in-sync replicas: unfenced, and not shutting down."""
    return frozenset(
        broker_id
        for broker_id, broker in known.items()
        if not broker.fenced and not broker.registration.in_controlled_shutdown
    )


def settle_partition(
    partition: PartitionRegistration, changes: BrokerChanges, is_acceptable: Callable[[int], bool], rules: TopicRules
) -> PartitionRegistration | None:
    """Return the partition after changes of brokers, None if nothing changes.

    Also repairs what a controller that failed half-way has left: a leader or in-sync replica that is fenced.
    """
    isr = [replica for replica in partition.isr if replica not in changes.restarted and is_acceptable(replica)]
    if isr == partition.isr and partition.leader in isr and not partition.elr and not partition.last_known_elr:
        return None  # true of most partitions
    return change_partition(
        partition,
        is_acceptable,
        rules,
        isr=isr,
        restarted=changes.restarted.keys(),
        unclean=changes.unclean,
        replaced_disks=changes.replaced_disks,
    )


def log_changes(changes: BrokerChanges) -> None:
    for broker_id, broker in changes.restarted.items():
        log.info("broker registered", broker=broker_id, epoch=broker.epoch)
    for broker_id in changes.unfenced:
        log.info("broker unfenced", broker=broker_id)
    for broker_id in changes.fenced:
        log.info("broker fenced", broker=broker_id)
