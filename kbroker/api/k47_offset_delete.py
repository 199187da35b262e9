"""OffsetDelete (key 47), version 0: delete committed offsets (KIP-496).

A group with members keeps the offsets of the topics that it subscribes to. If it is not a consumer group, it keeps all
offsets.
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
    existing = [
        (topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
        if services.metadata.partition(topic.name, partition.partition_index) is not None
    ]
    try:
        errors = await services.groups.delete_offsets(request.group_id, existing)
    except KafkaError as error:
        return OffsetDeleteResponse(error_code=error.code)
    results = dict(zip(existing, errors, strict=True))
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=results.get(
                            (topic.name, partition.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                        ),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
