"""The expiration of committed offsets (offsets.retention.minutes, KIP-211)."""

from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.group.classic.group_state import GroupState
from kbroker.coordinator.group.offsets.offset_metadata_manager import TopicOffsets
from kbroker.coordinator.group.records import NO_TIMESTAMP, OffsetAndMetadata


def expired_offsets(
    group: ClassicGroup, offsets: TopicOffsets, retention_ms: int, now_wall_ms: int
) -> list[tuple[str, int]]:
    """Return the (topic, partition)s of a group whose offsets have expired.

    empty group                      the retention after the group became empty
    group without a protocol type    the retention after each commit (simple consumers)
    stable consumer group            the retention after the commit, for topics without a subscriber
    any other                        never
    """
    if group.protocol_type is not None and group.state is GroupState.EMPTY:
        empty_since_ms = group.state_timestamp_ms
    elif group.protocol_type is None or (
        group.state is GroupState.STABLE and group.uses_consumer_protocol() and group.subscribed_topics is not None
    ):
        empty_since_ms = NO_TIMESTAMP
    else:
        return []
    return [
        (topic, partition)
        for topic, partitions in offsets.items()
        if not group.is_subscribed_to(topic)
        for partition, offset in partitions.items()
        if _is_expired(offset, empty_since_ms, retention_ms, now_wall_ms)
    ]


def _is_expired(offset: OffsetAndMetadata, empty_since_ms: int, retention_ms: int, now_wall_ms: int) -> bool:
    if offset.expire_ms != NO_TIMESTAMP:
        # OffsetCommit requests of versions 2 to 4 can have their own retention time.
        return now_wall_ms >= offset.expire_ms
    start_ms = empty_since_ms if empty_since_ms != NO_TIMESTAMP else offset.commit_ms
    return now_wall_ms - start_ms >= retention_ms
