"""DescribeLogDirs: the sizes of partitions, and the space of the file system."""

import errno
from typing import Any

import pytest

from protocol.apis import ApiKey
from protocol.messages.k35_describe_log_dirs import DescribableLogDirTopic
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import Handlers, start_handlers


def usage(path: str) -> tuple[int, int]:
    assert path == "/data"
    return 1000, 400


async def with_logs(**configs: str) -> Handlers:
    handlers = await start_handlers(**configs)
    handlers.services.environment.disk.usage = usage
    handlers.replicas.add("t", 0, size_bytes=355)
    handlers.replicas.add("t", 1)
    handlers.replicas.add("u", 0, size_bytes=7)
    return handlers


async def describe(handlers: Handlers, version: int, topics: Any) -> Any:
    return await handlers.request(ApiKey.DESCRIBE_LOG_DIRS, version, topics=topics)


def sizes(response: Any) -> dict[str, dict[int, int]]:
    (result,) = response.results
    assert not any(row.is_future_key or row.offset_lag for topic in result.topics for row in topic.partitions)
    return {
        topic.name: {row.partition_index: row.partition_size for row in topic.partitions} for topic in result.topics
    }


@pytest.mark.parametrize("version", range(1, 6))
@async_test
async def test_every_version(version: int):
    response = await describe(await with_logs(), version, None)
    assert sizes(response) == {"t": {0: 355, 1: 0}, "u": {0: 7}}
    (result,) = response.results
    assert (response.error_code, result.error_code, result.log_dir) == (0, 0, "/data")
    space = (result.total_bytes, result.usable_bytes)
    assert space == ((1000, 400) if version >= 4 else (-1, -1))
    assert not result.is_cordoned


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        ([], {}),
        ([("nope", [0])], {}),
        ([("t", [])], {}),
        ([("t", [0, 9])], {"t": {0: 355}}),
        ([("t", [1, 1]), ("u", [0])], {"t": {1: 0}, "u": {0: 7}}),
    ],
)
@async_test
async def test_requested_partitions(requested: Any, expected: Any):
    topics = [DescribableLogDirTopic(topic=name, partitions=indexes) for name, indexes in requested]
    assert sizes(await describe(await with_logs(), 5, topics)) == expected


@async_test
async def test_a_directory_that_cannot_be_read():
    handlers = await with_logs()

    def fails(path: str) -> tuple[int, int]:
        raise OSError(errno.EIO, "Input/output error")

    handlers.services.environment.disk.usage = fails
    (result,) = (await describe(handlers, 5, None)).results
    assert (result.error_code, result.topics, result.total_bytes) == (56, [], -1)


@async_test
async def test_a_cordoned_directory():
    handlers = await with_logs(cordoned_log_dirs="*")
    for version in (4, 5):
        (result,) = (await describe(handlers, version, None)).results
        assert result.is_cordoned == (version >= 5)
