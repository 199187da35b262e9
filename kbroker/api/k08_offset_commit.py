"""OffsetCommit (key 8), versions 2 to 10: keep how far a group has read.

- Topics are named by id from version 10 on; partitions that do not exist are refused one by one.
- A member's commit must be of the current generation. Without member and generation (-1) anybody may commit while
  the group has no members: simple consumers, administrators resetting offsets.
- Versions 2 to 4 may bring a retention time of their own.
- A group that does not exist is GROUP_ID_NOT_FOUND from version 9 on, ILLEGAL_GENERATION before.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.coordinator.group.records import NO_TIMESTAMP, OffsetAndMetadata
from kbroker.metadata.image import MetadataImage, TopicImage
from protocol.errors import ErrorCode
from protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

TOPIC_ID_VERSION = 10
GROUP_NOT_FOUND_VERSION = 9
BROKERS_RETENTION = -1

Offsets = list[tuple[str, int, OffsetAndMetadata]]
# Answered partitions; those that wait for the commit's own result have NONE.
Answer = list[OffsetCommitResponsePartition]


async def handle(services: Services, context: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse:
    offsets: Offsets = []
    pending: Answer = []
    topics = []
    expire_ms = NO_TIMESTAMP
    now_ms = services.environment.clock.now_ms()
    if request.retention_time_ms != BROKERS_RETENTION:
        expire_ms = now_ms + request.retention_time_ms
    limit = services.config.offset_metadata_max_bytes
    exists = False
    for wanted in request.topics:
        image = find_topic(services.metadata, wanted, context.version)
        partitions = []
        for one in wanted.partitions:
            error = _refusal(image, one, limit, by_id=context.version >= TOPIC_ID_VERSION)
            answer = OffsetCommitResponsePartition(partition_index=one.partition_index, error_code=error)
            partitions.append(answer)
            exists = exists or error in (ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE)
            if error is ErrorCode.NONE and image is not None:
                pending.append(answer)
                offsets.append((image.name, one.partition_index, _committed(one, image.topic_id, now_ms, expire_ms)))
        topics.append(OffsetCommitResponseTopic(name=wanted.name, topic_id=wanted.topic_id, partitions=partitions))
    if exists:
        await _commit(services, context.version, request, offsets, pending)
    return OffsetCommitResponse(topics=topics)


def find_topic(metadata: MetadataImage, wanted: OffsetCommitRequestTopic, version: int) -> TopicImage | None:
    if version >= TOPIC_ID_VERSION:
        return metadata.topics_by_id.get(wanted.topic_id)
    return metadata.topics.get(wanted.name)


def _refusal(image: TopicImage | None, one: OffsetCommitRequestPartition, limit: int, *, by_id: bool) -> ErrorCode:
    if image is None:
        return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not 0 <= one.partition_index < len(image.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if one.committed_metadata is not None and len(one.committed_metadata) > limit:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def _committed(one: OffsetCommitRequestPartition, topic_id: bytes, now_ms: int, expire_ms: int) -> OffsetAndMetadata:
    return OffsetAndMetadata(
        offset=one.committed_offset,
        leader_epoch=one.committed_leader_epoch,
        metadata=one.committed_metadata or "",
        commit_ms=now_ms,
        expire_ms=expire_ms,
        topic_id=topic_id,
    )


async def _commit(
    services: Services, version: int, request: OffsetCommitRequest, offsets: Offsets, pending: Answer
) -> None:
    """Commit, and give every partition that waits the result if it is an error."""
    try:
        await services.groups.commit(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            offsets,
        )
    except KafkaError as refusal:
        error = _for_client(refusal.code, version)
        for answer in pending:
            answer.error_code = error


def _for_client(error: ErrorCode, version: int) -> ErrorCode:
    if error is ErrorCode.GROUP_ID_NOT_FOUND and version < GROUP_NOT_FOUND_VERSION:
        return ErrorCode.ILLEGAL_GENERATION
    # The coordinator's word for a batch that its log does not take.
    return ErrorCode.INVALID_COMMIT_OFFSET_SIZE if error is ErrorCode.UNKNOWN_SERVER_ERROR else error
