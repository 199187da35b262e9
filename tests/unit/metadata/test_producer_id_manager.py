"""No producer id is allocated twice, whatever happens to the brokers."""

import asyncio

import pytest

from kbroker.common import KafkaError
from kbroker.coordination.interface import BadVersion, CoordinationError, Node
from kbroker.metadata.producer_id_manager import BLOCK_SIZE, ProducerIdManager
from kbroker.metadata.store import znodes
from protocol.errors import ErrorCode
from tests.unit.support.simulated_broker import Machine, broker_test


async def generate(m: Machine, count: int) -> list[int]:
    ids = m.broker.services.producer_ids
    return list(await asyncio.gather(*(ids.generate_producer_id() for _ in range(count))))


@broker_test
async def test_no_id_is_allocated_twice_across_restarts_kills_and_power_losses(m: Machine):
    allocated = await generate(m, 3)
    for power in (False, True, True):
        await m.crash(power=power)
        await m.start()
        allocated += await generate(m, BLOCK_SIZE + 3)
    await m.restart()
    allocated += await generate(m, 3)
    assert len(set(allocated)) == len(allocated)
    assert allocated[:3] == [0, 1, 2]


@broker_test
async def test_a_power_loss_while_a_block_is_reserved(m: Machine):
    """Whether or not the journal has the block afterwards, none of its ids is allocated twice."""
    allocated: list[int] = []
    for iterations in range(12):
        generating = asyncio.ensure_future(generate(m, 2 * BLOCK_SIZE))
        for _ in range(iterations):
            await asyncio.sleep(0)
        if generating.done():
            allocated += generating.result()
        generating.cancel()
        await m.crash(power=True)
        await m.start()
        allocated += await generate(m, 1)
    assert len(set(allocated)) == len(allocated)


@broker_test
async def test_concurrent_requests_get_different_ids(m: Machine):
    allocated = await generate(m, 3 * BLOCK_SIZE + 7)
    assert sorted(allocated) == list(range(3 * BLOCK_SIZE + 7))


class OneNodeStore:
    """A coordination service with one node. It makes the next `lost_responses` changes, but raises an error."""

    def __init__(self) -> None:
        self.node = Node(znodes.encode({"next": 0}), 0)
        self.lost_responses = 0

    async def get(self, path: str) -> Node:
        await asyncio.sleep(0)
        return self.node

    async def set(self, path: str, data: bytes, version: int) -> int:
        await asyncio.sleep(0)
        if version != self.node.version:
            raise BadVersion(path)
        self.node = Node(data, version + 1)
        if self.lost_responses:
            self.lost_responses -= 1
            raise CoordinationError("the connection is lost")
        return version + 1


def test_two_brokers_never_share_a_block():
    async def generate_ids() -> None:
        store, loop = OneNodeStore(), asyncio.get_running_loop()
        brokers = [ProducerIdManager(store, loop) for _ in range(3)]  # type: ignore[arg-type]
        allocated = await asyncio.gather(
            *(broker.generate_producer_id() for _ in range(BLOCK_SIZE + 1) for broker in brokers)
        )
        assert len(set(allocated)) == len(allocated)

    asyncio.run(generate_ids())


def test_a_block_whose_response_was_lost_is_not_used():
    async def generate_ids() -> None:
        store, loop = OneNodeStore(), asyncio.get_running_loop()
        manager = ProducerIdManager(store, loop)  # type: ignore[arg-type]
        store.lost_responses = 1
        with pytest.raises(KafkaError) as raised:
            await manager.generate_producer_id()
        assert raised.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert await ProducerIdManager(store, loop).generate_producer_id() == BLOCK_SIZE  # type: ignore[arg-type]

    asyncio.run(generate_ids())
