"""EndTxn: older versions keep the epoch, version 5 bumps it (KIP-890)."""

import pytest

from protocol.errors import ErrorCode
from protocol.messages.k22_transactions import EndTxnRequest, EndTxnResponse
from tests.unit.support.simulated_broker import Machine, broker_test
from tests.unit.support.transactional_producer import init_producer


@broker_test
@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("committed", [True, False])
async def test_versions_before_5_keep_the_epoch(m: Machine, version: int, committed: bool) -> None:
    producer = await init_producer(m, v2=False)
    await producer.add({"a": [0, 1]})
    assert (await producer.send("a", b"x")).error_code == 0
    assert await producer.end(committed, version) == 0
    assert await producer.wait_until_completed() == ("CompleteCommit" if committed else "CompleteAbort")
    # A repeated request has the same result; one with the other outcome fails.
    assert await producer.end(committed, version) == 0
    assert await producer.end(not committed, version) == ErrorCode.INVALID_TXN_STATE
    assert m.partition("a").last_stable_offset == m.partition("a").log.log_end_offset == 2


@broker_test
@pytest.mark.parametrize("committed", [True, False])
async def test_version_5_returns_the_next_epoch(m: Machine, committed: bool) -> None:
    producer = await init_producer(m)
    before = producer.producer_id, producer.epoch
    assert (await producer.send("a", b"x")).error_code == 0
    request = EndTxnRequest(transactional_id="t", producer_id=before[0], producer_epoch=before[1], committed=committed)
    response = await producer.client.request(request, 5, EndTxnResponse)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (0, before[0], before[1] + 1)
    await producer.wait_until_completed()
    repeated = await producer.client.request(request, 5, EndTxnResponse)
    assert (repeated.error_code, repeated.producer_id, repeated.producer_epoch) == (0, before[0], before[1] + 1)
    request.committed = not committed
    other = await producer.client.request(request, 5, EndTxnResponse)
    assert (other.error_code, other.producer_id, other.producer_epoch) == (ErrorCode.INVALID_TXN_STATE, -1, -1)


@broker_test
@pytest.mark.parametrize("version", range(6))
async def test_invalid_producers_are_rejected(m: Machine, version: int) -> None:
    producer = await init_producer(m, v2=version >= 5)
    assert await producer.commit(version) == ErrorCode.INVALID_TXN_STATE
    producer.epoch += 1
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert await producer.commit(version) == fenced
    producer.producer_id += 1
    assert await producer.commit(version) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    producer.transactional_id = "nobody"
    assert await producer.commit(version) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    producer.transactional_id = ""
    assert await producer.commit(version) == ErrorCode.INVALID_REQUEST
