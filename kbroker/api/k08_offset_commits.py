"""Commits of a group's offsets: OffsetCommit (key 8), versions 2 to 10, and TxnOffsetCommit (key 28), versions 0 to 6.

Each partition that does not exist has its own error, except one that was removed from its topic (kbroker topics alter
--partitions). With ACLs both need READ on the group and on each topic, TxnOffsetCommit also WRITE on the transactional
id.

OffsetCommit:
- Topics are named by id from version 10 on.
- A member's commit must have the current generation. A commit without a member (generation -1) is accepted while the
  group has no members; simple consumers and tools that reset offsets send it.
- Versions 2 to 4 can have a retention time.
- A group that does not exist gets GROUP_ID_NOT_FOUND from version 9 on, ILLEGAL_GENERATION in earlier versions.
- The commits of one iteration of the event loop share an append, also those of one connection, which may overlap.

TxnOffsetCommit, as a part of a producer's transaction:
- Topics are named by id from version 6 on (KIP-1319).
- The group's partition of __consumer_offsets must be part of the transaction. From version 5 on the client uses
  transactions version 2 (KIP-890), and this request adds the partition. Older clients have added it with
  AddOffsetsToTxn, and the transaction coordinator, perhaps on another broker, verifies that
  (transaction.partition.verification.enable).
- The group is validated after that: a member's commit must have the current generation (KIP-447). Clients that do not
  send their member, such as those before version 3, are accepted.
- Every error that is not of one partition applies to the whole request. TRANSACTION_ABORTABLE is returned from version
  4 on.
"""

from collections.abc import Awaitable
from functools import partial

from kbroker.api.context import Overlap, RequestContext, Services
from kbroker.api.response_errors import failed_rows_response
from kbroker.common import KafkaError
from kbroker.coordinator.group.group import Committer
from kbroker.coordinator.group.records import NO_TIMESTAMP, ZERO_TOPIC_ID, OffsetAndMetadata, OffsetKey, OffsetRecord
from kbroker.coordinator.internal_log import coordinator_error
from kbroker.coordinator.runtime.operation import RecordProducer
from kbroker.coordinator.transaction.add_partitions_to_txn_manager import ProducerIdentity
from kbroker.metadata.image import TopicImage
from kbroker.runtime.delayed_response import DelayedResponse
from kbroker.runtime.turns import paced, release
from protocol.apis import ApiKey
from protocol.errors import NO_ERROR, ErrorCode
from protocol.messages.k08_offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

failed_response = failed_rows_response

# Applies to OffsetCommit: the response to TxnOffsetCommit is a coroutine's.
OVERLAP = Overlap.SAME_API

# Versions of OffsetCommit.
TOPIC_ID_VERSION = 10
DEFAULT_RETENTION = -1
# Versions of TxnOffsetCommit.
TRANSACTIONAL_TOPIC_ID_VERSION = 6
TRANSACTIONS_2_VERSION = 5
ABORTABLE_VERSION = 4
LOAD_IN_PROGRESS_VERSION = 2

CommitPartition = OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition


def partition_error(topic: TopicImage, partition: CommitPartition, max_metadata_bytes: int) -> ErrorCode:
    """Return the error of a partition whose offset no group can commit, else NONE."""
    if not 0 <= partition.partition_index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if partition.committed_metadata is not None and len(partition.committed_metadata) > max_metadata_bytes:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return NO_ERROR


def is_of_removed_partition(topic: TopicImage, partition: CommitPartition, generation_id: int) -> bool:
    """Return whether a group member commits an offset of a partition that was removed from its topic.

    The caller stores nothing and returns no error. After UNKNOWN_TOPIC_OR_PARTITION, kafka-python and the Java client
    would retry the commit for minutes, and delay the rebalance that the removal has caused. Commits without a
    generation come from tools, and get the error.
    """
    return generation_id >= 0 and topic.is_removed(partition.partition_index)


def offset_record(
    group_id: str,
    topic: str,
    partition: CommitPartition,
    commit_ms: int,
    expire_ms: int = NO_TIMESTAMP,
    topic_id: bytes = ZERO_TOPIC_ID,
) -> OffsetRecord:
    offset = OffsetAndMetadata(
        partition.committed_offset,
        partition.committed_leader_epoch,
        partition.committed_metadata or "",
        commit_ms,
        expire_ms,
        topic_id,
    )
    return OffsetRecord(OffsetKey(group_id, topic, partition.partition_index), offset)


def offset_commit(
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
    respond = partial(_respond, delayed, response, committed)
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
    delayed: DelayedResponse[OffsetCommitResponse],
    response: OffsetCommitResponse,
    committed: list[OffsetCommitResponsePartition],
    _: None,
    error: KafkaError | None,
) -> None:
    """Complete the response. `committed`: its valid or removed partitions, which all get the result of the commit."""
    if error is not None:
        code = commit_error(error.code)
        for result in committed:
            result.error_code = code
    delayed.complete(response)


def commit_error(error: ErrorCode) -> ErrorCode:
    """Return the error code for clients."""
    # The records do not fit into a batch.
    return ErrorCode.INVALID_COMMIT_OFFSET_SIZE if error is ErrorCode.UNKNOWN_SERVER_ERROR else error


async def txn_offset_commit(
    services: Services, context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    offsets: list[OffsetRecord] = []
    # The partitions that get the error of the commit, if there is one.
    existing: list[TxnOffsetCommitResponsePartition] = []
    topics = []
    now_ms = services.environment.clock.now_ms()
    metadata, max_metadata_bytes = services.metadata, services.config.offset_metadata_max_bytes
    by_id = context.version >= TRANSACTIONAL_TOPIC_ID_VERSION
    unknown_topic = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    generation_id = request.generation_id_or_member_epoch
    for topic in paced(request.topics):
        image = metadata.topics_by_id.get(topic.topic_id) if by_id else metadata.topics.get(topic.name)
        image = image and metadata.resolve(image)
        partitions = []
        for partition in paced(topic.partitions):
            error = unknown_topic if image is None else partition_error(image, partition, max_metadata_bytes)
            is_removed = image is not None and is_of_removed_partition(image, partition, generation_id)
            if is_removed:
                error = ErrorCode.NONE
            result = TxnOffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
            partitions.append(result)
            if error in (ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE):
                existing.append(result)
            if image is not None and error is ErrorCode.NONE and not is_removed:
                offsets.append(offset_record(request.group_id, image.name, partition, now_ms, topic_id=image.topic_id))
        topics.append(TxnOffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
    if existing:
        try:
            await _commit(services, context.version, request, offsets)
        except KafkaError as error:
            code = transactional_commit_error(error.code, context.version)
            for result in existing:
                result.error_code = code
    return TxnOffsetCommitResponse(topics=topics)


async def _commit(
    services: Services, version: int, request: TxnOffsetCommitRequest, offsets: list[OffsetRecord]
) -> None:
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    producer = await _verified_producer(services, version, request)
    committer = Committer(request.member_id, request.group_instance_id, request.generation_id_or_member_epoch, version)
    await services.groups.commit_transactional_offsets(request.group_id, committer, producer, offsets)


async def _verified_producer(services: Services, version: int, request: TxnOffsetCommitRequest) -> RecordProducer:
    """Add or verify the group's partition in the transaction. Raises KafkaError."""
    producer = ProducerIdentity(request.transactional_id, request.producer_id, request.producer_epoch)
    verify = services.config.transaction_partition_verification_enable
    tp = services.groups.runtime.context(request.group_id).tp
    guard = services.replicas.begin_verification(tp, request.producer_id, request.producer_epoch)
    if guard is not None and (verify or version >= TRANSACTIONS_2_VERSION):
        manager = services.add_partitions_to_txn
        send = manager.add if version >= TRANSACTIONS_2_VERSION else manager.verify
        error = (await send(producer, [tp]))[tp]
        if error is not ErrorCode.NONE:
            raise KafkaError(error)
    return RecordProducer(request.producer_id, request.producer_epoch, guard, verify)


def transactional_commit_error(error: ErrorCode, version: int) -> ErrorCode:
    """Return the error code for clients of this version."""
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    newer = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.STALE_MEMBER_EPOCH)
    if error in newer and version < TRANSACTIONAL_TOPIC_ID_VERSION:
        return ErrorCode.ILLEGAL_GENERATION
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_VERSION:
        return ErrorCode.INVALID_TXN_STATE
    is_unreachable = error is ErrorCode.NETWORK_EXCEPTION
    error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_unreachable else coordinator_error(error)
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < LOAD_IN_PROGRESS_VERSION:
        # Clients before Kafka 2.0 crash on it.
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return error


HANDLERS = {ApiKey.OFFSET_COMMIT: offset_commit, ApiKey.TXN_OFFSET_COMMIT: txn_offset_commit}
