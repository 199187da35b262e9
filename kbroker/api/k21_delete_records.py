"""DeleteRecords (key 21), versions 0 to 2: delete the records before an offset; -1 stands for the high watermark.

- A topic whose cleanup.policy does not contain delete gets POLICY_VIOLATION.
- So does a topic with an archive: consumers would still read the records there. `kbroker archive` deletes them.
- Internal topics get INVALID_TOPIC_EXCEPTION: only their coordinators delete records there.
- An offset before the log start offset changes nothing.
- The response waits until the live followers have deleted the records, too, at most timeout_ms: then the partition gets
  REQUEST_TIMED_OUT. low_watermark is the lowest log start offset of the live replicas.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.metadata.topics.topic_names import INTERNAL_TOPICS
from kbroker.replica.delayed_delete_records import DeletedRecords
from kbroker.replica.partition import Partition
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k21_delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

NO_LOW_WATERMARK = -1


async def handle(services: Services, context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    # If a partition is named more than once, the last offset applies, as in Kafka.
    requested: dict[str, dict[int, int]] = {}
    for topic in paced(request.topics):
        offsets = requested.setdefault(topic.name, {})
        for partition in paced(topic.partitions):
            offsets[partition.partition_index] = partition.offset
    response = DeleteRecordsResponse()
    deleted: list[DeletedRecords] = []
    for name, offsets in paced(requested.items()):
        results = [_result(services, name, index, offset, deleted) for index, offset in paced(offsets.items())]
        response.topics.append(DeleteRecordsTopicResult(name=name, partitions=results))
    if deleted:
        await _store(services, deleted)
        elsewhere = [deletion for deletion in paced(deleted) if _must_wait(deletion)]
        if elsewhere:
            await services.replicas.wait_for_deletion(elsewhere, request.timeout_ms)
    return response


def failed_response(context: RequestContext, request: DeleteRecordsRequest, error: KafkaError) -> DeleteRecordsResponse:
    topics = []
    for topic in paced(request.topics):
        results = [
            DeleteRecordsPartitionResult(
                partition_index=row.partition_index, low_watermark=NO_LOW_WATERMARK, error_code=error.code
            )
            for row in paced(topic.partitions)
        ]
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    return DeleteRecordsResponse(topics=topics)


def _result(
    services: Services, topic: str, index: int, offset: int, deleted: list[DeletedRecords]
) -> DeleteRecordsPartitionResult:
    """Delete the records on this broker, and add the deletion to `deleted`."""
    result = DeleteRecordsPartitionResult(partition_index=index, low_watermark=NO_LOW_WATERMARK)
    try:
        partition = _partition(services, topic, index)
        services.replicas.delete_records(partition, offset)
    except KafkaError as error:
        result.error_code = error.code
        return result
    # -1 stands for the high watermark, up to which all has been deleted.
    end = partition.log.log_start_offset if offset == -1 else offset
    deleted.append(DeletedRecords(partition, end, result))
    return result


async def _store(services: Services, deleted: list[DeletedRecords]) -> None:
    """Store the log start offsets together: the files have those of all partitions of the broker.

    Also those of records that an earlier request has deleted: its write may have failed.
    """
    code = ErrorCode.NONE
    try:
        await services.replicas.store_log_starts()
    except KafkaError as error:
        code = error.code
    for partition, _, result in paced(deleted):
        result.error_code = code
        if code == ErrorCode.NONE:
            result.low_watermark = partition.log.log_start_offset


def _must_wait(deletion: DeletedRecords) -> bool:
    """Return whether followers must delete the records, too.

    Also if this broker no longer leads the partition, so that the wait fails: the log of the new leader may still have
    the records.
    """
    partition, _, result = deletion
    return not result.error_code and (bool(partition.state.followers) or not partition.is_leader)


def _partition(services: Services, topic: str, index: int) -> Partition:
    """Return the partition. Raises KafkaError if its records may not be deleted."""
    partition = services.replicas.leader(topic, index)
    if topic in INTERNAL_TOPICS:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    if not partition.log.config.has_delete_policy:
        raise KafkaError(ErrorCode.POLICY_VIOLATION)
    if partition.log.config.kbroker_archive_table:
        text = f"the records would stay readable in the archive {partition.log.config.kbroker_archive_table}"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, text)
    return partition
