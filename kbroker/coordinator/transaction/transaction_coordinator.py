"""The transaction coordinator: what handlers ask of transactional ids, and what happens to them with time.

    InitProducerId -> AddPartitionsToTxn or a first Produce -> EndTxn -> prepared, committed: answered
    -> markers to all partitions -> completed

A change of a transactional id is decided on committed state, written, applied, answered; meanwhile others are told
CONCURRENT_TRANSACTIONS. Decisions are in state/txn, what happens between prepared and completed in completion.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from kbroker.common import NO_PRODUCER_ID, KafkaError, TopicPartition
from kbroker.coordinator.internal_log import TRANSACTION_STATE_TOPIC
from kbroker.coordinator.runtime.coordinator_runtime import CoordinatorRuntime, answer_to, inactive
from kbroker.coordinator.transaction import end_transaction as ending
from kbroker.coordinator.transaction import init_producer_id as beginning
from kbroker.coordinator.transaction.marker_sender import MarkerSenders
from kbroker.coordinator.transaction.transaction_metadata import (
    EPOCH_BUMP_VERSION,
    NO_EPOCH,
    ProducerId,
    ProducerIdNeeded,
    TransactionEntry,
    TransactionMetadata,
)
from kbroker.coordinator.transaction.transaction_shard import TransactionShard
from kbroker.coordinator.transaction.transaction_state import TransactionState
from kbroker.runtime.event_log import EventLogger
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from asyncio import Future, Task, TimerHandle

    from kbroker.coordinator.internal_log import InternalLog, MarkerWriter, TransactionConfig
    from kbroker.metadata.image import MetadataDelta, MetadataImage
    from kbroker.runtime.environment import Environment

T = TypeVar("T")
Shards = list[TransactionShard]
log = EventLogger("kbroker.transactions")

NO_PRODUCER = ProducerId(NO_PRODUCER_ID, NO_EPOCH)


class ProducerIds(Protocol):
    async def generate_producer_id(self) -> int:
        """One that nobody has. Raises KafkaError."""
        ...


class TransactionCoordinator:
    """Operations raise KafkaError with the code for the client. Those that write return when it is committed."""

    def __init__(
        self,
        environment: Environment,
        internal_log: InternalLog,
        metadata: MetadataImage,
        config: Callable[[], TransactionConfig],
        producer_ids: ProducerIds,
        markers: MarkerWriter,
    ) -> None:
        self._environment = environment
        self._log = internal_log
        self._metadata = metadata
        self._config = config
        self._producer_ids = producer_ids
        self._markers = markers
        self._owned = CoordinatorRuntime(
            environment,
            metadata,
            TRANSACTION_STATE_TOPIC,
            lambda: config().node_id,
            lambda: config().transaction_state_log_num_partitions,
            self._make,
        )
        # By what they do: to abort what timed out, to forget what expired.
        self._timers: dict[str, TimerHandle] = {}
        self._tasks: set[Task[None]] = set()

    def _server_version(self) -> int:
        return self._metadata.features.transaction_version

    def _make(self, tp: TopicPartition, epoch: int) -> TransactionShard:
        completions = MarkerSenders(self._environment, self._metadata, self._markers)
        return TransactionShard(
            self._environment, self._log, tp, epoch, self._config, self._server_version, completions
        )  # fmt: skip

    # Which transactional ids.

    async def start(self) -> None:
        """Take over the partitions that this broker leads; what was prepared in them is completed."""
        self._owned.start()
        self._look_after()

    async def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        self._owned.stop()

    async def on_delta(self, delta: MetadataDelta) -> None:
        """Follow leaders and deletions. Loading goes on after this returns."""
        self._owned.on_delta(delta)
        self._look_after()

    def partition_for(self, transactional_id: str) -> int:
        """The partition of __transaction_state that a transactional id belongs to."""
        return self._owned.partition_for(transactional_id)

    async def loaded(self, transactional_id: str) -> None:
        """Returns when the transactional id's partition is loaded, if it is ours."""
        await self._owned.loaded(transactional_id)

    def _shard(self, transactional_id: str) -> TransactionShard:
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        return self._owned.active(transactional_id)

    # A producer's operations.

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, producer_id: int = NO_PRODUCER_ID, producer_epoch: int = NO_EPOCH
    ) -> tuple[int, int]:
        """Producer id and epoch for a producer that begins, or that goes on after an error with what it has
        (KIP-360). Whoever had the transactional id before is fenced, and its open transaction aborted: while that is
        under way CONCURRENT_TRANSACTIONS is raised.
        """
        if not transactional_id or (producer_id == NO_PRODUCER_ID) is not (producer_epoch == NO_EPOCH):
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        if not 0 < timeout_ms <= self._config().transaction_max_timeout_ms:
            raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        producer = ProducerId(producer_id, producer_epoch)
        expected = None if producer == NO_PRODUCER else producer
        shard, entry, to = await self._decide(partial(self._init, transactional_id, timeout_ms, expected))
        await self._write(shard, entry, to)
        if to.state is TransactionState.PREPARE_ABORT:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        return to.producer_id, to.producer_epoch

    def _init(
        self, transactional_id: str, timeout_ms: int, expected: ProducerId | None, spare: int
    ) -> tuple[TransactionShard, TransactionEntry, TransactionMetadata]:
        shard = self._shard(transactional_id)
        now_ms = self._environment.clock.now_ms()
        entry = shard.entries.get(transactional_id)
        if entry is None:
            new = beginning.new_transactional_id(transactional_id, spare, timeout_ms, now_ms)
            entry = shard.entries[transactional_id] = TransactionEntry(new)
        return shard, entry, beginning.init(entry, timeout_ms, expected, spare, self._server_version(), now_ms)

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Sequence[TopicPartition],
        version: int,
    ) -> None:
        """Make partitions part of the open transaction, or begin one with them. `version`: the client's version of
        transactions (2 when a Produce >= 12 or a TxnOffsetCommit >= 5 does it).
        """
        shard = self._shard(transactional_id)
        entry = shard.entries.get(transactional_id)
        to = beginning.add_partitions(entry, producer_id, epoch, partitions, version, self._environment.clock.now_ms())
        if to is not None and entry is not None:
            await self._write(shard, entry, to)

    def verify(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Whether each partition is part of the open transaction; TRANSACTION_ABORTABLE where not."""
        entry = self._shard(transactional_id).entries.get(transactional_id)
        return beginning.verify(entry, producer_id, epoch, partitions)

    async def end(
        self, transactional_id: str, producer_id: int, epoch: int, committed: bool, version: int
    ) -> tuple[int, int]:
        """Commit or abort. Returns when it is decided for good, before the partitions have their markers: the producer
        id and epoch for the next transaction, which are others from version 2 on.
        """
        decision = partial(self._end, transactional_id, ProducerId(producer_id, epoch), committed, version)
        shard, entry, to = await self._decide(decision)
        if to is not None:
            await self._write(shard, entry, to)
        if version < EPOCH_BUMP_VERSION:
            return producer_id, epoch
        return ending.after(to or entry.transaction)

    def _end(
        self, transactional_id: str, producer: ProducerId, committed: bool, version: int, spare: int
    ) -> tuple[TransactionShard, TransactionEntry, TransactionMetadata | None]:
        shard = self._shard(transactional_id)
        entry = shard.entries.get(transactional_id)
        if entry is None:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        now_ms = self._environment.clock.now_ms()
        return shard, entry, ending.end(entry, *producer, committed, version, spare, now_ms)

    async def _decide(self, decision: Callable[[int], T]) -> T:
        """A decision, with a fresh producer id if it needs one. Much may have happened until that is there."""
        try:
            return decision(NO_PRODUCER_ID)
        except ProducerIdNeeded:
            return decision(await self._producer_ids.generate_producer_id())

    async def _write(self, shard: TransactionShard, entry: TransactionEntry, to: TransactionMetadata) -> None:
        done: Future[ErrorCode] = self._environment.loop.create_future()
        shard.change(entry, to, partial(answer_to, done))
        error = await done
        if error is not ErrorCode.NONE:
            raise KafkaError(error)

    # Administration.

    def describe(self, transactional_id: str) -> TransactionMetadata:
        """Raises TRANSACTIONAL_ID_NOT_FOUND. Partitions that have their marker already are left out."""
        shard = self._shard(transactional_id)
        entry = shard.entries.get(transactional_id)
        if entry is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return shard.seen(entry)

    def list(self) -> Sequence[TransactionMetadata]:
        """All of this broker's. Raises COORDINATOR_LOAD_IN_PROGRESS while not all are known."""
        shards = self._owned.all()
        if any(inactive(shard) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS for shard in shards):
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return [shard.seen(entry) for shard in shards for entry in shard.entries.values()]

    # What happens with time.

    def _look_after(self) -> None:
        """From the first partition on: a broker that has none sleeps."""
        if not self._timers and self._owned.all():
            self._schedule_aborts()
            self._schedule_expiry()

    def _schedule_aborts(self) -> None:
        interval_ms = self._config().transaction_abort_timed_out_transaction_cleanup_interval_ms
        self._later("abort", interval_ms, self._abort_timed_out)

    def _schedule_expiry(self) -> None:
        interval_ms = self._config().transaction_remove_expired_transaction_cleanup_interval_ms
        self._later("expire", interval_ms, self._expire)

    def _later(self, what: str, ms: int, action: Callable[[], None]) -> None:
        self._timers[what] = self._environment.loop.call_later(ms / 1000, action)

    def _abort_timed_out(self, left: Shards | None = None) -> None:
        """One partition a turn of the loop, so that many transactional ids do not hold up requests."""
        left = self._owned.all() if left is None else left
        if not left:
            self._schedule_aborts()
            return
        shard, now_ms = left.pop(), self._environment.clock.now_ms()
        if inactive(shard) is ErrorCode.NONE:
            for entry in [one for one in shard.entries.values() if ending.is_timed_out(one, now_ms)]:
                task = self._environment.loop.create_task(self._abort(entry))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        self._later("abort", 0, partial(self._abort_timed_out, left))

    async def _abort(self, entry: TransactionEntry) -> None:
        """Fence the producer of a transaction that has timed out."""
        transaction = entry.transaction
        subject = {"transactional_id": transaction.transactional_id, "producer_id": transaction.producer_id}
        try:
            shard, to = await self._decide(partial(self._fence, entry))
            if to is not None:
                await self._write(shard, entry, to)
                log.info("transaction timed out", **subject, timeout_ms=transaction.timeout_ms)
        except KafkaError as error:
            log.warning("a transaction that timed out cannot be aborted yet", **subject, reason=error)

    def _fence(self, entry: TransactionEntry, spare: int) -> tuple[TransactionShard, TransactionMetadata | None]:
        now_ms = self._environment.clock.now_ms()
        shard = self._shard(entry.transaction.transactional_id)
        if shard.entries.get(entry.transaction.transactional_id) is not entry or not ending.is_timed_out(entry, now_ms):
            return shard, None
        return shard, ending.fence(entry.transaction, spare, self._server_version(), now_ms)

    def _expire(self, left: Shards | None = None) -> None:
        """Forget transactional ids that nobody has used for long; one partition a turn."""
        left = self._owned.all() if left is None else left
        if not left:
            self._schedule_expiry()
            return
        shard, now_ms = left.pop(), self._environment.clock.now_ms()
        if inactive(shard) is ErrorCode.NONE:
            expiration_ms = self._config().transactional_id_expiration_ms
            for entry in shard.entries.values():
                if ending.is_expired(entry, expiration_ms, now_ms):
                    shard.forget(entry)
        self._later("expire", 0, partial(self._expire, left))
