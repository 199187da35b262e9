"""ListOffsets (key 2), versions 1 to 11: the offset for a timestamp, or for one of these special timestamps:

    -1 latest: the high watermark, or the last stable offset for read_committed consumers
    -2 earliest: the log start offset; with kbroker.archive.earliest the first offset in the topic's archive
    -3 the record with the largest timestamp (version 7, KIP-734)
    -4 earliest on local disk (version 8, KIP-405): the log start offset
    -5 latest in tiered storage (version 9, KIP-1005): the last offset that the topic's archive covers; -1 without one
    -6 earliest not yet in tiered storage (version 11, KIP-1023): the offset after it. In kbroker alone the timestamp is
       that of the record, or -1 if there is none: how far the archive lags behind

- The result for a timestamp is the first record that is not older, if consumers may read it, else offset and timestamp
  are -1. On a topic with delayed delivery, pending records do not count, and delivered ones have the time of delivery.
- Version 4 adds the leader epoch.
- Until the high watermark of a new leader has reached the start of its leader epoch, consumers get OFFSET_NOT_AVAILABLE
  instead of the latest offset (KIP-207), since that may be lower than an earlier response of the former leader; below
  version 5, LEADER_NOT_AVAILABLE.
- A leader that has lost contact with all other brokers responds NOT_LEADER_OR_FOLLOWER for the latest offset, since
  that of a newer leader may be higher. Admin clients, and so Spark's queries, send no leader epoch to detect that.
- Followers respond to a debugging consumer only (replica id -2), for which the latest offset is the log end offset.
- The lookups of a request that read logs run together in one thread.
- A topic with an archive (kbroker.archive.table) is searched there first. If the archive cannot be read, the partition
  gets KAFKA_STORAGE_ERROR, after which clients retry: from the log alone they would miss records.
- timeout_ms (version 10) is ignored: a search in an archive has its own time limit.
"""

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from kbroker.api.context import RequestContext, Services
from kbroker.api.response_errors import failed_rows_response
from kbroker.common import KafkaError
from kbroker.queues.topic_filters import visible_records
from kbroker.replica.history.history_client import HistoryCallError
from kbroker.replica.history.history_manager import BOUNDS_AGE_MS, HistoryManager, error_code
from kbroker.replica.partition import Partition
from kbroker.runtime.turns import paced
from kbroker.storage.log.offset_lookup import find_max_timestamp, find_offset_for_timestamp
from protocol.errors import NO_ERROR, ErrorCode
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

failed_response = failed_rows_response

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

FIRST_VERSION = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
CONSUMER = NO_EPOCH = -1
DEBUGGING_CONSUMER = -2
FIRST_WITH_EPOCH = 4
FIRST_WITH_OFFSET_NOT_AVAILABLE = 5

# Reads a log, or afterwards an archive, and fills in a partition's result.
Lookup = Callable[[], None]
ArchiveLookup = Coroutine[Any, Any, None]


def handle(
    services: Services, context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    lookups: list[Lookup] = []
    in_archives: list[ArchiveLookup] = []
    response = ListOffsetsResponse()
    for topic in paced(request.topics):
        unique: dict[int, ListOffsetsPartition] = {}
        repeated: set[int] = set()
        for partition in paced(topic.partitions):
            index = partition.partition_index
            if unique.setdefault(index, partition) is not partition:
                repeated.add(index)
        results = [
            _duplicate(index)
            if index in repeated
            else _result(services, context, request, topic.name, partition, lookups, in_archives)
            for index, partition in paced(unique.items())
        ]
        response.topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=results))
    if lookups or in_archives:
        return _run_lookups(services, context, lookups, in_archives, response)
    return _in_version(context, response)


async def _run_lookups(
    services: Services,
    context: RequestContext,
    lookups: list[Lookup],
    in_archives: list[ArchiveLookup],
    response: ListOffsetsResponse,
) -> ListOffsetsResponse:
    if lookups:
        await services.environment.offload(_run_blocking, lookups)
    for task in [services.environment.loop.create_task(lookup) for lookup in in_archives]:
        await task
    return _in_version(context, response)


def _run_blocking(lookups: list[Lookup]) -> None:
    for lookup in lookups:
        lookup()


def _in_version(context: RequestContext, response: ListOffsetsResponse) -> ListOffsetsResponse:
    if context.version < FIRST_WITH_EPOCH:
        for topic in response.topics:
            for result in paced(topic.partitions):
                result.leader_epoch = NO_EPOCH
    return response


def _duplicate(index: int) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=index, error_code=ErrorCode.INVALID_REQUEST)


def _result(
    services: Services,
    context: RequestContext,
    request: ListOffsetsRequest,
    topic: str,
    requested: ListOffsetsPartition,
    lookups: list[Lookup],
    in_archives: list[ArchiveLookup],
) -> ListOffsetsPartitionResponse:
    """Return a partition's result. If it depends on the contents of the log or the archive, add what completes it."""
    result = ListOffsetsPartitionResponse(partition_index=requested.partition_index)
    try:
        _validate(request.isolation_level, requested.timestamp, context.version)
        partition = _replica(services, context, request, topic, requested)
        if requested.timestamp == LATEST and request.replica_id == CONSUMER and services.replicas.may_be_replaced():
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if partition.log.health.offline is not None and partition.log.readable_end <= partition.log.log_start_offset:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    except KafkaError as error:
        result.error_code = error.code
        return result
    timestamp, end_offset, config = requested.timestamp, _visible_end(partition, request), partition.log.config
    missing = NO_ERROR
    if request.replica_id == CONSUMER and partition.is_catching_up:
        missing = _offset_not_available(context)
    if timestamp >= 0 or timestamp == MAX_TIMESTAMP:
        lookups.append(partial(_look_up_blocking, partition, timestamp, end_offset, missing, result))
    elif timestamp == LATEST:
        if missing:
            result.error_code = missing
        else:
            result.offset, result.leader_epoch = end_offset, partition.leader_epoch
    elif timestamp in (EARLIEST, EARLIEST_LOCAL):
        result.offset = partition.log.log_start_offset
        result.leader_epoch = _epoch_of(partition, result.offset)
    # Brokers ask how much of a log is left.
    if config.kbroker_archive_table and request.replica_id == CONSUMER and context.peer_broker is None:
        is_archived = timestamp >= 0 or timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD)
        if is_archived or (timestamp == EARLIEST and config.kbroker_archive_earliest):
            history, read_committed = services.replicas.history, request.isolation_level == READ_COMMITTED
            in_archives.append(_look_up_in_archive(history, partition, timestamp, read_committed, result))
    return result


def _replica(
    services: Services,
    context: RequestContext,
    request: ListOffsetsRequest,
    topic: str,
    requested: ListOffsetsPartition,
) -> Partition:
    """Return the replica that may respond. Raises KafkaError."""
    index, epoch = requested.partition_index, requested.current_leader_epoch
    if request.replica_id != DEBUGGING_CONSUMER:
        # The controller also asks for retired partitions, which consumers do not see.
        find = services.replicas.readable_leader if context.peer_broker is None else services.replicas.leader
        partition = find(topic, index)
        partition.check_leader(epoch)
        return partition
    found, _ = services.replicas.find_readable(topic, index)
    if found is None:
        raise KafkaError(services.replicas.missing_error(topic, index))
    found.check_epoch(epoch)
    return found


def _validate(isolation_level: int, timestamp: int, version: int) -> None:
    if isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        # Kafka does not handle this case, so its response is UNKNOWN_SERVER_ERROR.
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
    if timestamp < 0 and version < FIRST_VERSION.get(timestamp, version + 1):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)


def _visible_end(partition: Partition, request: ListOffsetsRequest) -> int:
    """Return the offset up to which the client may read. Part of an offline log may still be readable."""
    if request.replica_id != CONSUMER:
        return partition.log.log_end_offset
    end = partition.last_stable_offset if request.isolation_level == READ_COMMITTED else partition.high_watermark
    return end if partition.log.health.offline is None else min(end, partition.log.readable_end)


def _offset_not_available(context: RequestContext) -> ErrorCode:
    if context.version < FIRST_WITH_OFFSET_NOT_AVAILABLE:
        return ErrorCode.LEADER_NOT_AVAILABLE
    return ErrorCode.OFFSET_NOT_AVAILABLE


def _epoch_of(partition: Partition, offset: int) -> int:
    epoch = partition.log.epochs.epoch_for(offset)
    return partition.leader_epoch if epoch == NO_EPOCH else epoch


def _look_up_blocking(
    partition: Partition, timestamp: int, end_offset: int, missing: ErrorCode, result: ListOffsetsPartitionResponse
) -> None:
    """Complete the result. `missing`: the error code if there is no such record below `end_offset`, or NONE."""
    log, visible = partition.log, visible_records(partition.log.config)
    try:
        if timestamp == MAX_TIMESTAMP:
            found = find_max_timestamp(log, visible)
        else:
            found = find_offset_for_timestamp(log, timestamp, end_offset, visible)
    except KafkaError as error:
        result.error_code = error.code
        return
    if found is not None and found[0] < end_offset:
        result.offset, result.timestamp, result.leader_epoch = found
    else:
        result.error_code = missing


async def _look_up_in_archive(
    history: HistoryManager,
    partition: Partition,
    timestamp: int,
    read_committed: bool,
    result: ListOffsetsPartitionResponse,
) -> None:
    """Complete the result of the log by what the archive has below it."""
    try:
        if timestamp == EARLIEST:
            start, _ = await history.bounds(partition, BOUNDS_AGE_MS, read_committed=read_committed)
            if start < result.offset:
                result.offset, result.leader_epoch = start, NO_EPOCH
        elif timestamp >= 0:
            found = await history.find_offset(partition, timestamp, read_committed)
            if found is not None:
                result.error_code = NO_ERROR
                result.offset, result.timestamp, result.leader_epoch = found
        else:
            end, _, pending_timestamp = await history.first_unarchived(partition)
            if timestamp == LATEST_TIERED:
                result.offset = end - 1
            else:
                result.offset, result.timestamp = end, pending_timestamp
    except HistoryCallError as error:
        # Without an archive that consumers may read there is only the log.
        if error_code(error) is ErrorCode.KAFKA_STORAGE_ERROR:
            result.error_code, result.offset, result.timestamp = ErrorCode.KAFKA_STORAGE_ERROR, -1, -1
    except KafkaError as error:
        result.error_code = error.code
