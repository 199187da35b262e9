"""DescribeTransactions (key 65), version 0 (KIP-664): the open or last transaction of each transactional id."""

from collections.abc import Awaitable, Iterable
from functools import partial

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError, TopicPartition
from kbroker.runtime.slices import Steps, at_once_or_in_slices, each_once
from protocol.messages.k65_describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)


def handle(
    services: Services, context: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse | Awaitable[DescribeTransactionsResponse]:
    return at_once_or_in_slices(context.slices, _transactions(services, request))


def _transactions(services: Services, request: DescribeTransactionsRequest) -> Steps[DescribeTransactionsResponse]:
    states = yield from each_once(partial(_described, services), request.transactional_ids)
    return DescribeTransactionsResponse(transaction_states=states)


def is_large(services: Services, context: RequestContext, request: DescribeTransactionsRequest) -> bool:
    """A transaction may have thousands of partitions."""
    return True


def _described(services: Services, transactional_id: str) -> Steps[TransactionState]:
    yield
    try:
        metadata = services.transactions.describe(transactional_id)
    except KafkaError as error:
        return TransactionState(error_code=error.code, transactional_id=transactional_id)
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=metadata.state.state_name,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_start_time_ms=metadata.start_ms,
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        topics=_by_topic(metadata.partitions),
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> list[TopicData]:
    topics: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        topics.setdefault(tp.topic, []).append(tp.partition)
    return [TopicData(topic=name, partitions=indexes) for name, indexes in topics.items()]
