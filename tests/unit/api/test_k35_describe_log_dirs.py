"""DescribeLogDirs: sizes of partitions, and the room that there is."""

import errno
from typing import Any

import pytest

from protocol.apis import ApiKey
from protocol.messages.k35_describe_log_dirs import DescribableLogDirTopic
from tests.unit.support.handlers import Handlers, run, start_handlers


def usage(path: str) -> tuple[int, int]:
    assert path == "/data"
    return 1000, 400


async def with_logs() -> Handlers:
    handlers = await start_handlers()
    handlers.services.environment.disk.usage = usage
    handlers.replicas.add("t", 0, size_bytes=355)
    handlers.replicas.add("t", 1)
    handlers.replicas.add("u", 0, size_bytes=7)
    return handlers


async def ask(handlers: Handlers, version: int, topics: Any) -> Any:
    return await handlers.request(ApiKey.DESCRIBE_LOG_DIRS, version, topics=topics)


def sizes(answer: Any) -> dict[str, dict[int, int]]:
    (result,) = answer.results
    assert not any(row.is_future_key or row.offset_lag for topic in result.topics for row in topic.partitions)
    return {
        topic.name: {row.partition_index: row.partition_size for row in topic.partitions} for topic in result.topics
    }


@pytest.mark.parametrize("version", range(1, 6))
def test_every_version(version: int):
    async def story():
        answer = await ask(await with_logs(), version, None)
        assert sizes(answer) == {"t": {0: 355, 1: 0}, "u": {0: 7}}
        (result,) = answer.results
        assert (answer.error_code, result.error_code, result.log_dir) == (0, 0, "/data")
        room = (result.total_bytes, result.usable_bytes)
        assert room == ((1000, 400) if version >= 4 else (-1, -1))
        assert not result.is_cordoned

    run(story)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ([], {}),
        ([("nope", [0])], {}),
        ([("t", [])], {}),
        ([("t", [0, 9])], {"t": {0: 355}}),
        ([("t", [1, 1]), ("u", [0])], {"t": {1: 0}, "u": {0: 7}}),
    ],
)
def test_what_is_asked_for(wanted: Any, expected: Any):
    async def story():
        topics = [DescribableLogDirTopic(topic=name, partitions=indexes) for name, indexes in wanted]
        assert sizes(await ask(await with_logs(), 5, topics)) == expected

    run(story)


def test_a_directory_that_fails():
    async def story():
        handlers = await with_logs()

        def fails(path: str) -> tuple[int, int]:
            raise OSError(errno.EIO, "Input/output error")

        handlers.services.environment.disk.usage = fails
        (result,) = (await ask(handlers, 5, None)).results
        assert (result.error_code, result.topics, result.total_bytes) == (56, [], -1)

    run(story)
