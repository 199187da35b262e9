"""AddOffsetsToTxn: add the partition of a group to the transaction."""

import pytest

from protocol.errors import ErrorCode
from tests.unit.support.simulated_broker import Machine, broker_test
from tests.unit.support.transactional_producer import init_producer


@broker_test
@pytest.mark.parametrize("version", range(5))
async def test_the_partition_of_the_group_is_added(m: Machine, version: int) -> None:
    producer = await init_producer(m, v2=False)
    assert await producer.add_offsets("g", version) == 0
    assert await producer.add_offsets("g", version) == 0
    described = await producer.describe()
    assert [(topic.topic, topic.partitions) for topic in described.topics] == [("__consumer_offsets", [0])]


@broker_test
async def test_a_group_that_does_not_exist_is_accepted(m: Machine) -> None:
    """Kafka accepts it too. Even __consumer_offsets need not exist, and the transaction can still be committed."""
    producer = await init_producer(m, v2=False)
    assert "__consumer_offsets" not in m.broker.services.metadata.topics
    assert await producer.add_offsets("") == 0
    assert await producer.commit() == 0
    assert await producer.wait_until_completed() == "CompleteCommit"
    assert "__consumer_offsets" not in m.broker.services.metadata.topics


@broker_test
@pytest.mark.parametrize("version", range(5))
async def test_invalid_producers_are_rejected(m: Machine, version: int) -> None:
    producer = await init_producer(m, v2=False)
    producer.epoch += 1
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert await producer.add_offsets("g", version) == fenced
    producer.producer_id += 1
    assert await producer.add_offsets("g", version) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    producer.transactional_id = ""
    assert await producer.add_offsets("g", version) == ErrorCode.INVALID_REQUEST
