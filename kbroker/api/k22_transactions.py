"""The operations of producers on their transactions: InitProducerId (key 22), versions 0 to 5; AddPartitionsToTxn (key
24), versions 0 to 5; AddOffsetsToTxn (key 25), versions 0 to 4; EndTxn (key 26), versions 0 to 5.

InitProducerId: a producer id for an idempotent producer or a transactional id.
- An idempotent producer that sends its old id and epoch (KIP-360) gets a new id, since it cannot continue its old
  sequences.
- A transactional id keeps its producer id. Each request bumps the epoch, which fences the former producer, and aborts
  its open transaction. With producer id and epoch (from version 3 on, KIP-360) only the current producer is accepted.

AddPartitionsToTxn:
- Versions 0 to 3 are sent by clients before transactions version 2 (KIP-890), for one transaction.
- Versions 4 and 5 are sent by brokers, for several transactions. They add the partitions that producers of transactions
  version 2 write to, or with `verify_only` check whether partitions are part of the transaction.
- If one partition is unknown, none is added, and the others get OPERATION_NOT_ATTEMPTED. Clients may not add internal
  topics.
- Kafka 4.3.1 never responds to a request of version 4 or 5 without transactions; here the response is empty.

AddOffsetsToTxn adds the offsets of a group. Clients of transactions version 2 do not send it; TxnOffsetCommit adds the
offsets. As in Kafka the group is not validated, and __consumer_offsets need not exist yet.

With ACLs each needs WRITE on the transactional id; AddPartitionsToTxn also on the topics: if one is refused, none is
added. An idempotent producer needs WRITE on some topic, or IDEMPOTENT_WRITE on the cluster.

EndTxn commits or aborts:
- The response is sent when the decision is committed; the transaction markers are written afterwards.
- From version 5 on the client uses transactions version 2: each transaction bumps the epoch, and the response has the
  producer id and epoch to continue with; -1 with an error.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kbroker.api.authorization import Request, allows_on_cluster, cluster, one, refusal
from kbroker.api.context import Handle, RequestContext, Services
from kbroker.api.response_errors import failed_response as error_response
from kbroker.authorization.acl import Operation, ResourceType
from kbroker.common import NO_PRODUCER_ID, KafkaError, TopicPartition
from kbroker.metadata.topics.topic_names import GROUP_METADATA_TOPIC, INTERNAL_TOPICS
from kbroker.runtime.turns import paced, yield_if_due
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k22_transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

NO_EPOCH = -1
# The first versions with the error PRODUCER_FENCED.
INIT_FENCED_VERSION = 4
FENCED_VERSION = 2
# Of AddPartitionsToTxn and of EndTxn.
BROKERS_VERSION = 4
EPOCH_BUMP_VERSION = 5

PartitionErrors = Mapping[TopicPartition, ErrorCode]


def producer_error(error: KafkaError, version: int, first_version: int = FENCED_VERSION) -> ErrorCode:
    """Return the code for the client. In older versions, INVALID_PRODUCER_EPOCH stands for PRODUCER_FENCED."""
    if error.code is ErrorCode.PRODUCER_FENCED and version < first_version:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error.code


async def init_producer_id(
    services: Services, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    try:
        producer_id, epoch = await _init_producer_id(services, request)
    except KafkaError as error:
        raise KafkaError(producer_error(error, context.version, INIT_FENCED_VERSION)) from error
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)


def _authorize_init(checked: Request, handle: Handle) -> Any:
    access = checked.access
    if checked.body.transactional_id is None and not (
        allows_on_cluster(access, Operation.IDEMPOTENT_WRITE) or access.allows_any(Operation.WRITE, ResourceType.TOPIC)
    ):
        raise refusal(ResourceType.CLUSTER)
    return one(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "transactional_id")(checked, handle)


async def _init_producer_id(services: Services, request: InitProducerIdRequest) -> tuple[int, int]:
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is None:
        return await services.producer_ids.generate_producer_id(), 0
    return await services.transactions.init_producer_id(
        request.transactional_id, request.transaction_timeout_ms, request.producer_id, request.producer_epoch
    )


async def add_offsets_to_txn(
    services: Services, context: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    partition = TopicPartition(GROUP_METADATA_TOPIC, services.groups.runtime.partition_for(request.group_id))
    try:
        await services.transactions.add_partitions(
            request.transactional_id, request.producer_id, request.producer_epoch, [partition], 0
        )
    except KafkaError as error:
        return AddOffsetsToTxnResponse(error_code=producer_error(error, context.version))
    return AddOffsetsToTxnResponse()


async def end_txn(services: Services, context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    client_version = 2 if context.version >= EPOCH_BUMP_VERSION else 0
    try:
        producer_id, epoch = await services.transactions.end_transaction(
            request.transactional_id, request.producer_id, request.producer_epoch, request.committed, client_version
        )
    except KafkaError as error:
        return EndTxnResponse(error_code=producer_error(error, context.version))
    return EndTxnResponse(producer_id=producer_id, producer_epoch=epoch)


async def add_partitions_to_txn(
    services: Services, context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    version = context.version
    if version >= BROKERS_VERSION:
        if not context.in_turns and _are_distinct(request.transactions):
            # The records of all transactions share an append, and wait for its commit together.
            loop = services.environment.loop
            tasks = [loop.create_task(_transaction_result(services, context, row)) for row in request.transactions]
            results = [await task for task in tasks]
        else:
            results = []
            for row in request.transactions:
                results.append(await _transaction_result(services, context, row))
                yield_if_due()
        return AddPartitionsToTxnResponse(results_by_transaction=results)
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    topic_results = await _topic_results(services, context, transaction)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topic_results)


def _authorize_add(checked: Request, handle: Handle) -> Any:
    if checked.context.version >= BROKERS_VERSION:
        rule = cluster(Operation.CLUSTER_ACTION)
    else:
        rule = one(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "v3_and_below_transactional_id")
    return rule(checked, handle)


def failed_response(context: RequestContext, request: Any, error: KafkaError) -> Any:
    """In AddPartitionsToTxn below version 4, the partitions have the error."""
    if isinstance(request, InitProducerIdRequest):
        return InitProducerIdResponse(error_code=error.code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH)
    if not isinstance(request, AddPartitionsToTxnRequest) or context.version >= BROKERS_VERSION:
        return error_response(context, request, error)
    transaction = AddPartitionsToTxnTransaction(topics=request.v3_and_below_topics)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_results(transaction, {}, error.code))


def _are_distinct(transactions: Sequence[AddPartitionsToTxnTransaction]) -> bool:
    return len({row.transactional_id for row in transactions}) == len(transactions)


async def _transaction_result(
    services: Services, context: RequestContext, transaction: AddPartitionsToTxnTransaction
) -> AddPartitionsToTxnResult:
    results = await _topic_results(services, context, transaction)
    return AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=results)


async def _topic_results(
    services: Services, context: RequestContext, transaction: AddPartitionsToTxnTransaction
) -> list[AddPartitionsToTxnTopicResult]:
    version = context.version
    partitions, errors = _partitions(services, context, transaction)
    if errors:
        default = ErrorCode.OPERATION_NOT_ATTEMPTED
    else:
        errors, default = await _add(services, version, transaction, partitions)
    return _results(transaction, errors, default)


def _partitions(
    services: Services, context: RequestContext, transaction: AddPartitionsToTxnTransaction
) -> tuple[list[TopicPartition], PartitionErrors]:
    """Return the partitions, and the errors of those that cannot be part of a transaction."""
    partitions = []
    errors: dict[TopicPartition, ErrorCode] = {}
    is_client = context.version < BROKERS_VERSION
    access = context.access(services) if is_client else None
    for topic in transaction.topics:
        is_refused = access is not None and not access.allows(Operation.WRITE, ResourceType.TOPIC, topic.name)
        for index in paced(topic.partitions):
            tp = TopicPartition(topic.name, index)
            partitions.append(tp)
            if is_refused or (is_client and tp.topic in INTERNAL_TOPICS):
                errors[tp] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif services.metadata.partition(*tp) is None:
                topic_image = services.metadata.topics.get(tp.topic)
                is_view = topic_image is not None and bool(topic_image.view_of)
                # The client must not retry.
                errors[tp] = ErrorCode.INVALID_TOPIC_EXCEPTION if is_view else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return partitions, errors


def _results(
    transaction: AddPartitionsToTxnTransaction, errors: PartitionErrors, default: ErrorCode
) -> list[AddPartitionsToTxnTopicResult]:
    topics = []
    for topic in paced(transaction.topics):
        results = []
        for index in paced(topic.partitions):
            error = errors.get(TopicPartition(topic.name, index), default)
            results.append(AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=error))
        topics.append(AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=results))
    return topics


async def _add(
    services: Services, version: int, transaction: AddPartitionsToTxnTransaction, partitions: Sequence[TopicPartition]
) -> tuple[PartitionErrors, ErrorCode]:
    """Add or verify partitions. Returns the errors of partitions, and the result of those without one."""
    producer = transaction.transactional_id, transaction.producer_id, transaction.producer_epoch
    try:
        if transaction.verify_only:
            return services.transactions.verify_partitions(*producer, partitions), ErrorCode.NONE
        # Brokers add partitions only for clients of transactions version 2; older clients add them themselves.
        client_version = 2 if version >= BROKERS_VERSION else 0
        await services.transactions.add_partitions(*producer, partitions, client_version)
    except KafkaError as error:
        return {}, producer_error(error, version)
    return {}, ErrorCode.NONE


AUTHORIZE = {ApiKey.INIT_PRODUCER_ID: _authorize_init, ApiKey.ADD_PARTITIONS_TO_TXN: _authorize_add}
HANDLERS = {
    ApiKey.INIT_PRODUCER_ID: init_producer_id,
    ApiKey.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: add_offsets_to_txn,
    ApiKey.END_TXN: end_txn,
}
