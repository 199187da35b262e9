"""The offsets of the groups of one partition of __consumer_offsets (pure).

Committed ones; those of open transactions, which take effect only if the transactions commit (KIP-98); the expiration
of offsets (offsets.retention.minutes, KIP-211).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from kbroker.common import NO_PRODUCER_ID, KafkaError
from kbroker.coordinator.group.group import Group
from kbroker.coordinator.group.records import NO_TIMESTAMP, OffsetAndMetadata, OffsetKey, OffsetRecord
from protocol.errors import ErrorCode

# A record in a batch without its texts: 7 bytes, 10 of the key, and 24 of the value.
MIN_RECORD_BYTES = 41

_NO_PARTITIONS: Mapping[tuple[str, int], object] = {}
# Committed offsets of a group by topic and partition.
TopicOffsets = Mapping[str, Mapping[int, OffsetAndMetadata]]


class FetchedOffsets(NamedTuple):
    """The offsets of a group for OffsetFetch.

    `unstable`: the (topic, partition)s with offsets of open transactions, if the client requires stable offsets
    (KIP-447).
    """

    topics: TopicOffsets
    unstable: frozenset[tuple[str, int]] = frozenset()


class OffsetMetadataManager:
    """The offsets. Only the replay of records and transaction markers changes them."""

    def __init__(self) -> None:
        self.by_group: dict[str, dict[str, dict[int, OffsetAndMetadata]]] = {}
        self.pending = PendingTransactionalOffsets()

    def topics(self, group_id: str) -> TopicOffsets:
        """Return the committed offsets of a group by topic and partition."""
        return self.by_group.get(group_id, {})

    def has_offsets(self, group_id: str) -> bool:
        """Return whether a group has offsets, committed or pending."""
        return group_id in self.by_group or bool(self.pending.partitions(group_id))

    def partitions(self, group_id: str) -> list[tuple[str, int]]:
        """Return the (topic, partition)s of a group that have offsets, committed or pending."""
        committed = [(topic, index) for topic, offsets in self.topics(group_id).items() for index in offsets]
        return list(dict.fromkeys([*committed, *self.pending.partitions(group_id)]))

    def groups_with_topics(self, topics: Collection[str]) -> list[str]:
        """Return the groups that have offsets of one of the topics, committed or pending."""
        names = set(topics)
        committed = [group_id for group_id, by_topic in self.by_group.items() if names & by_topic.keys()]
        pending = [
            group_id
            for group_id in self.pending.group_ids()
            if any(topic in names for topic, _ in self.pending.partitions(group_id))
        ]
        return list(dict.fromkeys([*committed, *pending]))

    def replay(self, record: OffsetRecord, record_offset: int, producer_id: int) -> None:
        key, value = record
        if value is None:
            self.pending.remove(key)
            self._remove(key)
            return
        value.record_offset = record_offset
        if producer_id == NO_PRODUCER_ID:
            self._put(key, value)
        else:
            self.pending.put(producer_id, key, value)

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        """Apply a transaction marker. The last commit of a partition in the log counts, not the last marker."""
        for key, offset in self.pending.pop(producer_id).items():
            known = self.by_group.get(key.group_id, {}).get(key.topic, {}).get(key.partition)
            if committed and (known is None or known.record_offset < offset.record_offset):
                self._put(key, offset)

    def _put(self, key: OffsetKey, offset: OffsetAndMetadata) -> None:
        group_id, topic, partition = key
        topics = self.by_group.get(group_id)
        if topics is None:
            topics = self.by_group[group_id] = {}
        offsets = topics.get(topic)
        if offsets is None:
            offsets = topics[topic] = {}
        offsets[partition] = offset

    def _remove(self, key: OffsetKey) -> None:
        group_id, topic, partition = key
        topics = self.by_group.get(group_id)
        if topics is None or topic not in topics:
            return
        topics[topic].pop(partition, None)
        if not topics[topic]:
            del topics[topic]
            if not topics:
                del self.by_group[group_id]


def offset_tombstones(group_id: str, partitions: Sequence[tuple[str, int]]) -> list[OffsetRecord]:
    return [OffsetRecord(OffsetKey(group_id, topic, partition), None) for topic, partition in partitions]


def validate_commit_size(offsets: Iterable[OffsetRecord], max_bytes: int | None) -> None:
    """Raise KafkaError if the records of a commit do not fit into a batch, before they are encoded.

    As in Kafka, all of them are in one batch. Only the sizes of their texts and a lower bound of the rest are added.
    """
    if max_bytes is None:
        return
    size = 0
    for key, offset in offsets:
        size += MIN_RECORD_BYTES + len(key.group_id) + len(key.topic) + (len(offset.metadata) if offset else 0)
        if size > max_bytes:
            raise KafkaError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)


def expired_offsets(group: Group, offsets: TopicOffsets, retention_ms: int, now_wall_ms: int) -> list[tuple[str, int]]:
    """Return the (topic, partition)s of a group whose offsets have expired."""
    since_ms = group.offsets_expire_since_ms()
    if since_ms is None:
        return []
    return [
        (topic, partition)
        for topic, partitions in offsets.items()
        if not group.is_subscribed_to(topic)
        for partition, offset in partitions.items()
        if _is_expired(offset, since_ms, retention_ms, now_wall_ms)
    ]


def _is_expired(offset: OffsetAndMetadata, since_ms: int, retention_ms: int, now_wall_ms: int) -> bool:
    if offset.expire_ms != NO_TIMESTAMP:
        # OffsetCommit requests of versions 2 to 4 can have their own retention time.
        return now_wall_ms >= offset.expire_ms
    start_ms = since_ms if since_ms != NO_TIMESTAMP else offset.commit_ms
    return now_wall_ms - start_ms >= retention_ms


class PendingTransactionalOffsets:
    """The pending offsets of one partition of __consumer_offsets, of many groups and producers."""

    __slots__ = ("_by_producer", "_producers")

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[OffsetKey, OffsetAndMetadata]] = {}
        # The producers with a pending offset, by group and (topic, partition).
        self._producers: dict[str, dict[tuple[str, int], dict[int, None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_producer)

    def put(self, producer_id: int, key: OffsetKey, offset: OffsetAndMetadata) -> None:
        self._by_producer.setdefault(producer_id, {})[key] = offset
        partitions = self._producers.setdefault(key.group_id, {})
        partitions.setdefault((key.topic, key.partition), {})[producer_id] = None

    def remove(self, key: OffsetKey) -> None:
        """Remove the pending offsets of a partition, so that its transactions cannot restore them."""
        for producer_id in list(self._producers.get(key.group_id, {}).get((key.topic, key.partition), ())):
            offsets = self._by_producer[producer_id]
            del offsets[key]
            if not offsets:
                del self._by_producer[producer_id]
            self._remove_producer(key, producer_id)

    def pop(self, producer_id: int) -> dict[OffsetKey, OffsetAndMetadata]:
        """Remove and return the offsets of a transaction, which has ended."""
        offsets = self._by_producer.pop(producer_id, {})
        for key in offsets:
            self._remove_producer(key, producer_id)
        return offsets

    def partitions(self, group_id: str) -> Iterable[tuple[str, int]]:
        """Return the (topic, partition)s of a group that have pending offsets."""
        return self._producers.get(group_id, _NO_PARTITIONS).keys()

    def group_ids(self) -> Iterable[str]:
        return self._producers.keys()

    def _remove_producer(self, key: OffsetKey, producer_id: int) -> None:
        partitions, partition = self._producers[key.group_id], (key.topic, key.partition)
        producers = partitions[partition]
        del producers[producer_id]
        if not producers:
            del partitions[partition]
            if not partitions:
                del self._producers[key.group_id]
