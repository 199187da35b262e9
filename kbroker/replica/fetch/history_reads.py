"""Fetches of consumers below the log start offset: records from the archive of the topic.

The archive's records end at the log start offset; a consumer gets what is from there on with its next request.
"""

from kbroker.common import Buffer
from kbroker.replica.fetch.fetch_reads import FetchReads
from kbroker.replica.fetch.fetch_session import READ_COMMITTED, FetchPartition, FetchSession
from kbroker.replica.fetch.read_filter import ReadFilter, position_batch, position_form
from kbroker.replica.history.history_cache import HistoryKey
from kbroker.replica.history.history_client import HistoryCallError
from kbroker.replica.history.history_manager import HistoryManager, error_code
from kbroker.replica.partition import Partition
from protocol.errors import ErrorCode
from protocol.fast.fetch import FetchRequest


def read_history(
    reads: FetchReads,
    session: FetchSession,
    fetched: FetchPartition,
    partition: Partition,
    request: FetchRequest,
    max_bytes: int,
    read_filter: ReadFilter | None,
    history: HistoryManager,
) -> int | None:
    """Add what there is in memory of a partition whose fetch offset is below its log.

    Returns None; or the log start offset, where the log has to be read, if the archive has nothing from the fetch
    offset on.
    """
    topic_id, index = partition.topic_id, partition.tp.partition
    key = HistoryKey(topic_id, index, request.isolation_level == READ_COMMITTED, read_filter)
    offset, log_start = fetched.offset, partition.log.log_start_offset
    while True:
        found = history.find(partition, fetched, key, offset)
        if found is None or isinstance(found, HistoryCallError) or found.has_records_from(offset):
            break
        offset = found.end
        if offset >= log_start:
            return log_start
    records: Buffer = b""
    if isinstance(found, HistoryCallError):
        code = error_code(found)
        # A client repeats the fetch at once after other errors, so that these wait as a fetch without records does.
        reads.must_respond = reads.must_respond or code is ErrorCode.OFFSET_OUT_OF_RANGE
        reads.add_error(fetched, code, message=found.text)
        return None
    if found is None:
        # More bytes of the log do not end the wait.
        reads.is_filtered = True
        if offset > fetched.offset:
            records = move_position(reads, request, partition, offset)
    elif max_bytes > 0 or not reads.size:
        records = found.select(offset, max_bytes, is_first=not reads.size)
        history.bytes_out += len(records)
    bounds = history.known_bounds(partition)
    reads.add(session, fetched, partition, request, records, history_start=None if bounds is None else bounds[0])
    return None


def move_position(reads: FetchReads, request: FetchRequest, partition: Partition, offset: int) -> Buffer:
    """Return a batch that moves a consumer to an offset up to the log start, to which the archive has no records."""
    reads.must_respond = True
    epochs, log_start = partition.log.epochs, partition.log.log_start_offset
    return position_batch(position_form(request), offset - 1, epochs.epoch_for(max(offset, log_start)))
