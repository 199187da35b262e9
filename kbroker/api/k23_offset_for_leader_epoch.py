"""OffsetForLeaderEpoch (key 23), versions 2 to 4: the end offset of a leader epoch (KIP-101, KIP-320).

Consumers use it to detect that records which they have read were lost with their leader, and then reset their position.
For an unknown epoch, or -1, both the epoch and the end offset are -1.
"""

from collections.abc import Awaitable
from functools import partial

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.runtime.slices import Steps, at_once_or_in_slices, each
from protocol.errors import ErrorCode
from protocol.messages.k23_offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


def handle(
    services: Services, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse | Awaitable[OffsetForLeaderEpochResponse]:
    return at_once_or_in_slices(context.slices, _end_offsets(services, request))


def _end_offsets(services: Services, request: OffsetForLeaderEpochRequest) -> Steps[OffsetForLeaderEpochResponse]:
    response = OffsetForLeaderEpochResponse()
    for topic in request.topics:
        results = yield from each(partial(_end_offset, services, topic.topic), topic.partitions)
        response.topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=results))
        yield
    return response


def _end_offset(services: Services, topic: str, requested: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = services.replicas.readable_leader(topic, requested.partition)
        partition.check_leader(requested.current_leader_epoch)
    except KafkaError as error:
        return EpochEndOffset(partition=requested.partition, error_code=error.code)
    log = partition.log
    epoch, end_offset = log.epochs.end_offset_for(requested.leader_epoch, log.log_end_offset)
    return EpochEndOffset(
        partition=requested.partition, error_code=ErrorCode.NONE, leader_epoch=epoch, end_offset=end_offset
    )
