"""What becomes of a log that the metadata image does not assign to this broker.

A log is deleted only if its topic, its partition or this replica is known to have been removed. That the metadata lacks
it proves nothing: the metadata may be lost, restored from an older copy, or that of another cluster. Such a log is set
aside until it is assigned again (stray_logs.py). The same function decides while the broker runs and when it starts.
"""

from collections.abc import Container
from enum import Enum, auto

from kbroker.common import TopicPartition
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.recovery.log_recovery import MAX_UNSEEN_EPOCHS


class LogFate(Enum):
    """KEEP: the log is assigned, or may be with the next change, because the image was read during one."""

    KEEP = auto()
    DELETE = auto()
    SET_ASIDE = auto()


def fate_of_log(
    tp: TopicPartition,
    topic_id: bytes | None,
    latest_epoch: int | None,
    node_id: int,
    image: MetadataImage,
    deleted: Container[bytes],
) -> LogFate:
    """Decide about a log. `deleted`: the ids of the topics that were deleted last.

    `topic_id` and `latest_epoch`, the latest leader epoch of the log's records, are None if the files with them are
    lost. A state of the partition that lacks this replica is newer than the log only if its leader epoch is higher: the
    change that removes a replica or a partition begins one.
    """
    if topic_id is None:
        # Nothing proves that the log is that of the topic with this name.
        topic = image.topics.get(tp.topic)
        may_return = topic is not None and not topic.is_removed(tp.partition) and tp.partition >= len(topic.partitions)
        return LogFate.KEEP if may_return else LogFate.SET_ASIDE
    topic = image.topics_by_id.get(topic_id)
    if topic is None:
        return LogFate.DELETE if topic_id in deleted else LogFate.SET_ASIDE
    if tp.partition < len(topic.partitions):
        registration = topic.partitions[tp.partition]
        if node_id in registration.replicas:
            return LogFate.KEEP
        leader_epoch = registration.leader_epoch
    elif topic.is_removed(tp.partition):
        # New partitions of the topic begin in this epoch, so those that were removed had lower ones.
        leader_epoch = topic.first_leader_epoch
    else:
        return LogFate.KEEP
    if latest_epoch is None or leader_epoch >= latest_epoch + MAX_UNSEEN_EPOCHS:
        # A recovery has skipped epochs, because the metadata were older than the logs: the replica may have been added
        # by a change that is lost.
        return LogFate.SET_ASIDE
    return LogFate.DELETE if latest_epoch < leader_epoch else LogFate.SET_ASIDE
