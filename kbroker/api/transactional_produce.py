"""Produce with a transactional id: what must be known of the transaction before its first batch in a partition.

A partition in which a transaction of the producer is open needs nothing more. For the others, all of a request
together:
- From version 12 on the client speaks transactions version 2 (KIP-890): the partitions are added to the transaction
  here. While the one before is being completed the coordinator says CONCURRENT_TRANSACTIONS; that is asked again for
  add.partitions.to.txn.retry.backoff.max.ms, since the client would wait longer.
- Older clients have added them; the coordinator is asked whether they have
  (transaction.partition.verification.enable).
Each batch is then appended with the guard that was given out before the coordinator was asked, which is worth nothing
if the transaction ends in between. What older clients would not understand, or not try again, is told in other words.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TYPE_CHECKING, NamedTuple

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError, TopicPartition
from protocol.errors import ErrorCode
from protocol.fast.produce import TopicRecords, TopicResult
from protocol.records.batch import CRC_START, HEADER_SIZE, MAGIC, MAGIC_POS, TRANSACTIONAL, BatchHeader, parse_header

if TYPE_CHECKING:
    from kbroker.replica.produce.record_validation import Unfinished
    from kbroker.replica.replica_manager import AppendResult, ReplicaManager
    from kbroker.storage.producers.verification import VerificationGuard

# Produce's versions from which on the client speaks transactions version 2, and knows TRANSACTION_ABORTABLE.
FIRST_OF_VERSION_2 = 12
FIRST_WITH_ABORTABLE = 11

# The lower byte of a batch's attributes.
ATTRIBUTES_POS = CRC_START + 1

# Such errors of the coordinator pass; clients retry at NOT_ENOUGH_REPLICAS without looking for metadata.
PASSING = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)

Place = tuple[str | bytes, int]
Response = list[TopicResult]
Produce = Callable[["TransactionAppends", list[TopicRecords]], "Response | Awaitable[Response | None] | None"]


class Refusal(KafkaError):
    """Told before the log was asked."""


class Producer(NamedTuple):
    transactional_id: str
    producer_id: int
    epoch: int


class TransactionAppends:
    """What a request appends, as a ReplicaManager does, with what is known of each partition's transaction."""

    __slots__ = ("_replicas", "_transactional_id", "errors", "guards", "partitions")

    def __init__(self, replicas: ReplicaManager, transactional_id: str) -> None:
        self._replicas = replicas
        self._transactional_id = transactional_id
        # Those that the coordinator has to be asked about, and what came of it.
        self.partitions: dict[Place, TopicPartition] = {}
        self.guards: dict[Place, VerificationGuard] = {}
        self.errors: dict[Place, KafkaError] = {}

    def append(
        self, key: str | bytes, index: int, records: memoryview | None, acks: int, version: int, now_ms: int
    ) -> AppendResult:
        error = self.errors.get((key, index))
        if error is not None:
            raise error.with_traceback(None)
        guard = self.guards.get((key, index))
        return self._replicas.append(
            key, index, records, acks, version, now_ms, transactional_id=self._transactional_id, guard=guard
        )

    async def append_later(
        self,
        key: str | bytes,
        index: int,
        unfinished: Unfinished,
        acks: int,
        version: int,
    ) -> AppendResult:
        guard = self.guards.get((key, index))
        return await self._replicas.append_later(
            key, index, unfinished, acks, version, transactional_id=self._transactional_id, guard=guard
        )

    def begin_verification(self, place: Place, header: BatchHeader, version_2: bool) -> None:
        """Find out whether the coordinator has to be asked about a partition."""
        partition = self._replicas.find(*place)
        if partition is None or not partition.is_leader or partition.internal:
            # The append will say so.
            return
        try:
            guard = partition.begin_verification(header, version_2)
        except KafkaError as refusal:
            self.errors[place] = Refusal(refusal.code)
            return
        if guard is not None:
            self.partitions[place] = partition.tp
            self.guards[place] = guard

    def refuse(self, error: KafkaError) -> None:
        """The coordinator's refusal, of all that it was asked about."""
        for place in self.partitions:
            self.errors[place] = error


def handle(
    services: Services,
    context: RequestContext,
    transactional_id: str,
    topics: list[TopicRecords],
    produce: Produce,
) -> Response | Awaitable[Response | None] | None:
    """Ask what must be asked, and then `produce`. Raises KafkaError for the whole request."""
    version_2 = context.version >= FIRST_OF_VERSION_2
    batches = transactional_batches(topics)
    appends = TransactionAppends(services.replicas, transactional_id)
    if not batches or not (version_2 or services.config.transaction_partition_verification_enable):
        return produce(appends, topics)
    producers = {(header.producer_id, header.producer_epoch) for header in batches.values()}
    if len(producers) > 1:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING, "Transactional records contained more than one producer ID"
        )
    asked = Verification(services, context, Producer(transactional_id, *producers.pop()), batches, appends)
    asked.begin()
    if not appends.partitions:
        return produce(appends, topics)
    if version_2:
        # The frame's buffer is somebody else's when this returns, before the coroutine has done its first step.
        kept = [(key, [(index, copied(records)) for index, records in partitions]) for key, partitions in topics]
        return asked.add_and_produce(kept, produce)
    asked.verify()
    return produce(appends, topics)


def has_transactional(topics: list[TopicRecords]) -> bool:
    """Whether any batch of a request says that it is transactional. On the way of every request."""
    try:
        for _, partitions in topics:
            for _, records in partitions:
                if records[ATTRIBUTES_POS] & TRANSACTIONAL:  # type: ignore[index]
                    break
            else:
                continue
            return bool(transactional_batches(topics))
    except (IndexError, TypeError):
        # No batch at all, or not a whole one, is among them.
        return bool(transactional_batches(topics))
    return False


def transactional_batches(topics: list[TopicRecords]) -> dict[Place, BatchHeader]:
    """The headers of the transactional batches of a request, which are not checked yet."""
    found: dict[Place, BatchHeader] = {}
    for key, partitions in topics:
        for index, records in partitions:
            if records is not None and len(records) >= HEADER_SIZE and records[MAGIC_POS] == MAGIC:
                header = parse_header(records)
                if header[5] & TRANSACTIONAL and header[9] >= 0:
                    found[key, index] = header
    return found


class Verification:
    """One request's questions to the coordinator."""

    __slots__ = ("_appends", "_batches", "_context", "_producer", "_services")

    def __init__(
        self,
        services: Services,
        context: RequestContext,
        producer: Producer,
        batches: dict[Place, BatchHeader],
        appends: TransactionAppends,
    ) -> None:
        self._services = services
        self._context = context
        self._producer = producer
        self._batches = batches
        self._appends = appends

    def begin(self) -> None:
        self._appends.partitions.clear()
        self._appends.guards.clear()
        self._appends.errors.clear()
        version_2 = self._context.version >= FIRST_OF_VERSION_2
        for place, header in self._batches.items():
            self._appends.begin_verification(place, header, version_2)

    def verify(self) -> None:
        partitions = list(self._appends.partitions.values())
        try:
            told = self._services.transactions.verify_partitions(*self._producer, partitions)
        except KafkaError as refusal:
            self._appends.refuse(translated(refusal.code, self._context.version))
            return
        for place, tp in self._appends.partitions.items():
            if told[tp] is not ErrorCode.NONE:
                self._appends.errors[place] = translated(told[tp], self._context.version)

    async def add_and_produce(self, kept: list[TopicRecords], produce: Produce) -> Response | None:
        """The connection serves nothing more until this is through, so its batches keep their order. `kept`: batches
        that lie in no frame."""
        size = sum(len(records) for _, partitions in kept for _, records in partitions if records is not None)
        self._context.connection.hold(size)
        try:
            await self._add()
        finally:
            self._context.connection.hold(-size)
        result = produce(self._appends, kept)
        return await result if isawaitable(result) else result

    async def _add(self) -> None:
        config, environment = self._services.config, self._services.environment
        patience_ms = min(config.add_partitions_to_txn_retry_backoff_max_ms, config.request_timeout_ms)
        deadline_ms = environment.clock.mono_ms() + patience_ms
        while True:
            # In one step with the question: the transaction before may have got its last markers since the request
            # came, which end the guards that were given out before.
            self.begin()
            partitions = list(self._appends.partitions.values())
            if not partitions:
                return
            try:
                await self._services.transactions.add_partitions(*self._producer, partitions, 2)
            except KafkaError as refusal:
                if refusal.code is not ErrorCode.CONCURRENT_TRANSACTIONS or environment.clock.mono_ms() >= deadline_ms:
                    self._appends.refuse(translated(refusal.code, self._context.version))
                    return
            else:
                return
            await environment.pause(config.add_partitions_to_txn_retry_backoff_ms / 1000)


def copied(records: memoryview | None) -> memoryview | None:
    return None if records is None else memoryview(bytearray(records))


def translated(code: ErrorCode, version: int) -> Refusal:
    """What the client is told of a refusal of the coordinator; `version` is that of Produce."""
    if code is ErrorCode.PRODUCER_FENCED:
        return Refusal(ErrorCode.INVALID_PRODUCER_EPOCH)
    if code is ErrorCode.INVALID_TXN_STATE or (
        code is ErrorCode.TRANSACTION_ABORTABLE and version < FIRST_WITH_ABORTABLE
    ):
        return Refusal(ErrorCode.INVALID_TXN_STATE, "Partition was not added to the transaction")
    if code in PASSING or (code is ErrorCode.CONCURRENT_TRANSACTIONS and version < FIRST_OF_VERSION_2):
        message = "Unable to verify the partition has been added to the transaction. Underlying error: "
        return Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, message + code.name)
    return Refusal(code)
