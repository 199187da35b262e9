"""InitProducerId: ids of idempotent producers, and of transactional ids, whose former producers are fenced."""

import asyncio
from typing import Any

import pytest

from kbroker.metadata.producer_id_manager import RETRY_BACKOFF_S
from kbroker.simulation.runtime.loop import SimLoop
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import start_handlers
from tests.unit.support.memory_disk import MemoryDisk
from tests.unit.support.simulated_broker import Machine, broker_test
from tests.unit.support.transactional_producer import Producer, init_producer


@pytest.mark.parametrize("version", range(6))
@async_test
async def test_each_producer_gets_its_own_id(version: int):
    handlers = await start_handlers()
    for expected in range(3):
        response = await handlers.request(
            ApiKey.INIT_PRODUCER_ID, version, transactional_id=None, transaction_timeout_ms=-1
        )
        assert (response.error_code, response.producer_id, response.producer_epoch) == (0, expected, 0)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"producer_id": 7, "producer_epoch": 5}, (0, 0, 0)),
        ({"producer_id": 7, "producer_epoch": 32767}, (0, 0, 0)),
        ({"producer_id": -1, "producer_epoch": 3}, (42, -1, -1)),
        ({"producer_id": 3, "producer_epoch": -1}, (42, -1, -1)),
    ],
)
@async_test
async def test_an_idempotent_producer_gets_a_new_id(fields: dict[str, Any], expected: tuple[int, int, int]):
    fields.setdefault("transactional_id", None)
    response = await (await start_handlers()).request(ApiKey.INIT_PRODUCER_ID, 5, **fields)
    assert (response.error_code, response.producer_id, response.producer_epoch) == expected


def test_no_block_of_producer_ids_is_available():
    async def run():
        disk = MemoryDisk()
        handlers = await start_handlers(disk)
        disk.room = 0
        response = await handlers.request(ApiKey.INIT_PRODUCER_ID, 5, transactional_id=None)
        assert (response.error_code, response.producer_id) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1)
        disk.room = None
        await asyncio.sleep(RETRY_BACKOFF_S)
        assert (await handlers.request(ApiKey.INIT_PRODUCER_ID, 5, transactional_id=None)).producer_id == 0

    loop = SimLoop()
    loop.run_until_complete(run())
    loop.close()


# Transactional ids.


@broker_test
@pytest.mark.parametrize("version", range(6))
async def test_each_request_bumps_the_epoch(m: Machine, version: int):
    producer = await init_producer(m)
    first = producer.producer_id, producer.epoch
    for bumps in (1, 2):
        assert await producer.init(version) == 0
        assert (producer.producer_id, producer.epoch) == (first[0], first[1] + bumps)


@broker_test
@pytest.mark.parametrize("version", range(3, 6))
async def test_only_the_current_producer_can_continue(m: Machine, version: int):
    producer = await init_producer(m)
    old = Producer(producer.client, "t", True, producer.producer_id, producer.epoch)
    assert await producer.init(version, keep=True) == 0
    assert producer.epoch == old.epoch + 1
    # A repeated request, whose response was lost, gets the same epoch.
    old_instance = Producer(producer.client, "t", True, old.producer_id, old.epoch)
    assert await old_instance.init(version, keep=True) == 0
    assert old_instance.epoch == producer.epoch
    assert await producer.init(version) == 0
    assert await old.init(version, keep=True) == (
        ErrorCode.PRODUCER_FENCED if version >= 4 else ErrorCode.INVALID_PRODUCER_EPOCH
    )


@broker_test
@pytest.mark.parametrize("version", range(6))
async def test_invalid_requests(m: Machine, version: int):
    producer = await init_producer(m)
    for timeout_ms in (0, -1, 900_001):
        assert await producer.init(version, timeout_ms=timeout_ms) == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert await producer.init(version, timeout_ms=900_000) == 0
    producer.transactional_id = ""
    assert await producer.init(version) == ErrorCode.INVALID_REQUEST


@broker_test
async def test_a_producer_id_without_an_epoch_is_invalid(m: Machine):
    producer = await init_producer(m)
    for producer_id, epoch in ((-1, 3), (producer.producer_id, -1)):
        half = Producer(producer.client, "t", True, producer_id, epoch)
        assert await half.init(5, keep=True) == ErrorCode.INVALID_REQUEST


@broker_test
@pytest.mark.parametrize("version", range(6))
async def test_an_open_transaction_is_aborted_first(m: Machine, version: int):
    old = await init_producer(m)
    await old.send("a", b"x")
    new = Producer(old.client)
    assert await new.init(version) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert await new.wait_until_completed() == "CompleteAbort"
    assert await new.init(version) == 0
    assert new.epoch > old.epoch
    assert await old.commit() == ErrorCode.PRODUCER_FENCED
    assert (await old.send("a", b"y")).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
