"""Which partitions of a share group have a state at the share coordinator (key 15; pure).

    subscribed -> initializing -> initialized: may be assigned -> deleting -> none

A state is initialized before its partition is assigned, so that a leader always finds it. That is decided by this
record alone: a new group coordinator continues what the one before it has begun.
"""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from kbroker.coordinator.group.modern.subscribed_topics import KnownTopic
from kbroker.coordinator.share.share_partition_state import UNINITIALIZED_START_OFFSET
from protocol.messages.share_group_records import ShareGroupStatePartitionMetadataValue, TopicInfo, TopicPartitionsInfo

# A partition of a topic that the group knows begins with its first record: it was added since then.
FIRST_OFFSET = 0


class StatePartitions(NamedTuple):
    """Partitions of a topic. The name is for those who read the record."""

    topic_name: str
    partitions: frozenset[int]


# By topic id.
StatesByTopic = Mapping[bytes, StatePartitions]


class Initialization(NamedTuple):
    """States that the share coordinator has to initialize: their start offsets by topic id and partition."""

    group_id: str
    state_epoch: int
    start_offsets: Mapping[bytes, Mapping[int, int]]


class StateTopics(NamedTuple):
    """The partitions of a group, by what has become of their states. `deleting`: the names of the topics."""

    initializing: StatesByTopic = MappingProxyType({})
    initialized: StatesByTopic = MappingProxyType({})
    deleting: Mapping[bytes, str] = MappingProxyType({})

    @classmethod
    def of(cls, value: ShareGroupStatePartitionMetadataValue) -> "StateTopics":
        return cls(
            _states(value.initializing_topics),
            _states(value.initialized_topics),
            {topic.topic_id: topic.topic_name for topic in value.deleting_topics},
        )

    @property
    def record_value(self) -> ShareGroupStatePartitionMetadataValue:
        return ShareGroupStatePartitionMetadataValue(
            initializing_topics=_infos(self.initializing),
            initialized_topics=_infos(self.initialized),
            deleting_topics=[TopicInfo(topic_id=id, topic_name=name) for id, name in self.deleting.items()],
        )

    def topic_ids(self) -> set[bytes]:
        return {*self.initializing, *self.initialized, *self.deleting}

    def missing(self, topics: Mapping[str, KnownTopic], abandoned: Collection[bytes]) -> StatesByTopic:
        """Return the partitions of topics that have no state. `abandoned`: the topics whose initialization is old."""
        found = {}
        for name, topic in topics.items():
            begun = _partitions(self.initialized, topic.topic_id)
            if len(begun) >= topic.partition_count:
                continue
            if topic.topic_id not in abandoned:
                begun |= _partitions(self.initializing, topic.topic_id)
            partitions = frozenset(range(topic.partition_count)) - begun
            if partitions:
                found[topic.topic_id] = StatePartitions(name, partitions)
        return found

    def initialization(self, group_id: str, state_epoch: int, missing: StatesByTopic) -> Initialization:
        """Return the start offsets of states: those of new topics are up to share.auto.offset.reset."""
        start_offsets = {
            topic_id: {index: self._start_offset(topic_id, index) for index in sorted(states.partitions)}
            for topic_id, states in missing.items()
        }
        return Initialization(group_id, state_epoch, start_offsets)

    def _start_offset(self, topic_id: bytes, index: int) -> int:
        begun = _partitions(self.initializing, topic_id)
        # Kafka takes the first offset, too, when it begins the initialization of a new topic again.
        is_added = topic_id in self.initialized or (bool(begun) and index not in begun)
        return FIRST_OFFSET if is_added else UNINITIALIZED_START_OFFSET

    def begin(self, added: StatesByTopic) -> "StateTopics":
        """Return the partitions when the initialization of more of them has begun."""
        deleting = {id: name for id, name in self.deleting.items() if id not in added}
        return StateTopics(_united(self.initializing, added), self.initialized, deleting)

    def finish(self, done: StatesByTopic) -> "StateTopics":
        """Return the partitions when some are initialized."""
        return StateTopics(_without(self.initializing, done), _united(self.initialized, done), self.deleting)

    def abandon(self, failed: StatesByTopic) -> "StateTopics":
        """Return the partitions when the initialization of some has failed."""
        return self._replace(initializing=_without(self.initializing, failed))

    def delete(self, topics: Mapping[bytes, str]) -> "StateTopics":
        """Return the partitions when the deletion of the states of topics has begun."""
        return self.without(topics)._replace(deleting={**self.deleting, **topics})

    def without(self, topic_ids: Collection[bytes]) -> "StateTopics":
        """Return the partitions of other topics."""
        return StateTopics(
            {id: states for id, states in self.initializing.items() if id not in topic_ids},
            {id: states for id, states in self.initialized.items() if id not in topic_ids},
            {id: name for id, name in self.deleting.items() if id not in topic_ids},
        )


def _states(infos: Iterable[TopicPartitionsInfo]) -> StatesByTopic:
    return {info.topic_id: StatePartitions(info.topic_name, frozenset(info.partitions)) for info in infos}


def _infos(states: StatesByTopic) -> list[TopicPartitionsInfo]:
    return [
        TopicPartitionsInfo(topic_id=id, topic_name=name, partitions=sorted(partitions))
        for id, (name, partitions) in states.items()
    ]


def _partitions(states: StatesByTopic, topic_id: bytes) -> frozenset[int]:
    return states[topic_id].partitions if topic_id in states else frozenset()


def _united(first: StatesByTopic, second: StatesByTopic) -> StatesByTopic:
    united = dict(first)
    for topic_id, (name, partitions) in second.items():
        united[topic_id] = StatePartitions(name, partitions | _partitions(first, topic_id))
    return united


def _without(states: StatesByTopic, removed: StatesByTopic) -> StatesByTopic:
    rest = {id: StatePartitions(name, own - _partitions(removed, id)) for id, (name, own) in states.items()}
    return {id: states for id, states in rest.items() if states.partitions}
