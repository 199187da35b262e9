"""A producer id is given to one producer only, whatever happens to the broker."""

import asyncio

import pytest

from kbroker.common import KafkaError
from kbroker.metadata.producer_id_manager import BLOCK_SIZE, ProducerIdManager
from kbroker.metadata.store import znodes
from kbroker.metadata.store.coordination import BadVersion, CoordinationError, Node
from protocol.errors import ErrorCode
from tests.unit.support.simulated_broker import Machine, story


async def take(m: Machine, count: int) -> list[int]:
    ids = m.broker.services.producer_ids
    return list(await asyncio.gather(*(ids.generate_producer_id() for _ in range(count))))


@story
async def test_no_id_is_given_twice_across_stops_kills_and_power_losses(m: Machine):
    given = await take(m, 3)
    for power in (False, True, True):
        await m.crash(power=power)
        await m.start()
        given += await take(m, BLOCK_SIZE + 3)
    await m.restart()
    given += await take(m, 3)
    assert len(set(given)) == len(given)
    assert given[:3] == [0, 1, 2]


@story
async def test_a_power_loss_while_a_block_is_taken(m: Machine):
    """Whatever the journal holds of it afterwards, nobody was given an id of it."""
    given: list[int] = []
    for turns in range(12):
        asking = asyncio.ensure_future(take(m, 2 * BLOCK_SIZE))
        for _ in range(turns):
            await asyncio.sleep(0)
        if asking.done():
            given += asking.result()
        asking.cancel()
        await m.crash(power=True)
        await m.start()
        given += await take(m, 1)
    assert len(set(given)) == len(given)


@story
async def test_many_who_ask_at_once_get_ids_of_their_own(m: Machine):
    given = await take(m, 3 * BLOCK_SIZE + 7)
    assert sorted(given) == list(range(3 * BLOCK_SIZE + 7))


class Store:
    """A coordination service with one node; `lost`: a change is made and its answer lost."""

    def __init__(self) -> None:
        self.node = Node(znodes.encode({"next": 0}), 0)
        self.lost = 0

    async def get(self, path: str) -> Node:
        await asyncio.sleep(0)
        return self.node

    async def set(self, path: str, data: bytes, version: int) -> int:
        await asyncio.sleep(0)
        if version != self.node.version:
            raise BadVersion(path)
        self.node = Node(data, version + 1)
        if self.lost:
            self.lost -= 1
            raise CoordinationError("the connection is lost")
        return version + 1


def test_two_brokers_never_share_a_block():
    async def tell() -> None:
        store, loop = Store(), asyncio.get_running_loop()
        brokers = [ProducerIdManager(store, loop) for _ in range(3)]  # type: ignore[arg-type]
        given = await asyncio.gather(
            *(broker.generate_producer_id() for _ in range(BLOCK_SIZE + 1) for broker in brokers)
        )
        assert len(set(given)) == len(given)

    asyncio.run(tell())


def test_a_block_of_which_the_answer_was_lost_is_given_to_nobody():
    async def tell() -> None:
        store, loop = Store(), asyncio.get_running_loop()
        ids = ProducerIdManager(store, loop)  # type: ignore[arg-type]
        store.lost = 1
        with pytest.raises(KafkaError) as refused:
            await ids.generate_producer_id()
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await ProducerIdManager(store, loop).generate_producer_id() == BLOCK_SIZE  # type: ignore[arg-type]

    asyncio.run(tell())
