"""The transaction coordinator: the operations that handlers call, and timeouts.

    InitProducerId -> AddPartitionsToTxn, or the first Produce -> EndTxn -> PrepareX committed: EndTxn's response
    -> markers to all partitions -> CompleteX

Each transition of a transactional id is decided on its committed state, written, and replayed; until then other
requests get CONCURRENT_TRANSACTIONS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from kbroker.common import NO_PRODUCER_ID, KafkaError, TopicPartition
from kbroker.coordinator.runtime.coordinator_context import CoordinatorContext, CoordinatorState, RuntimeConfig
from kbroker.coordinator.runtime.coordinator_runtime import Coordinator
from kbroker.coordinator.runtime.operation import CoordinatorResult
from kbroker.coordinator.transaction.transaction_markers import TransactionMarkerSender
from kbroker.coordinator.transaction.transaction_metadata import (
    NO_EPOCH,
    NewProducerIdRequired,
    ProducerIdAndEpoch,
    TransactionMetadata,
    TransactionState,
)
from kbroker.coordinator.transaction.transaction_shard import TransactionShard
from kbroker.metadata.topics.topic_names import TRANSACTION_STATE_TOPIC
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from asyncio import Task

    from kbroker.config import BrokerConfig
    from kbroker.coordinator.internal_log import InternalLog
    from kbroker.coordinator.transaction.transaction_markers import MarkerWriter
    from kbroker.coordinator.transaction.transaction_metadata import TransactionEntry
    from kbroker.metadata.image import MetadataDelta, MetadataImage
    from kbroker.metadata.producer_id_manager import ProducerIdManager
    from kbroker.runtime.environment import Environment

T = TypeVar("T")
log = EventLogger("kbroker.transactions")

NO_PRODUCER = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_EPOCH)


class TransactionCoordinator(Coordinator[TransactionShard]):
    """Schedules operations on the transactional ids of this broker.

    Methods raise KafkaError with the code for the client. Writes return when their record is committed.
    """

    topic = TRANSACTION_STATE_TOPIC

    def __init__(
        self,
        environment: Environment,
        internal_log: InternalLog,
        metadata: MetadataImage,
        config: Callable[[], BrokerConfig],
        producer_ids: ProducerIdManager,
        marker_writer: MarkerWriter,
    ) -> None:
        super().__init__(environment, internal_log, metadata, config)
        self._producer_ids = producer_ids
        self._marker_writer = marker_writer
        self._repeat(
            "transaction timeouts",
            lambda: config().transaction_abort_timed_out_transaction_cleanup_interval_ms,
            self._abort_timed_out,
        )
        self._repeat(
            "transactional id expiration",
            lambda: config().transaction_remove_expired_transaction_cleanup_interval_ms,
            self._expire,
        )
        self._aborts: set[Task[None]] = set()

    def _runtime_config(self, config: BrokerConfig) -> RuntimeConfig:
        return RuntimeConfig(
            node_id=config.node_id,
            partition_count=config.transaction_state_log_num_partitions,
            max_batch_bytes=config.message_max_bytes,
            load_buffer_bytes=config.transaction_state_log_load_buffer_size,
        )

    def _make_shard(self, context: CoordinatorContext[TransactionShard]) -> TransactionShard:
        markers = TransactionMarkerSender(self._environment, self._metadata, self._marker_writer)
        return TransactionShard(
            self._environment, lambda: self._metadata.features.transaction_version, context, markers
        )

    async def stop(self) -> None:
        await super().stop()
        for task in self._aborts:
            task.cancel()

    def on_delta(self, delta: MetadataDelta) -> None:
        super().on_delta(delta)
        changed = {change.tp for change in delta.partitions if change.old is not None and change.new is not None}
        if changed:
            for context in self.runtime.contexts():
                context.shard.on_leaders_changed(changed)

    # Operations of producers.

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, producer_id: int = NO_PRODUCER_ID, producer_epoch: int = NO_EPOCH
    ) -> ProducerIdAndEpoch:
        """Return the producer id and epoch of a new producer, or of one that continues after an error (KIP-360).

        A former producer of the transactional id is fenced, and its open transaction is aborted: until that is
        complete, CONCURRENT_TRANSACTIONS is raised.
        """
        if not transactional_id or (producer_id == NO_PRODUCER_ID) is not (producer_epoch == NO_EPOCH):
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        if not 0 < timeout_ms <= self._config().transaction_max_timeout_ms:
            raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        producer = ProducerIdAndEpoch(producer_id, producer_epoch)
        expected = None if producer == NO_PRODUCER else producer
        metadata = await self._write(
            transactional_id,
            lambda shard, new_producer_id: shard.init_producer_id(
                transactional_id, timeout_ms, expected, new_producer_id
            ),
        )
        if metadata.state is TransactionState.PREPARE_ABORT:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        return ProducerIdAndEpoch(metadata.producer_id, metadata.producer_epoch)

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Sequence[TopicPartition],
        client_version: int,
    ) -> None:
        """Add partitions to the open transaction, or begin one with them.

        `client_version` is the client's version of transactions: 2 for Produce >= 12 and TxnOffsetCommit >= 5.
        """
        producer = ProducerIdAndEpoch(producer_id, epoch)
        await self._write(
            transactional_id,
            lambda shard, _: shard.add_partitions(transactional_id, producer, partitions, client_version),
        )

    def verify_partitions(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Return NONE for each partition of the open transaction, else TRANSACTION_ABORTABLE."""
        shard = self._active_shard(transactional_id)
        return shard.verify_partitions(transactional_id, ProducerIdAndEpoch(producer_id, epoch), partitions)

    async def end_transaction(
        self, transactional_id: str, producer_id: int, epoch: int, committed: bool, client_version: int
    ) -> ProducerIdAndEpoch:
        """Commit or abort. Returns the producer id and epoch to continue with (a new epoch from version 2 on).

        Returns when the decision is committed; the markers are written afterwards.
        """
        producer = ProducerIdAndEpoch(producer_id, epoch)
        return await self._write(
            transactional_id,
            lambda shard, new_producer_id: shard.end_transaction(
                transactional_id, producer, committed, client_version, new_producer_id
            ),
        )

    async def _write(
        self, transactional_id: str, operation: Callable[[TransactionShard, int], CoordinatorResult[T]]
    ) -> T:
        """Schedule an operation. If it needs a new producer id, allocate one, and schedule the operation again."""
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        try:
            context = self.runtime.context(transactional_id)
            return await context.schedule_write(lambda shard: operation(shard, NO_PRODUCER_ID))
        except NewProducerIdRequired:
            new_producer_id = await self._producer_ids.generate_producer_id()
        # The partition may have moved meanwhile.
        context = self.runtime.context(transactional_id)
        return await context.schedule_write(lambda shard: operation(shard, new_producer_id))

    def _active_shard(self, transactional_id: str) -> TransactionShard:
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        return self.runtime.context(transactional_id).shard

    # Administration.

    def describe(self, transactional_id: str) -> TransactionMetadata:
        """Return the last or open transaction; its partitions are those without a marker. Raises KafkaError."""
        shard = self._active_shard(transactional_id)
        entry = shard.entries.get(transactional_id)
        if entry is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return shard.describe(entry)

    def list_transactions(self) -> Iterator[TransactionMetadata]:
        """Return the transactions of this broker. Raises COORDINATOR_LOAD_IN_PROGRESS while not all are loaded."""
        entries = [(shard, list(shard.entries.values())) for shard in self.runtime.loaded_shards()]
        return (shard.describe(entry) for shard, some in entries for entry in some)

    # Periodic tasks. They run in turns, so that many transactional ids do not delay requests.

    def _entries(self) -> Iterator[tuple[CoordinatorContext[TransactionShard], TransactionEntry]]:
        for context in self.runtime.contexts():
            for entry in paced(list(context.shard.entries.values())):
                if context.state is not CoordinatorState.ACTIVE:
                    break
                if context.shard.entries.get(entry.metadata.transactional_id) is entry:
                    yield context, entry

    async def _abort_timed_out(self) -> None:
        for context, entry in self._entries():
            if context.shard.is_timed_out(entry):
                task = self._environment.loop.create_task(self._abort(entry.metadata))
                self._aborts.add(task)
                task.add_done_callback(self._aborts.discard)

    async def _abort(self, metadata: TransactionMetadata) -> None:
        transactional_id, producer_id = metadata.transactional_id, metadata.producer_id
        try:
            is_aborted = await self._write(
                transactional_id,
                lambda shard, new_producer_id: shard.abort_timed_out(transactional_id, new_producer_id),
            )
        except KafkaError as error:
            log.warning(
                "a transaction that timed out cannot be aborted yet",
                transactional_id=transactional_id,
                producer_id=producer_id,
                reason=error,
            )
            return
        if is_aborted:
            log.info(
                "transaction timed out",
                transactional_id=transactional_id,
                producer_id=producer_id,
                timeout_ms=metadata.timeout_ms,
            )

    async def _expire(self) -> None:
        for context, entry in self._entries():
            if context.shard.is_expired(entry, self._config().transactional_id_expiration_ms):
                context.post(partial(TransactionShard.expire, transactional_id=entry.metadata.transactional_id))
