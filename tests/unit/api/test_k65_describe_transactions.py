"""DescribeTransactions: state, start time and partitions."""

from protocol.errors import ErrorCode
from protocol.messages.k65_describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from tests.unit.support.simulated_broker import Machine, broker_test
from tests.unit.support.transactional_producer import TIMEOUT_MS, init_producer


@broker_test
async def test_from_empty_to_complete(m: Machine) -> None:
    producer = await init_producer(m)
    described = await producer.describe()
    assert (described.transaction_state, described.transaction_start_time_ms, described.topics) == ("Empty", -1, [])
    assert (described.producer_id, described.producer_epoch) == (producer.producer_id, producer.epoch)
    assert described.transaction_timeout_ms == TIMEOUT_MS
    start_ms = m.now_ms
    await producer.send("b", b"x")
    await producer.send("a", b"x", partition=2)
    await producer.send("a", b"x")
    described = await producer.describe()
    assert described.transaction_state == "Ongoing"
    assert start_ms <= described.transaction_start_time_ms <= m.now_ms
    assert [(topic.topic, topic.partitions) for topic in described.topics] == [("a", [0, 2]), ("b", [0])]
    await producer.commit()
    assert await producer.wait_until_completed() == "CompleteCommit"
    described = await producer.describe()
    assert (described.producer_epoch, described.topics) == (producer.epoch, [])


@broker_test
async def test_unknown_transactional_ids(m: Machine) -> None:
    producer = await init_producer(m)
    request = DescribeTransactionsRequest(transactional_ids=["nobody", "", "t"])
    response = await producer.client.request(request, 0, DescribeTransactionsResponse)
    assert [(row.transactional_id, row.error_code) for row in response.transaction_states] == [
        ("nobody", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND),
        ("", ErrorCode.INVALID_REQUEST),
        ("t", 0),
    ]
