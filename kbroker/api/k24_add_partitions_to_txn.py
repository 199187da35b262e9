"""AddPartitionsToTxn (key 24), versions 0 to 5: partitions become part of a producer's open transaction.

- Versions 0 to 3 come from clients of transactions before version 2 (KIP-890), for one transaction.
- Versions 4 and 5 come from brokers, for several: they add what a producer of version 2 writes to, or only ask
  (`verify_only`) whether partitions belong to the transaction.
- If one partition is unknown none is added, and the others are OPERATION_NOT_ATTEMPTED. Internal topics are not for
  clients.
- Kafka 4.3.1 never answers a request of version 4 or 5 without transactions; here the answer is empty.
"""

from collections.abc import Callable, Mapping, Sequence

from kbroker.api.context import RequestContext, Services
from kbroker.api.fenced_errors import fenced
from kbroker.common import KafkaError, TopicPartition
from kbroker.metadata.topics.internal_topics import INTERNAL_TOPICS
from protocol.errors import ErrorCode
from protocol.messages.k24_add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

FIRST_FOR_BROKERS = 4
FIRST_WITH_FENCED = 2

Outcome = Callable[[TopicPartition], ErrorCode]


async def handle(
    services: Services, context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    if context.version >= FIRST_FOR_BROKERS:
        results = [
            AddPartitionsToTxnResult(
                transactional_id=one.transactional_id, topic_results=await _outcomes(services, context, one)
            )
            for one in request.transactions
        ]
        return AddPartitionsToTxnResponse(results_by_transaction=results)
    one = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=await _outcomes(services, context, one))


async def _outcomes(
    services: Services, context: RequestContext, one: AddPartitionsToTxnTransaction
) -> list[AddPartitionsToTxnTopicResult]:
    partitions = [TopicPartition(topic.name, index) for topic in one.topics for index in topic.partitions]
    faults = _faults(services, context.version, partitions)
    if faults:
        return _results(one.topics, lambda tp: faults.get(tp, ErrorCode.OPERATION_NOT_ATTEMPTED))
    try:
        outcome = await _add(services, context.version, one, partitions)
    except KafkaError as refusal:
        code = fenced(refusal, context.version, FIRST_WITH_FENCED)
        return _results(one.topics, lambda _: code)
    return _results(one.topics, outcome)


def _faults(
    services: Services, version: int, partitions: Sequence[TopicPartition]
) -> Mapping[TopicPartition, ErrorCode]:
    """The partitions that cannot be part of a transaction."""
    faults: dict[TopicPartition, ErrorCode] = {}
    for tp in partitions:
        if version < FIRST_FOR_BROKERS and tp.topic in INTERNAL_TOPICS:
            faults[tp] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif services.metadata.partition(tp.topic, tp.partition) is None:
            faults[tp] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return faults


async def _add(
    services: Services, version: int, one: AddPartitionsToTxnTransaction, partitions: Sequence[TopicPartition]
) -> Outcome:
    producer = one.transactional_id, one.producer_id, one.producer_epoch
    if one.verify_only:
        return services.transactions.verify(*producer, partitions).__getitem__
    # A broker adds for clients of version 2 only; the others add for themselves.
    client_version = 2 if version >= FIRST_FOR_BROKERS else 0
    await services.transactions.add_partitions(*producer, partitions, client_version)
    return lambda _: ErrorCode.NONE


def _results(topics: Sequence[AddPartitionsToTxnTopic], outcome: Outcome) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=outcome(TopicPartition(topic.name, index))
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]
