"""ListOffsets (key 2), versions 1 to 11: the offset of a timestamp, or of one of these.

    -1 latest: the high watermark, or the last stable offset for read-committed consumers
    -2 earliest: the log start offset
    -3 the record with the largest timestamp (version 7, KIP-734)
    -4 earliest on local disk (8, KIP-405): the log start offset, for nothing is elsewhere
    -5 latest in tiered storage (9, KIP-1005), -6 earliest not yet there (11): none

A timestamp finds the first record that is not earlier, if consumers may see it; -1 for both when there is
none. Lookups that read the log run in a thread, all of a request together.
"""

from collections import Counter
from collections.abc import Awaitable, Callable

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.replica.partition import Partition
from protocol.errors import ErrorCode
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

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
FIRST_WITH_EPOCH = 4

Lookup = Callable[[], None]


def handle(
    services: Services, context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    lookups: list[Lookup] = []
    response = ListOffsetsResponse()
    for topic in request.topics:
        times = Counter(partition.partition_index for partition in topic.partitions)
        unique = {partition.partition_index: partition for partition in topic.partitions}
        answers = [
            _repeated(index) if times[index] > 1 else _answer(services, context, request, topic.name, wanted, lookups)
            for index, wanted in unique.items()
        ]
        response.topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
    if lookups:
        return _look_up(services, context, lookups, response)
    return _in_version(context, response)


async def _look_up(
    services: Services, context: RequestContext, lookups: list[Lookup], response: ListOffsetsResponse
) -> ListOffsetsResponse:
    await services.environment.offload(_run_blocking, lookups)
    return _in_version(context, response)


def _in_version(context: RequestContext, response: ListOffsetsResponse) -> ListOffsetsResponse:
    if context.version < FIRST_WITH_EPOCH:
        for topic in response.topics:
            for answer in topic.partitions:
                answer.leader_epoch = NO_EPOCH
    return response


def _run_blocking(lookups: list[Lookup]) -> None:
    for lookup in lookups:
        lookup()


def _repeated(index: int) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=index, error_code=ErrorCode.INVALID_REQUEST)


def _answer(
    services: Services,
    context: RequestContext,
    request: ListOffsetsRequest,
    topic: str,
    wanted: ListOffsetsPartition,
    lookups: list[Lookup],
) -> ListOffsetsPartitionResponse:
    """What can be told at once; what takes a look into the log is left to `lookups`."""
    answer = ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
    try:
        _check(request.isolation_level, wanted.timestamp, context.version)
        partition = services.replicas.leader(topic, wanted.partition_index)
        partition.check_leader(wanted.current_leader_epoch)
        if partition.log.offline is not None and partition.log.readable_end <= partition.log.log_start_offset:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    except KafkaError as refusal:
        answer.error_code = refusal.code
        return answer
    time, end = wanted.timestamp, _visible_end(partition, request)
    if time >= 0 or time == MAX_TIMESTAMP:
        lookups.append(lambda: _find_blocking(partition, time, end, answer))
    elif time == LATEST:
        answer.offset, answer.leader_epoch = end, partition.leader_epoch
    elif time in (EARLIEST, EARLIEST_LOCAL):
        answer.offset = partition.log.log_start_offset
        answer.leader_epoch = _epoch_at(partition, answer.offset)
    return answer


def _check(isolation_level: int, timestamp: int, version: int) -> None:
    if isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        # Kafka fails on it unforeseen, and says so.
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
    if timestamp < 0 and version < FIRST_VERSION.get(timestamp, version + 1):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)


def _visible_end(partition: Partition, request: ListOffsetsRequest) -> int:
    if request.replica_id != CONSUMER:
        return partition.log.log_end_offset
    end = partition.last_stable_offset if request.isolation_level == READ_COMMITTED else partition.high_watermark
    return end if partition.log.offline is None else min(end, partition.log.readable_end)


def _epoch_at(partition: Partition, offset: int) -> int:
    epoch = partition.log.epochs.epoch_for(offset)
    return partition.leader_epoch if epoch == NO_EPOCH else epoch


def _find_blocking(partition: Partition, time: int, end: int, answer: ListOffsetsPartitionResponse) -> None:
    log = partition.log
    try:
        found = log.max_timestamp_blocking() if time == MAX_TIMESTAMP else log.offset_for_timestamp_blocking(time, end)
    except KafkaError as refusal:
        answer.error_code = refusal.code
        return
    if found is not None and found[0] < end:
        answer.offset, answer.timestamp, answer.leader_epoch = found
