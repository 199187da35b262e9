"""A transactional producer that follows the rules of the Java client.

In transaction version 2 (KIP-890) Produce and TxnOffsetCommit add their partition to the transaction themselves, and
EndTxn returns the next epoch. In version 1 the producer first sends AddPartitionsToTxn and AddOffsetsToTxn, and keeps
its epoch.

- Retriable errors are retried. A batch that fails makes the transaction abortable only.
- EndTxn is retried if its response is lost. After a timeout the producer raises FatalError.
- In version 1 a late request of one transaction can affect the next one. Unlike the Java client, the producer then
  takes a new epoch after each transaction with a lost response.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from kbroker.client.requests import TRANSACTION, by_topic
from kbroker.simulation.checker.history import EndTransaction, History, Operation, Outcome, Send, TopicPartition
from kbroker.simulation.clients.cluster import Attempt, Attempts, Cluster, CoordinatorClient
from kbroker.simulation.clients.connection import SimClientConnection
from kbroker.simulation.clients.partition_queue import NO_IDENTITY, Identity, PartitionQueue, QueuedBatch
from kbroker.simulation.clients.producer import FIRST_RESUMING_VERSION, WITHOUT_EFFECT, Producer, ProducerConfig
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k00_produce import PartitionProduceResponse
from protocol.messages.k22_transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from protocol.records.batch import TRANSACTIONAL

FEATURE = "transaction.version"
VERSION_2 = 2
# The first versions that support transaction version 2.
FIRST_OF_VERSION_2 = {ApiKey.PRODUCE: 12, ApiKey.END_TXN: 5, ApiKey.TXN_OFFSET_COMMIT: 5}
# From version 4 on AddPartitionsToTxn is for brokers.
LAST_ADD_PARTITIONS = 3
# At most this many batches of each transaction are kept for stale clients.
KEPT_BATCHES = 3


class TransactionError(Exception):
    """A transactional request failed."""


class AbortableError(TransactionError):
    """The transaction can only be aborted. The producer may begin the next one."""


class FatalError(TransactionError):
    """The producer cannot continue: it is fenced, or the outcome of its transaction is unknown."""


# Fatal errors of requests other than Produce, as in the Java client.
FATAL = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        ErrorCode.INVALID_REQUEST,
    }
)
# Fatal errors of Produce: a fenced producer gets the fatal error when it aborts.
FATAL_TO_PRODUCE = FATAL - {
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.UNKNOWN_PRODUCER_ID,
}


def transaction_error(code: ErrorCode, fatal: frozenset[ErrorCode] = FATAL) -> TransactionError:
    return FatalError(code.name) if code in fatal else AbortableError(code.name)


def first_error(codes: Iterable[ErrorCode]) -> ErrorCode:
    """Return the error to handle: a non-retriable one before a retriable one."""
    errors = [code for code in codes if code]
    return next((code for code in errors if not code.retriable), errors[0] if errors else ErrorCode.NONE)


class EndedTransaction(NamedTuple):
    """An ended transaction of version 2. Its requests must have no effect when they are sent again."""

    transactional_id: str
    identity: Identity
    next_identity: Identity
    committed: bool
    batches: tuple[tuple[TopicPartition, bytes], ...]


@dataclass(slots=True)
class TransactionalConfig(ProducerConfig):
    """`timeout_ms`: the transaction timeout. `coordinator_timeout_s`: how long coordinator requests are retried."""

    timeout_ms: int = 20_000
    coordinator_timeout_s: float = 30.0
    ended_transactions: list[EndedTransaction] = field(default_factory=list)


class TransactionalProducer(Producer):
    """A transactional producer. `process` is its unique name in the history.

    Call `init`, then for each transaction `begin`, `write`, `send_offsets` (transactional_offsets.py), and `commit` or
    `abort`, until a call raises FatalError.
    """

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
        # Whether the coordinator may know of the transaction.
        self.started = False
        # Whether a response was lost.
        self.response_lost = False
        self._added: dict[TopicPartition, None] = {}
        self._partitions_to_add: dict[TopicPartition, None] = {}
        self._add_task: asyncio.Task[None] | None = None
        self._written_batches: list[tuple[TopicPartition, bytes]] = []

    @property
    def process(self) -> str:
        return self._process

    @property
    def history(self) -> History:
        return self._history

    def close(self) -> None:
        """Stop immediately, in any state of the transaction."""
        if self._add_task is not None:
            self._add_task.cancel()
        super().close()

    # Transactions.

    async def init(self, is_cancelled: Callable[[], bool] = lambda: False) -> None:
        """Initialize the producer id, or take a new epoch. Fences other producers of the transactional id.

        An open transaction is aborted by that. Raises FatalError.
        """

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
            code = await self.coordinator.request(attempt, self._deadline(), Attempts(), is_cancelled)
        except TimeoutError:
            raise FatalError("no producer id in time") from None
        if code:
            raise FatalError(code.name)
        self.response_lost = False
        producer_id, epoch = self.identity
        self._history.note(self._process, f"{self.transactional_id} is {producer_id} in epoch {epoch}")

    def begin(self, number: int) -> None:
        """Begin a transaction. `number` identifies it in the history."""
        assert self.transaction is None
        self.transaction = number
        self.failure = None
        self.started = False
        self._added.clear()
        self._partitions_to_add.clear()
        self._written_batches = []

    def write(
        self,
        tp: TopicPartition,
        values: tuple[int, ...],
        group: str = "",
        sources: tuple[tuple[TopicPartition, int], ...] = (),
    ) -> "asyncio.Future[Operation]":
        """Send one batch in the transaction. Returns as `send` does."""
        send = Send(tp, values, 0, transaction=self.transaction, group=group, sources=sources)
        done = self._send(send)
        if self.failure is not None:
            self._give_up_pending()
        return done

    async def commit(self) -> None:
        """Commit the transaction. After AbortableError only `abort` may follow. Raises FatalError."""
        await self.flush()
        if self.failure is not None:
            raise self.failure
        await self._finish(True)

    async def abort(self) -> None:
        """Abort the transaction. Raises FatalError."""
        self.fail(AbortableError("aborted"))
        await self.flush()
        if isinstance(self.failure, FatalError):
            raise self.failure
        await self._finish(False)

    def fail(self, error: TransactionError) -> None:
        """Make the transaction abortable only, or the producer unusable if the error is fatal."""
        if self.failure is None or isinstance(error, FatalError):
            self.failure = error
        self._give_up_pending()

    async def request(self, coordinator: CoordinatorClient, attempt: Attempt, attempts: Attempts) -> ErrorCode:
        """Repeat a request until its error is not retriable, and return that. Raises TimeoutError."""
        try:
            return await coordinator.request(attempt, self._deadline(), attempts)
        finally:
            self.response_lost = self.response_lost or attempts.response_lost

    def _deadline(self) -> float:
        """Return the deadline of a coordinator request that starts now."""
        return self._loop.time() + self.config.coordinator_timeout_s

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
        elif self.response_lost or any(queue.is_sequence_broken for queue in self._queues.values()):
            await self.init()

    async def _end_transaction(self, number: int, commit: bool) -> None:
        producer_id, epoch = self.identity
        request = EndTxnRequest(
            transactional_id=self.transactional_id, producer_id=producer_id, producer_epoch=epoch, committed=commit
        )

        async def attempt(connection: SimClientConnection) -> ErrorCode:
            version = self.request_version(connection, ApiKey.END_TXN)
            response = await connection.request(request, EndTxnResponse, version=version)
            if not response.error_code and response.producer_id >= 0:
                self._set_identity((response.producer_id, response.producer_epoch))
            return ErrorCode(response.error_code)

        operation = self._history.begin(self._process, EndTransaction(number, commit))
        attempts = Attempts()
        outcome, detail = Outcome.UNKNOWN, "cancelled"
        try:
            code = await self.request(self.coordinator, attempt, attempts)
            outcome, detail = attempts.outcome(code), code.name if code else ""
        except TimeoutError:
            outcome, detail = attempts.outcome(ErrorCode.REQUEST_TIMED_OUT), "TimeoutError"
            raise FatalError("the transaction's end is not known") from None
        finally:
            self._history.end(operation, outcome, detail)
        if code:
            self.fail(transaction_error(code))
            raise transaction_error(code)

    def _set_identity(self, identity: Identity) -> None:
        """Set the producer id and epoch. Sequence numbers begin at 0 with each new identity."""
        if identity != self.identity:
            self.identity = identity
            for queue in self._queues.values():
                queue.restart(identity)

    # Sending.

    def _new_queue(self, tp: TopicPartition) -> PartitionQueue:
        queue = PartitionQueue(tp, True, self.config.max_in_flight, TRANSACTIONAL)
        queue.restart(self.identity)
        return queue

    def request_version(self, connection: SimClientConnection, key: ApiKey) -> int:
        """Return the version of an API to use, according to the version of the transactions."""
        version = connection.version(key)
        return version if self.version >= VERSION_2 else min(version, FIRST_OF_VERSION_2[key] - 1)

    def _version(self, connection: SimClientConnection) -> int:
        return self.request_version(connection, ApiKey.PRODUCE)

    def _may_send(self, queue: PartitionQueue) -> bool:
        if self.failure is not None or self.identity == NO_IDENTITY:
            return False
        if self.version >= VERSION_2:
            self.started = True
            return True
        if queue.tp in self._added:
            return True
        self._partitions_to_add[queue.tp] = None
        if self._add_task is None:
            self._add_task = self._loop.create_task(self._add_partitions())
        return False

    async def _add_partitions(self) -> None:
        """Add partitions to the transaction before writing to them (version 1)."""
        try:
            while self._partitions_to_add and self.failure is None:
                await self._request_add_partitions(list(self._partitions_to_add))
        except TransactionError as error:
            self.fail(error)
        finally:
            self._add_task = None
        self._schedule_send()

    async def _request_add_partitions(self, partitions: list[TopicPartition]) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.identity[0],
            v3_and_below_producer_epoch=self.identity[1],
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in by_topic(partitions).items()
            ],
        )

        async def attempt(connection: SimClientConnection) -> ErrorCode:
            version = min(connection.version(ApiKey.ADD_PARTITIONS_TO_TXN), LAST_ADD_PARTITIONS)
            response = await connection.request(request, AddPartitionsToTxnResponse, version=version)
            codes = [
                ErrorCode(partition.partition_error_code)
                for topic in response.results_by_topic_v3_and_below
                for partition in topic.results_by_partition
            ]
            return first_error(codes)

        try:
            code = await self.request(self.coordinator, attempt, Attempts())
        except TimeoutError:
            raise AbortableError("partitions not added in time") from None
        if code:
            raise transaction_error(code)
        self.started = True
        for tp in partitions:
            self._added[tp] = None
            del self._partitions_to_add[tp]

    # Responses.

    def _handle_result(
        self, queue: PartitionQueue, batch: QueuedBatch, result: PartitionProduceResponse | None
    ) -> None:
        code = ErrorCode.NONE if result is None else ErrorCode(result.error_code)
        self.response_lost = self.response_lost or result is None
        out_of_order = code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and batch is not queue.pending[0]
        if code.retriable or code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            if result is not None and not code and batch.data is not None:
                self._written_batches.append((batch.tp, bytes(batch.data)))
            super()._handle_result(queue, batch, result)
        elif out_of_order:
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
            # Failing another batch has already failed this one.
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
        """Do nothing: the transaction has failed, and sequence numbers restart with the next identity."""


def _version(connection: SimClientConnection) -> int:
    """Return the transaction version that this broker and this client support."""
    supports_version_2 = all(connection.version(key) >= first for key, first in FIRST_OF_VERSION_2.items())
    return (
        VERSION_2
        if supports_version_2 and connection.finalized_features.get(FEATURE, 0) >= VERSION_2
        else VERSION_2 - 1
    )
