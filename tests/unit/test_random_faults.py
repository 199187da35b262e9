"""Producers and consumers under random faults: connections break, the broker stops, is killed or loses power, topics
are created and deleted, the disk is slow or full. Every consumer reads each acknowledged record once, in order."""

import asyncio
from random import Random

import pytest

from protocol.errors import ErrorCode
from protocol.records.batch import iter_headers
from tests.sampling import third_of
from tests.unit.support.client import Client, TopicPartition, batch, by_partition, records_of, values_of
from tests.unit.support.simulated_broker import Machine, broker_test

TOPICS = {"flushed": {"flush_before_ack": True}, "small": {"flush_before_ack": True, "segment_bytes": 1 << 20}}
PARTITIONS: list[TopicPartition] = [(topic, index) for topic in TOPICS for index in range(2)]
RETRIABLE = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
}
BATCHES = 25


class Workload:
    """`acknowledged`: values by offset of each partition. `is_over`: the producers have ended."""

    def __init__(self, m: Machine, seed: int) -> None:
        self.m = m
        self.random = Random(seed)
        self.acknowledged: dict[TopicPartition, dict[int, bytes]] = {partition: {} for partition in PARTITIONS}
        self.is_over = False

    async def connect(self, client: Client | None) -> Client:
        while client is None or client.closed.done():
            try:
                client = await self.m.client()
            except OSError:
                await asyncio.sleep(0.05)
        return client

    async def produce(self, producer_id: int) -> None:
        random, client = self.random, None
        sequences = dict.fromkeys(PARTITIONS, 0)
        for number in range(BATCHES):
            partition = random.choice(PARTITIONS)
            value = b"%d/%d" % (producer_id, number)
            size = random.choice([10, 1000, 200_000])
            data = batch(value, producer=(producer_id, 0, sequences[partition]), size=size)
            client, offset = await self._until_acknowledged(client, partition, data)
            sequences[partition] += 1
            assert offset not in self.acknowledged[partition]
            self.acknowledged[partition][offset] = value
            await asyncio.sleep(random.random() * 0.02)

    async def _until_acknowledged(
        self, client: Client | None, partition: TopicPartition, data: bytearray
    ) -> tuple[Client, int]:
        for _ in range(500):
            client = await self.connect(client)
            try:
                sent = client.send_produce(
                    *_produce_arguments(partition, data), acks=self.random.choice([1, -1]), timeout_ms=2000
                )
                if self.random.random() < 0.05:
                    await asyncio.sleep(self.random.random() * 0.003)
                    client.close()
                response = await sent
            except ConnectionResetError:
                continue
            if response.error_code == ErrorCode.NONE:
                return client, response.base_offset
            assert response.error_code in RETRIABLE
            await asyncio.sleep(self.random.random() * 0.1)
        raise AssertionError("never acknowledged")

    async def consume(self) -> dict[TopicPartition, list[bytes]]:
        """Read everything, and return it when the producers have ended."""
        reader = Reader(self)
        while not (self.is_over and reader.has_read(self.acknowledged)):
            try:
                await reader.poll()
            except ConnectionResetError:
                reader.start_session()
            await asyncio.sleep(self.random.random() * 0.01)
        return reader.values

    async def inject_faults(self) -> None:
        m, random = self.m, self.random
        while not self.is_over:
            await asyncio.sleep(random.random())
            match random.randrange(6):
                case 0:
                    await m.crash(power=random.random() < 0.5)
                    await m.start()
                case 1:
                    await m.restart()
                case 2:
                    m.disk.cold = random.choice([0.0, 0.3, 1.0])
                case 3:
                    m.disk.capacity = m.disk.used + random.randrange(100_000)
                    await asyncio.sleep(random.random() * 3)
                    m.disk.capacity = None
                case _:
                    await self._create_and_delete_topic()

    async def _create_and_delete_topic(self) -> None:
        client, other = await self.m.client(), await self.m.client()
        await client.create_topic("temporary", 2)
        client.send_produce("temporary", batch(b"x"))
        client.send_fetch({("temporary", 1): 0}, session=(0, 0), max_wait_ms=100_000)
        await asyncio.sleep(self.random.random() * 0.05)
        await other.delete_topic("temporary")
        client.close()


class Reader:
    """A consumer with a fetch session, which it sometimes loses."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.client: Client | None = None
        self.positions = dict.fromkeys(PARTITIONS, 0)
        self.values: dict[TopicPartition, list[bytes]] = {partition: [] for partition in PARTITIONS}
        self.start_session()

    def start_session(self) -> None:
        self.session, self.epoch = 0, 0
        self.changed = dict(self.positions)

    def has_read(self, acknowledged: dict[TopicPartition, dict[int, bytes]]) -> bool:
        return all(self.positions[partition] > max(values, default=-1) for partition, values in acknowledged.items())

    async def poll(self) -> None:
        random = self.workload.random
        self.client = await self.workload.connect(self.client)
        response_future = self.client.send_fetch(
            self.changed,
            session=(self.session, self.epoch),
            max_wait_ms=random.choice([0, 50, 500]),
            min_bytes=random.choice([1, 1, 5000]),
            max_bytes=random.choice([1, 100_000, 50 << 20]),
            partition_max_bytes=random.choice([1, 50_000, 1 << 20]),
        )
        if random.random() < 0.05:
            await asyncio.sleep(random.random() * 0.01)
            self.client.close()
        response = await response_future
        if response.error_code != ErrorCode.NONE:
            assert response.error_code in (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
            self.start_session()
            return
        self.session, self.epoch, self.changed = response.session_id, self.epoch + 1, {}
        for partition, part in by_partition(response).items():
            assert part.error_code == ErrorCode.NONE
            self._append(partition, part)

    def _append(self, partition, part) -> None:  # type: ignore[no-untyped-def]
        position = self.positions[partition]
        for _, header in iter_headers(records_of(part)):
            assert header.base_offset <= position <= header.last_offset
            position = header.next_offset
        assert position <= part.high_watermark
        self.values[partition] += [value.rstrip(b".") for value in values_of(part, self.positions[partition])]
        self.positions[partition] = self.changed[partition] = position
        if not records_of(part):
            del self.changed[partition]


def _produce_arguments(partition: TopicPartition, data: bytearray) -> tuple[str, bytearray, int]:
    return partition[0], bytearray(data), partition[1]


@broker_test
@pytest.mark.parametrize("seed", third_of(range(6)))
async def test_acknowledged_records_survive_random_faults(m: Machine, seed: int) -> None:
    client = await m.client()
    for topic, configs in TOPICS.items():
        await client.create_topic(topic, 2, **configs)
    workload = Workload(m, seed)
    faults = asyncio.ensure_future(workload.inject_faults())
    consumers = [asyncio.ensure_future(workload.consume()) for _ in range(3)]
    await asyncio.gather(*(workload.produce(100 + number) for number in range(4)))
    workload.is_over = True
    await faults
    first, *others = await asyncio.gather(*consumers)
    assert all(other == first for other in others)
    for partition, values in workload.acknowledged.items():
        assert {offset: first[partition][offset] for offset in values} == values
        assert len(set(first[partition])) == len(first[partition]) == len(values)
    for client in m._clients:
        client.close()
    await asyncio.sleep(1)
    assert len(m.broker.services.replicas.purgatory) == 0
