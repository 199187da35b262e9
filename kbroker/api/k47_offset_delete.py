"""OffsetDelete (key 47), version 0: delete committed offsets (KIP-496).

A group with members keeps the offsets of the topics that it subscribes to. If it is not a consumer group, it keeps all
offsets.
"""

from collections.abc import Mapping

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.runtime.slices import Steps, in_slices
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
    existing = await in_slices(context.slices, _existing(services, request))
    try:
        errors = await services.groups.delete_offsets(request.group_id, existing)
    except KafkaError as error:
        return OffsetDeleteResponse(error_code=error.code)
    results = dict(zip(existing, errors, strict=True))
    return await in_slices(context.slices, _response(request, results))


def _existing(services: Services, request: OffsetDeleteRequest) -> Steps[list[tuple[str, int]]]:
    # Each once, so that the coordinator's work does not grow with repeated ones.
    existing: dict[tuple[str, int], None] = {}
    for topic in request.topics:
        image = services.metadata.topics.get(topic.name)
        partition_count = 0 if image is None else len(services.metadata.resolve(image).partitions)
        for partition in topic.partitions:
            if 0 <= partition.partition_index < partition_count:
                existing[topic.name, partition.partition_index] = None
            yield
        yield
    return list(existing)


def _response(
    request: OffsetDeleteRequest, results: Mapping[tuple[str, int], ErrorCode]
) -> Steps[OffsetDeleteResponse]:
    response = OffsetDeleteResponse()
    for topic in request.topics:
        partitions = []
        for partition in topic.partitions:
            index = partition.partition_index
            error = results.get((topic.name, index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            partitions.append(OffsetDeleteResponsePartition(partition_index=index, error_code=error))
            yield
        response.topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
        yield
    return response
