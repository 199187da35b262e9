"""The topics of groups, and the changes that concern them."""

import pytest

from kbroker.common import TopicPartition
from kbroker.config.queue_configs import VIEW_OF
from kbroker.coordinator.group.topics import GroupTopic, changed_topics, find_topic
from kbroker.metadata.image import (
    BrokerRegistration,
    Forwarding,
    MetadataDelta,
    MetadataImage,
    PartitionChange,
    PartitionRegistration,
    TopicImage,
)

ID, VIEW_ID = b"t" * 16, b"v" * 16
RETIRED = Forwarding(1, 0, is_retired=True)


def partition(*replicas: int, leader: int = 1, forwarding: Forwarding | None = None) -> PartitionRegistration:
    return PartitionRegistration(leader, 1, list(replicas), list(replicas), forwarding=forwarding)


@pytest.fixture
def image() -> MetadataImage:
    image = MetadataImage()
    image.brokers = {1: BrokerRegistration(1, "a", 1, rack="x"), 2: BrokerRegistration(2, "b", 1)}
    image.fenced_brokers = {3: BrokerRegistration(3, "c", 1, rack="z")}
    topic = TopicImage("t", ID, partitions=[partition(1, 2), partition(2, 3), partition(1, forwarding=RETIRED)])
    image.apply(MetadataDelta(created=[topic, TopicImage("view", VIEW_ID, configs={VIEW_OF: "t"})]))
    return image


def test_a_topic_has_its_listed_partitions_and_a_view_those_of_its_source(image: MetadataImage) -> None:
    """The rack of a broker that is restarting counts, or each restart would change the groups."""
    assert find_topic(image, "t") == GroupTopic(ID, 2, [["x"], ["z"]])
    assert find_topic(image, "view") == GroupTopic(VIEW_ID, 2, [["x"], ["z"]])
    assert find_topic(image, "other") is None


@pytest.mark.parametrize(
    ("old", "new", "is_changed"),
    [
        (None, partition(1), True),
        (partition(1), None, True),
        (partition(1, 2), partition(1, 3), True),
        (partition(1), partition(1, forwarding=RETIRED), True),
        (partition(1, 2), partition(1, 2, leader=2), False),
    ],
)
def test_the_changes_of_a_partition_that_concern_groups(
    image: MetadataImage, old: PartitionRegistration | None, new: PartitionRegistration | None, is_changed: bool
) -> None:
    delta = MetadataDelta(partitions=[PartitionChange(TopicPartition("t", 0), ID, old, new)])
    assert changed_topics(image, delta) == ({"t", "view"} if is_changed else set())


def test_topics_that_come_and_go_concern_groups(image: MetadataImage) -> None:
    created, deleted, missing = (TopicImage(name, name.encode() * 16) for name in "abc")
    delta = MetadataDelta(created=[created], deleted=[deleted], missing=[missing])
    assert changed_topics(image, delta) == {"a", "b", "c"}
