"""OffsetDelete (key 47), version 0: delete committed offsets (KIP-496).

A group with members keeps the offsets of the topics that it subscribes to. If it is not a consumer group, it keeps all
offsets.

With ACLs it needs DELETE on the group, and READ on each topic.
"""

from collections.abc import Mapping

from kbroker.api.context import RequestContext, Services
from kbroker.api.response_errors import failed_rows_response
from kbroker.common import KafkaError
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

failed_response = failed_rows_response


async def handle(services: Services, context: RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    existing = _existing(services, request)
    errors = await services.groups.delete_offsets(request.group_id, existing)
    results = dict(zip(existing, errors, strict=True))
    return _response(request, results)


def _existing(services: Services, request: OffsetDeleteRequest) -> list[tuple[str, int]]:
    # Each once, so that the coordinator's work does not grow with repeated ones.
    existing: dict[tuple[str, int], None] = {}
    for topic in paced(request.topics):
        image = services.metadata.topics.get(topic.name)
        partition_count = 0 if image is None else len(services.metadata.resolve(image).partitions)
        for partition in paced(topic.partitions):
            if 0 <= partition.partition_index < partition_count:
                existing[topic.name, partition.partition_index] = None
    return list(existing)


def _response(request: OffsetDeleteRequest, results: Mapping[tuple[str, int], ErrorCode]) -> OffsetDeleteResponse:
    response = OffsetDeleteResponse()
    for topic in paced(request.topics):
        partitions = []
        for partition in paced(topic.partitions):
            index = partition.partition_index
            error = results.get((topic.name, index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            partitions.append(OffsetDeleteResponsePartition(partition_index=index, error_code=error))
        response.topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
    return response
