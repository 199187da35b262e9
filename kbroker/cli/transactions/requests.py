"""Requests about transactions and their producers, to Apache Kafka as well (KIP-664).

Two places know a transaction: its coordinator knows the producer and the partitions in it, and the leader of each
partition knows which producers have a transaction open there. A transaction hangs if it is open in a partition and
unknown to its coordinator.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kbroker.cli.common.client import error_code_text, raise_error
from kbroker.cli.common.errors import CliError
from kbroker.cli.common.output import ProgressBar
from kbroker.client.admin import MAX_PARTITIONS, RETRY_FOR_S, chunks, describe_cluster
from kbroker.client.cluster import ClusterClient
from kbroker.client.requests import COORDINATOR_ERRORS, TRANSACTION, Partition, by_topic
from kbroker.client.retries import Retries
from protocol.errors import error_name
from protocol.messages.k61_describe_producers import DescribeProducersRequest, DescribeProducersResponse, TopicRequest
from protocol.messages.k65_describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from protocol.messages.k66_list_transactions import ListTransactionsRequest, ListTransactionsResponse

# States in which a transaction is neither open nor being completed.
IDLE_STATES = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})


def list_transactions(client: ClusterClient, selection: ListTransactionsRequest) -> list[dict[str, Any]]:
    """Return the JSON of the transactions of all coordinators, sorted by transactional id."""
    listings = [
        {
            "transactional_id": row.transactional_id,
            "state": row.transaction_state,
            "producer_id": row.producer_id,
            "coordinator": broker.broker_id,
        }
        for broker in describe_cluster(client).brokers
        for row in _list_transactions_of(client, broker.broker_id, selection).transaction_states
        # The start time of a transaction that never began is -1, so it passes any duration filter.
        if selection.duration_filter < 0 or row.transaction_state not in IDLE_STATES
    ]
    return sorted(listings, key=lambda row: list(row.values()))


def _list_transactions_of(
    client: ClusterClient, broker_id: int, selection: ListTransactionsRequest
) -> ListTransactionsResponse:
    retries = Retries(client.on_wait, RETRY_FOR_S)
    while True:
        response = client.request(selection, ListTransactionsResponse, broker_id)
        if response.error_code not in COORDINATOR_ERRORS or not retries.again(error_name(response.error_code)):
            raise_error(response.error_code)
            return response


def describe_transaction(client: ClusterClient, transactional_id: str) -> TransactionState:
    """Return what the coordinator knows, or a row with an error code."""
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])

    def error_code(response: DescribeTransactionsResponse) -> int:
        return response.transaction_states[0].error_code

    response = client.coordinated(transactional_id, request, DescribeTransactionsResponse, error_code, TRANSACTION)
    return response.transaction_states[0]


class PartitionProducer(NamedTuple):
    """A producer in a DescribeProducers response; None where it has no record, no marker or no open transaction."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    last_sequence: int | None
    last_timestamp_ms: int | None
    coordinator_epoch: int | None
    start_offset: int | None


def describe_producers(client: ClusterClient, partitions: Mapping[Partition, int]) -> list[PartitionProducer]:
    """Return the producers of partitions, sorted; `partitions` maps each to the broker that receives the request."""
    by_broker: dict[int, list[Partition]] = {}
    for partition, broker_id in partitions.items():
        by_broker.setdefault(broker_id, []).append(partition)
    producers: list[PartitionProducer] = []
    with ProgressBar("describing producers", len(partitions)) as progress:
        for broker_id, of_broker in by_broker.items():
            for chunk in chunks(sorted(of_broker), MAX_PARTITIONS):
                producers += _describe_producers_of(client, broker_id, chunk)
                progress.advance(len(chunk))
    return sorted(producers)


def _describe_producers_of(
    client: ClusterClient, broker_id: int, partitions: Sequence[Partition]
) -> Iterator[PartitionProducer]:
    topics = [TopicRequest(name=topic, partition_indexes=indexes) for topic, indexes in by_topic(partitions).items()]
    request = DescribeProducersRequest(topics=topics)
    for topic in client.request(request, DescribeProducersResponse, broker_id).topics:
        for row in topic.partitions:
            if row.error_code:
                name = f"{topic.name}-{row.partition_index}"
                raise CliError(f"{name}: {error_code_text(row.error_code, row.error_message)}")
            for producer in row.active_producers:
                others = (
                    producer.last_sequence,
                    producer.last_timestamp,
                    producer.coordinator_epoch,
                    producer.current_txn_start_offset,
                )
                yield PartitionProducer(
                    topic.name,
                    row.partition_index,
                    producer.producer_id,
                    producer.producer_epoch,
                    *(None if number < 0 else number for number in others),
                )


def with_old_transaction(producers: Iterable[PartitionProducer], before_ms: int) -> list[PartitionProducer]:
    """Return producers with an open transaction whose last record is older than `before_ms`."""
    return [row for row in producers if row.start_offset is not None and (row.last_timestamp_ms or 0) < before_ms]


def unknown_to_coordinators(
    producers: Iterable[PartitionProducer], transactions: Iterable[TransactionState]
) -> list[PartitionProducer]:
    """Return producers whose coordinators know no transaction of theirs with this partition."""
    known = {
        (row.producer_id, topic.topic, partition)
        for row in transactions
        for topic in row.topics
        for partition in topic.partitions
    }
    return [row for row in producers if (row.producer_id, row.topic, row.partition) not in known]
