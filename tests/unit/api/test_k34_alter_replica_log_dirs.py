"""AlterReplicaLogDirs: the one directory of a broker has all its replicas."""

import pytest

from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k34_alter_replica_log_dirs import AlterReplicaLogDir, AlterReplicaLogDirTopic
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import Handlers, start_handlers

Rows = list[tuple[str, str, list[int]]]
LONG = "n" * 214


async def alter(handlers: Handlers, version: int, *requested: tuple[str, str, list[int]]) -> Rows:
    dirs = [
        AlterReplicaLogDir(path=path, topics=[AlterReplicaLogDirTopic(name=topic, partitions=indexes)])
        for path, topic, indexes in requested
    ]
    response = await handlers.request(ApiKey.ALTER_REPLICA_LOG_DIRS, version, dirs=dirs)
    return [
        (topic.topic_name, row.partition_index, row.error_code)
        for topic in response.results
        for row in topic.partitions
    ]


@pytest.mark.parametrize("version", [1, 2])
@async_test
async def test_replicas_stay_in_the_only_directory(version: int):
    handlers = await start_handlers()
    handlers.replicas.add("t", 0)
    handlers.replicas.add("t", 1).log.health.mark_offline("broken")
    unknown, storage, elsewhere = (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.LOG_DIR_NOT_FOUND
    )  # fmt: skip
    assert await alter(handlers, version) == []
    assert await alter(handlers, version, ("/data", "t", [0, 1, 7]), ("/data", "u", [0])) == [
        ("t", 0, 0), ("t", 1, storage), ("t", 7, unknown), ("u", 0, unknown)
    ]  # fmt: skip
    assert await alter(handlers, version, ("/other", "t", [0]), ("", "u", [0])) == [
        ("t", 0, elsewhere), ("u", 0, elsewhere)
    ]  # fmt: skip
    # The last directory of a partition counts.
    assert await alter(handlers, version, ("/other", "t", [0]), ("/data", "t", [0])) == [("t", 0, 0)]
    assert await alter(handlers, version, ("/data", LONG, [0])) == [(LONG, 0, ErrorCode.INVALID_TOPIC_EXCEPTION)]


@async_test
async def test_a_partition_of_other_brokers(monkeypatch: pytest.MonkeyPatch):
    handlers = await start_handlers()
    monkeypatch.setattr(handlers.replicas, "missing_error", lambda *_: ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert await alter(handlers, 2, ("/data", "t", [0])) == [("t", 0, ErrorCode.REPLICA_NOT_AVAILABLE)]


@async_test
async def test_a_cordoned_directory_gets_no_replicas():
    handlers = await start_handlers(cordoned_log_dirs="*")
    handlers.replicas.add("t", 0)
    assert await alter(handlers, 2, ("/data", "t", [0])) == [("t", 0, ErrorCode.INVALID_REPLICA_ASSIGNMENT)]
