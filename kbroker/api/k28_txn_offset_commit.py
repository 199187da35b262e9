"""TxnOffsetCommit (key 28), versions 0 to 5: commit offsets of a group as part of a producer's transaction.

- The group's partition of __consumer_offsets must be part of the transaction. From version 5 on the client uses
  transactions version 2 (KIP-890), and this request adds the partition. Older clients have added it with
  AddOffsetsToTxn, and the transaction coordinator, perhaps on another broker, verifies that
  (transaction.partition.verification.enable).
- The group is validated after that: a member's commit must have the current generation (KIP-447). Clients that do not
  send their member, such as those before version 3, are accepted.
- Each partition that does not exist has its own error, except one that was removed from its topic; every other error
  applies to the whole request.
- TRANSACTION_ABORTABLE is returned from version 4 on.
"""

from kbroker.api.committed_offsets import is_of_removed_partition, offset_record, partition_error
from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.coordinator.group.group import Committer
from kbroker.coordinator.group.records import OffsetRecord
from kbroker.coordinator.internal_log import coordinator_error
from kbroker.coordinator.runtime.operation import RecordProducer
from kbroker.coordinator.transaction.add_partitions_to_txn_manager import ProducerIdentity
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

TRANSACTIONS_2_VERSION = 5
ABORTABLE_VERSION = 4
LOAD_IN_PROGRESS_VERSION = 2


async def handle(
    services: Services, context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    offsets: list[OffsetRecord] = []
    # The partitions that get the error of the commit, if there is one.
    existing: list[TxnOffsetCommitResponsePartition] = []
    topics = []
    now_ms = services.environment.clock.now_ms()
    max_metadata_bytes = services.config.offset_metadata_max_bytes
    for topic in paced(request.topics):
        image = services.metadata.topics.get(topic.name)
        image = image and services.metadata.resolve(image)
        partitions = []
        for partition in paced(topic.partitions):
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if image is not None:
                error = partition_error(image, partition, max_metadata_bytes)
            is_removed = image is not None and is_of_removed_partition(image, partition, request.generation_id)
            if is_removed:
                error = ErrorCode.NONE
            result = TxnOffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
            partitions.append(result)
            if error is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                existing.append(result)
            if error is ErrorCode.NONE and not is_removed:
                offsets.append(offset_record(request.group_id, topic.name, partition, now_ms))
        topics.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=partitions))
    if existing:
        try:
            await _commit(services, context.version, request, offsets)
        except KafkaError as error:
            code = error_for_client(error.code, context.version)
            for result in existing:
                result.error_code = code
    return TxnOffsetCommitResponse(topics=topics)


async def _commit(
    services: Services, version: int, request: TxnOffsetCommitRequest, offsets: list[OffsetRecord]
) -> None:
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    producer = await _verified_producer(services, version, request)
    committer = Committer(request.member_id, request.group_instance_id, request.generation_id, version)
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


def error_for_client(error: ErrorCode, version: int) -> ErrorCode:
    """Return the error code for clients of this version."""
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_VERSION:
        return ErrorCode.INVALID_TXN_STATE
    is_unreachable = error is ErrorCode.NETWORK_EXCEPTION
    error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_unreachable else coordinator_error(error)
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < LOAD_IN_PROGRESS_VERSION:
        # Clients before Kafka 2.0 crash on it.
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return error
