"""A topic whose highest partitions close, are cancelled, are emptied and come back, while producers send to all.

The producers are idempotent and retry, and one writes in transactions. They notice nothing, except that a partition is
gone in the end. Consumers read committed records.
"""

import asyncio
from contextlib import suppress
from typing import NamedTuple

from kbroker.simulation.checker.history import History, Operation, Outcome
from kbroker.simulation.clients.admin import Admin
from kbroker.simulation.clients.cluster import RefusedError
from kbroker.simulation.clients.group_offsets import EARLIEST, list_offset
from kbroker.simulation.clients.producer import Producer, ProducerConfig
from kbroker.simulation.clients.records import RecordShape, ValueSource
from kbroker.simulation.clients.transactional import (
    AbortableError,
    FatalError,
    TransactionalConfig,
    TransactionalProducer,
)
from kbroker.simulation.clients.workloads.producers import draw_codecs
from kbroker.simulation.clients.workloads.queue_client import QueueClient
from kbroker.simulation.clients.workloads.queue_rules import ForwardedRecords, SeenRecord
from protocol.messages.k10010_remove_partitions import RemovePartitionsRequest, RemovePartitionsResponse

CLOSING = "closing"
PARTITIONS = 3
# A retry after this could reach the next partition with the same index, which does not know the first attempt.
DELIVERY_TIMEOUT_S = 2.0
# An open transaction keeps consumers from what is behind it, and partitions from being removed.
TRANSACTION_TIMEOUT_MS = 1_000
DESCRIBE = -1


class _State(NamedTuple):
    """`first_closing`: -1 if no partition is closing; retired ones do not count as `partitions`."""

    partitions: int
    first_closing: int


class ClosingWorkload:
    """`values`: where the values of its records come from."""

    def __init__(self, values: ValueSource) -> None:
        self._values = values
        self._records = ForwardedRecords()
        # The checker does not check these operations.
        self._no_history = History(lambda: 0)
        self._producers = self._transactions = 0

    # Producers.

    async def produce(self, client: QueueClient) -> None:
        """Send with one producer after the other, until the workload is asked to stop."""
        random = client.random
        while not client.stopped:
            self._producers += 1
            number = self._producers
            cluster = client.context.cluster("closing", random)
            config = ProducerConfig(
                max_in_flight=random.randint(1, 5),
                delivery_timeout_s=DELIVERY_TIMEOUT_S,
                shape=RecordShape(64, 0, draw_codecs(cluster, random)),
            )
            producer = Producer(cluster, self._no_history, f"closing{number}", random, config)
            for _ in range(random.choice((5, 50, 200))):
                if client.stopped:
                    break
                index = random.randrange(cluster.partition_counts.get(CLOSING, PARTITIONS))
                values = self._values.allocate(random.choice((1, 2, 5)))
                self._records.send(values, (number, index))
                producer.send((CLOSING, index), values).add_done_callback(self._on_done)
                await asyncio.sleep(random.random() * random.choice((0.01, 0.1)))
            await producer.flush()
            producer.close()

    async def produce_in_transactions(self, client: QueueClient) -> None:
        """Write in transactions, with one incarnation of a producer after the other, until asked to stop."""
        random = client.random
        while not client.stopped:
            self._producers += 1
            number = self._producers
            cluster = client.context.cluster("closing", random, in_transactions=True)
            config = TransactionalConfig(
                max_in_flight=random.randint(1, 5),
                delivery_timeout_s=DELIVERY_TIMEOUT_S,
                shape=RecordShape(64, 0, draw_codecs(cluster, random)),
                timeout_ms=TRANSACTION_TIMEOUT_MS,
                coordinator_timeout_s=5.0,
            )
            name = f"closing{number}"
            producer = TransactionalProducer(cluster, self._no_history, name, random, CLOSING, config)
            with suppress(FatalError):
                await producer.init(lambda: client.stopped)
                while not client.stopped and await self._run_transaction(client, producer, number):
                    pass
            producer.close()
            await cluster.backoff()

    async def _run_transaction(self, client: QueueClient, producer: TransactionalProducer, number: int) -> bool:
        """Run one transaction. Returns False if the producer dies in it. Raises FatalError."""
        random, written = client.random, list[int]()
        self._transactions += 1
        producer.begin(self._transactions)
        for _ in range(random.choice((1, 2, 4))):
            index = random.randrange(producer.cluster.partition_counts.get(CLOSING, PARTITIONS))
            values = self._values.allocate(random.choice((1, 2, 5)))
            self._records.send(values, (number, index))
            written += values
            producer.write((CLOSING, index), values)
            await asyncio.sleep(random.random() * random.choice((0.01, 0.1)))
        chance = random.random()
        if chance < 0.1:
            self._records.abort(written)
            return False
        await producer.flush()
        if producer.failure is None and chance < 0.7:
            try:
                await producer.commit()
            except (AbortableError, FatalError) as error:
                self._records.end_unknown(written)
                if isinstance(error, FatalError):
                    raise
            else:
                self._records.acknowledge(written)
                return True
        else:
            self._records.abort(written)
        await producer.abort()
        return True

    def _on_done(self, future: "asyncio.Future[Operation]") -> None:
        operation = future.result()
        if operation.outcome is Outcome.OK:
            self._records.acknowledge(operation.action.values)  # type: ignore[union-attr]

    # The operator.

    async def operate(self, client: QueueClient) -> None:
        """Close partitions, cancel that, empty them, and create new ones in their place. Raises BrokenQueue."""
        admin, random = client.admin(CLOSING), client.random
        while not client.stopped:
            with suppress(OSError, RefusedError, TimeoutError):
                state = await self._describe(admin)
                if state.first_closing == state.partitions:
                    if random.random() < 0.3:
                        await admin.create_partitions(CLOSING, random.randrange(state.partitions, PARTITIONS) + 1)
                elif state.first_closing >= 0:
                    await self._go_on(client, admin, state)
                elif state.partitions == PARTITIONS:
                    await self._alter(admin, random.randrange(1, PARTITIONS))
                else:
                    await asyncio.sleep(2 * DELIVERY_TIMEOUT_S)
                    await admin.create_partitions(CLOSING, PARTITIONS)
            await asyncio.sleep(random.random() * random.choice((0.1, 1.0)))

    async def _go_on(self, client: QueueClient, admin: Admin, state: _State) -> None:
        chance = client.random.random()
        if chance < 0.15:
            await self._alter(admin, state.partitions)
        elif chance < 0.5:
            await self._alter(admin, state.first_closing)
        elif chance < 0.8:
            index = client.random.randrange(state.first_closing, state.partitions)
            position = await self._read(client, index)
            if position:
                await admin.delete_records((CLOSING, index), position)

    async def _describe(self, admin: Admin) -> _State:
        """Raises OSError."""
        description = await admin.describe(CLOSING)
        response = await self._alter(admin, DESCRIBE)
        return _State(PARTITIONS if description is None else description.partitions, response.first_closing)

    async def _alter(self, admin: Admin, count: int) -> RemovePartitionsResponse:
        """Raises OSError."""
        connection = await admin.cluster.any_node()
        request = RemovePartitionsRequest(topic_name=CLOSING, partition_count=count)
        return await connection.request(request, RemovePartitionsResponse, version=0)

    # Consumers.

    async def _read(self, client: QueueClient, index: int) -> int:
        """Read a partition to its last stable offset, as far as that works.

        Returns the next position, 0 if it is unknown.

        Raises BrokenQueue.
        """
        try:
            position, _ = await list_offset(client.cluster, (CLOSING, index), EARLIEST)
        except OSError:
            return 0
        while True:
            log: list[SeenRecord] = []
            data, position = await client.fetch(CLOSING, position, log, index, committed=True)
            self._records.read(index, log)
            if data is None or position >= data.last_stable_offset:
                return position

    async def read(self, client: QueueClient) -> None:
        """Read partitions from their start on, until the workload is asked to stop. Raises BrokenQueue."""
        while not client.stopped:
            await self._read(client, client.random.randrange(PARTITIONS))
            await client.cluster.backoff()

    async def check_at_the_end(self, client: QueueClient) -> None:
        """Wait until consumers see all that was acknowledged. Raises BrokenQueue."""
        while True:
            with suppress(OSError):
                await client.cluster.refresh_metadata([CLOSING])
                log: list[SeenRecord] = []
                for index in range(client.cluster.partition_counts.get(CLOSING, 0)):
                    await self._read(client, index)
                if self._records.is_complete():
                    await client.read_to_end(CLOSING, 0, log, committed=True)
                    self._records.check_order(log)
                    return
            await client.cluster.backoff()
