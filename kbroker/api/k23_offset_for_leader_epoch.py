"""OffsetForLeaderEpoch (key 23), versions 2 to 4: the end offset of a leader epoch (KIP-101, KIP-320).

Consumers use it to detect that records which they have read were lost with their leader, and then reset their position.
For an unknown epoch, or -1, both the epoch and the end offset are -1.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.api.response_errors import failed_rows_response
from kbroker.common import KafkaError
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k23_offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

failed_response = failed_rows_response


def handle(
    services: Services, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    response = OffsetForLeaderEpochResponse()
    for topic in paced(request.topics):
        results = [_end_offset(services, topic.topic, partition) for partition in paced(topic.partitions)]
        response.topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=results))
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
