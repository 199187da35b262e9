"""What becomes of a log that the metadata does not assign to this broker."""

import pytest

from kbroker.common import TopicPartition
from kbroker.metadata.image import MetadataDelta, MetadataImage, PartitionRegistration, TopicImage
from kbroker.replica.logs.stray_logs import LogFate, fate_of_log

NODE = 3
ID, OTHER = b"i" * 16, b"o" * 16


def image(leader_epoch: int = 5, replicas: tuple[int, ...] = (1, 2), partitions: int = 1) -> MetadataImage:
    """An image with a topic whose partitions from 2 on were removed, when their leader epochs were 7 at most."""
    row = PartitionRegistration(replicas[0], leader_epoch, list(replicas), list(replicas))
    topic = TopicImage("t", ID, partitions=[row] * partitions, removed_from=2, first_leader_epoch=8, removed_to=4)
    result = MetadataImage()
    result.apply(MetadataDelta(created=[topic]))
    return result


@pytest.mark.parametrize(
    ("name", "index", "topic_id", "epoch", "deleted", "fate"),
    [
        # The topic is not in the image.
        ("x", 0, OTHER, 0, {OTHER}, LogFate.DELETE),
        ("x", 0, OTHER, 0, {ID}, LogFate.SET_ASIDE),
        ("t", 0, OTHER, 0, {OTHER}, LogFate.DELETE),
        ("t", 0, OTHER, 0, (), LogFate.SET_ASIDE),
        # The partition has other replicas: since an epoch after the log's last, or perhaps before it.
        ("t", 0, ID, 4, (), LogFate.DELETE),
        ("t", 0, ID, -1, (), LogFate.DELETE),
        ("t", 0, ID, 5, (), LogFate.SET_ASIDE),
        ("t", 0, ID, None, (), LogFate.SET_ASIDE),
        # The partition was removed.
        ("t", 3, ID, 7, (), LogFate.DELETE),
        ("t", 3, ID, 8, (), LogFate.SET_ASIDE),
        # The image was read during the creation of partitions.
        ("t", 1, ID, 7, (), LogFate.KEEP),
        ("t", 4, ID, 7, (), LogFate.KEEP),
        ("t", 1, None, 7, (), LogFate.KEEP),
        # The file with the topic id is lost.
        ("t", 0, None, 4, (), LogFate.SET_ASIDE),
        ("t", 3, None, 4, (), LogFate.SET_ASIDE),
        ("x", 0, None, 4, (), LogFate.SET_ASIDE),
    ],
)
def test_only_what_was_removed_is_deleted(name, index, topic_id, epoch, deleted, fate):  # type: ignore[no-untyped-def]
    assert fate_of_log(TopicPartition(name, index), topic_id, epoch, NODE, image(), deleted) is fate


def test_an_assigned_log_stays() -> None:
    assigned = image(leader_epoch=9, replicas=(1, NODE))
    assert fate_of_log(TopicPartition("t", 0), ID, 4, NODE, assigned, {ID}) is LogFate.KEEP
