"""What a broker knows about the cluster: the metadata image, and the deltas that carry it forward.

The image is one object for the life of the broker and only `apply` changes it, in one turn of the loop, so
a handler that does not await sees one consistent state. Read it, never write it.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kbroker.common import NO_LEADER, TopicPartition
from kbroker.config.config_resource import ConfigResource, ConfigResourceType
from kbroker.metadata.features import INITIAL_FEATURES, FinalizedFeatures


class BrokerRegistration(NamedTuple):
    """A registered broker. `epoch` tells one registration of an id from the next."""

    id: int
    host: str
    port: int
    rack: str | None = None
    epoch: int = 0


@dataclass(slots=True)
class PartitionRegistration:
    """One partition's state as the controller wrote it. Lists of broker ids; `replicas[0]` is preferred."""

    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    elr: list[int] = field(default_factory=list)
    last_known_elr: list[int] = field(default_factory=list)
    partition_epoch: int = 0


@dataclass(slots=True)
class TopicImage:
    """One topic. `topic_id` is 16 bytes; `configs` are the overrides only; partitions by their index."""

    name: str
    topic_id: bytes
    internal: bool = False
    configs: dict[str, str] = field(default_factory=dict)
    partitions: list[PartitionRegistration] = field(default_factory=list)


class PartitionChange(NamedTuple):
    """`old` is None for a partition that did not exist (in this topic id), `new` for one that is gone."""

    tp: TopicPartition
    topic_id: bytes
    old: PartitionRegistration | None
    new: PartitionRegistration | None


@dataclass(slots=True)
class MetadataDelta:
    """What changed from one image to the next, in the terms of those who must act on it.

    A topic that was deleted and created again under its name appears in both lists, with different topic
    ids: act on deletions first. `partitions` has every partition that appeared, changed or vanished, those
    of created and deleted topics included. `configs` has the new overrides of each changed resource ({}
    when they were removed).
    """

    deleted: list[TopicImage] = field(default_factory=list)
    created: list[TopicImage] = field(default_factory=list)
    updated: list[TopicImage] = field(default_factory=list)
    partitions: list[PartitionChange] = field(default_factory=list)
    configs: dict[ConfigResource, dict[str, str]] = field(default_factory=dict)
    brokers: dict[int, BrokerRegistration | None] = field(default_factory=dict)
    controller_id: int | None = None
    cluster_id: str | None = None
    features: FinalizedFeatures | None = None

    def __bool__(self) -> bool:
        return bool(
            self.deleted or self.created or self.updated or self.configs or self.brokers
            or self.controller_id is not None or self.cluster_id is not None or self.features is not None
        )  # fmt: skip


# A listener must not wait for the controller, which waits for the listeners.
DeltaListener = Callable[[MetadataDelta], Awaitable[None]]


class MetadataImage:
    """Everything that Metadata answers, and the config overrides of every resource."""

    def __init__(self) -> None:
        self.cluster_id = ""
        self.controller_id = NO_LEADER
        self.features = INITIAL_FEATURES
        self.brokers: dict[int, BrokerRegistration] = {}
        self.topics: dict[str, TopicImage] = {}
        self.topics_by_id: dict[bytes, TopicImage] = {}
        self._configs: dict[ConfigResource, dict[str, str]] = {}

    def apply(self, delta: MetadataDelta) -> None:
        """Carries the image forward. Deletions come first: a name may be taken again by a created topic."""
        for topic in delta.deleted:
            del self.topics[topic.name]
            del self.topics_by_id[topic.topic_id]
        for topic in (*delta.created, *delta.updated):
            self.topics[topic.name] = topic
            self.topics_by_id[topic.topic_id] = topic
        for resource, overrides in delta.configs.items():
            if overrides:
                self._configs[resource] = overrides
            else:
                self._configs.pop(resource, None)
            if resource.type == ConfigResourceType.TOPIC and resource.name in self.topics:
                self.topics[resource.name].configs = overrides
        for node_id, node in delta.brokers.items():
            if node is None:
                self.brokers.pop(node_id, None)
            else:
                self.brokers[node_id] = node
        if delta.controller_id is not None:
            self.controller_id = delta.controller_id
        if delta.cluster_id is not None:
            self.cluster_id = delta.cluster_id
        if delta.features is not None:
            self.features = delta.features

    def overrides(self, resource_type: int, name: str) -> dict[str, str]:
        """The config overrides of a resource, {} when there are none. For brokers, "" names the common
        default.
        """
        return self._configs.get(ConfigResource(resource_type, name), {})

    def config_resources(self, resource_type: int) -> list[str]:
        """The names of the resources of a type that have overrides, sorted."""
        return sorted(name for kind, name in self._configs if kind == resource_type)

    def partition(self, topic: str, index: int) -> PartitionRegistration | None:
        found = self.topics.get(topic)
        if found is None or not 0 <= index < len(found.partitions):
            return None
        return found.partitions[index]

    def partitions(self) -> Iterator[tuple[TopicPartition, PartitionRegistration]]:
        for topic in self.topics.values():
            for index, partition in enumerate(topic.partitions):
                yield TopicPartition(topic.name, index), partition

    def registered_brokers(self, nodes: Iterable[int]) -> list[int]:
        return [node for node in nodes if node in self.brokers]

    def offline_replicas(self, partition: PartitionRegistration) -> list[int]:
        """The assigned replicas whose broker is not registered."""
        return [node for node in partition.replicas if node not in self.brokers]
