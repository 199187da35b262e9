"""Producers and consumers under many faults at once. Every consumer reads acknowledged records once and in order.

Connections break, the broker stops, is killed or loses power, topics are created and deleted, and the disk is slow,
uncached or full.
"""

import asyncio
from random import Random

import pytest

from protocol.errors import ErrorCode
from protocol.records.batch import iter_headers
from tests.unit.support.client import Client, TopicPartition, batch, by_partition, records_of, values_of
from tests.unit.support.simulated_broker import Machine, story

TOPICS = {"flushed": {"flush_before_ack": True}, "small": {"flush_before_ack": True, "segment_bytes": 1 << 20}}
PLACES: list[TopicPartition] = [(topic, index) for topic in TOPICS for index in range(2)]
RETRIED = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
}
BATCHES = 25


class Storm:
    """One run. `acknowledged`: values by offset of each partition. `over`: the producers are finished."""

    def __init__(self, m: Machine, seed: int) -> None:
        self.m = m
        self.random = Random(seed)
        self.acknowledged: dict[TopicPartition, dict[int, bytes]] = {place: {} for place in PLACES}
        self.over = False

    async def connected(self, client: Client | None) -> Client:
        while client is None or client.closed.done():
            try:
                client = await self.m.client()
            except OSError:
                await asyncio.sleep(0.05)
        return client

    async def produce(self, producer_id: int) -> None:
        random, client = self.random, None
        sequences = dict.fromkeys(PLACES, 0)
        for number in range(BATCHES):
            place = random.choice(PLACES)
            value = b"%d/%d" % (producer_id, number)
            size = random.choice([10, 1000, 200_000])
            data = batch(value, producer=(producer_id, 0, sequences[place]), size=size)
            client, offset = await self._until_acknowledged(client, place, data)
            sequences[place] += 1
            assert offset not in self.acknowledged[place]
            self.acknowledged[place][offset] = value
            await asyncio.sleep(random.random() * 0.02)

    async def _until_acknowledged(
        self, client: Client | None, place: TopicPartition, data: bytearray
    ) -> tuple[Client, int]:
        for _ in range(500):
            client = await self.connected(client)
            try:
                sent = client.send_produce(*_addressed(place, data), acks=self.random.choice([1, -1]), timeout_ms=2000)
                if self.random.random() < 0.05:
                    await asyncio.sleep(self.random.random() * 0.003)
                    client.close()
                answer = await sent
            except ConnectionResetError:
                continue
            if answer.error_code == ErrorCode.NONE:
                return client, answer.base_offset
            assert answer.error_code in RETRIED
            await asyncio.sleep(self.random.random() * 0.1)
        raise AssertionError("never acknowledged")

    async def consume(self) -> dict[TopicPartition, list[bytes]]:
        """Return all records after the end of the storm."""
        reader = Reader(self)
        while not (self.over and reader.has(self.acknowledged)):
            try:
                await reader.poll()
            except ConnectionResetError:
                reader.begin_anew()
            await asyncio.sleep(self.random.random() * 0.01)
        return reader.values

    async def trouble(self) -> None:
        m, random = self.m, self.random
        while not self.over:
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
                    await self._topic_comes_and_goes()

    async def _topic_comes_and_goes(self) -> None:
        client, other = await self.m.client(), await self.m.client()
        await client.create_topic("passing", 2)
        client.send_produce("passing", batch(b"x"))
        client.send_fetch({("passing", 1): 0}, session=(0, 0), max_wait_ms=100_000)
        await asyncio.sleep(self.random.random() * 0.05)
        await other.delete_topic("passing")
        client.close()


class Reader:
    """A consumer that sometimes loses its fetch session."""

    def __init__(self, storm: Storm) -> None:
        self.storm = storm
        self.client: Client | None = None
        self.positions = dict.fromkeys(PLACES, 0)
        self.values: dict[TopicPartition, list[bytes]] = {place: [] for place in PLACES}
        self.begin_anew()

    def begin_anew(self) -> None:
        self.session, self.epoch = 0, 0
        self.moved = dict(self.positions)

    def has(self, acknowledged: dict[TopicPartition, dict[int, bytes]]) -> bool:
        return all(self.positions[place] > max(found, default=-1) for place, found in acknowledged.items())

    async def poll(self) -> None:
        random = self.storm.random
        self.client = await self.storm.connected(self.client)
        asked = self.client.send_fetch(
            self.moved,
            session=(self.session, self.epoch),
            max_wait_ms=random.choice([0, 50, 500]),
            min_bytes=random.choice([1, 1, 5000]),
            max_bytes=random.choice([1, 100_000, 50 << 20]),
            partition_max_bytes=random.choice([1, 50_000, 1 << 20]),
        )
        if random.random() < 0.05:
            await asyncio.sleep(random.random() * 0.01)
            self.client.close()
        answer = await asked
        if answer.error_code != ErrorCode.NONE:
            assert answer.error_code in (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
            self.begin_anew()
            return
        self.session, self.epoch, self.moved = answer.session_id, self.epoch + 1, {}
        for place, part in by_partition(answer).items():
            assert part.error_code == ErrorCode.NONE
            self._take(place, part)

    def _take(self, place, part) -> None:  # type: ignore[no-untyped-def]
        position = self.positions[place]
        for _, header in iter_headers(records_of(part)):
            assert header.base_offset <= position <= header.last_offset
            position = header.next_offset
        assert position <= part.high_watermark
        self.values[place] += [value.rstrip(b".") for value in values_of(part, self.positions[place])]
        self.positions[place] = self.moved[place] = position
        if not records_of(part):
            del self.moved[place]


def _addressed(place: TopicPartition, data: bytearray) -> tuple[str, bytearray, int]:
    return place[0], bytearray(data), place[1]


@story
@pytest.mark.parametrize("seed", range(6))
async def test_storm(m: Machine, seed: int) -> None:
    client = await m.client()
    for topic, configs in TOPICS.items():
        await client.create_topic(topic, 2, **configs)
    storm = Storm(m, seed)
    trouble = asyncio.ensure_future(storm.trouble())
    consumers = [asyncio.ensure_future(storm.consume()) for _ in range(3)]
    await asyncio.gather(*(storm.produce(100 + number) for number in range(4)))
    storm.over = True
    await trouble
    first, *others = await asyncio.gather(*consumers)
    assert all(other == first for other in others)
    for place, found in storm.acknowledged.items():
        assert {offset: first[place][offset] for offset in found} == found
        assert len(set(first[place])) == len(first[place]) == len(found)
    for client in m._clients:
        client.close()
    await asyncio.sleep(1)
    assert len(m.broker.services.replicas.purgatory) == 0
