"""ListOffsets, against the responses of a single-node Apache Kafka 4.3.1 for the same records."""

from typing import Any

import pytest

from kbroker.api import k02_list_offsets
from kbroker.storage.log.leader_epoch_cache import LeaderEpochCache
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k02_list_offsets import ListOffsetsPartition, ListOffsetsTopic
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import FakeLog, Handlers, start_handlers

NOW = 1_700_000_000_000
TIMES = {offset: NOW + delay for offset, delay in enumerate((1000, 3000, 2000, 5000, 4000))}


@pytest.fixture(autouse=True)
def lookups_in_fake_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("find_offset_for_timestamp", "find_max_timestamp"):
        monkeypatch.setattr(k02_list_offsets, name, getattr(FakeLog, name))


async def with_records(**of_log: Any) -> Handlers:
    handlers = await start_handlers()
    handlers.replicas.add("t", 0, TIMES, **of_log)
    handlers.replicas.add("t", 1)
    return handlers


async def list_offset(
    handlers: Handlers, version: int, timestamp: int, *, index: int = 0, topic: str = "t", **fields: Any
) -> Any:
    epoch = fields.pop("epoch", -1)
    partition = ListOffsetsPartition(partition_index=index, timestamp=timestamp, current_leader_epoch=epoch)
    topics = [ListOffsetsTopic(name=topic, partitions=[partition])]
    fields.setdefault("replica_id", -1)
    response = await handlers.request(ApiKey.LIST_OFFSETS, version, topics=topics, **fields)
    (row,) = response.topics[0].partitions
    return (row.error_code, row.offset, row.timestamp)


@pytest.mark.parametrize("version", range(1, 12))
@async_test
async def test_special_timestamps_by_version(version: int):
    handlers = await with_records()
    unsupported = (35, -1, -1)
    assert await list_offset(handlers, version, -1) == (0, 5, -1)
    assert await list_offset(handlers, version, -2) == (0, 0, -1)
    assert await list_offset(handlers, version, -3) == ((0, 3, NOW + 5000) if version >= 7 else unsupported)
    assert await list_offset(handlers, version, -4) == ((0, 0, -1) if version >= 8 else unsupported)
    assert await list_offset(handlers, version, -5) == ((0, -1, -1) if version >= 9 else unsupported)
    assert await list_offset(handlers, version, -6) == ((0, -1, -1) if version >= 11 else unsupported)
    assert await list_offset(handlers, version, -7) == unsupported
    assert await list_offset(handlers, version, NOW + 2500) == (0, 1, NOW + 3000)


@pytest.mark.parametrize(
    ("timestamp", "offset", "found_timestamp"),
    [(0, 0, 1000), (NOW, 0, 1000), (NOW + 1000, 0, 1000), (NOW + 1001, 1, 3000), (NOW + 3000, 1, 3000),
     (NOW + 3001, 3, 5000), (NOW + 5000, 3, 5000)],
)  # fmt: skip
@async_test
async def test_a_timestamp_finds_the_first_record_that_is_not_older(timestamp: int, offset: int, found_timestamp: int):
    assert await list_offset(await with_records(), 11, timestamp) == (0, offset, NOW + found_timestamp)


@async_test
async def test_timestamps_after_the_last_record_and_empty_partitions():
    handlers = await with_records()
    assert await list_offset(handlers, 11, NOW + 5001) == (0, -1, -1)
    for special, offset in ((-1, 0), (-2, 0), (-3, -1), (-4, 0), (-5, -1), (-6, -1), (0, -1), (NOW, -1)):
        assert await list_offset(handlers, 11, special, index=1) == (0, offset, -1)


@async_test
async def test_the_latest_offset_depends_on_the_isolation_level_and_the_replica():
    handlers = await with_records()
    partition = handlers.replicas.leader("t", 0)
    partition.committed, partition.stable = 4, 2
    assert await list_offset(handlers, 11, -1) == (0, 4, -1)
    assert await list_offset(handlers, 11, -1, isolation_level=1) == (0, 2, -1)
    assert await list_offset(handlers, 11, -1, replica_id=7) == (0, 5, -1)
    assert await list_offset(handlers, 11, -1, replica_id=-2) == (0, 5, -1)
    assert await list_offset(handlers, 11, NOW + 5000) == (0, 3, NOW + 5000)
    assert await list_offset(handlers, 11, NOW + 5000, isolation_level=1) == (0, -1, -1)
    assert await list_offset(handlers, 11, -1, isolation_level=2) == (-1, -1, -1)


@async_test
async def test_a_new_leader_does_not_know_the_latest_offset_at_once():
    """KIP-207: its high watermark may be lower than an earlier response of the former leader."""
    handlers = await with_records()
    partition = handlers.replicas.leader("t", 0)
    partition.committed, partition.is_catching_up = 4, True
    assert await list_offset(handlers, 11, -1) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1, -1)
    assert await list_offset(handlers, 5, -1) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1, -1)
    assert await list_offset(handlers, 4, -1) == (ErrorCode.LEADER_NOT_AVAILABLE, -1, -1)
    # A timestamp is found among the committed records, if it is there at all.
    assert await list_offset(handlers, 11, NOW + 5000) == (0, 3, NOW + 5000)
    assert (await list_offset(handlers, 11, NOW + 5001))[0] == ErrorCode.OFFSET_NOT_AVAILABLE
    assert await list_offset(handlers, 11, -2) == (0, 0, -1)
    assert await list_offset(handlers, 11, -1, replica_id=7) == (0, 5, -1)


@async_test
async def test_leader_epochs():
    handlers = await with_records(epochs=LeaderEpochCache([(1, 0), (3, 4)]))
    handlers.replicas.leader("t", 0).leader_epoch = 3
    codes = [(await list_offset(handlers, 11, -1, epoch=epoch))[0] for epoch in (-1, 3, 4, 2, -2)]
    assert codes == [0, 0, 75, 74, 74]
    partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
    topics = [ListOffsetsTopic(name="t", partitions=[partition])]
    response = await handlers.request(ApiKey.LIST_OFFSETS, 11, topics=topics, replica_id=-1)
    assert response.topics[0].partitions[0].leader_epoch == 3
    partition.timestamp = -2
    response = await handlers.request(ApiKey.LIST_OFFSETS, 11, topics=topics, replica_id=-1)
    assert response.topics[0].partitions[0].leader_epoch == 1


@async_test
async def test_a_follower_responds_to_a_debugging_consumer_only():
    handlers = await with_records()
    partition = handlers.replicas.leader("t", 0)
    partition.committed, partition.is_leader = 4, False
    for replica_id in (-1, 7):
        assert await list_offset(handlers, 11, -1, replica_id=replica_id) == (6, -1, -1)
    assert await list_offset(handlers, 11, -1, replica_id=-2) == (0, 5, -1)
    assert await list_offset(handlers, 11, -2, replica_id=-2) == (0, 0, -1)
    assert await list_offset(handlers, 11, -1, replica_id=-2, epoch=1) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)
    assert await list_offset(handlers, 11, -1, replica_id=-2, index=9) == (3, -1, -1)


@async_test
async def test_unavailable_partitions():
    handlers = await with_records()
    assert await list_offset(handlers, 11, -1, topic="nope") == (3, -1, -1)
    assert await list_offset(handlers, 1, -1, topic="nope") == (3, -1, -1)
    assert await list_offset(handlers, 11, -1, index=9) == (3, -1, -1)
    assert await list_offset(handlers, 11, -1, index=-1) == (3, -1, -1)
    handlers.replicas.leader("t", 1).is_leader = False
    assert await list_offset(handlers, 11, -1, index=1) == (6, -1, -1)
    handlers.replicas.leader("t", 0).log.health.offline = "disk"
    assert await list_offset(handlers, 11, -1) == (56, -1, -1)


@async_test
async def test_a_partition_that_is_named_twice_is_rejected():
    handlers = await with_records()
    partitions = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in (0, 1, 0)]
    response = await handlers.request(
        ApiKey.LIST_OFFSETS, 11, replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=partitions)]
    )
    rows = [(row.partition_index, row.error_code) for row in response.topics[0].partitions]
    assert rows == [(0, 42), (1, 0)]
    assert (await handlers.request(ApiKey.LIST_OFFSETS, 11, replica_id=-1, topics=[])).topics == []
