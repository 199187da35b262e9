"""AddOffsetsToTxn: add the partition of a group to the transaction."""

import pytest

from protocol.errors import ErrorCode
from tests.unit.support.simulated_broker import Machine, story
from tests.unit.support.transactional_producer import producer


@story
@pytest.mark.parametrize("version", range(5))
async def test_the_partition_of_the_group_is_added(m: Machine, version: int) -> None:
    one = await producer(m, v2=False)
    assert await one.add_offsets("g", version) == 0
    assert await one.add_offsets("g", version) == 0
    described = await one.describe()
    assert [(topic.topic, topic.partitions) for topic in described.topics] == [("__consumer_offsets", [0])]


@story
async def test_a_group_that_does_not_exist_is_accepted(m: Machine) -> None:
    """As in Kafka, __consumer_offsets need not exist either, and the transaction ends."""
    one = await producer(m, v2=False)
    assert "__consumer_offsets" not in m.broker.services.metadata.topics
    assert await one.add_offsets("") == 0
    assert await one.commit() == 0
    assert await one.wait_until_completed() == "CompleteCommit"
    assert "__consumer_offsets" not in m.broker.services.metadata.topics


@story
@pytest.mark.parametrize("version", range(5))
async def test_invalid_producers_are_rejected(m: Machine, version: int) -> None:
    one = await producer(m, v2=False)
    one.epoch += 1
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert await one.add_offsets("g", version) == fenced
    one.producer_id += 1
    assert await one.add_offsets("g", version) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    one.transactional_id = ""
    assert await one.add_offsets("g", version) == ErrorCode.INVALID_REQUEST
