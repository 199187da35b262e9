"""Which partitions can be removed from a topic, as decisions."""

from dataclasses import replace

import pytest

from kbroker.common import KafkaError
from kbroker.metadata.image import PartitionRegistration, TopicImage
from kbroker.metadata.store import znodes
from kbroker.metadata.topics.closing_partitions import (
    ClosingPartitions,
    check_removal,
    check_still_closing,
    with_closing,
)

OPEN = PartitionRegistration(leader=1, leader_epoch=4, replicas=[1, 2], isr=[1, 2], partition_epoch=7)
TOPIC = TopicImage("t", bytes(15) + b"\1", partitions=[OPEN, OPEN, OPEN])


@pytest.mark.parametrize(
    ("topic", "count", "plan", "code", "message"),
    [
        (None, 1, False, 3, None),
        (replace(TOPIC, internal=True), 1, False, 17, "Cannot remove partitions of internal topic t."),
        (replace(TOPIC, configs={"kbroker.view.of": "s"}, partitions=[]), 1, False, 42,
         "Topic 't' is a view; remove partitions of its source 's'."),
        (TOPIC, 0, False, 37, "A topic keeps at least one partition."),
        (TOPIC, -5, False, 37, "A topic keeps at least one partition."),
        (TOPIC, 3, False, 37, "Topic already has 3 partition(s)."),
        (TOPIC, 4, False, 37, "Topic already has 3 partition(s)."),
        (TOPIC, 1, True, 60, "A plan of reassignments is running, and may move these partitions."),
        (replace(TOPIC, partitions=[OPEN, OPEN, with_closing(OPEN, True)]), 1, False, 60,
         "Partitions of this topic are being removed."),
        (replace(TOPIC, partitions=[OPEN, replace(OPEN, adding_replicas=[2]), OPEN]), 1, False, 60,
         "Partition 1 is being reassigned."),
        (replace(TOPIC, partitions=[OPEN, OPEN, replace(OPEN, leader=-1)]), 1, False, 5,
         "Partition 2 has no leader."),
    ],
)  # fmt: skip
def test_refused_removals(topic: TopicImage | None, count: int, plan: bool, code: int, message: str | None) -> None:
    with pytest.raises(KafkaError) as raised:
        check_removal("t", count, topic, plan)
    assert (raised.value.code, raised.value.message) == (code, message)


def test_only_the_partitions_that_are_removed_matter() -> None:
    check_removal("t", 1, replace(TOPIC, partitions=[replace(OPEN, leader=-1), OPEN, OPEN]), False)


def test_another_leader_epoch_prevents_the_removal() -> None:
    closed = with_closing(OPEN, True)
    assert (closed.leader_epoch, closed.partition_epoch) == (5, 8)
    closing = ClosingPartitions("t", TOPIC.topic_id, 1, {1: (1, 5), 2: (1, 5)})
    check_still_closing(closing, replace(TOPIC, partitions=[OPEN, closed, closed]))
    for changed in (
        [OPEN, closed, replace(closed, leader_epoch=6)],
        [OPEN, with_closing(closed, False), closed],
        [OPEN, closed, replace(closed, leader_epoch=5, is_closing=False)],
        [OPEN, closed, replace(closed, adding_replicas=[2])],
        [OPEN, closed],
        [OPEN, closed, closed, OPEN],
    ):
        with pytest.raises(KafkaError):
            check_still_closing(closing, replace(TOPIC, partitions=changed))
    with pytest.raises(KafkaError):
        check_still_closing(closing, None)


def test_a_partition_without_a_leader_keeps_its_leader_epoch() -> None:
    reopened = with_closing(replace(OPEN, leader=-1, is_closing=True), False)
    assert (reopened.leader_epoch, reopened.partition_epoch, reopened.is_closing) == (4, 8, False)


@pytest.mark.parametrize("row", [OPEN, with_closing(OPEN, True), with_closing(replace(OPEN, elr=[3]), True)])
def test_a_closing_partition_is_stored(row: PartitionRegistration) -> None:
    chunk = {TOPIC.topic_id: {2: row}}
    assert znodes.decode_chunk(0, znodes.encode_chunk(chunk)) == chunk


def test_a_missing_partition_was_removed_only_if_the_topic_says_so() -> None:
    assert not TOPIC.is_removed(5)
    shrunk = replace(TOPIC, removed_from=3, first_leader_epoch=6)
    assert shrunk.is_removed(3)
    assert not shrunk.is_removed(2)
    assert shrunk.is_removed(1_000_000)
    shrunk = replace(shrunk, removed_to=5)
    assert shrunk.is_removed(4)
    assert not shrunk.is_removed(5)
    node = znodes.TopicNode(TOPIC.topic_id, False, False, 3, 6, 5)
    assert znodes.decode_topic("t", znodes.encode_topic(node)) == node
