"""The end of a transaction: by EndTxn, by a new producer of the transactional id, by its timeout (pure).

Decisions are as in init_producer_id.py.
"""

from kbroker.common import NO_PRODUCER_ID, KafkaError, TopicPartition
from kbroker.coordinator.transaction.transaction_metadata import (
    EPOCH_BUMP_VERSION,
    MAX_EPOCH,
    NO_EPOCH,
    NO_TIMEOUT_MS,
    ProducerIdAndEpoch,
    TransactionEntry,
    TransactionMetadata,
    is_epoch_exhausted,
    require_new_producer_id,
    validate_producer,
)
from kbroker.coordinator.transaction.transaction_state import COMPLETED, IDLE, PREPARED, TransactionState
from kbroker.storage.producers.transactions import TransactionMarker
from protocol.errors import ErrorCode

_NO_PARTITIONS: frozenset[TopicPartition] = frozenset()
_PREPARED_STATES = {True: TransactionState.PREPARE_COMMIT, False: TransactionState.PREPARE_ABORT}


def prepare_end(
    entry: TransactionEntry | None,
    producer: ProducerIdAndEpoch,
    committed: bool,
    client_version: int,
    new_producer_id: int,
    now_ms: int,
) -> TransactionMetadata | None:
    """Handle EndTxn. Returns None for a repeated request whose transaction has ended the same way."""
    if client_version >= EPOCH_BUMP_VERSION:
        return _prepare_end_with_epoch_bump(entry, producer, committed, new_producer_id, now_ms)
    metadata = validate_producer(entry, producer.producer_id, producer.epoch)
    if entry is None or entry.pending_state is not None:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if metadata.state is not TransactionState.ONGOING:
        # Without epoch bumps a repeated request looks like the end of an empty transaction.
        _validate_repeated_end(metadata, committed)
        return None
    return metadata.prepare_transition(
        _PREPARED_STATES[committed], now_ms, client_transaction_version=client_version, next_producer_id=NO_PRODUCER_ID
    )


def _prepare_end_with_epoch_bump(
    entry: TransactionEntry | None, producer: ProducerIdAndEpoch, committed: bool, new_producer_id: int, now_ms: int
) -> TransactionMetadata | None:
    """Handle EndTxn of version 2, where the epoch distinguishes a repeated request from the next transaction's end."""
    if entry is None:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if entry.pending_state is not None:
        # Checked first: the producer may know the id and epoch that are being written.
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    metadata = entry.metadata
    # The last transaction ended with the highest epoch, and replaced the producer id.
    is_replaced = (
        metadata.previous_producer_id == producer.producer_id
        and producer.epoch == MAX_EPOCH - 1
        and metadata.producer_epoch == 0
    )
    if metadata.producer_id != producer.producer_id and not is_replaced:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    # Ending an older client's transaction does not bump the epoch. Kafka 4.3 does not check this, and returns the epoch
    # of the older client to the producer that it has fenced.
    is_bumped = (
        metadata.client_transaction_version >= EPOCH_BUMP_VERSION and metadata.producer_epoch == producer.epoch + 1
    )
    is_repeated = is_replaced or is_bumped
    if not (is_repeated and metadata.state in PREPARED | COMPLETED) and not (
        metadata.state not in PREPARED and metadata.producer_epoch == producer.epoch
    ):
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    if is_repeated:
        _validate_repeated_end(metadata, committed)
        return None
    start_ms = metadata.start_ms
    if metadata.state is not TransactionState.ONGOING:
        if committed:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE)
        # The abort of a transaction that may have no partition yet. The producer gets a new epoch, so that batches that
        # are still in flight cannot become part of its next transaction.
        start_ms = now_ms
    return _prepare_with_epoch_bump(metadata, _PREPARED_STATES[committed], start_ms, new_producer_id, now_ms)


def _validate_repeated_end(metadata: TransactionMetadata, committed: bool) -> None:
    """Raise KafkaError unless the transaction is completed, with the requested outcome."""
    if metadata.state not in PREPARED | COMPLETED or metadata.is_commit is not committed:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE)
    if metadata.state in PREPARED:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)


def _prepare_with_epoch_bump(
    metadata: TransactionMetadata, state: TransactionState, start_ms: int, new_producer_id: int, now_ms: int
) -> TransactionMetadata:
    """Prepare the end with markers of the next epoch. After the highest epoch the producer gets a new producer id."""
    is_exhausted = is_epoch_exhausted(metadata.producer_epoch)
    return metadata.prepare_transition(
        state,
        now_ms,
        producer_epoch=min(metadata.producer_epoch + 1, MAX_EPOCH),
        last_producer_epoch=metadata.producer_epoch,
        next_producer_id=require_new_producer_id(new_producer_id) if is_exhausted else NO_PRODUCER_ID,
        start_ms=start_ms,
        client_transaction_version=EPOCH_BUMP_VERSION,
    )


def prepare_fence(
    metadata: TransactionMetadata, new_producer_id: int, server_version: int, now_ms: int
) -> TransactionMetadata:
    """Abort an open transaction and fence its producer. `server_version` is the finalized transaction.version."""
    if server_version >= EPOCH_BUMP_VERSION:
        return _prepare_with_epoch_bump(
            metadata, TransactionState.PREPARE_ABORT, metadata.start_ms, new_producer_id, now_ms
        )
    return metadata.prepare_transition(
        TransactionState.PREPARE_ABORT,
        now_ms,
        producer_epoch=min(metadata.producer_epoch + 1, MAX_EPOCH),
        last_producer_epoch=NO_EPOCH,
        next_producer_id=NO_PRODUCER_ID,
        client_transaction_version=server_version,
    )


def prepare_complete(metadata: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """Return the metadata of a transaction whose markers are all written."""
    state = TransactionState.COMPLETE_COMMIT if metadata.is_commit else TransactionState.COMPLETE_ABORT
    producer = next_producer(metadata)
    return metadata.prepare_transition(
        state,
        now_ms,
        partitions=_NO_PARTITIONS,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        next_producer_id=NO_PRODUCER_ID,
    )


def next_producer(metadata: TransactionMetadata) -> ProducerIdAndEpoch:
    """Return the producer id and epoch with which the producer of a prepared or completed transaction continues."""
    if metadata.client_transaction_version >= EPOCH_BUMP_VERSION and metadata.next_producer_id != NO_PRODUCER_ID:
        return ProducerIdAndEpoch(metadata.next_producer_id, 0)
    return ProducerIdAndEpoch(metadata.producer_id, metadata.producer_epoch)


def transaction_marker(metadata: TransactionMetadata, coordinator_epoch: int) -> TransactionMarker:
    """Return the marker of a prepared transaction."""
    return TransactionMarker(
        metadata.producer_id,
        metadata.producer_epoch,
        metadata.is_commit,
        coordinator_epoch,
        metadata.client_transaction_version,
    )


def is_timed_out(entry: TransactionEntry, mono_ms: int) -> bool:
    metadata = entry.metadata
    return (
        metadata.state is TransactionState.ONGOING
        and entry.pending_state is None
        and metadata.timeout_ms != NO_TIMEOUT_MS
        and entry.open_since_ms + metadata.timeout_ms < mono_ms
    )


def is_expired(entry: TransactionEntry, expiration_ms: int, now_ms: int) -> bool:
    """Return whether the transactional id has been unused for transactional.id.expiration.ms."""
    metadata = entry.metadata
    return entry.pending_state is None and metadata.state in IDLE and metadata.last_update_ms + expiration_ms <= now_ms
