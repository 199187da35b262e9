"""Applies a transaction marker: to the producer state and, for an abort, to the transaction index."""

from kbroker.storage.indexes.transaction_index import AbortedTransaction, TransactionIndex
from kbroker.storage.producers.producer_state_manager import ProducerStateManager
from protocol.records.batch import BatchHeader
from protocol.records.control import EndTransactionMarker

# An encoded batch in a writable buffer, its header, and the decoded marker of a control batch.
PreparedBatch = tuple[bytearray | memoryview, BatchHeader, EndTransactionMarker | None]


def apply_control_batch(
    producers: ProducerStateManager,
    index: TransactionIndex,
    header: BatchHeader,
    offset: int,
    marker: EndTransactionMarker | None,
) -> None:
    """Apply a control batch that was appended at `offset`. `index`: the transaction index of its segment.

    `marker` is None for other types of control records, and for a batch whose record compaction has removed.
    """
    if marker is None:
        return
    ended = producers.end_transaction(header, offset, marker.committed, marker.coordinator_epoch)
    if ended is None or marker.committed:
        return
    entry = AbortedTransaction(ended.producer_id, ended.first_offset, ended.last_offset, ended.last_stable_offset)
    # After damage, a log may end before the last entry of its index. Entries must ascend even then.
    if entry.last_offset > index.last_offset:
        index.add(entry)
