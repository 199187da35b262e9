"""AddOffsetsToTxn: a group's partition of __consumer_offsets becomes part of the transaction."""

import pytest

from protocol.errors import ErrorCode
from tests.unit.support.simulated_broker import Machine, story
from tests.unit.support.transactional_producer import producer


@story
@pytest.mark.parametrize("version", range(5))
async def test_the_groups_partition_is_added(m: Machine, version: int) -> None:
    one = await producer(m, v2=False)
    assert await one.add_offsets("g", version) == 0
    assert await one.add_offsets("g", version) == 0
    described = await one.described()
    assert [(topic.topic, topic.partitions) for topic in described.topics] == [("__consumer_offsets", [0])]


@story
async def test_a_group_that_nobody_has_seen(m: Machine) -> None:
    """Nor its topic, as in Kafka; the transaction ends all the same."""
    one = await producer(m, v2=False)
    assert "__consumer_offsets" not in m.broker.services.metadata.topics
    assert await one.add_offsets("") == 0
    assert await one.commit() == 0
    assert await one.completed() == "CompleteCommit"
    assert "__consumer_offsets" not in m.broker.services.metadata.topics


@story
@pytest.mark.parametrize("version", range(5))
async def test_misuse(m: Machine, version: int) -> None:
    one = await producer(m, v2=False)
    one.epoch += 1
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert await one.add_offsets("g", version) == fenced
    one.producer_id += 1
    assert await one.add_offsets("g", version) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    one.transactional_id = ""
    assert await one.add_offsets("g", version) == ErrorCode.INVALID_REQUEST
