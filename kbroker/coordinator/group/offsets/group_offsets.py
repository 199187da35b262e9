"""Committed offsets of one group, and when they expire (offsets.retention.minutes, KIP-211)."""

from collections.abc import Iterator

from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.group.classic.group_state import GroupState
from kbroker.coordinator.group.records import NO_TIMESTAMP, OffsetAndMetadata


class GroupOffsets:
    """Offsets by topic and partition."""

    __slots__ = ("topics",)

    def __init__(self) -> None:
        self.topics: dict[str, dict[int, OffsetAndMetadata]] = {}

    def __bool__(self) -> bool:
        return bool(self.topics)

    def get(self, topic: str, partition: int) -> OffsetAndMetadata | None:
        found = self.topics.get(topic)
        return None if found is None else found.get(partition)

    def put(self, topic: str, partition: int, offset: OffsetAndMetadata) -> None:
        found = self.topics.get(topic)
        if found is None:
            found = self.topics[topic] = {}
        found[partition] = offset

    def remove(self, topic: str, partition: int) -> None:
        found = self.topics.get(topic)
        if found is not None:
            found.pop(partition, None)
            if not found:
                del self.topics[topic]

    def __iter__(self) -> Iterator[tuple[str, int, OffsetAndMetadata]]:
        for topic, partitions in self.topics.items():
            for partition, offset in partitions.items():
                yield topic, partition, offset


def expired(group: ClassicGroup, offsets: GroupOffsets, retention_ms: int, now_wall_ms: int) -> list[tuple[str, int]]:
    """The (topic, partition)s whose offsets are to be forgotten.

    Empty group                      retention after it became empty
    without a protocol (simple)      retention after each commit
    Stable consumer group            retention after the commit, for topics that nobody subscribes to
    else                             never
    """
    if group.protocol_type is not None and group.state is GroupState.EMPTY:
        since_empty = group.state_timestamp_ms
    elif group.protocol_type is None or (
        group.state is GroupState.STABLE and group.is_consumer_group() and group.subscribed is not None
    ):
        since_empty = NO_TIMESTAMP
    else:
        return []
    return [
        (topic, partition)
        for topic, partition, offset in offsets
        if not group.is_subscribed(topic) and _is_over(offset, since_empty, retention_ms, now_wall_ms)
    ]


def _is_over(offset: OffsetAndMetadata, since_empty: int, retention_ms: int, now_wall_ms: int) -> bool:
    if offset.expire_ms != NO_TIMESTAMP:
        # OffsetCommit v2 to v4 could bring their own retention.
        return now_wall_ms >= offset.expire_ms
    start = since_empty if since_empty != NO_TIMESTAMP else offset.commit_ms
    return now_wall_ms - start >= retention_ms
