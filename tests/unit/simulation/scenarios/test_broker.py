"""The whole broker on a simulated machine: what it does is a matter of the seed, and hours take no time."""

import asyncio
from dataclasses import dataclass, field
from typing import TypeVar

from kbroker.broker import Broker
from kbroker.config import BrokerConfig
from kbroker.runtime.environment import Environment
from kbroker.simulation.runtime.environment import simulated_environment
from kbroker.simulation.runtime.loop import SimLoop
from protocol.framing import decode_response_header, encode_frame, encode_request_header
from protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from protocol.records.batch import build_batch, iter_headers
from protocol.schema.codec import decode, encode
from protocol.schema.message import Message

HOST, PORT = "broker", 9092
HOUR = 3600.0
TOPIC = "story"
M = TypeVar("M", bound=Message)
CONFIG = BrokerConfig.load({"listeners": f"PLAINTEXT://{HOST}:{PORT}", "log.dirs": "/data", "num.partitions": "1"})


@dataclass
class Client:
    """Asks one thing after another; `trace` has the moments and bytes of the answers."""

    loop: SimLoop
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    trace: list[tuple[int, bytes]] = field(default_factory=list)
    asked: int = 0

    @classmethod
    async def connect(cls, loop: SimLoop) -> "Client":
        return cls(loop, *await asyncio.open_connection(HOST, PORT))

    async def ask(self, request: Message, version: int, answer: type[M]) -> M:
        self.asked += 1
        key = request.__options__["key"]
        header = encode_request_header(key, version, self.asked, "story")
        self.writer.write(encode_frame(header, encode(request, version)))
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        body = await self.reader.readexactly(size)
        self.trace.append((self.loop.elapsed_ns, body))
        correlation_id, pos = decode_response_header(body, key, version)
        assert correlation_id == self.asked
        return decode(answer, body, version, pos)

    async def create_topic(self) -> None:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
        while True:
            answer = await self.ask(request, 12, MetadataResponse)
            if answer.topics[0].error_code == 0:
                return
            await asyncio.sleep(0.05)

    async def produce(self, sequence: int, now_ms: int) -> tuple[int, int]:
        """One batch of three records of an idempotent producer; gives (error code, base offset)."""
        records = [(now_ms, b"key", b"value %d" % (sequence + i), ()) for i in range(3)]
        batch = build_batch(records, producer_id=7, producer_epoch=0, base_sequence=sequence)
        data = TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)])
        request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data])
        answer = (await self.ask(request, 9, ProduceResponse)).responses[0].partition_responses[0]
        return answer.error_code, answer.base_offset

    async def fetch(self, offset: int, max_wait_ms: int = 0) -> list[int]:
        """Base offsets of the batches from an offset on."""
        wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        topic = FetchTopic(topic=TOPIC, partitions=[wanted])
        request = FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, session_epoch=-1, topics=[topic])
        answer = (await self.ask(request, 12, FetchResponse)).responses[0].partitions[0]
        assert answer.error_code == 0
        return [header.base_offset for _, header in iter_headers(bytes(answer.records or b""))]

    def close(self) -> None:
        self.writer.close()


async def life(environment: Environment, loop: SimLoop) -> list[tuple[int, bytes]]:
    """A broker serves, idles for hours, waits with a consumer, stops, and goes on where it was."""
    environment.disk.makedirs("/data")
    broker = Broker(environment, CONFIG)
    await broker.start()
    client = await Client.connect(loop)
    await client.create_topic()
    assert await client.produce(0, environment.clock.now_ms()) == (0, 0)
    assert await client.produce(3, environment.clock.now_ms()) == (0, 3)
    assert await client.produce(3, environment.clock.now_ms()) == (0, 3)
    assert await client.fetch(0) == [0, 3]

    before = loop.time()
    assert await client.fetch(6, max_wait_ms=500) == []
    assert 0.5 <= loop.time() - before < 0.6
    await asyncio.sleep(6 * HOUR)
    # Idle for longer than connections.max.idle.ms.
    assert await client.reader.read() == b""
    client.close()

    await broker.stop()
    broker = Broker(environment, CONFIG)
    await broker.start()
    again = await Client.connect(loop)
    assert await again.produce(3, environment.clock.now_ms()) == (0, 3)
    assert await again.produce(6, environment.clock.now_ms()) == (0, 6)
    assert await again.fetch(0) == [0, 3, 6]
    again.close()
    await broker.stop()
    return client.trace + again.trace


def live(seed: int) -> list[tuple[int, bytes]]:
    loop = SimLoop(seed)
    environment = simulated_environment(seed, loop=loop)
    try:
        return loop.run_until_complete(life(environment, loop))
    finally:
        loop.close()


def test_hours_of_a_broker_and_its_restart():
    trace = live(1)
    assert trace[-1][0] > 6 * HOUR * 1e9


def test_the_same_seed_is_the_same_life():
    assert live(2) == live(2)
