"""aiokafka in the stories of queues: its event loop runs in a thread, so that it sends heartbeats between two calls."""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import CommitFailedError

from tests.compat.queues.clients import REFRESH_MS, Got, Sent, encoded, text
from tests.compat.support import DEADLINE_S

T = TypeVar("T")


class Aiokafka:
    commits = True
    commits_position = True

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._producer = self.wait(
            self._started_producer(enable_idempotence=True, linger_ms=50, metadata_max_age_ms=REFRESH_MS)
        )

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(DEADLINE_S)

    async def _started_producer(self, **settings: Any) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(bootstrap_servers=self._bootstrap, **settings)
        await producer.start()
        return producer

    def produce(self, topic: str, records: Sequence[Sent]) -> list[int]:
        return self.wait(_send(self._producer, topic, records))

    def transaction(self, topic: str, records: Sequence[Sent], commit: bool) -> None:
        async def run() -> None:
            producer = await self._started_producer(transactional_id=f"{topic}-aiokafka")
            await producer.begin_transaction()
            await _send(producer, topic, records)
            await (producer.commit_transaction() if commit else producer.abort_transaction())
            await producer.stop()

        self.wait(run())

    def reader(self, topic: str, group: str, read_committed: bool = False) -> "AiokafkaReader":
        async def started() -> AIOKafkaConsumer:
            consumer = AIOKafkaConsumer(
                topic,
                bootstrap_servers=self._bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                isolation_level="read_committed" if read_committed else "read_uncommitted",
                fetch_max_wait_ms=100,
            )
            await consumer.start()
            return consumer

        return AiokafkaReader(self, self.wait(started()), TopicPartition(topic, 0))

    def close(self) -> None:
        self.wait(self._producer.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()


async def _send(producer: AIOKafkaProducer, topic: str, records: Sequence[Sent]) -> list[int]:
    futures = [
        await producer.send(
            topic, r.value.encode(), key=r.key_bytes, headers=encoded(r), timestamp_ms=r.timestamp_ms or None
        )
        for r in records
    ]
    return [(await future).offset for future in futures]


class AiokafkaReader:
    def __init__(self, client: Aiokafka, consumer: AIOKafkaConsumer, partition: TopicPartition) -> None:
        self._client = client
        self._consumer = consumer
        self._partition = partition

    def poll(self) -> list[Got]:
        polled = self._client.wait(self._consumer.getmany(timeout_ms=300))
        return [Got(r.offset, r.timestamp, r.value.decode(), text(r.headers)) for rows in polled.values() for r in rows]

    def position(self) -> int:
        position = self._consumer.position(self._partition)
        return int(self._client.wait(position)) if self._consumer.assignment() else 0

    def seek(self, offset: int) -> None:
        self._consumer.seek(self._partition, offset)

    def seek_to_time(self, timestamp_ms: int) -> None:
        found = self._client.wait(self._consumer.offsets_for_times({self._partition: timestamp_ms}))
        self.seek(found[self._partition].offset)

    def close(self) -> None:
        # The client joins the group again in the background when partitions were removed, and may commit in the
        # generation before. The offsets of a test that needs the commit would be missing.
        with suppress(CommitFailedError):
            self._client.wait(self._consumer.commit())
        self._client.wait(self._consumer.stop())
