"""The offsets of the groups of one partition of __consumer_offsets: committed ones, and those of open transactions."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from kbroker.common import NO_PRODUCER_ID
from kbroker.coordinator.group.offsets.pending_transactional_offsets import PendingTransactionalOffsets
from kbroker.coordinator.group.records import OffsetAndMetadata, OffsetKey, OffsetRecord

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
