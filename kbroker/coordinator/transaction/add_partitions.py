"""Adding partitions to a transaction, and verifying that they are part of it (KIP-890; pure)."""

from collections.abc import Iterable

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.transaction.transaction_metadata import (
    TransactionEntry,
    TransactionMetadata,
    validate_producer,
)
from kbroker.coordinator.transaction.transaction_state import PREPARED, TransactionState
from protocol.errors import ErrorCode


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
