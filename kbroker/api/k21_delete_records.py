"""DeleteRecords (key 21), versions 0 to 2: delete the records before an offset; -1 stands for the high watermark.

- A topic whose cleanup.policy does not contain delete gets POLICY_VIOLATION.
- Internal topics get INVALID_TOPIC_EXCEPTION: only their coordinators delete records there.
- low_watermark in the response is the new log start offset. An offset before the log start offset changes nothing.
- timeout_ms is ignored: there are no followers to wait for.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.metadata.topics.internal_topics import INTERNAL_TOPICS
from kbroker.runtime.slices import step
from protocol.errors import ErrorCode
from protocol.messages.k21_delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

NO_LOW_WATERMARK = -1


async def handle(services: Services, context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    # Of a partition that is named more than once, the last offset applies, as in Kafka.
    requested: dict[str, dict[int, int]] = {}
    for topic in request.topics:
        offsets = requested.setdefault(topic.name, {})
        for partition in topic.partitions:
            offsets[partition.partition_index] = partition.offset
            await step(context.slices)
    response = DeleteRecordsResponse()
    for name, offsets in requested.items():
        results = []
        for index, offset in offsets.items():
            results.append(await _result(services, name, index, offset))
            await step(context.slices)
        response.topics.append(DeleteRecordsTopicResult(name=name, partitions=results))
    return response


async def _result(services: Services, topic: str, index: int, offset: int) -> DeleteRecordsPartitionResult:
    try:
        low_watermark, code = await _delete_records(services, topic, index, offset), ErrorCode.NONE
    except KafkaError as error:
        low_watermark, code = NO_LOW_WATERMARK, error.code
    return DeleteRecordsPartitionResult(partition_index=index, low_watermark=low_watermark, error_code=code)


async def _delete_records(services: Services, topic: str, index: int, offset: int) -> int:
    """Delete the records of a partition before an offset. Returns the new log start offset. Raises KafkaError."""
    partition = services.replicas.leader(topic, index)
    if topic in INTERNAL_TOPICS:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    if not partition.log.config.has_delete_policy:
        raise KafkaError(ErrorCode.POLICY_VIOLATION)
    return await services.replicas.delete_records(partition, offset)
