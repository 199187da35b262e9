"""A transactional producer: one transaction after the other, after the rules of the Java client.

In transactions of version 2 (KIP-890) Produce and TxnOffsetCommit say themselves what becomes a part of the
transaction, and each end gives the producer its next epoch. In those of version 1 it asks for both before, and keeps
its epoch.

- What may pass is tried again; a batch that fails makes the transaction one that can only be aborted.
- When the end of a transaction gets no response the producer asks again; out of time, it is at its end.
- More careful than the Java client: in version 1, where a late request of one transaction can act on the next, it takes
  a new epoch after each transaction of which an response got lost.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from kbroker.simulation.checker.history import EndTransaction, History, Operation, Outcome, Place, Send
from kbroker.simulation.clients.connections.cluster import TRANSACTION, Cluster
from kbroker.simulation.clients.connections.connection import SimClientConnection
from kbroker.simulation.clients.connections.coordinator import (
    FATAL_TO_PRODUCE,
    AbortableError,
    Attempts,
    CoordinatorClient,
    FatalError,
    TransactionError,
    first_error,
    transaction_error,
)
from kbroker.simulation.clients.producer.partition_queue import NO_IDENTITY, Identity, PartitionQueue, QueuedBatch
from kbroker.simulation.clients.producer.producer import (
    FIRST_RESUMING_VERSION,
    WITHOUT_EFFECT,
    Producer,
    ProducerConfig,
)
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k00_produce import PartitionProduceResponse
from protocol.messages.k22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.k24_add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from protocol.messages.k26_end_txn import EndTxnRequest, EndTxnResponse
from protocol.records.batch import TRANSACTIONAL

FEATURE = "transaction.version"
VERSION_2 = 2
# The first of each that knows transactions of version 2.
FIRST_OF_VERSION_2 = {ApiKey.PRODUCE: 12, ApiKey.END_TXN: 5, ApiKey.TXN_OFFSET_COMMIT: 5}
# From 4 on AddPartitionsToTxn is for brokers.
LAST_ADD_PARTITIONS = 3
# So many batches of each transaction are kept to be sent again when they are out of date.
KEPT_BATCHES = 3


class EndedTransaction(NamedTuple):
    """A transaction of version 2 that has ended, as the wire had it: whatever comes of it again must have no effect."""

    transactional_id: str
    identity: Identity
    next_identity: Identity
    committed: bool
    batches: tuple[tuple[Place, bytes], ...]


@dataclass(slots=True)
class TransactionalConfig(ProducerConfig):
    """`timeout_ms`: after that the coordinator aborts. `patience_s`: so long the coordinator is asked for anything."""

    timeout_ms: int = 20_000
    patience_s: float = 30.0
    ended_transactions: list[EndedTransaction] = field(default_factory=list)


class TransactionalProducer(Producer):
    """`process` is its name in the history, and of no other producer. `init`, then `begin`, `write` and `send_offsets`
    (transactional_offsets.py), `commit` or `abort`, again and again, until something raises FatalError."""

    config: TransactionalConfig

    def __init__(
        self,
        cluster: Cluster,
        history: History,
        process: str,
        random: Random,
        transactional_id: str,
        config: TransactionalConfig | None = None,
    ) -> None:
        super().__init__(cluster, history, process, random, config or TransactionalConfig())
        self.transactional_id = self._transactional_id = transactional_id
        self.transaction: int | None = None
        self.version = VERSION_2
        self.coordinator = CoordinatorClient(cluster, transactional_id, TRANSACTION)
        self.failure: TransactionError | None = None
        # Anything has been asked for that makes the coordinator know of the transaction.
        self.started = False
        # An response got lost.
        self.lost = False
        self._added: dict[Place, None] = {}
        self._partitions_to_add: dict[Place, None] = {}
        self._add_task: asyncio.Task[None] | None = None
        self._written_batches: list[tuple[Place, bytes]] = []

    @property
    def process(self) -> str:
        return self._process

    @property
    def history(self) -> History:
        return self._history

    def close(self) -> None:
        """Stop here and now, whatever the transaction's state."""
        if self._add_task is not None:
            self._add_task.cancel()
        super().close()

    # Transactions.

    async def init(self, is_cancelled: Callable[[], bool] = lambda: False) -> None:
        """Take the transactional id over from whoever had it, or a new epoch; what was open is ended by that. Raises
        FatalError."""

        async def attempt(connection: SimClientConnection) -> ErrorCode:
            self.version = _version(connection)
            request = InitProducerIdRequest(
                transactional_id=self.transactional_id, transaction_timeout_ms=self.config.timeout_ms
            )
            if connection.version(ApiKey.INIT_PRODUCER_ID) >= FIRST_RESUMING_VERSION:
                request.producer_id, request.producer_epoch = self.identity
            response = await connection.request(request, InitProducerIdResponse)
            if not response.error_code:
                self._set_identity((response.producer_id, response.producer_epoch))
            return ErrorCode(response.error_code)

        try:
            code = await self.coordinator.request(attempt, self.deadline(), Attempts(), is_cancelled)
        except TimeoutError:
            raise FatalError("no producer id in time") from None
        if code:
            raise FatalError(code.name)
        self.lost = False
        producer_id, epoch = self.identity
        self._history.note(self._process, f"{self.transactional_id} is {producer_id} in epoch {epoch}")

    def begin(self, number: int) -> None:
        """`number`: which of the run's transactions it is."""
        assert self.transaction is None
        self.transaction = number
        self.failure = None
        self.started = False
        self._added.clear()
        self._partitions_to_add.clear()
        self._written_batches = []

    def write(
        self, place: Place, values: tuple[int, ...], group: str = "", sources: tuple[tuple[Place, int], ...] = ()
    ) -> "asyncio.Future[Operation]":
        """Send one batch within the transaction."""
        send = Send(place, values, 0, transaction=self.transaction, group=group, sources=sources)
        done = self._send(send)
        if self.failure is not None:
            self._give_up_pending()
        return done

    async def commit(self) -> None:
        """Raises AbortableError: nothing but `abort` can follow. Raises FatalError."""
        await self.flush()
        if self.failure is not None:
            raise self.failure
        await self._finish(True)

    async def abort(self) -> None:
        """Raises FatalError."""
        self.fail(AbortableError("aborted"))
        await self.flush()
        if isinstance(self.failure, FatalError):
            raise self.failure
        await self._finish(False)

    def fail(self, error: TransactionError) -> None:
        """From here on the transaction, or the producer, is good for nothing more."""
        if self.failure is None or isinstance(error, FatalError):
            self.failure = error
        self._give_up_pending()

    def deadline(self) -> float:
        """Until when a coordinator is asked that is asked from now on."""
        return self._loop.time() + self.config.patience_s

    async def _finish(self, commit: bool) -> None:
        assert self.transaction is not None
        if self._add_task is not None:
            await asyncio.wait([self._add_task])
        identity = self.identity
        if self.started:
            await self._end_transaction(self.transaction, commit)
        self.transaction = None
        if self.identity != identity:
            self.config.ended_transactions.append(
                EndedTransaction(
                    self.transactional_id, identity, self.identity, commit, tuple(self._written_batches[:KEPT_BATCHES])
                )
            )
        elif self.lost or any(queue.is_sequence_broken for queue in self._queues.values()):
            await self.init()

    async def _end_transaction(self, number: int, commit: bool) -> None:
        producer_id, epoch = self.identity
        request = EndTxnRequest(
            transactional_id=self.transactional_id, producer_id=producer_id, producer_epoch=epoch, committed=commit
        )

        async def attempt(connection: SimClientConnection) -> ErrorCode:
            response = await connection.request(
                request, EndTxnResponse, version=self._capped(connection, ApiKey.END_TXN)
            )
            if not response.error_code and response.producer_id >= 0:
                self._set_identity((response.producer_id, response.producer_epoch))
            return ErrorCode(response.error_code)

        operation = self._history.begin(self._process, EndTransaction(number, commit))
        attempts = Attempts()
        outcome, detail = Outcome.UNKNOWN, "cancelled"
        try:
            code = await self.coordinator.request(attempt, self.deadline(), attempts)
            outcome = Outcome.UNKNOWN if code and attempts.maybe_applied else Outcome.FAILED if code else Outcome.OK
            detail = code.name if code else ""
        except TimeoutError:
            outcome, detail = Outcome.UNKNOWN if attempts.maybe_applied else Outcome.FAILED, "TimeoutError"
            raise FatalError("the transaction's end is not known") from None
        finally:
            self.lost = self.lost or attempts.response_lost
            self._history.end(operation, outcome, detail)
        if code:
            self.fail(transaction_error(code))
            raise transaction_error(code)

    def _set_identity(self, identity: Identity) -> None:
        """Sequences begin anew with each identity."""
        if identity != self.identity:
            self.identity = identity
            for queue in self._queues.values():
                queue.restart(identity)

    # Sending.

    def _new_queue(self, place: Place) -> PartitionQueue:
        queue = PartitionQueue(place, True, self.config.max_in_flight, TRANSACTIONAL)
        queue.restart(self.identity)
        return queue

    def _capped(self, connection: SimClientConnection, key: ApiKey) -> int:
        version = connection.version(key)
        return version if self.version >= VERSION_2 else min(version, FIRST_OF_VERSION_2[key] - 1)

    def _version(self, connection: SimClientConnection) -> int:
        return self._capped(connection, ApiKey.PRODUCE)

    def _may_send(self, queue: PartitionQueue) -> bool:
        if self.failure is not None or self.identity == NO_IDENTITY:
            return False
        if self.version >= VERSION_2:
            self.started = True
            return True
        if queue.place in self._added:
            return True
        self._partitions_to_add[queue.place] = None
        if self._add_task is None:
            self._add_task = self._loop.create_task(self._add_partitions())
        return False

    async def _add_partitions(self) -> None:
        """Version 1: partitions become part of the transaction before anything is written to them."""
        try:
            while self._partitions_to_add and self.failure is None:
                await self._request_add_partitions(list(self._partitions_to_add))
        except TransactionError as error:
            self.fail(error)
        finally:
            self._add_task = None
        self._schedule_send()

    async def _request_add_partitions(self, places: list[Place]) -> None:
        topics: dict[str, list[int]] = {}
        for name, index in places:
            topics.setdefault(name, []).append(index)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.identity[0],
            v3_and_below_producer_epoch=self.identity[1],
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in topics.items()
            ],
        )

        async def attempt(connection: SimClientConnection) -> ErrorCode:
            version = min(connection.version(ApiKey.ADD_PARTITIONS_TO_TXN), LAST_ADD_PARTITIONS)
            response = await connection.request(request, AddPartitionsToTxnResponse, version=version)
            codes = [
                ErrorCode(one.partition_error_code)
                for topic in response.results_by_topic_v3_and_below
                for one in topic.results_by_partition
            ]
            return first_error(codes)

        attempts = Attempts()
        try:
            code = await self.coordinator.request(attempt, self.deadline(), attempts)
        except TimeoutError:
            raise AbortableError("partitions not added in time") from None
        finally:
            self.lost = self.lost or attempts.response_lost
        if code:
            raise transaction_error(code)
        self.started = True
        for place in places:
            self._added[place] = None
            del self._partitions_to_add[place]

    # Answers.

    def _handle_result(
        self, queue: PartitionQueue, batch: QueuedBatch, result: PartitionProduceResponse | None
    ) -> None:
        code = ErrorCode.NONE if result is None else ErrorCode(result.error_code)
        self.lost = self.lost or result is None
        early = code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and batch is not queue.pending[0]
        if code.retriable or code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            if result is not None and not code and batch.data is not None:
                self._written_batches.append((batch.place, bytes(batch.data)))
            super()._handle_result(queue, batch, result)
        elif early:
            self._retry(queue, batch, code.name)
        else:
            batch.maybe_applied = batch.maybe_applied or code not in WITHOUT_EFFECT
            self._give_up(queue, batch, code.name, transaction_error(code, FATAL_TO_PRODUCE))

    def _retry(self, queue: PartitionQueue, batch: QueuedBatch, reason: str) -> None:
        if self.failure is not None:
            self._give_up(queue, batch, reason)
        else:
            super()._retry(queue, batch, reason)

    def _give_up(
        self, queue: PartitionQueue, batch: QueuedBatch, reason: str, error: TransactionError | None = None
    ) -> None:
        if batch not in queue.pending:
            # With another one that was given up.
            return
        super()._give_up(queue, batch, reason)
        if not self._closed:
            self.fail(error or AbortableError(reason))

    def _give_up_pending(self) -> None:
        for queue in self._queues.values():
            for batch in list(queue.pending):
                if not batch.in_flight and batch in queue.pending:
                    super()._give_up(queue, batch, "the transaction has failed")

    def _restart_sequence(self, queue: PartitionQueue) -> None:
        """The transaction has failed with the batch: sequences begin anew with the next identity."""


def _version(connection: SimClientConnection) -> int:
    """Of transactions, as this broker and this client have them."""
    knows = all(connection.version(key) >= first for key, first in FIRST_OF_VERSION_2.items())
    return VERSION_2 if knows and connection.finalized_features.get(FEATURE, 0) >= VERSION_2 else VERSION_2 - 1
