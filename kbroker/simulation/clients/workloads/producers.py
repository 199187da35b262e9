"""Workloads that produce and delete records, and the context that all workloads share.

A workload continues through any fault until it has finished or is stopped, and ends each operation that it began.
It draws versions, sizes, codecs, sessions and timeouts from its Random.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from kbroker.simulation.checker.history import History, Operation, Outcome, Place
from kbroker.simulation.clients.admin import Admin
from kbroker.simulation.clients.connections.cluster import Cluster
from kbroker.simulation.clients.connections.connection import Address
from kbroker.simulation.clients.connections.versions import (
    draw_older_transactional_versions,
    draw_older_versions,
    newest_versions,
)
from kbroker.simulation.clients.consumer.offset_lookup import EARLIEST, LATEST, list_offset
from kbroker.simulation.clients.producer.partition_queue import NO_IDENTITY
from kbroker.simulation.clients.producer.producer import ACKS_ALL, Producer, ProducerConfig
from kbroker.simulation.clients.workloads.records import RecordShape, ValueSource
from protocol.apis import ApiKey
from protocol.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD

FIRST_PRODUCE_WITH_ZSTD = 7
# Factors for a timeout, one drawn for each client: most clients retry before the broker has finished.
TIMEOUT_FACTORS = (0.03, 0.2, 1.0)
FAILED_PAUSE_S = 0.2


@dataclass(slots=True)
class StopSignal:
    """Asks workloads to stop.

    While `draining`, members do not restart, and transactional programs neither abort nor crash on purpose.
    """

    requested: bool = False
    draining: bool = False

    def request(self) -> None:
        self.requested = True


@dataclass(slots=True)
class WorkloadContext:
    """What all workloads of a run share. `old_versions`: the fraction of clients that use older API versions."""

    loop: asyncio.AbstractEventLoop
    history: History
    bootstrap: Sequence[Address]
    stop: StopSignal = field(default_factory=StopSignal)
    old_versions: float = 0.5
    timeout_s: float = 5.0

    def cluster(
        self,
        name: str,
        random: Random,
        *,
        static_members: bool = False,
        patient: bool = False,
        in_transactions: bool = False,
    ) -> Cluster:
        """Return a cluster client with drawn versions and, unless `patient`, a drawn request timeout.

        A client with a short timeout retries while the broker still processes its request.
        """
        caps = newest_versions()
        if random.random() < self.old_versions:
            caps = (
                draw_older_transactional_versions(random)
                if in_transactions
                else draw_older_versions(random, static_members=static_members)
            )
        timeout_s = self.timeout_s * (1.0 if patient else random.choice(TIMEOUT_FACTORS))
        return Cluster(self.loop, self.bootstrap, random, name, caps=caps, timeout_s=timeout_s)


async def produce(
    context: WorkloadContext,
    name: str,
    random: Random,
    values: ValueSource,
    places: Sequence[Place],
    count: int,
    *,
    idempotent: bool = True,
    acks: int = ACKS_ALL,
    keys: int = 0,
    max_padding: int = 2_000,
    pause_s: float = 0.02,
    delivery_timeout_s: float = 20.0,
    restarts: float = 0.01,
) -> None:
    """Send `count` batches to randomly chosen partitions.

    `restarts`: the probability per batch that the producer is closed while batches are in flight, and replaced by a
    new one with another name.
    """
    incarnations = 0
    previous = NO_IDENTITY
    sent = 0
    while sent < count and not context.stop.requested:
        cluster = context.cluster(name, random)
        config = ProducerConfig(
            idempotent=idempotent,
            acks=acks,
            max_in_flight=random.randint(1, 5),
            delivery_timeout_s=random.choice(TIMEOUT_FACTORS) * delivery_timeout_s,
            shape=RecordShape(max_padding, keys, draw_codecs(cluster, random)),
            previous=previous if random.random() < 0.5 else NO_IDENTITY,
        )
        producer = Producer(cluster, context.history, f"{name}.{incarnations}", random, config)
        incarnations += 1
        try:
            sent += await _send(context, producer, random, values, places, count - sent, pause_s, restarts)
        finally:
            previous = producer.identity
            producer.close()


async def _send(
    context: WorkloadContext,
    producer: Producer,
    random: Random,
    values: ValueSource,
    places: Sequence[Place],
    count: int,
    pause_s: float,
    restarts: float,
) -> int:
    """Send batches with one producer until it restarts or is stopped. Returns the number of batches sent."""
    max_waiting = random.choice((1, 3, 10, 30))
    waiting: dict[asyncio.Future[Operation], None] = {}
    last_failed = False

    def on_done(future: asyncio.Future[Operation]) -> None:
        nonlocal last_failed
        waiting.pop(future)
        last_failed = future.result().outcome is Outcome.FAILED

    for sent in range(count):
        if context.stop.requested or random.random() < restarts:
            return sent
        size = random.choice((1, 1, 2, 5, 20))
        future = producer.send(random.choice(places), values.allocate(size))
        waiting[future] = None
        future.add_done_callback(on_done)
        while len(waiting) >= max_waiting and not context.stop.requested:
            await asyncio.wait(list(waiting), return_when=asyncio.FIRST_COMPLETED, timeout=1.0)
        if last_failed or random.random() < 0.5:
            # Do not retry immediately: a broker that rejects at once would be sent requests in a tight loop.
            await asyncio.sleep(random.random() * (FAILED_PAUSE_S if last_failed else 2 * pause_s))
    while waiting and not context.stop.requested:
        await asyncio.wait(list(waiting), timeout=1.0)
    return count


def draw_codecs(cluster: Cluster, random: Random) -> Sequence[int]:
    codecs = [NONE, GZIP, SNAPPY, LZ4]
    if cluster.caps.get(ApiKey.PRODUCE, FIRST_PRODUCE_WITH_ZSTD) >= FIRST_PRODUCE_WITH_ZSTD:
        codecs.append(ZSTD)
    return codecs if random.random() < 0.3 else [random.choice([NONE, *codecs])]


# Record deletion.


async def trim(
    context: WorkloadContext, name: str, random: Random, places: Sequence[Place], pause_s: float = 1.0
) -> None:
    """Delete up to a third of the records of a randomly chosen partition, repeatedly."""
    cluster = context.cluster(name, random)
    admin = Admin(cluster, context.history, name)
    while not context.stop.requested:
        place = random.choice(places)
        try:
            start, _ = await list_offset(cluster, place, EARLIEST)
            end, _ = await list_offset(cluster, place, LATEST)
        except OSError:
            await cluster.backoff()
        else:
            await admin.delete_records(place, random.randint(start, start + (end - start) // 3))
            await asyncio.sleep(random.random() * 2 * pause_s)
    admin.close()
