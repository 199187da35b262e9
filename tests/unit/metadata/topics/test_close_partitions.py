"""Which partitions of a topic close, as decisions."""

from dataclasses import replace

import pytest

from kbroker.common import KafkaError
from kbroker.config.topic_config import DEFAULTS, TopicConfig
from kbroker.metadata.image import Forwarding, PartitionRegistration, TopicImage
from kbroker.metadata.store import znodes
from kbroker.metadata.topics.closing_partitions import (
    check_configs,
    check_forwarding,
    check_open,
    first_closing,
    with_forwarding,
    without_forwarding,
)
from protocol.errors import ErrorCode

OPEN = PartitionRegistration(leader=1, leader_epoch=4, replicas=[1, 2], isr=[1, 2], partition_epoch=7)
TOPIC = TopicImage("t", bytes(15) + b"\1", partitions=[OPEN, OPEN, OPEN])
DEFAULT = TopicConfig.of({}, DEFAULTS)


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
        check_forwarding(TOPIC, 1, TopicConfig.of(config, DEFAULTS))
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
