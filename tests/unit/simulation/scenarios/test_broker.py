"""The complete broker on a simulated machine: its behavior depends on the seed only, and hours of idling are fast."""

import asyncio

from kbroker.broker import Broker
from kbroker.config import BrokerConfig
from kbroker.runtime.environment import Environment
from kbroker.simulation.runtime.environment import simulated_environment
from kbroker.simulation.runtime.loop import SimLoop
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from protocol.records.batch import build_batch, iter_headers
from tests.unit.support.client import Client, records_of

HOST, PORT = "broker", 9092
HOUR = 3600.0
TOPIC = "story"
CONFIG = BrokerConfig.load({"listeners": f"PLAINTEXT://{HOST}:{PORT}", "log.dirs": "/data", "num.partitions": "1"})


class TracedClient(Client):
    """Keeps the times and bytes of everything that it receives in `trace`."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__(loop)
        self.sim_loop = loop
        self.trace: list[tuple[int, bytes]] = []

    @classmethod
    async def connect(cls, loop: SimLoop) -> "TracedClient":
        _, client = await loop.create_connection(lambda: cls(loop), HOST, PORT)
        return client

    def data_received(self, data: bytes) -> None:
        self.trace.append((self.sim_loop.elapsed_ns, data))
        super().data_received(data)

    async def create_topic_by_metadata(self) -> None:
        """Request the metadata of the topic, which creates it, until it exists."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
        while (await self.request(request, 12, MetadataResponse)).topics[0].error_code:
            await asyncio.sleep(0.05)

    async def produce_idempotent(self, sequence: int, now_ms: int) -> tuple[int, int]:
        """Produce one batch of three records; returns (error code, base offset)."""
        records = [(now_ms, b"key", b"value %d" % (sequence + i), ()) for i in range(3)]
        batch = build_batch(records, producer_id=7, producer_epoch=0, base_sequence=sequence)
        result = await self.produce(TOPIC, batch, version=9)
        return result.error_code, result.base_offset

    async def fetch_base_offsets(self, offset: int, max_wait_ms: int = 0) -> list[int]:
        """Return the base offsets of the batches from an offset on."""
        data = await self.fetch_partition(TOPIC, offset, max_wait_ms=max_wait_ms)
        return [header.base_offset for _, header in iter_headers(records_of(data))]


async def life(environment: Environment, loop: SimLoop) -> list[tuple[int, bytes]]:
    """Run a broker that serves, delays a fetch, idles for hours, stops, and continues after a restart."""
    environment.disk.makedirs("/data")
    broker = Broker(environment, CONFIG)
    await broker.start()
    client = await TracedClient.connect(loop)
    await client.create_topic_by_metadata()
    assert await client.produce_idempotent(0, environment.clock.now_ms()) == (0, 0)
    assert await client.produce_idempotent(3, environment.clock.now_ms()) == (0, 3)
    assert await client.produce_idempotent(3, environment.clock.now_ms()) == (0, 3)
    assert await client.fetch_base_offsets(0) == [0, 3]

    before = loop.time()
    assert await client.fetch_base_offsets(6, max_wait_ms=500) == []
    assert 0.5 <= loop.time() - before < 0.6
    await asyncio.sleep(6 * HOUR)
    # Idle for longer than connections.max.idle.ms.
    assert await client.closed is None

    await broker.stop()
    broker = Broker(environment, CONFIG)
    await broker.start()
    again = await TracedClient.connect(loop)
    assert await again.produce_idempotent(3, environment.clock.now_ms()) == (0, 3)
    assert await again.produce_idempotent(6, environment.clock.now_ms()) == (0, 6)
    assert await again.fetch_base_offsets(0) == [0, 3, 6]
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
