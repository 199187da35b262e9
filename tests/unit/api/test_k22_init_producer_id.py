"""InitProducerId: ids for idempotent producers and for transactional ids, which fence whoever had them."""

import asyncio
from typing import Any

import pytest

from kbroker.cluster.producer_ids import AGAIN_S
from kbroker.simulation.loop import SimLoop
from protocol.apis import ApiKey
from tests.unit.api.fakes import open_desk, run
from tests.unit.cluster.fakes import MemoryDisk


@pytest.mark.parametrize("version", range(6))
def test_each_producer_gets_another_id(version: int):
    async def story():
        desk = await open_desk()
        for expected in range(3):
            answer = await desk.ask(ApiKey.INIT_PRODUCER_ID, version, transactional_id=None, transaction_timeout_ms=-1)
            assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, expected, 0)

    run(story)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"producer_id": 7, "producer_epoch": 5}, (0, 0, 0)),
        ({"producer_id": 7, "producer_epoch": 32767}, (0, 0, 0)),
        ({"producer_id": -1, "producer_epoch": 3}, (42, -1, -1)),
        ({"producer_id": 3, "producer_epoch": -1}, (42, -1, -1)),
    ],
)
def test_what_a_producer_may_name(fields: dict[str, Any], expected: tuple[int, int, int]):
    async def story():
        fields.setdefault("transactional_id", None)
        answer = await (await open_desk()).ask(ApiKey.INIT_PRODUCER_ID, 5, **fields)
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == expected

    run(story)


def test_no_block_to_be_had():
    async def story():
        disk = MemoryDisk()
        desk = await open_desk(disk)
        disk.room = 0
        answer = await desk.ask(ApiKey.INIT_PRODUCER_ID, 5, transactional_id=None)
        assert (answer.error_code, answer.producer_id) == (15, -1)
        disk.room = None
        await asyncio.sleep(AGAIN_S)
        assert (await desk.ask(ApiKey.INIT_PRODUCER_ID, 5, transactional_id=None)).producer_id == 0

    loop = SimLoop()
    loop.run_until_complete(story())
    loop.close()
