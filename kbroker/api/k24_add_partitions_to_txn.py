"""AddPartitionsToTxn (key 24), versions 0 to 5: add partitions to a producer's open transaction.

- Versions 0 to 3 are sent by clients before transactions version 2 (KIP-890), for one transaction.
- Versions 4 and 5 are sent by brokers, for several transactions. They add the partitions that producers of transactions
  version 2 write to, or with `verify_only` check whether partitions are part of the transaction.
- If one partition is unknown, none is added, and the others get OPERATION_NOT_ATTEMPTED. Clients may not add internal
  topics.
- Kafka 4.3.1 never responds to a request of version 4 or 5 without transactions; here the response is empty.
"""

from collections.abc import Mapping, Sequence

from kbroker.api.context import RequestContext, Services
from kbroker.api.producer_errors import producer_error
from kbroker.common import KafkaError, TopicPartition
from kbroker.metadata.topics.topic_names import INTERNAL_TOPICS
from kbroker.runtime.turns import paced, yield_if_due
from protocol.errors import ErrorCode
from protocol.messages.k24_add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

BROKERS_VERSION = 4
FENCED_VERSION = 2

PartitionErrors = Mapping[TopicPartition, ErrorCode]


async def handle(
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
    partitions, errors = _partitions(services, version, transaction)
    if errors:
        default = ErrorCode.OPERATION_NOT_ATTEMPTED
    else:
        errors, default = await _add(services, version, transaction, partitions)
    return _results(transaction, errors, default)


def _partitions(
    services: Services, version: int, transaction: AddPartitionsToTxnTransaction
) -> tuple[list[TopicPartition], PartitionErrors]:
    """Return the partitions, and the errors of those that cannot be part of a transaction."""
    partitions = []
    errors: dict[TopicPartition, ErrorCode] = {}
    for topic in transaction.topics:
        for index in paced(topic.partitions):
            tp = TopicPartition(topic.name, index)
            partitions.append(tp)
            if version < BROKERS_VERSION and tp.topic in INTERNAL_TOPICS:
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
    services: Services,
    version: int,
    transaction: AddPartitionsToTxnTransaction,
    partitions: Sequence[TopicPartition],
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
        return {}, producer_error(error, version, FENCED_VERSION)
    return {}, ErrorCode.NONE
