"""Checks a partition and builds the record of its offset, for OffsetCommit and TxnOffsetCommit."""

from kbroker.coordinator.group.records import NO_TIMESTAMP, ZERO_TOPIC_ID, OffsetAndMetadata, OffsetKey, OffsetRecord
from kbroker.metadata.image import TopicImage
from protocol.errors import NO_ERROR, ErrorCode
from protocol.messages.k08_offset_commit import OffsetCommitRequestPartition
from protocol.messages.k28_txn_offset_commit import TxnOffsetCommitRequestPartition

CommitPartition = OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition


def partition_error(topic: TopicImage, partition: CommitPartition, max_metadata_bytes: int) -> ErrorCode:
    """Return the error of a partition whose offset no group can commit, else NONE."""
    if not 0 <= partition.partition_index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if partition.committed_metadata is not None and len(partition.committed_metadata) > max_metadata_bytes:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return NO_ERROR


def is_of_removed_partition(topic: TopicImage, partition: CommitPartition, generation_id: int) -> bool:
    """Return whether a group member commits an offset of a partition that was removed from its topic.

    The caller stores nothing and returns no error. After UNKNOWN_TOPIC_OR_PARTITION, kafka-python and the Java client
    would retry the commit for minutes, and delay the rebalance that the removal has caused. Commits without a
    generation come from tools, and get the error.
    """
    return generation_id >= 0 and topic.is_removed(partition.partition_index)


def offset_record(
    group_id: str,
    topic: str,
    partition: CommitPartition,
    commit_ms: int,
    expire_ms: int = NO_TIMESTAMP,
    topic_id: bytes = ZERO_TOPIC_ID,
) -> OffsetRecord:
    offset = OffsetAndMetadata(
        partition.committed_offset,
        partition.committed_leader_epoch,
        partition.committed_metadata or "",
        commit_ms,
        expire_ms,
        topic_id,
    )
    return OffsetRecord(OffsetKey(group_id, topic, partition.partition_index), offset)
