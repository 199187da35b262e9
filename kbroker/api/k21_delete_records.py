"""DeleteRecords (key 21), versions 0 to 2: everything below an offset goes; -1 stands for the high watermark.

- Only where cleanup.policy deletes: POLICY_VIOLATION on a topic that is only compacted.
- Internal topics are their coordinators': INVALID_TOPIC_EXCEPTION.
- `low_watermark` is the log start offset after it; asking for less than that changes nothing.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.metadata.topics.internal_topics import INTERNAL_TOPICS
from protocol.errors import ErrorCode
from protocol.messages.k21_delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

NO_LOW_WATERMARK = -1


async def handle(services: Services, context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """A partition that is named twice counts once, with its last offset, as in Kafka."""
    wanted: dict[str, dict[int, int]] = {}
    for topic in request.topics:
        offsets = wanted.setdefault(topic.name, {})
        for partition in topic.partitions:
            offsets[partition.partition_index] = partition.offset
    results = [
        DeleteRecordsTopicResult(
            name=name,
            partitions=[await _delete(services, name, index, offset) for index, offset in offsets.items()],
        )
        for name, offsets in wanted.items()
    ]
    return DeleteRecordsResponse(topics=results)


async def _delete(services: Services, topic: str, index: int, offset: int) -> DeleteRecordsPartitionResult:
    try:
        low_watermark, code = await _delete_checked(services, topic, index, offset), ErrorCode.NONE
    except KafkaError as refusal:
        low_watermark, code = NO_LOW_WATERMARK, refusal.code
    return DeleteRecordsPartitionResult(partition_index=index, low_watermark=low_watermark, error_code=code)


async def _delete_checked(services: Services, topic: str, index: int, offset: int) -> int:
    partition = services.replicas.leader(topic, index)
    if topic in INTERNAL_TOPICS:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    if not partition.log.config.has_delete_policy:
        raise KafkaError(ErrorCode.POLICY_VIOLATION)
    return await services.replicas.delete_records(partition, offset)
