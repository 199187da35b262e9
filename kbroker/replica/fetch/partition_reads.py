"""Reads the partitions of a fetch session, within the limits of a request.

Records in memory are read at once. If the records of the first partition are only on disk, a thread reads all of the
request's partitions. So partitions on disk are read as often as those in memory.
"""

from collections.abc import Sequence

from kbroker.authorization.acl import Operation, ResourceType
from kbroker.authorization.authorizer import Access
from kbroker.common import Buffer, KafkaError
from kbroker.replica.fetch.cold_reads import AbortedTransactions, ColdRead, ColdReadResult, aborted_transactions
from kbroker.replica.fetch.fetch_reads import FetchReads
from kbroker.replica.fetch.fetch_session import READ_COMMITTED, FetchPartition, FetchSession
from kbroker.replica.fetch.filter_scan import FilteredRead, LookBudget, read_filtered
from kbroker.replica.fetch.history_reads import move_position, read_history
from kbroker.replica.fetch.read_filter import (
    Filtered,
    HiddenRanges,
    ReadFilter,
    ReadView,
    combine,
    position_batch,
    position_form,
)
from kbroker.replica.partition import Partition
from kbroker.replica.partition_state import NO_REPLICA
from kbroker.replica.replica_manager import ReplicaManager
from kbroker.replica.replication_throttle import LeaderThrottle
from kbroker.runtime.environment import Clock
from kbroker.runtime.turns import yield_if_due
from kbroker.storage.log.log_reads import read_or_slice
from kbroker.storage.log.segment import FileSlice
from protocol.errors import ErrorCode
from protocol.fast.fetch import FetchRequest

# With these errors the response names the current leader (KIP-951).
LEADER_ERRORS = {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH}

# The most partitions in a response to a follower, after the first one of its session. All partitions of a broker may
# have new records at once; the follower's next request gets the rest.
MAX_FOLLOWER_RESULTS = 128
# The same for consumers. A response to a small request must not delay others by reading 100,000 partitions.
MAX_INCREMENTAL_RESULTS = 512


def read_partitions(
    session: FetchSession, request: FetchRequest, max_bytes: int, partitions: ReplicaManager, throttle: LeaderThrottle
) -> FetchReads:
    """Read the partitions that are ready, or all in the first request of a session.

    At most `max_bytes`, but at least one batch (KIP-74). The partitions that are not `ready` afterwards notify the
    session of changes.
    """
    reads = FetchReads()
    read_committed = request.isolation_level == READ_COMMITTED
    if session.withheld:
        reads.is_throttled = throttle.begin_read(session)
    read_all = not session.is_incremental
    is_follower = session.replica_id >= 0
    rack_id = None if is_follower else request.rack_id
    max_results = MAX_FOLLOWER_RESULTS if is_follower else MAX_INCREMENTAL_RESULTS
    access = session.access
    readable = () if access is None else access.readable_topics
    records: Buffer | FileSlice | None
    for fetched in list(session.ready if session.is_incremental else session.partitions.values()):
        if session.is_busy:
            yield_if_due()
        if not read_all and ((reads.size >= max_bytes and reads.size) or len(reads.results) >= max_results):
            # The next request reads the rest.
            if not is_follower:
                reads.must_respond = True
            break
        if access is not None and fetched.key not in readable and not may_read(access, fetched, partitions):
            # Before the look-up: whether the topic exists must not show.
            reads.must_respond = True
            reads.add_error(fetched, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            continue
        try:
            partition: Partition | None = fetched.target  # type: ignore[assignment]
            view = fetched.view
            if partition is None or partition.is_closed or (view is not None and not view.is_current):
                # The topic was deleted, and perhaps created again.
                partition = look_up(session, fetched, partitions)
            diverging = check_fetch(partition, fetched, request)
        except KafkaError as error:
            _add_refusal(reads, session, fetched, error.code, partitions)
            continue
        if diverging is not None:
            reads.must_respond = True
            reads.add(session, fetched, partition, request, b"", None, diverging)
            continue
        if rack_id and partition.is_leader:
            replica = partitions.preferred_read_replica(partition, rack_id, fetched.offset, session.listener)
            if replica != NO_REPLICA:
                reads.must_respond = True
                reads.add_read_replica(fetched, partition, replica)
                continue
        log, read_filter, is_limited, offset = partition.log, None, False, fetched.offset
        if is_follower:
            end_offset = log.log_end_offset
            if partition.is_leader_throttled and fetched.offset < end_offset:
                if throttle.withholds(fetched, partition):
                    reads.is_throttled = True
                    reads.add(session, fetched, partition, request, b"")
                    continue
                is_limited = session.replica_id not in partition.state.maximal_isr
        else:
            end_offset = partition.last_stable_offset if read_committed else partition.state.high_watermark
            read_filter = partition.read_filter if fetched.view is None else _view_filter(partition, fetched.view)
        if log.health.offline is not None:
            end_offset = min(end_offset, log.readable_end)
        limit = max_bytes - reads.size
        if fetched.max_bytes < limit:
            limit = fetched.max_bytes
        if is_limited:
            if reads.throttled_left is None:
                reads.throttled_left = throttle.max_response_bytes()
            limit = min(limit, reads.throttled_left)
        if offset < log.log_start_offset:
            end = read_history(reads, session, fetched, partition, request, limit, read_filter, partitions.history)
            if end is None:
                continue
            # There was nothing left in the archive.
            offset = end
        if offset >= end_offset or (limit <= 0 and (reads.size or reads.cold)):
            records = move_position(reads, request, partition, offset) if offset > fetched.offset else b""
            reads.add(session, fetched, partition, request, records)
            continue
        if read_filter is not None:
            filtered = Filtered(read_filter, _hidden_ranges(partition), position_form(request))
            cold_read = ColdRead(fetched, partition, offset, end_offset, limit, read_committed, filtered)
            _read_through_filter(reads, session, request, cold_read, filtered, partitions.clock)
            continue
        records = None
        aborted: AbortedTransactions = None
        if not reads.cold:
            try:
                records = read_or_slice(log, offset, limit if limit > 0 else 0, end_offset, not reads.size)
                if read_committed and records and offset <= log.last_aborted_offset:
                    aborted = aborted_transactions(log, offset, len(records), wait=False)
                    if aborted is None:
                        records = None
            except KafkaError as error:
                reads.must_respond = True
                reads.add_error(fetched, error.code)
                continue
        if is_limited and reads.throttled_left is not None:
            reads.throttled_left -= limit if records is None else len(records)
        if records is None and not reads.size:
            reads.cold.append(ColdRead(fetched, partition, offset, end_offset, limit, read_committed))
        else:
            # If other records were read already, the next request reads the cold ones.
            reads.add(session, fetched, partition, request, records or b"", aborted)
    return reads


# Rights. A response is checked by the rules that are in force when it is complete.


def may_read(access: Access, fetched: FetchPartition, partitions: ReplicaManager) -> bool:
    """Return whether the client may read a topic, of a view the view alone. An unknown topic id has its own error."""
    name = partitions.topic_name(fetched.key)
    return name is None or name in access.readable_topics or access.allows(Operation.READ, ResourceType.TOPIC, name)


def use_access(session: FetchSession, access: Access | None, partitions: ReplicaManager) -> None:
    """Read by other rights from now on. Partitions without news become ready if the right is gone: an error is due."""
    session.access = access
    if access is not None and session.is_incremental:
        for fetched in session.partitions.values():
            if session.is_busy:
                yield_if_due()
            if not may_read(access, fetched, partitions):
                session.ready[fetched] = None


def renew_access(session: FetchSession, partitions: ReplicaManager) -> None:
    """Read by the rules that are in force now, after a wait."""
    access = session.access
    if access is not None and (current := access.current()) is not access:
        use_access(session, current, partitions)


def _add_refusal(
    reads: FetchReads, session: FetchSession, fetched: FetchPartition, code: ErrorCode, partitions: ReplicaManager
) -> None:
    """Add the error of a partition from which the client may not fetch."""
    reads.must_respond = True
    leader = None
    if code is ErrorCode.OFFSET_OUT_OF_RANGE and session.replica_id < 0 and partitions.may_be_replaced():
        # The consumer may have read from the new leader, and without a leader epoch it would reset its offset.
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    elif code in LEADER_ERRORS:
        leader = partitions.current_leader(fetched.key, fetched.index, session.listener)
    reads.add_error(fetched, code, leader)


def _view_filter(partition: Partition, view: ReadView) -> ReadFilter | None:
    """Return the filter of a fetch from a view: that of its source's partition, then its own."""
    return combine(partition.read_filter, view.read_filter)


def _hidden_ranges(partition: Partition) -> HiddenRanges:
    ranges, contents = partition.hidden_ranges, partition.log.contents
    if ranges is None or ranges.contents is not contents:
        ranges = partition.hidden_ranges = HiddenRanges(contents)
    return ranges


def _read_through_filter(
    reads: FetchReads, session: FetchSession, request: FetchRequest, read: ColdRead, filtered: Filtered, clock: Clock
) -> None:
    """Read a partition with a read filter, or leave it to a thread."""
    reads.is_filtered = True
    fetched = read.fetched
    if reads.budget is None:
        reads.budget = LookBudget.for_loop(clock)
    elif reads.budget.is_used_up(clock):
        # As after a full response, the next request has the other partitions first (KIP-74, KIP-227).
        reads.must_respond = True
        reads.add(session, fetched, read.partition, request, b"")
        return
    # With read_committed the end may be lower than that of an earlier read.
    offset = min(filtered.hidden_ranges.end_of(filtered.read_filter, read.offset), read.end_offset)
    if offset > read.offset:
        read = read._replace(offset=offset)
    result = None
    if not reads.cold:
        try:
            result = read_filtered(
                read.partition.log, filtered, offset, max(read.max_bytes, 0), read.end_offset, read.read_committed,
                reads.budget, clock, wait=False,
            )  # fmt: skip
        except KafkaError as error:
            reads.must_respond = True
            reads.add_error(fetched, error.code, message=error.message)
            return
    if result is not None:
        _add_filtered(reads, session, request, read, result)
    elif reads.size:
        reads.must_respond = True
        reads.add(session, fetched, read.partition, request, b"")
    else:
        reads.cold.append(read)


def _add_filtered(
    reads: FetchReads, session: FetchSession, request: FetchRequest, read: ColdRead, result: FilteredRead
) -> None:
    reads.is_filtered = True
    if result.is_limited:
        reads.must_respond = True
    fetched, records, next_offset = read.fetched, result.records, result.next_offset
    if records or next_offset <= fetched.offset:
        reads.add(session, fetched, read.partition, request, records, result.aborted)
        return
    filtered = read.filtered
    assert filtered is not None
    filtered.hidden_ranges.add(
        filtered.read_filter, max(fetched.offset, read.partition.log.log_start_offset), next_offset
    )
    records = position_batch(filtered.form, next_offset - 1, read.partition.log.epochs.epoch_for(next_offset - 1))
    reads.add(session, fetched, read.partition, request, records, result.aborted)
    # It must not end a wait for bytes.
    reads.size -= len(records)


def look_up(session: FetchSession, fetched: FetchPartition, partitions: ReplicaManager) -> Partition:
    """Find the partition of a session's entry. Raises KafkaError if it is not on this broker."""
    if session.replica_id >= 0:
        partition = partitions.get(fetched.key, fetched.index)
    else:
        partition, fetched.view = partitions.find_readable(fetched.key, fetched.index)
    fetched.target = partition
    if partition is None:
        raise KafkaError(partitions.missing_error(fetched.key, fetched.index))
    partition.begin_fetches()
    if session.replica_id >= 0:
        # A follower's session is notified of every append, until it ends.
        partition.replica_fetchers[fetched] = None
    return partition


def check_fetch(partition: Partition, fetched: FetchPartition, request: FetchRequest) -> tuple[int, int] | None:
    """Raise KafkaError if the consumer or follower may not fetch from its offset.

    If the client sent the last epoch that it has fetched, and its log diverges from this one below its offset, returns
    the (epoch, end offset) up to which they agree (KIP-595). Otherwise returns None.
    """
    state, replica_id = partition.state, request.replica_id
    if fetched.current_epoch != state.leader_epoch:
        partition.check_epoch(fetched.current_epoch)
    # From version 11 on, consumers may read from followers (KIP-392): as in Kafka, also those without client.rack.
    reads_followers = request.rack_id is not None and replica_id < 0
    if not partition.is_leader and not (reads_followers and partition.has_leader):
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if replica_id >= 0:
        if fetched.current_epoch < 0:
            # A claim counts in one leader epoch only.
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        follower = state.followers.get(replica_id)
        if follower is None:
            # The leader does not know of a reassignment yet: the follower retries.
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if request.replica_epoch < follower.broker_epoch:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    elif partition.is_retired:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    log = partition.log
    if log.health.offline is not None and fetched.offset >= log.readable_end:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    if fetched.offset < log.log_start_offset and (replica_id >= 0 or not log.config.kbroker_archive_table):
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if fetched.last_epoch >= 0 and (fetched.last_epoch != log.epochs.latest or fetched.offset > log.log_end_offset):
        epoch, end_offset = log.epochs.end_offset_for(fetched.last_epoch, log.log_end_offset)
        if end_offset < 0:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch < fetched.last_epoch or end_offset < fetched.offset:
            return epoch, end_offset
    if fetched.offset > log.log_end_offset:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    return None


def add_cold_results(
    reads: FetchReads,
    session: FetchSession,
    request: FetchRequest,
    results: Sequence[ColdReadResult],
    partitions: ReplicaManager,
) -> None:
    """Add the results of a thread. The next request reads the partitions that the thread did not reach."""
    if len(results) < len(reads.cold):
        reads.must_respond = True
    for number, cold_read in enumerate(reads.cold):
        if session.is_busy:
            yield_if_due()
        result = results[number] if number < len(results) else (b"", None)
        if session.access is not None and not may_read(session.access, cold_read.fetched, partitions):
            # The right was revoked while the thread was reading.
            result = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        elif cold_read.partition.is_closed:
            # The topic was deleted meanwhile.
            result = KafkaError(partitions.missing_error(cold_read.fetched.key, cold_read.fetched.index))
        elif isinstance(result, KafkaError) and _is_archived(cold_read):
            # Retention has deleted the records meanwhile: the next request gets them from the archive.
            result = (b"", None)
        if isinstance(result, KafkaError):
            reads.must_respond = True
            reads.add_error(cold_read.fetched, result.code, message=result.message)
        elif isinstance(result, FilteredRead):
            _add_filtered(reads, session, request, cold_read, result)
        else:
            reads.add(session, cold_read.fetched, cold_read.partition, request, *result)


def _is_archived(read: ColdRead) -> bool:
    """Return whether the records of a consumer's read have left the log, and may be in the topic's archive."""
    log = read.partition.log
    is_consumer = read.fetched.session.replica_id < 0
    return is_consumer and read.offset < log.log_start_offset and bool(log.config.kbroker_archive_table)
