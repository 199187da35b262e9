"""TxnOffsetCommit (key 28), versions 0 to 5: offsets of a group that count when the producer's transaction commits.

- The group's partition of __consumer_offsets has to be part of the transaction. From version 5 on the client speaks
  transactions version 2 (KIP-890) and this request adds it; older clients have added it (AddOffsetsToTxn), and the
  transaction coordinator is asked whether they have (transaction.partition.verification.enable).
- Only then the group is looked at: a member's commit must be of the current generation (KIP-447). Clients that do not
  say who they are, as those of versions before 3, are believed.
- Partitions that do not exist are refused one by one; all else is the result of the whole.
- TRANSACTION_ABORTABLE is for version 4 and later.
"""

from __future__ import annotations

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.group.records import OffsetAndMetadata
from kbroker.coordinator.internal_log import GROUP_METADATA_TOPIC
from kbroker.coordinator.runtime.batches import Producer
from kbroker.coordinator.runtime.coordinator_context import coordinator_error
from kbroker.metadata.image import TopicImage
from protocol.errors import ErrorCode
from protocol.messages.k28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

FIRST_OF_VERSION_2 = 5
FIRST_WITH_ABORTABLE = 4
FIRST_WITH_LOADING = 2

Offsets = list[tuple[str, int, OffsetAndMetadata]]


async def handle(
    services: Services, context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    offsets: Offsets = []
    # Answers that have the result of the whole if it is an error, and those whose offsets were not too large.
    pending: list[TxnOffsetCommitResponsePartition] = []
    topics = []
    now_ms = services.environment.clock.now_ms()
    limit = services.config.offset_metadata_max_bytes
    for wanted in request.topics:
        image = services.metadata.topics.get(wanted.name)
        partitions = []
        for one in wanted.partitions:
            error = _refusal(image, one, limit)
            answer = TxnOffsetCommitResponsePartition(partition_index=one.partition_index, error_code=error)
            partitions.append(answer)
            if error is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                pending.append(answer)
            if error is ErrorCode.NONE:
                offsets.append((wanted.name, one.partition_index, _written(one, now_ms)))
        topics.append(TxnOffsetCommitResponseTopic(name=wanted.name, partitions=partitions))
    if pending:
        try:
            await _commit(services, context.version, request, offsets)
        except KafkaError as refusal:
            code = for_client(refusal.code, context.version)
            for answer in pending:
                answer.error_code = code
    return TxnOffsetCommitResponse(topics=topics)


def _refusal(image: TopicImage | None, one: TxnOffsetCommitRequestPartition, limit: int) -> ErrorCode:
    if image is None or not 0 <= one.partition_index < len(image.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if one.committed_metadata is not None and len(one.committed_metadata) > limit:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def _written(one: TxnOffsetCommitRequestPartition, now_ms: int) -> OffsetAndMetadata:
    return OffsetAndMetadata(
        offset=one.committed_offset,
        leader_epoch=one.committed_leader_epoch,
        metadata=one.committed_metadata or "",
        commit_ms=now_ms,
    )


async def _commit(services: Services, version: int, request: TxnOffsetCommitRequest, offsets: Offsets) -> None:
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    producer = await _verified(services, version, request)
    await services.groups.commit_in_transaction(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        producer,
        offsets,
    )


async def _verified(services: Services, version: int, request: TxnOffsetCommitRequest) -> Producer:
    """The producer, when the group's partition is known to be part of its transaction. Raises KafkaError."""
    groups, transactions = services.groups, services.transactions
    verify = services.config.transaction_partition_verification_enable
    guard = groups.begin_verification(request.group_id, request.producer_id, request.producer_epoch)
    if guard is not None:
        tp = TopicPartition(GROUP_METADATA_TOPIC, groups.partition_for(request.group_id))
        identity = request.transactional_id, request.producer_id, request.producer_epoch
        if version >= FIRST_OF_VERSION_2:
            await transactions.add_partitions(*identity, [tp], 2)
        elif verify:
            error = transactions.verify(*identity, [tp])[tp]
            if error is not ErrorCode.NONE:
                raise KafkaError(error)
    return Producer(request.producer_id, request.producer_epoch, guard, verify)


def for_client(code: ErrorCode, version: int) -> ErrorCode:
    """What clients of a version are told."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < FIRST_WITH_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if code is ErrorCode.NETWORK_EXCEPTION else coordinator_error(code)
    if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < FIRST_WITH_LOADING:
        # Clients before 2.0 crash at it.
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code
