"""aiokafka: clients in one event loop for each test, and waiting for a condition in it."""

import asyncio
import functools
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tests.compat.support import DEADLINE_S, unique

T = TypeVar("T")


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test in a new event loop, and stop its `clients` in that loop."""

    @functools.wraps(test)
    def run(clients: "Clients", **fixtures: Any) -> None:
        async def body() -> None:
            try:
                await test(clients=clients, **fixtures)
            finally:
                await clients.stop()

        asyncio.run(body())

    assert "clients" in inspect.signature(test).parameters
    return run


class Clients:
    """Creates clients of the broker under test, and topics that are deleted after the test."""

    def __init__(self, bootstrap: str, stem: str, group: str) -> None:
        self.group = group
        self._bootstrap = bootstrap
        self._stem = stem
        self._open: list[Any] = []
        self._topics: list[str] = []

    async def producer(self, **settings: Any) -> AIOKafkaProducer:
        return await self._started(AIOKafkaProducer(bootstrap_servers=self._bootstrap, **settings))

    async def consumer(self, *topics: str, **settings: Any) -> AIOKafkaConsumer:
        """Return a consumer that reads from the beginning; it is a member of a group only if `group_id` is given."""
        defaults = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 100, "heartbeat_interval_ms": 200}
        settings = {"bootstrap_servers": self._bootstrap, **defaults, **settings}
        return await self._started(AIOKafkaConsumer(*topics, **settings))

    async def admin(self) -> AIOKafkaAdminClient:
        client = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await client.start()
        self._open.append(client)
        return client

    async def topic(self, partitions: int = 1, configs: dict[str, str] | None = None) -> str:
        """Create a topic, and wait until every partition has a leader."""
        name = unique(self._stem)
        admin = await self.admin()
        result = await admin.create_topics([NewTopic(name, partitions, 1, topic_configs=configs)])
        assert [(topic, code) for topic, code, *_ in result.topic_errors] == [(name, 0)], result
        self._topics.append(name)

        async def ready() -> bool:
            [description] = await admin.describe_topics([name])
            return len(description["partitions"]) == partitions and all(
                p["leader"] >= 0 for p in description["partitions"]
            )

        await eventually(ready, f"the new topic {name} in the metadata")
        return name

    async def stop(self) -> None:
        """Stop the clients, then delete the topics: a last commit to a deleted topic is retried forever."""
        while self._open:
            client = self._open.pop()
            await (client.close() if isinstance(client, AIOKafkaAdminClient) else client.stop())
        topics, self._topics = self._topics, []
        if topics:
            await (await self.admin()).delete_topics(topics)
            await self.stop()

    async def stop_one(self, client: AIOKafkaConsumer | AIOKafkaProducer) -> None:
        self._open.remove(client)
        await client.stop()

    async def _started(self, client: T) -> T:
        self._open.append(client)
        await client.start()  # type: ignore[attr-defined]
        return client


async def eventually(condition: Callable[[], Awaitable[T]], description: str, timeout: float = DEADLINE_S) -> T:
    """Await `condition()` until its result is true, and return that result."""
    deadline = time.monotonic() + timeout
    while True:
        result = await condition()
        if result:
            return result
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {description}; last result: {result!r}"
        await asyncio.sleep(0.02)


async def read(consumer: AIOKafkaConsumer, count: int) -> list[Any]:
    """Read exactly the next `count` records. Fails if there are more."""
    records: list[Any] = []

    async def enough() -> bool:
        for part in (await consumer.getmany(timeout_ms=200)).values():
            records.extend(part)
        return len(records) >= count

    await eventually(enough, f"{count} records")
    assert len(records) == count, f"{len(records)} records where {count} were written"
    return records


async def shared(members: Iterable[AIOKafkaConsumer], expected: set[TopicPartition]) -> bool:
    """Return whether each member has partitions and each partition has one member."""
    shares = [member.assignment() for member in members]
    return all(shares) and sum(map(len, shares)) == len(expected) and set().union(*shares) == expected


def partitions(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in range(count)]
