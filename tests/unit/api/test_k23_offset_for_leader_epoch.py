"""OffsetForLeaderEpoch: the end offset of an epoch, and errors for the leader epoch of the caller."""

from typing import Any

import pytest

from kbroker.storage.log.leader_epoch_cache import LeaderEpochCache
from protocol.apis import ApiKey
from protocol.messages.k23_offset_for_leader_epoch import OffsetForLeaderPartition, OffsetForLeaderTopic
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import Handlers, start_handlers


async def start_with_epochs() -> Handlers:
    handlers = await start_handlers()
    handlers.replicas.add(
        "t", 0, dict.fromkeys(range(5), 0), epochs=LeaderEpochCache([(0, 0), (2, 3)])
    ).leader_epoch = 2
    return handlers


async def request_end(
    handlers: Handlers, epoch: int, current: int = -1, *, topic: str = "t", index: int = 0, version: int = 4
) -> Any:
    partition = OffsetForLeaderPartition(partition=index, leader_epoch=epoch, current_leader_epoch=current)
    topics = [OffsetForLeaderTopic(topic=topic, partitions=[partition])]
    (row,) = (await handlers.request(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, topics=topics)).topics[0].partitions
    assert row.partition == index
    return (row.error_code, row.leader_epoch, row.end_offset)


@pytest.mark.parametrize("version", [2, 3, 4])
@async_test
async def test_end_offsets_of_epochs(version: int):
    handlers = await start_with_epochs()
    assert await request_end(handlers, 0, version=version) == (0, 0, 3)
    assert await request_end(handlers, 2, version=version) == (0, 2, 5)
    assert await request_end(handlers, 3, version=version) == (0, -1, -1)


@async_test
async def test_errors():
    handlers = await start_with_epochs()
    assert await request_end(handlers, 0, 2) == (0, 0, 3)
    assert await request_end(handlers, 0, 3) == (75, -1, -1)
    assert await request_end(handlers, 0, 1) == (74, -1, -1)
    assert await request_end(handlers, 0, topic="nope") == (3, -1, -1)
    assert await request_end(handlers, 0, index=9) == (3, -1, -1)
    handlers.replicas.leader("t", 0).is_leader = False
    assert await request_end(handlers, 0) == (6, -1, -1)
