"""Requests about transactions and their producers, to Apache Kafka as well (KIP-664).

Two places know a transaction: its coordinator knows the producer and the partitions in it, and the leader of each
partition knows which producers have a transaction open there. A transaction hangs if it is open in a partition and
unknown to its coordinator.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kbroker.cli.common.client import error_code_text, raise_error
from kbroker.cli.common.errors import CliError
from kbroker.cli.common.output import ProgressBar
from kbroker.client.admin import MAX_PARTITIONS, RETRY_EVERY_S, RETRY_FOR_S, chunks, describe_cluster
from kbroker.client.cluster import ClusterClient
from kbroker.client.requests import COORDINATOR_ERRORS, TRANSACTION, Partition, by_topic
from protocol.messages.k22_transactions import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.k27_write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from protocol.messages.k61_describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    ProducerState,
    TopicRequest,
)
from protocol.messages.k65_describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from protocol.messages.k66_list_transactions import ListTransactionsRequest, ListTransactionsResponse

# States in which a transaction is neither open nor being completed.
IDLE_STATES = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})


class TransactionFilter(NamedTuple):
    """Selects the transactions to list, by state, producer id, age (KIP-994) and a pattern (KIP-1152)."""

    states: Sequence[str] = ()
    producer_ids: Sequence[int] = ()
    longer_than_ms: int | None = None
    pattern: str | None = None


class TransactionListing(NamedTuple):
    """A transaction in a ListTransactions response; `coordinator` is a broker id."""

    transactional_id: str
    state: str
    producer_id: int
    coordinator: int


class TransactionDescription(NamedTuple):
    """A transaction in a DescribeTransactions response; `start_ms` is None if no transaction is open."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int | None
    partitions: frozenset[Partition]
    coordinator: int


class PartitionProducer(NamedTuple):
    """A producer in a DescribeProducers response; None where it has no record, no marker or no open transaction."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    last_sequence: int | None
    last_timestamp: int | None
    coordinator_epoch: int | None
    start_offset: int | None


def list_transactions(client: ClusterClient, selection: TransactionFilter) -> list[TransactionListing]:
    """Return the transactions of all coordinators, sorted by transactional id."""
    listings = []
    for broker_id in sorted(broker.broker_id for broker in describe_cluster(client).brokers):
        response = _list_transactions_of(client, broker_id, selection)
        listings += [
            TransactionListing(row.transactional_id, row.transaction_state, row.producer_id, broker_id)
            for row in response.transaction_states
        ]
    if selection.longer_than_ms is not None:
        # The start time of a transaction that never began is -1, so it passes any duration filter.
        listings = [listing for listing in listings if listing.state not in IDLE_STATES]
    return sorted(listings)


def _list_transactions_of(
    client: ClusterClient, broker_id: int, selection: TransactionFilter
) -> ListTransactionsResponse:
    request = ListTransactionsRequest(
        state_filters=list(selection.states),
        producer_id_filters=list(selection.producer_ids),
        duration_filter=-1 if selection.longer_than_ms is None else selection.longer_than_ms,
        transactional_id_pattern=selection.pattern,
    )
    deadline = time.monotonic() + RETRY_FOR_S
    while True:
        response = client.request(request, ListTransactionsResponse, broker_id)
        if response.error_code not in COORDINATOR_ERRORS or time.monotonic() >= deadline:
            raise_error(response.error_code)
            return response
        time.sleep(RETRY_EVERY_S)


def describe_transactions(
    client: ClusterClient, transactional_ids: Sequence[str]
) -> dict[str, TransactionDescription | int]:
    """Return descriptions by transactional id, or an error code in place of a description."""
    return {transactional_id: _describe_transaction(client, transactional_id) for transactional_id in transactional_ids}


def _describe_transaction(client: ClusterClient, transactional_id: str) -> TransactionDescription | int:
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    response = client.coordinated(
        transactional_id,
        request,
        DescribeTransactionsResponse,
        lambda response: response.transaction_states[0].error_code,
        TRANSACTION,
    )
    [row] = response.transaction_states
    return row.error_code or _description(row, client.find_coordinator(transactional_id, TRANSACTION).node_id)


def _description(row: TransactionState, coordinator: int) -> TransactionDescription:
    return TransactionDescription(
        row.transactional_id,
        row.transaction_state,
        row.producer_id,
        row.producer_epoch,
        row.transaction_timeout_ms,
        _none_if_negative(row.transaction_start_time_ms),
        frozenset((topic.topic, partition) for topic in row.topics for partition in topic.partitions),
        coordinator,
    )


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
) -> Iterable[PartitionProducer]:
    topics = [TopicRequest(name=topic, partition_indexes=indexes) for topic, indexes in by_topic(partitions).items()]
    request = DescribeProducersRequest(topics=topics)
    for topic in client.request(request, DescribeProducersResponse, broker_id).topics:
        for row in topic.partitions:
            if row.error_code:
                name = f"{topic.name}-{row.partition_index}"
                raise CliError(f"{name}: {error_code_text(row.error_code, row.error_message)}")
            for producer in row.active_producers:
                yield _partition_producer(topic.name, row.partition_index, producer)


def _partition_producer(topic: str, partition: int, row: ProducerState) -> PartitionProducer:
    return PartitionProducer(
        topic,
        partition,
        row.producer_id,
        row.producer_epoch,
        _none_if_negative(row.last_sequence),
        _none_if_negative(row.last_timestamp),
        _none_if_negative(row.coordinator_epoch),
        _none_if_negative(row.current_txn_start_offset),
    )


def _none_if_negative(number: int) -> int | None:
    return None if number < 0 else number


class AbortMarker(NamedTuple):
    """The fields of a transaction marker that aborts a transaction."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int


def write_abort_marker(client: ClusterClient, leader: int, partition: Partition, marker: AbortMarker) -> int:
    """Write an abort marker into one partition; returns the error code, 0 for success."""
    writable = WritableTxnMarker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=partition[0], partition_indexes=[partition[1]])],
        coordinator_epoch=marker.coordinator_epoch,
    )
    response = client.request(WriteTxnMarkersRequest(markers=[writable]), WriteTxnMarkersResponse, leader)
    return response.markers[0].topics[0].partitions[0].error_code


def fence_producer(client: ClusterClient, transactional_id: str, timeout_ms: int) -> None:
    """Fence the producer of a transactional id and abort its open transaction.

    Sends InitProducerId as a new producer does, until no transaction is being completed.
    """
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
    response = client.coordinated(
        transactional_id, request, InitProducerIdResponse, lambda response: response.error_code, TRANSACTION
    )
    raise_error(response.error_code, subject=f"transactional id {transactional_id}: ")
