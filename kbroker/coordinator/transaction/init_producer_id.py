"""InitProducerId of a transactional id (pure).

Decisions return the next record. They raise KafkaError with the code for the client, checking in Kafka's order, and
NewProducerIdRequired if they need a producer id and `new_producer_id` is NO_PRODUCER_ID.
"""

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.transaction.end_transaction import prepare_fence
from kbroker.coordinator.transaction.transaction_metadata import (
    NO_EPOCH,
    NO_TIMESTAMP,
    ProducerIdAndEpoch,
    TransactionEntry,
    TransactionMetadata,
    is_epoch_exhausted,
    require_new_producer_id,
)
from kbroker.coordinator.transaction.transaction_state import PREPARED, TransactionState
from protocol.errors import ErrorCode

_NO_PARTITIONS: frozenset[TopicPartition] = frozenset()


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
