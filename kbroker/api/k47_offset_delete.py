"""OffsetDelete (key 47), version 0: forget committed offsets (KIP-496).

A group with members keeps those of the topics that they subscribe to, and all when it is no consumer group.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from protocol.errors import ErrorCode
from protocol.messages.k47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


async def handle(services: Services, context: RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    if not request.group_id:
        return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    asked = [(topic.name, one.partition_index) for topic in request.topics for one in topic.partitions]
    known = [one for one in asked if services.metadata.partition(*one) is not None]
    try:
        errors = await services.groups.delete_offsets(request.group_id, known)
    except KafkaError as refusal:
        return OffsetDeleteResponse(error_code=refusal.code)
    results = dict(zip(known, errors, strict=True))
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=one.partition_index,
                        error_code=results.get((topic.name, one.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
