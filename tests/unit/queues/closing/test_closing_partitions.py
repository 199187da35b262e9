"""Which partitions of a topic close, and which can be removed, as decisions."""

from dataclasses import replace

import pytest

from kbroker.common import KafkaError
from kbroker.config.topic_config import TopicConfig
from kbroker.metadata.image import Forwarding, PartitionRegistration, TopicImage
from kbroker.metadata.store import znodes
from kbroker.metadata.topics.closing_checks import (
    check_configs,
    check_open,
    first_closing,
    with_closing,
    without_forwarding,
)
from kbroker.queues.closing.closing_partitions import (
    ClosingPartitions,
    check_forwarding,
    check_removal,
    check_still_closing,
    with_forwarding,
)
from protocol.errors import ErrorCode

OPEN = PartitionRegistration(leader=1, leader_epoch=4, replicas=[1, 2], isr=[1, 2], partition_epoch=7)
TOPIC = TopicImage("t", bytes(15) + b"\1", partitions=[OPEN, OPEN, OPEN])
DEFAULT = TopicConfig.of()


def test_a_closing_is_cancelled_and_begins_again() -> None:
    row = with_forwarding(replace(OPEN, is_closing=True), 2, 2)
    assert (row.leader_epoch, row.partition_epoch, row.is_closing) == (5, 8, False)
    assert row.forwarding == Forwarding(5, 0)
    topic = replace(TOPIC, partitions=[OPEN, OPEN, row])
    assert first_closing(topic) == 2
    with pytest.raises(KafkaError, match="from 2 on are closing"):
        check_open(topic)
    cancelled = without_forwarding(row)
    assert cancelled.forwarding == Forwarding(5, 0, 6)
    assert cancelled.leader_epoch == 6
    topic = replace(TOPIC, partitions=[OPEN, OPEN, cancelled])
    assert first_closing(topic) is None
    check_open(topic)
    # The sequences of what it forwards continue, so they must go to the same partition.
    assert with_forwarding(cancelled, 2, 1).forwarding == Forwarding(5, 0, again_epoch=7)


def test_a_target_must_remain() -> None:
    row = without_forwarding(with_forwarding(OPEN, 3, 2))
    topic = replace(TOPIC, partitions=[OPEN, OPEN, OPEN, row])
    check_forwarding(topic, 2, DEFAULT)
    with pytest.raises(KafkaError, match="has forwarded records to 1, so at least 2 must remain"):
        check_forwarding(topic, 1, DEFAULT)


@pytest.mark.parametrize(
    "config", [{"cleanup.policy": "compact"}, {"kbroker.delay.enable": "true"}, {"kbroker.dedup.window.ms": "1000"}]
)
def test_refused_configs(config: dict[str, str]) -> None:
    with pytest.raises(KafkaError) as raised:
        check_forwarding(TOPIC, 1, TopicConfig.of(config))
    assert raised.value.code == ErrorCode.INVALID_CONFIG
    check_configs(TOPIC, {}, config)
    closing = replace(TOPIC, partitions=[OPEN, OPEN, with_forwarding(OPEN, 2, 2)])
    with pytest.raises(KafkaError):
        check_configs(closing, {}, config)
    check_configs(closing, {}, {"retention.ms": "1"})


@pytest.mark.parametrize("forwarding", [Forwarding(5, 0), Forwarding(5, 1, 9)])
def test_the_state_is_stored(forwarding: Forwarding) -> None:
    for is_closing in (False, True):
        chunk = {TOPIC.topic_id: {2: replace(OPEN, is_closing=is_closing, forwarding=forwarding)}}
        assert znodes.decode_chunk(0, znodes.encode_chunk(chunk)) == chunk


@pytest.mark.parametrize(
    ("topic", "count", "plan", "code", "message"),
    [
        (None, 1, False, 3, None),
        (replace(TOPIC, internal=True), 1, False, 17, "Cannot remove partitions of internal topic t."),
        (replace(TOPIC, configs={"kbroker.view.of": "s"}, partitions=[]), 1, False, 42,
         "Topic 't' is a view; remove partitions of its source."),
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
