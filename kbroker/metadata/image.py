"""The metadata image: a broker's view of the cluster, and the deltas that update it.

The image is one object for the life of the broker. Only `apply` changes it, in one iteration of the event loop, so code
that does not await sees a consistent state. Other code only reads it.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple, TypeVar

from kbroker.authorization.rule_set import RuleSet
from kbroker.common import NO_LEADER, TopicPartition
from kbroker.config.config_def import ConfigResource, ConfigResourceType
from kbroker.config.queue_configs import VIEW_OF
from kbroker.metadata.features import FORMER_FEATURES, FORMER_FINALIZED, BrokerFeature, FinalizedFeatures
from kbroker.metadata.topics.topic_names import collision_key
from kbroker.quotas.entities import QuotaEntity, Quotas
from protocol.scram import ScramCredential, ScramMechanism

K = TypeVar("K")
V = TypeVar("V")


class WriteHealth(IntEnum):
    """Whether a broker can write to its disk, as it reports itself; the lower, the better.

    FAILING: it cannot. PROBATION: it can again, but has failed so recently that it gets roles back only where they are
    needed.
    """

    OK = 0
    PROBATION = 1
    FAILING = 2


class BrokerEndpoint(NamedTuple):
    """The address at which clients reach a listener of a broker. `security_protocol`: such as PLAINTEXT."""

    listener: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"


class BrokerRegistration(NamedTuple):
    """A registered broker. Each registration of an id has a higher `epoch` (the broker epoch).

    `host` and `port` are those of the first of the `endpoints`, which are for clients; brokers of a version without
    endpoints know only these. Those of the inter-broker listener are for other brokers; a lone broker has no such
    listener. `directory_id`: the id of its log directory (KIP-858), as meta.properties has it. `write_health`: see
    replication/partition_requests.py. `features`: what the broker supports. `inter_broker_listener`: the listener whose
    security protocol and certificates the inter-broker listener has; empty in a version without TLS between brokers.
    """

    id: int
    host: str
    port: int
    rack: str | None = None
    epoch: int = 0
    inter_broker_host: str = ""
    inter_broker_port: int = 0
    directory_id: str = ""
    in_controlled_shutdown: bool = False
    write_health: WriteHealth = WriteHealth.OK
    endpoints: tuple[BrokerEndpoint, ...] = ()
    features: tuple[BrokerFeature, ...] = FORMER_FEATURES
    inter_broker_listener: str = ""

    def endpoint(self, listener: str) -> BrokerEndpoint | None:
        """Return the endpoint of a listener, None if the broker has no listener of this name.

        A broker of a version without endpoints has one address, which it has for the clients of any listener.
        """
        if not self.endpoints:
            return BrokerEndpoint(listener, self.host, self.port)
        return next((endpoint for endpoint in self.endpoints if endpoint.listener == listener), None)

    @property
    def inter_broker_endpoint(self) -> BrokerEndpoint | None:
        """The listener for clients with the security protocol and the certificate of the inter-broker listener.

        None in a version without TLS between brokers.
        """
        return self.endpoint(self.inter_broker_listener) if self.inter_broker_listener else None


class SeenMetadata(NamedTuple):
    """The newest metadata that a broker has seen, also before it was restarted (metadata/recovery).

    `number`: that of the last change, which the controller `writer` with the epoch `writer_epoch` has written:
    no other history of the cluster has this name. The others are the highest broker epoch, the highest leader
    epoch of any partition, and the end of the last block of producer ids that this broker has reserved.
    """

    number: int = 0
    writer_epoch: int = 0
    writer: str = ""
    broker_epoch: int = 0
    leader_epoch: int = -1
    producer_ids_end: int = 0


NOTHING_SEEN = SeenMetadata()


class BrokerNode(NamedTuple):
    """A broker's own, ephemeral node. `previous_epoch`: its epoch before a clean shutdown, else -1.

    `seen`: nothing if a version without this field has written the node.
    """

    registration: BrokerRegistration
    previous_epoch: int = -1
    seen: SeenMetadata = NOTHING_SEEN


class BrokerHistory(NamedTuple):
    """The history of a broker that self-healing depends on (reassignments/). The controller stores it.

    `since_ms`: the wall clock when the broker was last fenced or unfenced, -1 if that is unknown. `rebuilt`: how many
    of its replicas were rebuilt elsewhere and not given back since. `is_given_up`: a user has cancelled the rebuild of
    its replicas, and none begins until the broker has returned. `is_drained`: a plan on request has moved all its
    replicas away, so it gets no rebuilt replicas.
    """

    since_ms: int = -1
    rebuilt: int = 0
    is_given_up: bool = False
    is_drained: bool = False


class KnownBroker(NamedTuple):
    """A broker as the controller knows it."""

    registration: BrokerRegistration
    fenced: bool
    history: BrokerHistory = BrokerHistory()


class Forwarding(NamedTuple):
    """The forwarding of a closing partition's records (kbroker/queues/closing/).

    Producers' records from the leader epoch `first_epoch` on are hidden, and forwarded to partition `target` of the
    topic. `end_epoch`: the leader epoch in which the closing was cancelled, -1 if it was not. `again_epoch`: the one in
    which the partition closed again after that, -1 if it did not; consumers see the records between the two.
    `is_retired`: only producers that know the partition still use it.
    """

    first_epoch: int
    target: int
    end_epoch: int = -1
    again_epoch: int = -1
    is_retired: bool = False

    @property
    def is_active(self) -> bool:
        return self.end_epoch < 0

    @property
    def closed_epoch(self) -> int:
        """The leader epoch in which the partition last closed. Consumers may see records of earlier epochs only."""
        return max(self.first_epoch, self.again_epoch)


# The last known ELR of a partition that is being recovered: no broker has this id, so no version elects a leader by it.
UNKNOWN_REPLICA = [-1]


@dataclass(slots=True)
class PartitionRegistration:
    """A partition's state as the controller wrote it. Lists have broker ids; `replicas[0]` is the preferred leader.

    `elr` and `last_known_elr` are the eligible leader replicas of KIP-966. During a reassignment (KIP-455) `replicas`
    has the original and the target replicas: `adding_replicas` are not original ones, `removing_replicas` are not in
    the target. A replica is in both if an earlier target had it, but the current one does not. `is_closing`: the leader
    refuses records, because the partition is about to be removed if it is empty. `forwarding`: the leader forwards new
    records to another partition; None if the partition was never closed.
    """

    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    elr: list[int] = field(default_factory=list)
    last_known_elr: list[int] = field(default_factory=list)
    partition_epoch: int = 0
    adding_replicas: list[int] = field(default_factory=list)
    removing_replicas: list[int] = field(default_factory=list)
    is_closing: bool = False
    forwarding: Forwarding | None = None

    @property
    def is_recovering(self) -> bool:
        """Whether the leader has to be found by the logs of the replicas, because the metadata were older than they."""
        return self.last_known_elr == UNKNOWN_REPLICA

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding_replicas or self.removing_replicas)


def is_retired(partition: PartitionRegistration | None) -> bool:
    return partition is not None and partition.forwarding is not None and partition.forwarding.is_retired


@dataclass(slots=True)
class TopicImage:
    """`topic_id` has 16 bytes; `configs` are the overrides only; `partitions` are in the order of their indexes.

    `has_kafka_key_hash`: the coordinators of an internal topic find the partition of a key by Kafka's hash.
    `removed_from`: partitions from this index on were removed; None if partitions were added after the last removal.
    `removed_to`: the number of partitions before the removal; None if an older version of kbroker removed them.
    `first_leader_epoch`: the epoch of new partitions, higher than those of removed ones, since clients ignore metadata
    with an older epoch.
    """

    name: str
    topic_id: bytes
    internal: bool = False
    configs: dict[str, str] = field(default_factory=dict)
    partitions: list[PartitionRegistration] = field(default_factory=list)
    has_kafka_key_hash: bool = False
    removed_from: int | None = None
    first_leader_epoch: int = 0
    removed_to: int | None = None

    def is_removed(self, index: int) -> bool:
        """Return whether a partition was removed. One that is merely missing may arrive with the next change."""
        if self.removed_from is None or index < max(self.removed_from, len(self.partitions)):
            return False
        return self.removed_to is None or index < self.removed_to

    @property
    def listed_partitions(self) -> int:
        """The number of partitions, not counting retired ones, which are the highest."""
        count = len(self.partitions)
        while count and is_retired(self.partitions[count - 1]):
            count -= 1
        return count

    @property
    def view_of(self) -> str:
        """The name of the source topic if this topic is a view, which has no partitions of its own; else ""."""
        return self.configs.get(VIEW_OF, "")


class PartitionChange(NamedTuple):
    """`old` is None for a new partition (of this topic id), `new` is None for a deleted one."""

    tp: TopicPartition
    topic_id: bytes
    old: PartitionRegistration | None
    new: PartitionRegistration | None


@dataclass(slots=True)
class MetadataDelta:
    """The difference between one image and the next.

    A topic that was deleted and created again is in both `deleted` and `created`, with different topic ids; listeners
    must handle deletions first. A topic in `missing` has no nodes any more, but nothing proves that it was deleted:
    nothing of it may be removed for good. `partitions` has every new, changed or removed partition, including those of
    created, deleted and missing topics. `configs` has the new overrides of each changed resource, {} if they were
    removed, `scram_users` the new credentials of each changed user, `client_quotas` the new quotas of each changed
    entity, and `rules` all ACLs if any has changed. A broker that has left `MetadataImage.brokers` or `fenced_brokers`
    has None in the field of the same name.
    """

    deleted: list[TopicImage] = field(default_factory=list)
    missing: list[TopicImage] = field(default_factory=list)
    created: list[TopicImage] = field(default_factory=list)
    updated: list[TopicImage] = field(default_factory=list)
    partitions: list[PartitionChange] = field(default_factory=list)
    configs: dict[ConfigResource, dict[str, str]] = field(default_factory=dict)
    brokers: dict[int, BrokerRegistration | None] = field(default_factory=dict)
    fenced_brokers: dict[int, BrokerRegistration | None] = field(default_factory=dict)
    controller_id: int | None = None
    features: FinalizedFeatures | None = None
    scram_users: dict[str, Mapping[ScramMechanism, ScramCredential]] = field(default_factory=dict)
    rules: RuleSet | None = None
    client_quotas: dict[QuotaEntity, Quotas] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(
            self.deleted or self.missing or self.created or self.updated or self.configs or self.brokers
            or self.fenced_brokers or self.controller_id is not None or self.features is not None or self.scram_users
            or self.client_quotas or self.rules is not None
        )  # fmt: skip


def _update(current: dict[K, V], changes: Mapping[K, V | None]) -> None:
    """Apply changes, of which those without a value, or with an empty one, are removals."""
    for key, value in changes.items():
        if value:
            current[key] = value
        else:
            current.pop(key, None)


# Awaited with each delta after it was applied. It must not wait for the controller, which waits for the listeners.
DeltaListener = Callable[[MetadataDelta], Awaitable[None]]


class MetadataImage:
    """The topics, brokers, config overrides and features of the cluster.

    `brokers` are those that the controller has unfenced: only they can lead partitions, and clients see only them.
    `scram_users`: the credentials of each user that has any. `client_quotas`: the quotas of each entity that has any.
    `rules`: the ACLs.
    """

    def __init__(self) -> None:
        # Incremented by every change.
        self.version = 0
        self.cluster_id = ""
        self.controller_id = NO_LEADER
        self.features = FORMER_FINALIZED
        self.brokers: dict[int, BrokerRegistration] = {}
        self.fenced_brokers: dict[int, BrokerRegistration] = {}
        self.topics: dict[str, TopicImage] = {}
        self.topics_by_id: dict[bytes, TopicImage] = {}
        # Topic names by their form in Kafka's metrics, in which "." is replaced by "_".
        self.names_by_collision_key: dict[str, str] = {}
        self.scram_users: dict[str, Mapping[ScramMechanism, ScramCredential]] = {}
        self.rules = RuleSet()
        self.client_quotas: dict[QuotaEntity, Quotas] = {}
        # The names of the views of each source topic.
        self.views: dict[str, set[str]] = {}
        # By name and by id of each topic with retired partitions: the image version in which the last of them retired.
        self.retired_versions: dict[str | bytes, int] = {}
        self._overrides: dict[ConfigResource, dict[str, str]] = {}
        # By listener, of those that were asked for since the brokers last changed.
        self._endpoints: dict[str, dict[int, BrokerEndpoint]] = {}

    def apply(self, delta: MetadataDelta) -> None:
        self.version += 1
        # Deletions come first: a created topic may have the name of a deleted one.
        for topic in (*delta.deleted, *delta.missing):
            del self.topics[topic.name]
            del self.topics_by_id[topic.topic_id]
            self._forget_retired(topic)
            self.names_by_collision_key.pop(collision_key(topic.name), None)
            if topic.view_of:
                self.views[topic.view_of].discard(topic.name)
                if not self.views[topic.view_of]:
                    del self.views[topic.view_of]
        for topic in delta.created:
            if "." in topic.name or "_" in topic.name:
                self.names_by_collision_key[collision_key(topic.name)] = topic.name
            if source := topic.configs.get(VIEW_OF):
                self.views.setdefault(source, set()).add(topic.name)
        for topic in (*delta.created, *delta.updated):
            if self.retired_versions or (topic.partitions and is_retired(topic.partitions[-1])):
                self._note_retired(self.topics.get(topic.name), topic)
            self.topics[topic.name] = topic
            self.topics_by_id[topic.topic_id] = topic
        _update(self._overrides, delta.configs)
        for resource, overrides in delta.configs.items():
            if resource.type == ConfigResourceType.TOPIC and resource.name in self.topics:
                self.topics[resource.name].configs = overrides
        _update(self.brokers, delta.brokers)
        _update(self.fenced_brokers, delta.fenced_brokers)
        if delta.brokers:
            self._endpoints = {}
        if delta.controller_id is not None:
            self.controller_id = delta.controller_id
        if delta.features is not None:
            self.features = delta.features
        if delta.rules is not None:
            self.rules = delta.rules
        _update(self.scram_users, delta.scram_users)
        _update(self.client_quotas, delta.client_quotas)

    def _note_retired(self, old: TopicImage | None, new: TopicImage) -> None:
        if not new.partitions or not is_retired(new.partitions[-1]):
            self._forget_retired(new)
        elif old is None or old.listed_partitions > new.listed_partitions or new.name not in self.retired_versions:
            self.retired_versions |= {new.name: self.version, new.topic_id: self.version}

    def _forget_retired(self, topic: TopicImage) -> None:
        self.retired_versions.pop(topic.name, None)
        self.retired_versions.pop(topic.topic_id, None)

    def resolve(self, topic: TopicImage) -> TopicImage:
        """Return the topic as clients see it: a view with its source's partitions, and without retired ones."""
        topic = self.resolve_view(topic)
        if not topic.partitions or not is_retired(topic.partitions[-1]):
            return topic
        listed, removed_to = topic.listed_partitions, max(len(topic.partitions), topic.removed_to or 0)
        return replace(topic, partitions=topic.partitions[:listed], removed_from=listed, removed_to=removed_to)

    def resolve_view(self, topic: TopicImage) -> TopicImage:
        """Return the topic; a view has the partitions of its source."""
        if VIEW_OF not in topic.configs:
            return topic
        source = self.topics.get(topic.view_of)
        if source is None:
            return topic
        return replace(
            topic, partitions=source.partitions, removed_from=source.removed_from, removed_to=source.removed_to
        )

    def topic_name(self, key: str | bytes) -> str | None:
        """Return the name of a topic that a request names by its name or id; None for an unknown id."""
        if isinstance(key, str):
            return key
        topic = self.topics_by_id.get(key)
        return None if topic is None else topic.name

    def overrides(self, resource_type: int, name: str) -> dict[str, str]:
        """Return the config overrides of a resource, {} if it has none."""
        return self._overrides.get(ConfigResource(resource_type, name), {})

    def resources_with_overrides(self, resource_type: int) -> list[str]:
        """Return the names of the resources of a type that have overrides, sorted."""
        return sorted(resource.name for resource in self._overrides if resource.type == resource_type)

    def partition(self, topic: str, index: int) -> PartitionRegistration | None:
        image = self.topics.get(topic)
        if image is None or not 0 <= index < len(image.partitions):
            return None
        return image.partitions[index]

    def partitions(self) -> Iterator[tuple[TopicPartition, PartitionRegistration]]:
        for topic in self.topics.values():
            for index, partition in enumerate(topic.partitions):
                yield TopicPartition(topic.name, index), partition

    def scram_credential(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        return self.scram_users.get(user, {}).get(mechanism)

    def endpoints(self, listener: str) -> dict[int, BrokerEndpoint]:
        """Return the endpoints of a listener, by broker id: of the unfenced brokers that its clients can reach."""
        found = self._endpoints.get(listener)
        if found is None:
            endpoints = ((broker.id, broker.endpoint(listener)) for broker in self.brokers.values())
            found = {broker_id: endpoint for broker_id, endpoint in endpoints if endpoint is not None}
            self._endpoints[listener] = found
        return found

    def write_health(self, broker_id: int) -> WriteHealth:
        """Return the write health of a broker, OK for one that is fenced or not registered."""
        broker = self.brokers.get(broker_id)
        return WriteHealth.OK if broker is None else broker.write_health

    def count_recovering(self) -> int:
        """Return how many partitions have no leader until the logs of their replicas are compared."""
        return sum(partition.is_recovering for topic in self.topics.values() for partition in topic.partitions)

    def is_replica_eligible(self, broker_id: int, epoch: int) -> bool:
        """Return whether a broker may join in-sync replicas (KIP-841, KIP-903), apart from its write health.

        A broker epoch of -1 is not checked.
        """
        broker = self.brokers.get(broker_id)
        return broker is not None and not broker.in_controlled_shutdown and epoch in (-1, broker.epoch)
