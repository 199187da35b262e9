"""Workloads that write in transactions: to several partitions at once, or consume-transform-produce.

They commit, abort, or crash in the middle and restart with the same transactional id. Several may share an id: each
then fences the others, and a fenced one continues as a zombie until it gets an error.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from kbroker.simulation.checker.history import Read, TopicPartition
from kbroker.simulation.clients.consumer import Consumer, ConsumerConfig
from kbroker.simulation.clients.group_member import FencedError, Member, MemberConfig
from kbroker.simulation.clients.group_offsets import send_offsets
from kbroker.simulation.clients.records import CorruptRecordError, RecordShape, ValueSource
from kbroker.simulation.clients.transactional import (
    AbortableError,
    EndedTransaction,
    FatalError,
    TransactionalConfig,
    TransactionalProducer,
)
from kbroker.simulation.clients.workloads.consumers import skip_corrupt_batch
from kbroker.simulation.clients.workloads.context import TIMEOUT_FACTORS, WorkloadContext
from kbroker.simulation.clients.workloads.producers import draw_codecs

# Transaction timeouts. Most transactions end sooner.
TIMEOUTS_MS = (1_000, 5_000, 20_000)
# Fetch limits while draining: the remaining records must be processed in time even on a slow disk.
DRAINING_RECORDS, DRAINING_BYTES = 500, 1 << 20
# Padding of results, in bytes. A batch of them must fit into the smallest segments, since no result may be skipped.
RESULT_PADDING = 32
# Delays in the middle of a transaction; some exceed the transaction timeout.
DELAYS_S = (0.1, 1.0, 6.0)


# Probabilities per transaction: of an abort, of a crash that leaves it open, and of a delay in the middle.
ABORTS, CRASHES, DELAYS = 0.2, 0.05, 0.05


@dataclass(slots=True)
class SharedTransactionState:
    """What all transactional programs of a run share: each value and each transaction number is used once.

    `ended_transactions`: the input of stale clients, which send their requests again.
    """

    values: ValueSource
    transaction_numbers: Iterator[int]
    ended_transactions: list[EndedTransaction]


class _Program:
    """One transactional workload across its restarts."""

    def __init__(
        self,
        context: WorkloadContext,
        name: str,
        random: Random,
        shared: SharedTransactionState,
        transactional_id: str,
    ) -> None:
        self.context, self.name, self.random, self.shared = context, name, random, shared
        self._transactional_id = transactional_id
        self._incarnations = 0

    @property
    def stopped(self) -> bool:
        return self.context.stop.requested

    def happens(self, chance: float) -> bool:
        """Return whether an event with this probability happens. While draining, none does."""
        return self.random.random() < chance and not self.context.stop.draining

    def new_producer(self, max_padding: int) -> TransactionalProducer:
        """Return the producer of the next incarnation, which has its own name in the history."""
        random = self.random
        cluster = self.context.cluster(self.name, random, in_transactions=True)
        config = TransactionalConfig(
            max_in_flight=random.randint(1, 5),
            delivery_timeout_s=random.choice(TIMEOUT_FACTORS) * 20.0,
            shape=RecordShape(max_padding, 0, draw_codecs(cluster, random)),
            timeout_ms=random.choice(TIMEOUTS_MS),
            coordinator_timeout_s=random.choice((5.0, 30.0)),
            ended_transactions=self.shared.ended_transactions,
        )
        self._incarnations += 1
        name = f"{self.name}.{self._incarnations - 1}"
        return TransactionalProducer(cluster, self.context.history, name, random, self._transactional_id, config)

    async def maybe_delay(self) -> None:
        if self.happens(DELAYS):
            await asyncio.sleep(self.random.random() * self.random.choice(DELAYS_S))

    async def pause_before_restart(self) -> None:
        if not self.stopped:
            await asyncio.sleep(self.random.random() * self.random.choice((0.05, 0.5, 2.0)))

    async def end(self, producer: TransactionalProducer) -> bool:
        """Commit, or abort with the configured probability. Returns whether it committed. Raises FatalError."""
        if not self.happens(ABORTS):
            try:
                await producer.commit()
            except AbortableError:
                pass
            else:
                return True
        await producer.abort()
        return False


# Writing to several partitions.


async def produce_in_transactions(
    context: WorkloadContext,
    name: str,
    random: Random,
    shared: SharedTransactionState,
    partitions: Sequence[TopicPartition],
    transactional_id: str,
    *,
    pause_s: float,
) -> None:
    """Write several batches to several partitions in each transaction, until stopped."""
    program = _Program(context, name, random, shared, transactional_id)
    while not program.stopped:
        producer = program.new_producer(random.choice((64, 2_000)))
        try:
            await producer.init(lambda: program.stopped)
            while not program.stopped and await _run_transaction(program, producer, partitions):
                if random.random() < 0.5:
                    await asyncio.sleep(random.random() * 2 * pause_s)
        except FatalError:
            pass
        finally:
            producer.close()
        await program.pause_before_restart()


async def _run_transaction(
    program: _Program, producer: TransactionalProducer, partitions: Sequence[TopicPartition]
) -> bool:
    """Run one transaction. Returns False if the program crashes in it. Raises FatalError."""
    random, shared = program.random, program.shared
    producer.begin(next(shared.transaction_numbers))
    for _ in range(random.choice((1, 2, 3, 6))):
        done = producer.write(random.choice(partitions), shared.values.allocate(random.choice((1, 1, 2, 5, 20))))
        if random.random() < 0.3:
            await done
        await program.maybe_delay()
    if program.happens(CRASHES):
        return False
    await program.end(producer)
    return True


# Consume-transform-produce.


async def consume_transform_produce(
    context: WorkloadContext,
    name: str,
    random: Random,
    shared: SharedTransactionState,
    group: str,
    topics: Sequence[str],
    outputs: Sequence[TopicPartition],
) -> None:
    """Consume, transform and produce as a group member (KIP-447), until stopped.

    Each transaction writes one result for each record read, and commits the offsets after them.
    """
    program = _Program(context, name, random, shared, f"{name}-id")
    while not program.stopped:
        producer = program.new_producer(RESULT_PADDING)
        member = _new_member(program, group, topics)
        try:
            await producer.init(lambda: program.stopped)
            while not program.stopped and await _transform_batch(program, producer, member, group, outputs):
                pass
            if random.random() < 0.5:
                await member.leave()
        except (FatalError, FencedError):
            pass
        finally:
            producer.close()
            member.close_without_leaving()
        await program.pause_before_restart()


def _new_member(program: _Program, group: str, topics: Sequence[str]) -> Member:
    random, context = program.random, program.context
    cluster = context.cluster(program.name, random, in_transactions=True)
    config = ConsumerConfig.draw(random, committed_only=True, rack=context.rack)
    # Limits at which transforming keeps up with the other producers.
    config.max_records = random.choice((20, 100, 500))
    config.max_bytes = config.partition_max_bytes = random.choice((5_000, 100_000, 1 << 20))
    config.min_bytes, config.max_wait_ms = random.choice((0, 1)), random.choice((10, 100))
    consumer = Consumer(cluster, context.history, program.name, random, config)
    settings = MemberConfig.draw(random, commits=False)
    return Member(consumer, context.history, program.name, group, topics, random, settings)


async def _transform_batch(
    program: _Program, producer: TransactionalProducer, member: Member, group: str, outputs: Sequence[TopicPartition]
) -> bool:
    """Poll, write the results and commit. Returns False if the program crashes. Raises FatalError, FencedError."""
    number = next(program.shared.transaction_numbers)
    member.consumer.transaction = number
    if program.context.stop.draining:
        config = member.consumer.config
        config.max_records, config.max_bytes, config.partition_max_bytes = (
            DRAINING_RECORDS,
            DRAINING_BYTES,
            DRAINING_BYTES,
        )
    try:
        reads = await member.poll()
    except CorruptRecordError as error:
        skip_corrupt_batch(program.context, member.consumer, program.name, error)
        return True
    membership, positions = member.membership_and_positions()
    # A poll without records may still move the position past transaction markers. Commit that now and then.
    if not positions or (not reads and program.random.random() < 0.9):
        return True
    producer.begin(number)
    _write_results(program, producer, group, reads, outputs)
    await program.maybe_delay()
    if program.happens(CRASHES):
        return False
    try:
        await send_offsets(producer, group, membership, positions)
        committed = await program.end(producer)
    except AbortableError:
        await producer.abort()
        committed = False
    if not committed:
        await member.reset_to_committed()
    return True


def _write_results(
    program: _Program,
    producer: TransactionalProducer,
    group: str,
    reads: Sequence[Read],
    outputs: Sequence[TopicPartition],
) -> None:
    """Write one result for each read, in batches of random size to random partitions."""
    start = 0
    while start < len(reads):
        chunk = reads[start : start + (20 if program.context.stop.draining else program.random.choice((1, 3, 20)))]
        start += len(chunk)
        values = program.shared.values.allocate(len(chunk))
        sources = tuple((read.tp, read.offset) for read in chunk)
        producer.write(program.random.choice(outputs), values, group, sources)
