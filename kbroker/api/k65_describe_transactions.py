"""DescribeTransactions (key 65), version 0 (KIP-664): the open or last transaction of each transactional id.

It needs DESCRIBE on the id. Topics that the client may not describe are left out.
"""

from collections.abc import Iterable
from functools import cache, partial

from kbroker.api.context import RequestContext, Services
from kbroker.authorization.acl import Operation, ResourceType
from kbroker.authorization.authorizer import Access
from kbroker.common import KafkaError, TopicPartition
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k65_describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)

# A transaction may have thousands of partitions.
RUNS_IN_TURNS = True


def handle(
    services: Services, context: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    # Equal ids have the same result: a large transaction that is named 10,000 times would otherwise take gigabytes.
    describe = cache(partial(_described, services, context.access(services)))
    states = [describe(transactional_id) for transactional_id in paced(request.transactional_ids)]
    return DescribeTransactionsResponse(transaction_states=states)


def _described(services: Services, access: Access | None, transactional_id: str) -> TransactionState:
    try:
        if access is not None and not access.allows(
            Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id
        ):
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
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
        topics=[
            row
            for row in _by_topic(metadata.partitions)
            if access is None or access.allows(Operation.DESCRIBE, ResourceType.TOPIC, row.topic)
        ],
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> list[TopicData]:
    topics: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        topics.setdefault(tp.topic, []).append(tp.partition)
    return [TopicData(topic=name, partitions=indexes) for name, indexes in topics.items()]
