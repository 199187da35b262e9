"""The aborted transactions that a consumer of committed records needs for a fetch (KIP-98)."""

from kbroker.common import KafkaError
from kbroker.storage.indexes.transaction_index import AbortedTransaction
from kbroker.storage.log.reading.offset_lookup import end_offset_of, find_batch
from kbroker.storage.log.reading.readable_log import ReadableLog
from kbroker.storage.log.segment_indexes import SegmentGone
from protocol.errors import ErrorCode


def find_aborted_transactions(log: ReadableLog, offset: int, size: int, wait: bool) -> list[AbortedTransaction]:
    """Return the aborted transactions that overlap `size` bytes from the batch with `offset` on, in marker order.

    Their markers follow, perhaps in later segments. The search ends at the first marker at which all records that were
    read were stable. Without `wait` raises WouldBlock. Raises KafkaError(KAFKA_STORAGE_ERROR) for a damaged index.
    """
    while True:
        found: list[AbortedTransaction] = []
        segments, positions = log.segments, log.positions
        try:
            first, _ = find_batch(log, segments, positions, offset, wait)
            upper = positions.next_offset_after(offset, size)
            if upper is None:
                upper = end_offset_of(log, first)
            for segment in segments:
                if segment.base_offset >= first.base_offset and segment.collect_aborted(offset, upper, wait, found):
                    break
        except SegmentGone:
            continue
        except ValueError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        return found
