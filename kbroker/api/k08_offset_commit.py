"""OffsetCommit (key 8), versions 2 to 10: commit the offsets of a group.

- Topics are named by id from version 10 on. Each partition that does not exist has its own error, except one that was
  removed from its topic (kbroker topics alter --partitions).
- A member's commit must have the current generation. A commit without a member (generation -1) is accepted while the
  group has no members; simple consumers and tools that reset offsets send it.
- Versions 2 to 4 can have a retention time.
- A group that does not exist gets GROUP_ID_NOT_FOUND from version 9 on, ILLEGAL_GENERATION in earlier versions.
- The commits of one iteration of the event loop share an append, also those of one connection, which may overlap.
"""

from collections.abc import Awaitable
from functools import partial

from kbroker.api.committed_offsets import is_of_removed_partition, offset_record, partition_error
from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.coordinator.group.group import Committer
from kbroker.coordinator.group.records import NO_TIMESTAMP, OffsetRecord
from kbroker.runtime.delayed_response import DelayedResponse
from kbroker.runtime.turns import paced, release
from protocol.errors import NO_ERROR, ErrorCode
from protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

TOPIC_ID_VERSION = 10
GROUP_ID_NOT_FOUND_VERSION = 9
DEFAULT_RETENTION = -1


def handle(
    services: Services, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    now_ms = services.environment.clock.now_ms()
    expire_ms = NO_TIMESTAMP
    if request.retention_time_ms != DEFAULT_RETENTION:
        expire_ms = now_ms + request.retention_time_ms
    metadata, max_metadata_bytes = services.metadata, services.config.offset_metadata_max_bytes
    by_id = context.version >= TOPIC_ID_VERSION
    generation_id = request.generation_id_or_member_epoch
    unknown_topic = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    offsets: list[OffsetRecord] = []
    committed: list[OffsetCommitResponsePartition] = []
    topics = []
    has_large_metadata = False
    for topic in paced(request.topics):
        image = metadata.topics_by_id.get(topic.topic_id) if by_id else metadata.topics.get(topic.name)
        image = image and metadata.resolve(image)
        partitions = []
        for partition in paced(topic.partitions):
            error = unknown_topic if image is None else partition_error(image, partition, max_metadata_bytes)
            result = OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
            partitions.append(result)
            if image is not None and error is NO_ERROR:
                committed.append(result)
                offsets.append(
                    offset_record(request.group_id, image.name, partition, now_ms, expire_ms, image.topic_id)
                )
            elif error is ErrorCode.OFFSET_METADATA_TOO_LARGE:
                has_large_metadata = True
            elif image is not None and is_of_removed_partition(image, partition, generation_id):
                result.error_code = NO_ERROR
                committed.append(result)
        topics.append(OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
    response = OffsetCommitResponse(topics=topics)
    if not committed and not has_large_metadata:
        return response
    delayed: DelayedResponse[OffsetCommitResponse] = DelayedResponse()
    respond = partial(_respond, context.version, delayed, response, committed)
    try:
        committer = Committer(request.member_id, request.group_instance_id, generation_id, context.version)
        services.groups.commit_offsets(request.group_id, committer, offsets, respond)
    except KafkaError as error:
        respond(None, error)
    if delayed.is_done:
        # The commit was refused. Freeing 100,000 records at once takes 30 ms.
        release(offsets)
    return delayed


def _respond(
    version: int,
    delayed: DelayedResponse[OffsetCommitResponse],
    response: OffsetCommitResponse,
    committed: list[OffsetCommitResponsePartition],
    _: None,
    error: KafkaError | None,
) -> None:
    """Complete the response. `committed`: its valid or removed partitions, which all get the result of the commit."""
    if error is not None:
        code = error_for_client(error.code, version)
        for result in committed:
            result.error_code = code
    delayed.complete(response)


def error_for_client(error: ErrorCode, version: int) -> ErrorCode:
    """Return the error code for clients of this version."""
    if error is ErrorCode.GROUP_ID_NOT_FOUND and version < GROUP_ID_NOT_FOUND_VERSION:
        return ErrorCode.ILLEGAL_GENERATION
    # The records do not fit into a batch.
    return ErrorCode.INVALID_COMMIT_OFFSET_SIZE if error is ErrorCode.UNKNOWN_SERVER_ERROR else error
