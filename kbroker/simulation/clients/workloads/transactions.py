"""Programs that write in transactions: several partitions at once, and what a group has read with what was made of it.

They commit, abort on purpose, die in the middle and come back under the same transactional id, which may be another's
at the same time: then each fences the other, and who was fenced goes on as what it has become, a zombie, until it is
told.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from kbroker.simulation.checker.history import Place, Read
from kbroker.simulation.clients.connections.coordinator import AbortableError, FatalError
from kbroker.simulation.clients.consumer.assignors import ASSIGNORS
from kbroker.simulation.clients.consumer.consumer import Consumer, ConsumerConfig
from kbroker.simulation.clients.consumer.member import FencedError, Member, MemberConfig
from kbroker.simulation.clients.producer.transactional import (
    EndedTransaction,
    TransactionalConfig,
    TransactionalProducer,
)
from kbroker.simulation.clients.producer.transactional_offsets import send_offsets
from kbroker.simulation.clients.workloads.consumers import skip_corrupt_batch
from kbroker.simulation.clients.workloads.records import CorruptRecordError, RecordShape, ValueSource
from kbroker.simulation.clients.workloads.workload import TIMEOUT_FACTORS, WorkloadContext, draw_codecs

# After which the coordinator aborts; what a program does within a transaction mostly takes less.
TIMEOUTS_MS = (1_000, 5_000, 20_000)
# What a program that transforms takes at a time in the end: all that is left has to be done, however slow the disk is.
LAST_RECORDS, LAST_BYTES = 500, 1 << 20
# The padding of results: each batch of them fits into the smallest segments, for nothing can be left out.
SMALL = 32
# Now and then a program takes its time in the middle of a transaction, perhaps more than it has.
DELAYS_S = (0.1, 1.0, 6.0)


@dataclass(slots=True)
class TransactionProbabilities:
    """How often, of all transactions: aborted on purpose, left open by a program that dies, held up in the middle."""

    aborts: float = 0.2
    crashes: float = 0.05
    delays: float = 0.05


@dataclass(slots=True)
class SharedTransactionState:
    """What all transactional programs of a run share: each value and each transaction number is used once.

    `ended_transactions`: the input of stale clients, which send their requests again.
    """

    values: ValueSource
    transaction_numbers: Iterator[int]
    ended_transactions: list[EndedTransaction]


class _Program:
    """One of them, in all its lives."""

    def __init__(
        self,
        context: WorkloadContext,
        name: str,
        random: Random,
        shared: SharedTransactionState,
        transactional_id: str,
        probabilities: TransactionProbabilities,
    ) -> None:
        self.context, self.name, self.random, self.shared = context, name, random, shared
        self.probabilities = probabilities
        self._transactional_id = transactional_id
        self._incarnations = 0

    @property
    def stopped(self) -> bool:
        return self.context.stop.requested

    def happens(self, chance: float) -> bool:
        """Not at the end, when all that is left has to be done."""
        return self.random.random() < chance and not self.context.stop.draining

    def new_producer(self, max_padding: int) -> TransactionalProducer:
        """Each life has a name of its own."""
        random = self.random
        cluster = self.context.cluster(self.name, random, in_transactions=True)
        config = TransactionalConfig(
            max_in_flight=random.randint(1, 5),
            delivery_timeout_s=random.choice(TIMEOUT_FACTORS) * 20.0,
            shape=RecordShape(max_padding, 0, draw_codecs(cluster, random)),
            timeout_ms=random.choice(TIMEOUTS_MS),
            patience_s=random.choice((5.0, 30.0)),
            ended_transactions=self.shared.ended_transactions,
        )
        self._incarnations += 1
        name = f"{self.name}.{self._incarnations - 1}"
        return TransactionalProducer(cluster, self.context.history, name, random, self._transactional_id, config)

    async def maybe_delay(self) -> None:
        if self.happens(self.probabilities.delays):
            await asyncio.sleep(self.random.random() * self.random.choice(DELAYS_S))

    async def pause_before_restart(self) -> None:
        """Between two lives."""
        if not self.stopped:
            await asyncio.sleep(self.random.random() * self.random.choice((0.05, 0.5, 2.0)))

    async def end(self, producer: TransactionalProducer) -> bool:
        """Commit, mostly; gives whether it is committed. Raises FatalError."""
        if not self.happens(self.probabilities.aborts):
            try:
                await producer.commit()
            except AbortableError:
                pass
            else:
                return True
        await producer.abort()
        return False


# Several partitions at once.


async def produce_in_transactions(
    context: WorkloadContext,
    name: str,
    random: Random,
    shared: SharedTransactionState,
    places: Sequence[Place],
    transactional_id: str,
    *,
    probabilities: TransactionProbabilities | None = None,
    pause_s: float = 0.02,
) -> None:
    """Write some batches to some partitions in each transaction, until it is told to stop."""
    program = _Program(context, name, random, shared, transactional_id, probabilities or TransactionProbabilities())
    while not program.stopped:
        producer = program.new_producer(random.choice((64, 2_000)))
        try:
            await producer.init(lambda: program.stopped)
            while not program.stopped and await _transact_once(program, producer, places):
                if random.random() < 0.5:
                    await asyncio.sleep(random.random() * 2 * pause_s)
        except FatalError:
            pass
        finally:
            producer.close()
        await program.pause_before_restart()


async def _transact_once(program: _Program, producer: TransactionalProducer, places: Sequence[Place]) -> bool:
    """Gives whether the program lives on. Raises FatalError."""
    random, shared = program.random, program.shared
    producer.begin(next(shared.transaction_numbers))
    for _ in range(random.choice((1, 2, 3, 6))):
        done = producer.write(random.choice(places), shared.values.allocate(random.choice((1, 1, 2, 5, 20))))
        if random.random() < 0.3:
            await done
        await program.maybe_delay()
    if program.happens(program.probabilities.crashes):
        return False
    await program.end(producer)
    return True


# What a group has read, with what was made of it.


async def consume_transform_produce(
    context: WorkloadContext,
    name: str,
    random: Random,
    shared: SharedTransactionState,
    group: str,
    topics: Sequence[str],
    outputs: Sequence[Place],
    *,
    probabilities: TransactionProbabilities | None = None,
) -> None:
    """Consume, transform, produce, as a member of a group (KIP-447): for each record one result, in one transaction
    with the offset behind it."""
    program = _Program(context, name, random, shared, f"{name}-id", probabilities or TransactionProbabilities())
    while not program.stopped:
        producer = program.new_producer(SMALL)
        member = _new_member(program, group, topics)
        try:
            await producer.init(lambda: program.stopped)
            while not program.stopped and await _transform_once(program, producer, member, group, outputs):
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
    config = ConsumerConfig.draw(random, committed_only=True)
    # What others write has to be transformed as quickly, in the end.
    config.max_records = random.choice((20, 100, 500))
    config.max_bytes = config.partition_max_bytes = random.choice((5_000, 100_000, 1 << 20))
    config.min_bytes, config.max_wait_ms = random.choice((0, 1)), random.choice((10, 100))
    consumer = Consumer(cluster, context.history, program.name, random, config)
    session_s = random.choice((6, 10))
    settings = MemberConfig(
        session_timeout_ms=session_s * 1000,
        rebalance_timeout_ms=random.choice((8_000, 15_000)),
        heartbeat_s=session_s / random.choice((4, 6)),
        assignors=random.sample(list(ASSIGNORS), 2),
        commits=False,
    )
    return Member(consumer, context.history, program.name, group, topics, random, settings)


async def _transform_once(
    program: _Program, producer: TransactionalProducer, member: Member, group: str, outputs: Sequence[Place]
) -> bool:
    """Gives whether the program lives on. Raises FatalError, FencedError."""
    number = next(program.shared.transaction_numbers)
    member.consumer.transaction = number
    if program.context.stop.draining:
        config = member.consumer.config
        config.max_records, config.max_bytes, config.partition_max_bytes = LAST_RECORDS, LAST_BYTES, LAST_BYTES
    try:
        reads = await member.poll()
    except CorruptRecordError as error:
        skip_corrupt_batch(program.context, member.consumer, program.name, error)
        return True
    membership, positions = member.membership_and_positions()
    # Without a record it may still have come past the marks of transactions, which are not read again then.
    if not positions or (not reads and program.random.random() < 0.9):
        return True
    producer.begin(number)
    _write_results(program, producer, group, reads, outputs)
    await program.maybe_delay()
    if program.happens(program.probabilities.crashes):
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
    program: _Program, producer: TransactionalProducer, group: str, reads: Sequence[Read], outputs: Sequence[Place]
) -> None:
    """In some batches, to some partitions."""
    at = 0
    while at < len(reads):
        some = reads[at : at + (20 if program.context.stop.draining else program.random.choice((1, 3, 20)))]
        at += len(some)
        values = program.shared.values.allocate(len(some))
        sources = tuple((read.place, read.offset) for read in some)
        producer.write(program.random.choice(outputs), values, group, sources)
