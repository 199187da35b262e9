"""The transactional ids of one partition of __transaction_state: the operations on them, and the replay of records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TypeVar

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.runtime.coordinator_context import ACTIVE, CoordinatorContext
from kbroker.coordinator.runtime.operation import CoordinatorResult, ignore
from kbroker.coordinator.transaction.transaction_markers import TransactionMarkerSender
from kbroker.coordinator.transaction.transaction_metadata import (
    EPOCH_BUMP_VERSION,
    NO_EPOCH,
    PREPARED,
    ProducerIdAndEpoch,
    TransactionEntry,
    TransactionMetadata,
    TransactionRecord,
    TransactionState,
    TransactionTombstone,
    decode_record,
    encode_record,
)
from kbroker.coordinator.transaction.transitions import (
    is_expired,
    is_timed_out,
    new_metadata,
    next_producer,
    prepare_add_partitions,
    prepare_complete,
    prepare_end,
    prepare_fence,
    prepare_init_producer_id,
    verify_partitions,
)
from kbroker.runtime.environment import Environment
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode

T = TypeVar("T")


class TransactionShard:
    """The state of one partition of __transaction_state, and the operations on it.

    `server_version` returns the finalized transaction.version. Operations with a `new_producer_id` raise
    NewProducerIdRequired if they need one and it is NO_PRODUCER_ID.
    """

    def __init__(
        self,
        environment: Environment,
        server_version: Callable[[], int],
        context: CoordinatorContext[TransactionShard],
        markers: TransactionMarkerSender,
    ) -> None:
        self.entries: dict[str, TransactionEntry] = {}
        # While loading: the entries that are prepared so far. Then monotonic milliseconds.
        self._prepared: dict[str, TransactionEntry] = {}
        self._loaded_ms: int | None = None
        self._clock = environment.clock
        self._server_version = server_version
        self._context = context
        self._markers = markers

    # Operations of producers.

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None, new_producer_id: int
    ) -> CoordinatorResult[TransactionMetadata]:
        now_ms = self._clock.now_ms()
        entry = self.entries.get(transactional_id)
        if entry is None:
            metadata = new_metadata(transactional_id, new_producer_id, timeout_ms, now_ms)
            entry = self.entries[transactional_id] = TransactionEntry(metadata)
        metadata = prepare_init_producer_id(
            entry, timeout_ms, expected, new_producer_id, self._server_version(), now_ms
        )
        return self._transition(entry, metadata, metadata)

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        client_version: int,
    ) -> CoordinatorResult[None]:
        entry = self.entries.get(transactional_id)
        metadata = prepare_add_partitions(entry, *producer, partitions, client_version, self._clock.now_ms())
        if metadata is None or entry is None:
            return CoordinatorResult(None)
        return self._transition(entry, metadata, None)

    def verify_partitions(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        return verify_partitions(self.entries.get(transactional_id), *producer, partitions)

    def end_transaction(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        committed: bool,
        client_version: int,
        new_producer_id: int,
    ) -> CoordinatorResult[ProducerIdAndEpoch]:
        """Commit or abort. The response is the producer id and epoch to continue with."""
        entry = self.entries.get(transactional_id)
        if entry is None:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        prepared = prepare_end(entry, producer, committed, client_version, new_producer_id, self._clock.now_ms())
        has_epoch_bump = client_version >= EPOCH_BUMP_VERSION
        response = next_producer(prepared or entry.metadata) if has_epoch_bump else producer
        return CoordinatorResult(response) if prepared is None else self._transition(entry, prepared, response)

    def _transition(self, entry: TransactionEntry, metadata: TransactionMetadata, response: T) -> CoordinatorResult[T]:
        """Write the next record of a transactional id. Until it is committed no other transition can start."""
        entry.pending_state = metadata.state
        on_committed = partial(self._send_markers, entry) if metadata.state in PREPARED else ignore
        return CoordinatorResult(response, [metadata], on_committed, partial(self._on_failed, entry))

    def _on_failed(self, entry: TransactionEntry, error: ErrorCode) -> None:
        entry.pending_state = None
        if entry.metadata.producer_epoch == NO_EPOCH:
            # The first record of the transactional id was never written.
            self.entries.pop(entry.metadata.transactional_id, None)

    # The end of a prepared transaction.

    def _send_markers(self, entry: TransactionEntry) -> None:
        metadata = entry.metadata
        entry.pending_state = prepare_complete(metadata, metadata.last_update_ms).state
        self._markers.send_markers(metadata, self._context.epoch, partial(self._schedule_completion, entry))

    def _schedule_completion(self, entry: TransactionEntry) -> None:
        self._context.post(partial(TransactionShard.complete_transaction, entry=entry))

    def complete_transaction(self, entry: TransactionEntry) -> CoordinatorResult[None]:
        """Complete the transaction, whose markers are all written."""
        transactional_id = entry.metadata.transactional_id

        def on_committed() -> None:
            self._markers.remove(transactional_id)

        def on_failed(error: ErrorCode) -> None:
            # The disk may be full. The markers are written, so only this step has to be repeated.
            self._markers.retry_later(transactional_id, partial(self._schedule_completion, entry))

        metadata = prepare_complete(entry.metadata, self._clock.now_ms())
        return CoordinatorResult(None, [metadata], on_committed, on_failed)

    def on_leaders_changed(self, partitions: Collection[TopicPartition]) -> None:
        """Send the markers that these partitions could not get from their former leaders."""
        self._markers.on_leaders_changed(partitions)

    # Timeouts.

    def is_timed_out(self, entry: TransactionEntry) -> bool:
        return is_timed_out(entry, self._clock.mono_ms(), self._loaded_ms or 0)

    def abort_timed_out(self, transactional_id: str, new_producer_id: int) -> CoordinatorResult[bool]:
        """Abort a transaction and fence its producer. The response is False if the transaction has ended meanwhile."""
        entry = self.entries.get(transactional_id)
        if entry is None or not self.is_timed_out(entry):
            return CoordinatorResult(False)
        metadata = prepare_fence(entry.metadata, new_producer_id, self._server_version(), self._clock.now_ms())
        return self._transition(entry, metadata, True)

    def is_expired(self, entry: TransactionEntry, expiration_ms: int) -> bool:
        """Return whether a transactional id has been unused for `expiration_ms`."""
        return is_expired(entry, expiration_ms, self._clock.now_ms())

    def expire(self, transactional_id: str) -> CoordinatorResult[None]:
        """Remove a transactional id."""
        entry = self.entries[transactional_id]
        entry.pending_state = TransactionState.DEAD
        tombstone = TransactionTombstone(transactional_id)
        return CoordinatorResult(None, [tombstone], on_failed=partial(self._on_failed, entry))

    # Administration.

    def describe(self, entry: TransactionEntry) -> TransactionMetadata:
        """Return the metadata. While a transaction completes, its partitions are those without a marker yet."""
        remaining = self._markers.remaining_partitions(entry.metadata.transactional_id)
        return entry.metadata if remaining is None else entry.metadata._replace(partitions=remaining)

    # Replay.

    def encode(self, record: TransactionRecord) -> tuple[bytes, bytes | None]:
        return encode_record(record, self._server_version())

    def decode(self, key: bytes | None, value: bytes | None) -> TransactionRecord | None:
        return decode_record(key, value)

    def replay(self, record: TransactionRecord, offset: int, producer_id: int) -> None:
        if isinstance(record, TransactionTombstone):
            self.entries.pop(record.transactional_id, None)
            return
        transactional_id = record.transactional_id
        entry = self.entries.get(transactional_id)
        if entry is None:
            entry = self.entries[transactional_id] = TransactionEntry(record)
        if self._loaded_ms is None:
            # There may be 100,000 entries: they are not searched after the load.
            if record.state in PREPARED:
                self._prepared[transactional_id] = entry
            else:
                self._prepared.pop(transactional_id, None)
        if record.state is TransactionState.ONGOING and entry.metadata.state is not TransactionState.ONGOING:
            entry.open_since_ms = self._clock.mono_ms()
        entry.metadata = record
        entry.pending_state = None

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        """Do nothing: no transaction writes to __transaction_state."""

    def on_loaded(self) -> None:
        """Continue the prepared transactions. The timeouts of open ones start again on this broker."""
        self._loaded_ms = self._clock.mono_ms()
        for entry in paced(list(self._prepared.values())):
            if self._context.state is ACTIVE:
                self._send_markers(entry)
        self._prepared.clear()

    def on_unloaded(self, error: ErrorCode) -> None:
        self.entries = {}
        self._markers.clear()
