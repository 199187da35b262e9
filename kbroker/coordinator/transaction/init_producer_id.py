"""What a producer does before it ends a transaction: it gets an id and an epoch, adds partitions, is asked whether
it may write.

Decisions give the next record to write, or None when there is nothing to write; they raise KafkaError with the code
for the client, in the order in which Kafka 4.3 looks. `spare` is a producer id that was never given out, or
NO_PRODUCER_ID (see ProducerIdNeeded).
"""

from collections.abc import Iterable

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.transaction.end_transaction import fence
from kbroker.coordinator.transaction.transaction_metadata import (
    NO_EPOCH,
    NO_TIMESTAMP,
    ProducerId,
    TransactionEntry,
    TransactionMetadata,
    check_producer,
    fresh,
    is_exhausted,
)
from kbroker.coordinator.transaction.transaction_state import PREPARED, TransactionState
from protocol.errors import ErrorCode

_NOTHING: frozenset[TopicPartition] = frozenset()


def new_transactional_id(transactional_id: str, spare: int, timeout_ms: int, now_ms: int) -> TransactionMetadata:
    """As it is before its first record, which has epoch 0."""
    return TransactionMetadata(transactional_id, fresh(spare), NO_EPOCH, timeout_ms, last_update_ms=now_ms)


def init(
    entry: TransactionEntry, timeout_ms: int, expected: ProducerId | None, spare: int, server_version: int, now_ms: int
) -> TransactionMetadata:
    """InitProducerId. `expected`: what the producer has, to go on with a bumped epoch (KIP-360).

    A record in PREPARE_ABORT means that an open transaction of a former producer is aborted first, and the client is
    told CONCURRENT_TRANSACTIONS until that is through.
    """
    transaction = entry.transaction
    if entry.pending is not None:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if expected is not None and not _may_go_on(transaction, expected):
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    if transaction.state in PREPARED:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if transaction.state is TransactionState.ONGOING:
        # That epoch is given to nobody: the one who asks gets a later one when it asks again.
        return fence(transaction, spare, server_version, now_ms)
    if transaction.is_exhausted and (expected is None or expected.epoch == transaction.producer_epoch):
        last_epoch = NO_EPOCH if expected is None else transaction.producer_epoch
        return _idle(transaction, fresh(spare), 0, last_epoch, timeout_ms, now_ms)
    epoch, last_epoch = _next_epoch(transaction, expected)
    return _idle(transaction, transaction.producer_id, epoch, last_epoch, timeout_ms, now_ms)


def _may_go_on(transaction: TransactionMetadata, expected: ProducerId) -> bool:
    """With a new id the transactional id had been forgotten, so it is nobody else's. With the previous one it repeats
    a request that was answered with a new id."""
    return (
        transaction.producer_epoch == NO_EPOCH
        or expected.producer_id == transaction.producer_id
        or (expected.producer_id == transaction.previous_producer_id and is_exhausted(expected.epoch))
    )


def _next_epoch(transaction: TransactionMetadata, expected: ProducerId | None) -> tuple[int, int]:
    """(epoch, last epoch). Without the last one nobody can take the epoch again: a new producer has come."""
    epoch, last_epoch = transaction.producer_epoch, transaction.last_epoch
    if expected is None:
        return epoch + 1, NO_EPOCH
    if epoch in (NO_EPOCH, expected.epoch):
        return epoch + 1, epoch
    if expected.epoch == last_epoch:
        # The answer to the first of such requests was lost.
        return epoch, last_epoch
    # With the highest epoch Kafka fails here with UNKNOWN_SERVER_ERROR, which tells a fenced producer nothing.
    raise KafkaError(ErrorCode.PRODUCER_FENCED)


def _idle(
    transaction: TransactionMetadata, producer_id: int, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int
) -> TransactionMetadata:
    return transaction.to(
        TransactionState.EMPTY,
        now_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        last_epoch=last_epoch,
        timeout_ms=timeout_ms,
        partitions=_NOTHING,
        start_ms=NO_TIMESTAMP,
    )


def add_partitions(
    entry: TransactionEntry | None,
    producer_id: int,
    epoch: int,
    partitions: Iterable[TopicPartition],
    version: int,
    now_ms: int,
) -> TransactionMetadata | None:
    """Make partitions part of the transaction, which the first ones begin. None: they are already."""
    if entry is not None and entry.pending is not None:
        # First of all: a producer may use the id and epoch that are being written.
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    transaction = check_producer(entry, producer_id, epoch)
    if transaction.state in PREPARED:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    is_open = transaction.state is TransactionState.ONGOING
    added = transaction.partitions.union(partitions)
    if is_open and len(added) == len(transaction.partitions):
        return None
    start_ms = transaction.start_ms if is_open else now_ms
    return transaction.to(TransactionState.ONGOING, now_ms, partitions=added, start_ms=start_ms, version=version)


def verify(
    entry: TransactionEntry | None, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """Whether the partitions are part of the transaction (KIP-890). What is under way is not looked at: the log checks
    again when it appends."""
    transaction = check_producer(entry, producer_id, epoch)
    if transaction.state in PREPARED:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    return {
        tp: ErrorCode.NONE if tp in transaction.partitions else ErrorCode.TRANSACTION_ABORTABLE for tp in partitions
    }
