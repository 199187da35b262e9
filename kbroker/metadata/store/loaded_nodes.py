"""The nodes of the metadata as last read, and the deltas of the image that their new data causes."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

from kbroker.authorization.acl import Acl
from kbroker.common import TopicPartition
from kbroker.config.config_def import ConfigResource, ConfigResourceType
from kbroker.metadata.features import FORMER_FINALIZED
from kbroker.metadata.image import (
    KnownBroker,
    MetadataDelta,
    MetadataImage,
    PartitionChange,
    PartitionRegistration,
    TopicImage,
)
from kbroker.metadata.reassignments.stored_plan import LoadedPlan
from kbroker.metadata.store import znodes
from kbroker.metadata.store.partition_chunks import LoadedChunks
from kbroker.metadata.store.znodes import ChunkRows

# The data of nodes by path, None for a node that does not exist.
NodeData = Mapping[str, bytes | None]
# Topics that may have changed, in order: the partitions that have, or None for any difference.
ChangedTopics = dict[bytes, set[int] | None]


class LoadedNodes:
    """`topics`, `chunks`, `registrations` and `acls` are the nodes as last read, by name, number and broker id."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.topics: dict[str, znodes.TopicNode] = {}
        self.chunks = LoadedChunks()
        self.registrations: dict[int, KnownBroker] = {}
        self.acls: dict[int, frozenset[Acl]] = {}
        self.reassignment_plan = LoadedPlan()
        self._topic_names: dict[bytes, str] = {}

    def known_paths(self) -> Iterable[str]:
        yield from map(znodes.chunk_path, self.chunks.numbers())
        yield from map(znodes.topic_path, self.topics)
        yield from map(znodes.registration_path, self.registrations)
        yield from self.reassignment_plan.known_paths()
        yield from map(znodes.user_path, self.image.scram_users)
        yield from map(znodes.acls_path, self.acls)
        yield from map(znodes.quotas_path, self.image.client_quotas)
        for resource_type in znodes.CONFIG_DIRECTORIES:
            for name in self.image.resources_with_overrides(resource_type):
                yield znodes.config_path(ConfigResource(resource_type, name))

    def missing_topics(self, nodes: NodeData) -> bool:
        """Return whether a known topic is not among `nodes`, which are all that exist."""
        for name, topic in self.topics.items():
            data = nodes.get(znodes.topic_path(name))
            if data is None or znodes.decode_topic(name, data).topic_id != topic.topic_id:
                return True
        return False

    def update(
        self,
        nodes: NodeData,
        rows: Mapping[int, Sequence[ChunkRows]],
        delta: MetadataDelta,
        deleted: Container[bytes] | None = None,
    ) -> None:
        """Store the current data of nodes, then rows of chunks, and add the resulting changes to the delta.

        Nodes of other kinds are those of a later version, and ignored: brokers are upgraded one by one.

        `deleted`: the topics of which it is known that they were deleted, if others may be missing for another reason;
        None if changes have deleted those that are gone. The cost depends only on the topics and partitions in the
        parameters.
        """
        changed: ChangedTopics = {}
        has_brokers = False
        acls: dict[int, frozenset[Acl]] = {}
        for path, data in nodes.items():
            parent, _, name = path.rpartition("/")
            if parent == znodes.TOPICS:
                self._update_topic(name, None if data is None else znodes.decode_topic(name, data), changed)
            elif parent == znodes.REGISTRATIONS:
                has_brokers = True
                number = znodes.number_of(path)
                self._update_broker(number, None if data is None else znodes.decode_registration(number, data))
            elif path == znodes.FEATURES:
                features = FORMER_FINALIZED if data is None else znodes.decode_features(data)
                if features != self.image.features:
                    delta.features = features
            elif znodes.REASSIGNMENT_PLAN in (path, parent):
                self.reassignment_plan.update(path, data)
            elif parent == znodes.USERS:
                user, credentials = znodes.user_name(path), {} if data is None else znodes.decode_user(path, data)
                if credentials != self.image.scram_users.get(user, {}):
                    delta.scram_users[user] = credentials
            elif parent == znodes.ACLS:
                acls[znodes.number_of(path)] = frozenset() if data is None else znodes.decode_acls(path, data)
            elif parent == znodes.QUOTAS:
                entity, quotas = znodes.quota_entity(path), {} if data is None else znodes.decode_quotas(path, data)
                if quotas != self.image.client_quotas.get(entity, {}):
                    delta.client_quotas[entity] = quotas
            elif parent in znodes.CONFIG_ROOTS:
                overrides: dict[str, str] = {} if data is None else znodes.decode(path, data)
                resource = znodes.config_resource(path)
                if overrides != self.image.overrides(*resource):
                    delta.configs[resource] = overrides
        for path, data in nodes.items():
            if path.startswith(znodes.PARTITIONS + "/"):
                number = znodes.number_of(path)
                self._update_chunk(number, znodes.decode_chunk(number, data or b"{}"), changed)
        for number, written in rows.items():
            for each in written:
                self._update_rows(number, each, changed)
        for topic_id, indexes in changed.items():
            self._add_topic_delta(topic_id, indexes, delta, deleted)
        if has_brokers:
            self._add_broker_deltas(delta)
        if acls:
            self._update_acls(acls, delta)

    def _update_acls(self, changed: Mapping[int, frozenset[Acl]], delta: MetadataDelta) -> None:
        removed, added = set[Acl](), set[Acl]()
        for number, new in changed.items():
            old = self.acls.pop(number, frozenset())
            removed |= old - new
            added |= new - old
            if new:
                self.acls[number] = new
        if removed or added:
            delta.rules = self.image.rules.changed(removed, added)

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

    def _update_topic(self, name: str, new: znodes.TopicNode | None, changed: ChangedTopics) -> None:
        old = self.topics.pop(name, None)
        if old is not None:
            self._topic_names.pop(old.topic_id, None)
            changed[old.topic_id] = None
        if new is not None:
            self.topics[name] = new
            self._topic_names[new.topic_id] = name
            changed[new.topic_id] = None

    def _update_chunk(self, number: int, chunk: znodes.Chunk, changed: ChangedTopics) -> None:
        old = self.chunks.get(number)
        for topic_id in {**old, **chunk}:
            if old.get(topic_id) != chunk.get(topic_id):
                changed[topic_id] = None
        self.chunks.replace(number, chunk)

    def _update_rows(self, number: int, rows: ChunkRows, changed: ChangedTopics) -> None:
        if number not in self.chunks:
            raise znodes.InvalidNodeData(znodes.chunk_path(number), "a change has rows of it, but it does not exist")
        for topic_id, partitions in rows.items():
            indexes = changed.setdefault(topic_id, set())
            for index, row in partitions.items():
                self.chunks.set_row(number, topic_id, index, row)
                if indexes is not None:
                    indexes.add(index)

    def _add_topic_delta(
        self, topic_id: bytes, indexes: set[int] | None, delta: MetadataDelta, deleted: Container[bytes] | None
    ) -> None:
        """Compare a topic with the one in the image, and add the differences to the delta."""
        old = self.image.topics_by_id.get(topic_id)
        name = self._topic_names.get(topic_id)
        if indexes is not None and old is not None and max(indexes, default=0) < len(old.partitions):
            self._add_partition_deltas(old, indexes, delta)
            return
        new = None if name is None else self._build_topic(name, topic_id, delta)
        if new is None:
            if old is not None:
                (delta.deleted if deleted is None or topic_id in deleted else delta.missing).append(old)
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

    def _add_partition_deltas(self, old: TopicImage, indexes: set[int], delta: MetadataDelta) -> None:
        """Compare some partitions of a topic that has no others, and whose own node has not changed."""
        partitions = list(old.partitions)
        changes = []
        for index in sorted(indexes):
            partition = self.chunks.partition(old.topic_id, index)
            if partition is not None and partition != partitions[index]:
                tp = TopicPartition(old.name, index)
                changes.append(PartitionChange(tp, old.topic_id, partitions[index], partition))
                partitions[index] = partition
        if changes:
            configs = delta.configs.get(ConfigResource(ConfigResourceType.TOPIC, old.name), old.configs)
            delta.updated.append(replace(old, partitions=partitions, configs=configs))
            delta.partitions += changes

    def _build_topic(self, name: str, topic_id: bytes, delta: MetadataDelta) -> TopicImage:
        """Build the topic with its partitions up to the first that is missing.

        Partitions can be missing if the chunks were read while the controller wrote the next change.
        """
        known: dict[int, PartitionRegistration] = {}
        for number in self.chunks.numbers_of(topic_id):
            known |= self.chunks.get(number)[topic_id]
        partitions: list[PartitionRegistration] = []
        while (partition := known.get(len(partitions))) is not None:
            partitions.append(partition)
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        configs = delta.configs.get(resource, self.image.overrides(*resource))
        node = self.topics[name]
        return TopicImage(
            name, topic_id, node.internal, configs, partitions, node.has_kafka_key_hash, node.removed_from,
            node.first_leader_epoch, node.removed_to,
        )  # fmt: skip
