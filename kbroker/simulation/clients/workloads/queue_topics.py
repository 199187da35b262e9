"""A topic with delayed delivery and one with idempotency keys, which are written and read during the faults.

The clients keep no history for the checker: what they see is checked with the rules of queue_rules.py.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from random import Random

from kbroker.simulation.clients.admin import BROKER_TIMEOUT_MS, Admin
from kbroker.simulation.clients.connections.cluster import Cluster
from kbroker.simulation.clients.workloads.context import WorkloadContext
from kbroker.simulation.clients.workloads.queue_rules import DelayedRecords, KeyedRecords, SeenRecord
from kbroker.simulation.clients.workloads.records import MAX_DECOMPRESSED, ValueSource, value_of
from kbroker.simulation.runtime.clock import EPOCH_MS
from protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from protocol.records.batch import Buffer, NewRecord, body_of, build_batch, iter_headers
from protocol.records.compression import decompress
from protocol.records.record import Header, iter_records

DELAYED, KEYED = "delayed", "keyed"
# Not values of the other clients.
FIRST_VALUE = 2_000_000_000
PRODUCERS = 2
DELAYS_MS = (1, 20, 500, 3_000)
# A key is chosen out of the newest ones, so that each is sent several times.
NEW_KEY, RECENT_KEYS = 0.3, 5
# Longer than any run, with clocks that are wrong by seconds.
WINDOW_MS = 30 * 86_400_000


class QueueTopics:
    """`configs`: those of the topics, with which no fault of the run may lose acknowledged records."""

    def __init__(self, context: WorkloadContext, random: Random, configs: Mapping[str, str], replicas: int) -> None:
        self._context = context
        self._random = random
        self._replicas = replicas
        self._configs = {
            DELAYED: {**configs, "kbroker.delay.enable": "true"},
            KEYED: {**configs, "kbroker.dedup.window.ms": str(WINDOW_MS)},
        }
        self._values = ValueSource(FIRST_VALUE)
        self._keys = 0
        self.delayed = DelayedRecords()
        self.keyed = KeyedRecords()
        self._clusters: list[Cluster] = []

    async def create(self, admin: Admin) -> None:
        for topic, configs in self._configs.items():
            await admin.create_topic(topic, 1, configs, replication_factor=self._replicas)

    async def run(self) -> None:
        """Write and read until the workload is asked to stop. Raises BrokenQueue."""
        try:
            await asyncio.gather(self._read(), *(self._write() for _ in range(PRODUCERS)))
        finally:
            self._close()

    async def check_at_the_end(self) -> None:
        """Wait, after all faults, until all that was acknowledged is delivered, and check the logs."""
        cluster = self._cluster()
        try:
            log: list[SeenRecord] = []
            position = 0
            while True:
                position = await self._read_to_end(cluster, DELAYED, position, log)
                if self.delayed.is_complete(log):
                    break
                await cluster.backoff()
            self.delayed.check(log)
            keyed: list[SeenRecord] = []
            await self._read_to_end(cluster, KEYED, 0, keyed)
            self.keyed.check(keyed)
        finally:
            self._close()

    # Producers.

    async def _write(self) -> None:
        cluster, random = self._cluster(), self._random
        while not self._context.stop.requested:
            with suppress(OSError):
                await (self._produce_delayed(cluster) if random.random() < 0.6 else self._produce_keyed(cluster))
            await asyncio.sleep(random.random() * 0.1)

    async def _produce_delayed(self, cluster: Cluster) -> None:
        """Send one batch with delayed and immediate records, without retries. Raises OSError."""
        values, now_ms = self._values.allocate(self._random.choice((1, 3, 10))), self._now_ms()
        due_ms: dict[int, int | None] = {}
        records: list[NewRecord] = []
        for value in values:
            headers, due_ms[value] = self._draw_delay(now_ms)
            records.append((now_ms, None, b"%d" % value, headers))
        self.delayed.send(due_ms)
        if await self._produce(cluster, DELAYED, records) is not None:
            self.delayed.acknowledge(values)

    def _draw_delay(self, now_ms: int) -> tuple[tuple[Header, ...], int | None]:
        """Return the headers of a record, and when it is due: 0 if that depends on the broker's clock."""
        kind, delay_ms = self._random.randrange(3), self._random.choice(DELAYS_MS)
        if kind == 0:
            return (), None
        if kind == 1:
            return ((b"TIMER_DELAY_MS", b"%d" % delay_ms),), 0
        # Several records are due at the same time.
        due_ms = now_ms // 500 * 500 + delay_ms
        return ((b"TIMER_DELIVER_MS", b"%d" % due_ms),), due_ms

    async def _produce_keyed(self, cluster: Cluster) -> None:
        """Send one record, perhaps with a key that was sent before. Raises OSError."""
        (value,) = self._values.allocate(1)
        self._keys += self._random.random() < NEW_KEY
        key = max(0, self._keys - self._random.randrange(RECENT_KEYS))
        self.keyed.send(value, key)
        record = (self._now_ms(), None, b"%d" % value, ((b"IDEMPOTENCY_KEY", b"%d" % key),))
        offset = await self._produce(cluster, KEYED, [record])
        if offset is not None:
            self.keyed.acknowledge(value, offset)

    async def _produce(self, cluster: Cluster, topic: str, records: list[NewRecord]) -> int | None:
        """Return the base offset, None if the broker has refused the batch. Raises OSError."""
        connection = await cluster.leader((topic, 0))
        data = [PartitionProduceData(index=0, records=build_batch(records))]
        request = ProduceRequest(
            acks=-1,
            timeout_ms=BROKER_TIMEOUT_MS,
            topic_data=[TopicProduceData(topic_id=cluster.topic_ids[topic], partition_data=data)],
        )
        response = (await connection.request(request, ProduceResponse)).responses[0].partition_responses[0]
        if not response.error_code:
            return response.base_offset
        cluster.forget_leader((topic, 0))
        return None

    def _now_ms(self) -> int:
        return EPOCH_MS + int(self._context.loop.time() * 1000)

    # Consumers.

    async def _read(self) -> None:
        """Read the delayed topic again and again from its start to its end."""
        cluster, random = self._cluster(), self._random
        while not self._context.stop.requested:
            position = 0
            for _ in range(random.choice((5, 50))):
                log: list[SeenRecord] = []
                data, position = await self._fetch(cluster, DELAYED, position, log)
                self.delayed.read(log)
                if data is None or self._context.stop.requested:
                    break
            await cluster.backoff()

    async def _read_to_end(self, cluster: Cluster, topic: str, position: int, log: list[SeenRecord]) -> int:
        """Append the records from `position` to the end of the partition to `log`. Returns the next position."""
        while True:
            data, position = await self._fetch(cluster, topic, position, log)
            if data is None:
                await cluster.backoff()
            elif position >= data.high_watermark:
                return position

    async def _fetch(
        self, cluster: Cluster, topic: str, position: int, log: list[SeenRecord]
    ) -> tuple[PartitionData | None, int]:
        """Send one Fetch. Returns the response, or None if there is none or an error, and the next position."""
        partition = FetchPartition(partition=0, fetch_offset=position, partition_max_bytes=1 << 20)
        try:
            connection = await cluster.leader((topic, 0))
            fetched = FetchTopic(topic_id=cluster.topic_ids[topic], partitions=[partition])
            request = FetchRequest(max_wait_ms=self._random.choice((0, 100)), min_bytes=1, topics=[fetched])
            response = await connection.request(request, FetchResponse)
        except OSError:
            return None, position
        data = None if response.error_code else response.responses[0].partitions[0]
        if data is None or data.error_code:
            cluster.forget_leader((topic, 0))
            return None, position
        return data, _decode(data.records or b"", position, log)

    # Clients.

    def _cluster(self) -> Cluster:
        cluster = Cluster(self._context.loop, self._context.bootstrap, self._random, DELAYED)
        self._clusters.append(cluster)
        return cluster

    def _close(self) -> None:
        for cluster in self._clusters:
            cluster.close()
        self._clusters.clear()


def _decode(data: Buffer, position: int, log: list[SeenRecord]) -> int:
    """Append the records from `position` on, and return the next position."""
    for pos, header in iter_headers(data):
        if header.next_offset <= position:
            continue
        if not header.is_control:
            body = decompress(header.codec, body_of(data, pos, header.size), MAX_DECOMPRESSED)
            for record in iter_records(body, header.count, header.base_timestamp):
                offset = header.base_offset + record.offset_delta
                if offset >= position:
                    log.append(SeenRecord.of(offset, value_of(record.value), record.timestamp, record.headers))
        position = header.next_offset
    return position
