"""OffsetForLeaderEpoch (key 23), versions 2 to 4: where a leader epoch ended (KIP-101, KIP-320).

A consumer that may have read what its leader then lost asks here where the epoch of its position ended. An
epoch that is not known, or -1, gets epoch and end offset -1.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
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
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_end(services, topic.topic, wanted) for wanted in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _end(services: Services, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = services.replicas.leader(topic, wanted.partition)
        partition.check_leader(wanted.current_leader_epoch)
    except KafkaError as refusal:
        return EpochEndOffset(partition=wanted.partition, error_code=refusal.code)
    log = partition.log
    epoch, end_offset = log.epochs.end_offset_for(wanted.leader_epoch, log.log_end_offset)
    return EpochEndOffset(
        partition=wanted.partition, error_code=ErrorCode.NONE, leader_epoch=epoch, end_offset=end_offset
    )
