"""DeleteRecords, against the responses of a single-node Apache Kafka 4.3.1."""

from typing import Any
from unittest.mock import Mock

import pytest

from kbroker.common import KafkaError
from kbroker.replica.delayed_delete_records import DelayedDeleteRecords, DeletedRecords
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k21_delete_records import DeleteRecordsPartition, DeleteRecordsTopic
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import FakePartition, Handlers, start_handlers

FIVE_RECORDS = dict.fromkeys(range(5), 0)


async def with_records() -> Handlers:
    handlers = await start_handlers()
    handlers.replicas.add("t", 0, FIVE_RECORDS, log_start_offset=2)
    handlers.replicas.add("empty", 0)
    handlers.replicas.add("compacted", 0, FIVE_RECORDS, {"cleanup.policy": "compact"})
    handlers.replicas.add("both", 0, FIVE_RECORDS, {"cleanup.policy": "compact,delete"})
    handlers.replicas.add("__consumer_offsets", 0, FIVE_RECORDS, {"cleanup.policy": "compact"})
    return handlers


async def delete(handlers: Handlers, topic: str, *offsets: int, index: int = 0, version: int = 2) -> Any:
    partitions = [DeleteRecordsPartition(partition_index=index, offset=offset) for offset in offsets]
    topics = [DeleteRecordsTopic(name=topic, partitions=partitions)]
    response = await handlers.request(ApiKey.DELETE_RECORDS, version, topics=topics, timeout_ms=1000)
    (row,) = response.topics[0].partitions
    assert row.partition_index == index
    return (row.error_code, row.low_watermark)


@pytest.mark.parametrize(
    ("topic", "offset", "expected"),
    [
        ("t", 3, (0, 3)), ("t", 1, (0, 2)), ("t", -2, (1, -1)), ("t", 6, (1, -1)), ("t", -1, (0, 5)), ("t", 5, (0, 5)),
        ("empty", 0, (0, 0)), ("empty", -1, (0, 0)),
        ("compacted", 1, (44, -1)), ("both", 1, (0, 1)),
        ("nope", 1, (3, -1)), ("__consumer_offsets", 1, (17, -1)),
    ],
)  # fmt: skip
@async_test
async def test_offsets(topic: str, offset: int, expected: tuple[int, int]):
    assert await delete(await with_records(), topic, offset) == expected


@async_test
async def test_every_version_and_missing_partitions():
    handlers = await with_records()
    for version in range(3):
        assert await delete(handlers, "t", 3 + version, version=version) == (0, 3 + version)
    assert await delete(handlers, "t", 1, index=9) == (3, -1)
    assert await delete(handlers, "t", 1, index=-1) == (3, -1)
    assert await delete(await with_records(), "t", 5, 3) == (0, 3)


@async_test
async def test_log_start_offsets_that_cannot_be_stored(monkeypatch: pytest.MonkeyPatch):
    async def fail() -> None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)

    handlers = await with_records()
    monkeypatch.setattr(handlers.replicas, "store_log_starts", fail)
    assert await delete(handlers, "t", 3) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)


@async_test
async def test_a_leader_that_is_replaced_while_the_log_start_is_stored_refuses(monkeypatch: pytest.MonkeyPatch):
    """The new leader's log still has the records."""
    handlers = await with_records()
    delete_records = handlers.replicas.delete_records

    def delete_and_resign(partition: FakePartition, offset: int) -> None:
        partition.is_leader = False
        delete_records(partition, offset)

    async def wait_for_deletion(deleted: list[DeletedRecords], timeout_ms: int) -> None:
        DelayedDeleteRecords(Mock(), deleted, lambda broker_id: True).check()

    monkeypatch.setattr(handlers.replicas, "delete_records", delete_and_resign)
    monkeypatch.setattr(handlers.replicas, "wait_for_deletion", wait_for_deletion, raising=False)
    assert await delete(handlers, "t", 3) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
