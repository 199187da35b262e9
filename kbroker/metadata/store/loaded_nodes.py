"""The nodes of the metadata as last read, and what changes in the image with their new data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.common import TopicPartition
from kbroker.config.config_resource import ConfigResource, ConfigResourceType
from kbroker.metadata.features import INITIAL_FEATURES
from kbroker.metadata.image import (
    KnownBroker,
    MetadataDelta,
    MetadataImage,
    PartitionChange,
    PartitionRegistration,
    TopicImage,
)
from kbroker.metadata.store import znodes
from kbroker.metadata.store.plan_nodes import LoadedPlan

# The data of nodes by path, None for a node that does not exist.
NodeData = Mapping[str, bytes | None]


class LoadedNodes:
    """`topics`, `chunks` and `registrations` are the nodes as last read, by name, number and broker id."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.topics: dict[str, znodes.TopicNode] = {}
        self.chunks: dict[int, znodes.Chunk] = {}
        self.registrations: dict[int, KnownBroker] = {}
        self.reassignment_plan = LoadedPlan()
        self._topic_names: dict[bytes, str] = {}
        # The partitions of all chunks, by topic id and index.
        self._partitions: dict[bytes, dict[int, PartitionRegistration]] = {}

    def known_paths(self) -> Iterable[str]:
        yield from map(znodes.chunk_path, self.chunks)
        yield from map(znodes.topic_path, self.topics)
        yield from map(znodes.registration_path, self.registrations)
        yield from self.reassignment_plan.known_paths()
        for resource_type in znodes.CONFIG_DIRECTORIES:
            for name in self.image.resources_with_overrides(resource_type):
                yield znodes.config_path(ConfigResource(resource_type, name))

    def update(self, nodes: NodeData, delta: MetadataDelta) -> None:
        """Store the current data of nodes, and add the resulting changes of the image to the delta."""
        # The ids of topics that may have changed; a dict to keep their order.
        changed: dict[bytes, None] = {}
        for path, data in nodes.items():
            parent, _, name = path.rpartition("/")
            if parent == znodes.TOPICS:
                self._update_topic(name, None if data is None else znodes.decode_topic(name, data), changed)
            elif parent == znodes.REGISTRATIONS:
                number = znodes.number_of(path)
                self._update_broker(number, None if data is None else znodes.decode_registration(number, data))
            elif path == znodes.FEATURES:
                features = INITIAL_FEATURES if data is None else znodes.decode_features(data)
                if features != self.image.features:
                    delta.features = features
            elif parent != znodes.PARTITIONS and not path.startswith(znodes.REASSIGNMENT_PLAN):
                overrides: dict[str, str] = {} if data is None else znodes.decode(path, data)
                resource = znodes.config_resource(path)
                if overrides != self.image.overrides(*resource):
                    delta.configs[resource] = overrides
        self._update_chunks(
            {
                znodes.number_of(path): znodes.decode_chunk(znodes.number_of(path), data or b"{}")
                for path, data in nodes.items()
                if path.startswith(znodes.PARTITIONS + "/")
            },
            changed,
        )
        self.reassignment_plan.update(nodes)
        for topic_id in changed:
            self._add_topic_delta(topic_id, delta)
        self._add_broker_deltas(delta)

    def _update_broker(self, broker_id: int, known: KnownBroker | None) -> None:
        if known is None:
            self.registrations.pop(broker_id, None)
        else:
            self.registrations[broker_id] = known

    def _add_broker_deltas(self, delta: MetadataDelta) -> None:
        image = self.image
        for broker_id in image.brokers.keys() | image.fenced_brokers.keys() | self.registrations.keys():
            known = self.registrations.get(broker_id)
            unfenced = known.registration if known is not None and not known.fenced else None
            fenced = known.registration if known is not None and known.fenced else None
            if image.brokers.get(broker_id) != unfenced:
                delta.brokers[broker_id] = unfenced
            if image.fenced_brokers.get(broker_id) != fenced:
                delta.fenced_brokers[broker_id] = fenced

    def _update_topic(self, name: str, new: znodes.TopicNode | None, changed: dict[bytes, None]) -> None:
        old = self.topics.pop(name, None)
        if old is not None:
            self._topic_names.pop(old.topic_id, None)
            changed[old.topic_id] = None
        if new is not None:
            self.topics[name] = new
            self._topic_names[new.topic_id] = name
            changed[new.topic_id] = None

    def _update_chunks(self, chunks: dict[int, znodes.Chunk], changed: dict[bytes, None]) -> None:
        # All removals come before all additions: a partition may have moved from one chunk to another.
        for number, chunk in chunks.items():
            for topic_id, partitions in self.chunks.get(number, {}).items():
                if partitions != chunk.get(topic_id):
                    changed[topic_id] = None
                    for index in partitions:
                        del self._partitions[topic_id][index]
        for number, chunk in chunks.items():
            old = self.chunks.get(number, {})
            for topic_id, partitions in chunk.items():
                if partitions != old.get(topic_id):
                    changed[topic_id] = None
                    self._partitions.setdefault(topic_id, {}).update(partitions)
            self.chunks[number] = chunk
        for topic_id in changed:
            if not self._partitions.get(topic_id, True):
                del self._partitions[topic_id]

    def _add_topic_delta(self, topic_id: bytes, delta: MetadataDelta) -> None:
        """Compare a topic with the one in the image, and add the differences to the delta."""
        old = self.image.topics_by_id.get(topic_id)
        name = self._topic_names.get(topic_id)
        new = None if name is None else self._build_topic(name, topic_id, delta)
        if new is None:
            if old is not None:
                delta.deleted.append(old)
        elif old is None:
            delta.created.append(new)
        elif old.partitions != new.partitions:
            delta.updated.append(new)
        old_partitions = old.partitions if old else []
        new_partitions = new.partitions if new else []
        for index in range(max(len(old_partitions), len(new_partitions))):
            old_partition = old_partitions[index] if index < len(old_partitions) else None
            new_partition = new_partitions[index] if index < len(new_partitions) else None
            if old_partition != new_partition:
                tp = TopicPartition(name or (old.name if old else ""), index)
                delta.partitions.append(PartitionChange(tp, topic_id, old_partition, new_partition))

    def _build_topic(self, name: str, topic_id: bytes, delta: MetadataDelta) -> TopicImage:
        """Build the topic with its partitions up to the first that is missing.

        Partitions can be missing if the chunks were read while the controller wrote the next change.
        """
        known = self._partitions.get(topic_id, {})
        partitions: list[PartitionRegistration] = []
        while (partition := known.get(len(partitions))) is not None:
            partitions.append(partition)
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        configs = delta.configs.get(resource, self.image.overrides(*resource))
        node = self.topics[name]
        return TopicImage(name, topic_id, node.internal, configs, partitions, node.has_kafka_key_hash)
