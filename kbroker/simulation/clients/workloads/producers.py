"""Workloads that produce and delete records.

A workload continues through any fault until it has finished or is stopped, and ends each operation that it began.
It draws versions, sizes, codecs, sessions and timeouts from its Random.
"""

import asyncio
from collections.abc import Sequence
from random import Random

from kbroker.simulation.checker.history import Operation, Outcome, TopicPartition
from kbroker.simulation.clients.admin import Admin
from kbroker.simulation.clients.cluster import Cluster
from kbroker.simulation.clients.group_offsets import EARLIEST, LATEST, list_offset
from kbroker.simulation.clients.partition_queue import NO_IDENTITY
from kbroker.simulation.clients.producer import ACKS_ALL, Producer, ProducerConfig
from kbroker.simulation.clients.records import RecordShape, ValueSource
from kbroker.simulation.clients.workloads.context import TIMEOUT_FACTORS, WorkloadContext
from protocol.apis import ApiKey
from protocol.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD

FIRST_PRODUCE_WITH_ZSTD = 7
FAILED_PAUSE_S = 0.2
MAX_PADDING = 2_000
DELIVERY_TIMEOUT_S = 20.0
# The probability per batch that the producer is closed while batches are in flight, and replaced by a new one with
# another name.
RESTARTS = 0.01


async def produce(
    context: WorkloadContext,
    name: str,
    random: Random,
    values: ValueSource,
    partitions: Sequence[TopicPartition],
    *,
    idempotent: bool,
    acks: int,
    replicated: bool,
    keys: int,
    pause_s: float,
) -> None:
    """Send batches to randomly chosen partitions until stopped.

    `replicated`: partitions have several replicas, so acks=1 promises nothing.
    """
    incarnations = 0
    previous = NO_IDENTITY
    while not context.stop.requested:
        cluster = context.cluster(name, random)
        config = ProducerConfig(
            idempotent=idempotent,
            acks=acks,
            promises=acks == ACKS_ALL or not replicated,
            max_in_flight=random.randint(1, 5),
            delivery_timeout_s=random.choice(TIMEOUT_FACTORS) * DELIVERY_TIMEOUT_S,
            shape=RecordShape(MAX_PADDING, keys, draw_codecs(cluster, random)),
            previous=previous if random.random() < 0.5 else NO_IDENTITY,
        )
        producer = Producer(cluster, context.history, f"{name}.{incarnations}", random, config)
        incarnations += 1
        try:
            await _send(context, producer, random, values, partitions, pause_s)
        finally:
            previous = producer.identity
            producer.close()


async def _send(
    context: WorkloadContext,
    producer: Producer,
    random: Random,
    values: ValueSource,
    partitions: Sequence[TopicPartition],
    pause_s: float,
) -> None:
    """Send batches with one producer until it restarts or is stopped."""
    max_waiting = random.choice((1, 3, 10, 30))
    waiting: dict[asyncio.Future[Operation], None] = {}
    last_failed = False

    def on_done(future: asyncio.Future[Operation]) -> None:
        nonlocal last_failed
        waiting.pop(future)
        last_failed = future.result().outcome is Outcome.FAILED

    while not context.stop.requested and random.random() >= RESTARTS:
        size = random.choice((1, 1, 2, 5, 20))
        future = producer.send(random.choice(partitions), values.allocate(size))
        waiting[future] = None
        future.add_done_callback(on_done)
        while len(waiting) >= max_waiting and not context.stop.requested:
            await asyncio.wait(list(waiting), return_when=asyncio.FIRST_COMPLETED, timeout=1.0)
        if last_failed or random.random() < 0.5:
            # Do not retry immediately: a broker that rejects at once would be sent requests in a tight loop.
            await asyncio.sleep(random.random() * (FAILED_PAUSE_S if last_failed else 2 * pause_s))


def draw_codecs(cluster: Cluster, random: Random) -> Sequence[int]:
    codecs = [NONE, GZIP, SNAPPY, LZ4]
    if cluster.caps.get(ApiKey.PRODUCE, FIRST_PRODUCE_WITH_ZSTD) >= FIRST_PRODUCE_WITH_ZSTD:
        codecs.append(ZSTD)
    return codecs if random.random() < 0.3 else [random.choice([NONE, *codecs])]


# Record deletion.

DELETION_PAUSE_S = 1.0


async def delete_records(
    context: WorkloadContext, name: str, random: Random, partitions: Sequence[TopicPartition]
) -> None:
    """Delete up to a third of the records of a randomly chosen partition, repeatedly."""
    cluster = context.cluster(name, random)
    admin = Admin(cluster, context.history, name)
    while not context.stop.requested:
        tp = random.choice(partitions)
        try:
            start, _ = await list_offset(cluster, tp, EARLIEST)
            end, _ = await list_offset(cluster, tp, LATEST)
        except OSError:
            await cluster.backoff()
        else:
            await admin.delete_records(tp, random.randint(start, start + (end - start) // 3))
            await asyncio.sleep(random.random() * 2 * DELETION_PAUSE_S)
    admin.close()
