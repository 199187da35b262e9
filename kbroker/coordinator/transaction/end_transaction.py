"""How a transaction ends: by its producer, by a new producer of the same transactional id, by its timeout.

Decisions as in beginning.py.
"""

from kbroker.common import NO_PRODUCER_ID, KafkaError, TopicPartition
from kbroker.coordinator.transaction.transaction_metadata import (
    EPOCH_BUMP_VERSION,
    MAX_EPOCH,
    NO_EPOCH,
    NO_TIMEOUT_MS,
    ProducerId,
    TransactionEntry,
    TransactionMetadata,
    check_producer,
    fresh,
)
from kbroker.coordinator.transaction.transaction_state import COMPLETED, IDLE, PREPARED, TransactionState
from kbroker.storage.producers.transaction_marker import TransactionMarker
from protocol.errors import ErrorCode

_NOTHING: frozenset[TopicPartition] = frozenset()


def end(
    entry: TransactionEntry | None, producer_id: int, epoch: int, committed: bool, version: int, spare: int, now_ms: int
) -> TransactionMetadata | None:
    """EndTxn: the record that prepares it. None: it is ended so already, the request came again."""
    if version >= EPOCH_BUMP_VERSION:
        return _end(entry, ProducerId(producer_id, epoch), committed, spare, now_ms)
    transaction = check_producer(entry, producer_id, epoch)
    if entry is None or entry.pending is not None:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if transaction.state is TransactionState.ONGOING:
        return transaction.to(_prepared(committed), now_ms, version=version, next_producer_id=NO_PRODUCER_ID)
    # Before epochs were bumped a repeated request looks like the first one of an empty transaction.
    _check_same_end(transaction, committed)
    return None


def _end(
    entry: TransactionEntry | None, producer: ProducerId, committed: bool, spare: int, now_ms: int
) -> TransactionMetadata | None:
    """Of transactions v2. The epoch tells a repeated request from the next transaction's."""
    if entry is None:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if entry.pending is not None:
        # First of all: a producer may use the id and epoch that are being written.
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    transaction = entry.transaction
    rotated = _is_rotated(transaction, producer)
    if transaction.producer_id != producer.producer_id and not rotated:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    # The end of an older client's transaction has bumped no epoch. Kafka 4.3 does not ask which it was, and gives the
    # epoch of that client to the one that it has fenced.
    bumped = transaction.version >= EPOCH_BUMP_VERSION and transaction.producer_epoch == producer.epoch + 1
    again = rotated or bumped
    if not (_may_repeat(transaction, again) or _may_end(transaction, producer.epoch)):
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    if again:
        _check_same_end(transaction, committed)
        return None
    if transaction.state is TransactionState.ONGOING:
        return _prepare(transaction, _prepared(committed), transaction.start_ms, spare, now_ms)
    if committed:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE)
    # An abort of a transaction that may have got no partition. Its producer gets a new epoch for it, so that what
    # it has sent and nobody has answered cannot be added to the next one.
    return _prepare(transaction, TransactionState.PREPARE_ABORT, now_ms, spare, now_ms)


def _is_rotated(transaction: TransactionMetadata, producer: ProducerId) -> bool:
    """The producer has the id that the last end has replaced."""
    return (
        transaction.previous_producer_id == producer.producer_id
        and producer.epoch == MAX_EPOCH - 1
        and transaction.producer_epoch == 0
    )


def _may_repeat(transaction: TransactionMetadata, again: bool) -> bool:
    return again and transaction.state in PREPARED | COMPLETED


def _may_end(transaction: TransactionMetadata, epoch: int) -> bool:
    return transaction.state not in PREPARED and transaction.producer_epoch == epoch


def _check_same_end(transaction: TransactionMetadata, committed: bool) -> None:
    """The request repeats one that was answered, or is being carried out; if it asks for the other end, it is wrong."""
    if transaction.state not in PREPARED | COMPLETED or transaction.is_committing is not committed:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE)
    if transaction.state in PREPARED:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)


def _prepared(committed: bool) -> TransactionState:
    return TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT


def _prepare(
    transaction: TransactionMetadata, state: TransactionState, start_ms: int, spare: int, now_ms: int
) -> TransactionMetadata:
    """Of transactions v2: the markers have the next epoch. With the highest one the producer goes on with a new id."""
    return transaction.to(
        state,
        now_ms,
        producer_epoch=min(transaction.producer_epoch + 1, MAX_EPOCH),
        last_epoch=transaction.producer_epoch,
        next_producer_id=fresh(spare) if transaction.is_exhausted else NO_PRODUCER_ID,
        start_ms=start_ms,
        version=EPOCH_BUMP_VERSION,
    )


def fence(transaction: TransactionMetadata, spare: int, server_version: int, now_ms: int) -> TransactionMetadata:
    """Abort an open transaction in place of its producer, which finds itself fenced. `server_version` is the finalized
    transaction.version."""
    if server_version >= EPOCH_BUMP_VERSION:
        return _prepare(transaction, TransactionState.PREPARE_ABORT, transaction.start_ms, spare, now_ms)
    return transaction.to(
        TransactionState.PREPARE_ABORT,
        now_ms,
        producer_epoch=min(transaction.producer_epoch + 1, MAX_EPOCH),
        last_epoch=NO_EPOCH,
        next_producer_id=NO_PRODUCER_ID,
        version=server_version,
    )


def completed(transaction: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """All markers are written."""
    state = TransactionState.COMPLETE_COMMIT if transaction.is_committing else TransactionState.COMPLETE_ABORT
    if transaction.version >= EPOCH_BUMP_VERSION and transaction.next_producer_id != NO_PRODUCER_ID:
        return transaction.to(
            state,
            now_ms,
            partitions=_NOTHING,
            producer_id=transaction.next_producer_id,
            producer_epoch=0,
            next_producer_id=NO_PRODUCER_ID,
        )
    return transaction.to(state, now_ms, partitions=_NOTHING, next_producer_id=NO_PRODUCER_ID)


def after(transaction: TransactionMetadata) -> ProducerId:
    """What the producer of a transaction goes on with once it is prepared, or ended."""
    if transaction.version >= EPOCH_BUMP_VERSION and transaction.next_producer_id != NO_PRODUCER_ID:
        return ProducerId(transaction.next_producer_id, 0)
    return ProducerId(transaction.producer_id, transaction.producer_epoch)


def marker(transaction: TransactionMetadata, coordinator_epoch: int) -> TransactionMarker:
    """What its partitions are told once it is prepared."""
    return TransactionMarker(
        transaction.producer_id,
        transaction.producer_epoch,
        transaction.is_committing,
        coordinator_epoch,
        transaction.version,
    )


def is_timed_out(entry: TransactionEntry, now_ms: int) -> bool:
    transaction = entry.transaction
    return (
        transaction.state is TransactionState.ONGOING
        and entry.pending is None
        and transaction.timeout_ms != NO_TIMEOUT_MS
        and transaction.start_ms + transaction.timeout_ms < now_ms
    )


def is_expired(entry: TransactionEntry, expiration_ms: int, now_ms: int) -> bool:
    """Nothing has happened to it for transactional.id.expiration.ms: it is to be forgotten."""
    transaction = entry.transaction
    return entry.pending is None and transaction.state in IDLE and transaction.last_update_ms + expiration_ms <= now_ms
