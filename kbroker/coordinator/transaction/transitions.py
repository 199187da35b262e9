"""The transitions of a transactional id, as pure decisions: InitProducerId, AddPartitionsToTxn, EndTxn, timeouts.

EndTxn, a new producer of the transactional id, or the timeout end a transaction. Decisions return the next record. They
raise KafkaError with the code for the client, checking in Kafka's order, and NewProducerIdRequired if they need a
producer id and `new_producer_id` is NO_PRODUCER_ID.
"""

from collections.abc import Iterable

from kbroker.common import NO_PRODUCER_ID, KafkaError, TopicPartition
from kbroker.coordinator.transaction.transaction_metadata import (
    COMPLETED,
    EPOCH_BUMP_VERSION,
    IDLE,
    MAX_EPOCH,
    NO_EPOCH,
    NO_TIMEOUT_MS,
    NO_TIMESTAMP,
    PREPARED,
    ProducerIdAndEpoch,
    TransactionEntry,
    TransactionMetadata,
    TransactionState,
    is_epoch_exhausted,
    require_new_producer_id,
    validate_producer,
)
from kbroker.storage.producers.transactions import TransactionMarker
from protocol.errors import ErrorCode

_NO_PARTITIONS: frozenset[TopicPartition] = frozenset()
_PREPARED_STATES = {True: TransactionState.PREPARE_COMMIT, False: TransactionState.PREPARE_ABORT}


def new_metadata(transactional_id: str, new_producer_id: int, timeout_ms: int, now_ms: int) -> TransactionMetadata:
    """Return the metadata of a new transactional id; its first record will have epoch 0."""
    producer_id = require_new_producer_id(new_producer_id)
    return TransactionMetadata(transactional_id, producer_id, NO_EPOCH, timeout_ms, last_update_ms=now_ms)


def prepare_init_producer_id(
    entry: TransactionEntry,
    timeout_ms: int,
    expected: ProducerIdAndEpoch | None,
    new_producer_id: int,
    server_version: int,
    now_ms: int,
) -> TransactionMetadata:
    """Return the record with the epoch of a new producer, or of one that continues after an error (KIP-360).

    `expected` is the id and epoch of the continuing producer.

    A record in state PrepareAbort aborts the open transaction of a former producer; the client gets
    CONCURRENT_TRANSACTIONS, and retries until the abort is complete.
    """
    metadata = entry.metadata
    if entry.pending_state is not None:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if expected is not None and not _is_valid_producer(metadata, expected):
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    if metadata.state in PREPARED:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if metadata.state is TransactionState.ONGOING:
        # No producer gets the epoch of the fence: this client gets a later one when it retries.
        return prepare_fence(metadata, new_producer_id, server_version, now_ms)
    if is_epoch_exhausted(metadata.producer_epoch) and (expected is None or expected.epoch == metadata.producer_epoch):
        last_epoch = NO_EPOCH if expected is None else metadata.producer_epoch
        producer = ProducerIdAndEpoch(require_new_producer_id(new_producer_id), 0)
    else:
        epoch, last_epoch = _next_epoch(metadata, expected)
        producer = ProducerIdAndEpoch(metadata.producer_id, epoch)
    return metadata.prepare_transition(
        TransactionState.EMPTY,
        now_ms,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        last_producer_epoch=last_epoch,
        timeout_ms=timeout_ms,
        partitions=_NO_PARTITIONS,
        start_ms=NO_TIMESTAMP,
    )


def _is_valid_producer(metadata: TransactionMetadata, expected: ProducerIdAndEpoch) -> bool:
    """Return whether `expected` is the current producer, or the previous one that repeats a request.

    A producer repeats a request with its previous id if the response with its new id was lost. A transactional id
    without an epoch has expired, so no other producer uses it.
    """
    return (
        metadata.producer_epoch == NO_EPOCH
        or expected.producer_id == metadata.producer_id
        or (expected.producer_id == metadata.previous_producer_id and is_epoch_exhausted(expected.epoch))
    )


def _next_epoch(metadata: TransactionMetadata, expected: ProducerIdAndEpoch | None) -> tuple[int, int]:
    """Return (epoch, last epoch). After the request of a new producer there is no last epoch to continue from."""
    epoch, last_epoch = metadata.producer_epoch, metadata.last_producer_epoch
    if expected is None:
        return epoch + 1, NO_EPOCH
    if epoch in (NO_EPOCH, expected.epoch):
        return epoch + 1, epoch
    if expected.epoch == last_epoch:
        # The response to the same request was lost.
        return epoch, last_epoch
    # With the highest epoch Kafka returns UNKNOWN_SERVER_ERROR here, which does not show that the producer is fenced.
    raise KafkaError(ErrorCode.PRODUCER_FENCED)


def prepare_add_partitions(
    entry: TransactionEntry | None,
    producer_id: int,
    epoch: int,
    partitions: Iterable[TopicPartition],
    client_version: int,
    now_ms: int,
) -> TransactionMetadata | None:
    """Add partitions to the transaction; the first ones begin it. Returns None if they are part of it already."""
    if entry is not None and entry.pending_state is not None:
        # Checked first: the producer may know the id and epoch that are being written.
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    metadata = validate_producer(entry, producer_id, epoch)
    if metadata.state in PREPARED:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    is_open = metadata.state is TransactionState.ONGOING
    all_partitions = metadata.partitions.union(partitions)
    if is_open and len(all_partitions) == len(metadata.partitions):
        return None
    return metadata.prepare_transition(
        TransactionState.ONGOING,
        now_ms,
        partitions=all_partitions,
        start_ms=metadata.start_ms if is_open else now_ms,
        client_transaction_version=client_version,
    )


def verify_partitions(
    entry: TransactionEntry | None, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """Return NONE for each partition of the transaction, else TRANSACTION_ABORTABLE.

    A transition in flight does not matter: the log checks again when it appends.
    """
    metadata = validate_producer(entry, producer_id, epoch)
    if metadata.state in PREPARED:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    return {tp: ErrorCode.NONE if tp in metadata.partitions else ErrorCode.TRANSACTION_ABORTABLE for tp in partitions}


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


def is_timed_out(entry: TransactionEntry, mono_ms: int, loaded_ms: int) -> bool:
    """Return whether the transaction has been open for too long since it began or was loaded, if that was later."""
    metadata = entry.metadata
    return (
        metadata.state is TransactionState.ONGOING
        and entry.pending_state is None
        and metadata.timeout_ms != NO_TIMEOUT_MS
        and max(entry.open_since_ms, loaded_ms) + metadata.timeout_ms < mono_ms
    )


def is_expired(entry: TransactionEntry, expiration_ms: int, now_ms: int) -> bool:
    """Return whether the transactional id has been unused for transactional.id.expiration.ms."""
    metadata = entry.metadata
    return entry.pending_state is None and metadata.state in IDLE and metadata.last_update_ms + expiration_ms <= now_ms
