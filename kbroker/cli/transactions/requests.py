"""Requests about transactions and their producers, to Apache Kafka as well (KIP-664).

Two places know a transaction: its coordinator knows the producer and the partitions in it, and the leader of each
partition knows which producers have a transaction open there. A transaction hangs if it is open in a partition and
unknown to its coordinator.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from kbroker.cli.common.client import chunks, error_code_text, send_request
from kbroker.cli.common.errors import CliError
from kbroker.cli.common.progress import ProgressBar
from protocol.errors import ErrorCode

Response = TypeVar("Response")
Partition = tuple[str, int]

MAX_PARTITIONS = 1000  # per request
RETRY_FOR_S = 30.0
RETRY_EVERY_S = 0.1
# States in which a transaction is neither open nor being completed.
IDLE_STATES = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})
# A coordinator is loading or moving, or a transaction is being completed.
RETRIABLE_ERRORS = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)


class TransactionFilter(NamedTuple):
    """Selects the transactions to list, by state, producer id, age and a pattern."""

    states: Sequence[str] = ()
    producer_ids: Sequence[int] = ()
    longer_than_ms: int | None = None
    pattern: str | None = None

    def min_version(self) -> int:
        """Return the first version of ListTransactions with these fields: durations (KIP-994), patterns (KIP-1152)."""
        return 2 if self.pattern is not None else 1 if self.longer_than_ms is not None else 0


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


def list_transactions(client: Any, selection: TransactionFilter) -> list[TransactionListing]:
    """Return the transactions of all coordinators, sorted by transactional id."""
    listings = []
    for broker_id in sorted(broker["broker_id"] for broker in client.describe_cluster()["brokers"]):
        response = _list_transactions_of(client, broker_id, selection)
        listings += [
            TransactionListing(row.transactional_id, row.transaction_state, row.producer_id, broker_id)
            for row in response.transaction_states
        ]
    if selection.longer_than_ms is not None:
        # The start time of a transaction that never began is -1, so it passes any duration filter.
        listings = [listing for listing in listings if listing.state not in IDLE_STATES]
    return sorted(listings)


def _list_transactions_of(client: Any, broker_id: int, selection: TransactionFilter) -> Any:
    from kafka.protocol.admin import ListTransactionsRequest

    request = ListTransactionsRequest(
        state_filters=list(selection.states),
        producer_id_filters=list(selection.producer_ids),
        duration_filter=-1 if selection.longer_than_ms is None else selection.longer_than_ms,
        transactional_id_pattern=selection.pattern,
        min_version=selection.min_version(),
    )

    def send() -> tuple[int, Any]:
        response = send_request(client, request, broker_id)
        return response.error_code, response

    return _raise_error(*_retry(send))


def describe_transactions(client: Any, transactional_ids: Sequence[str]) -> dict[str, TransactionDescription | int]:
    """Return descriptions by transactional id, or an error code in place of a description."""
    return {transactional_id: _describe_transaction(client, transactional_id) for transactional_id in transactional_ids}


def _describe_transaction(client: Any, transactional_id: str) -> TransactionDescription | int:
    from kafka.protocol.admin import DescribeTransactionsRequest

    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])

    def send() -> tuple[int, TransactionDescription | None]:
        coordinator = _find_coordinator(client, transactional_id)
        [row] = send_request(client, request, coordinator).transaction_states
        return row.error_code, None if row.error_code else _description(row, coordinator)

    code, description = _retry(send)
    return code if description is None else description


def _description(row: Any, coordinator: int) -> TransactionDescription:
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


def _find_coordinator(client: Any, transactional_id: str) -> int:
    """Return the broker id of the coordinator. Kafka creates __transaction_state on the first such request."""
    from kafka.protocol.metadata import FindCoordinatorRequest

    request = FindCoordinatorRequest(key_type=1, coordinator_keys=[transactional_id], min_version=4)

    def send() -> tuple[int, int]:
        [coordinator] = send_request(client, request).coordinators
        return coordinator.error_code, coordinator.node_id

    return _raise_error(*_retry(send), f"transactional id {transactional_id}: ")


def describe_producers(client: Any, partitions: Mapping[Partition, int]) -> list[PartitionProducer]:
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


def _describe_producers_of(client: Any, broker_id: int, partitions: Sequence[Partition]) -> Iterable[PartitionProducer]:
    from kafka.protocol.admin import DescribeProducersRequest

    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    Topic = DescribeProducersRequest.TopicRequest
    request = DescribeProducersRequest(
        topics=[Topic(name=topic, partition_indexes=indexes) for topic, indexes in by_topic.items()]
    )
    for topic in send_request(client, request, broker_id).topics:
        for row in topic.partitions:
            if row.error_code:
                name = f"{topic.name}-{row.partition_index}"
                raise CliError(f"{name}: {error_code_text(row.error_code, row.error_message)}")
            for producer in row.active_producers:
                yield _partition_producer(topic.name, row.partition_index, producer)


def _partition_producer(topic: str, partition: int, row: Any) -> PartitionProducer:
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


def write_abort_marker(client: Any, leader: int, partition: Partition, marker: AbortMarker) -> int:
    """Write an abort marker into one partition; returns the error code, 0 for success."""
    from kafka.protocol.producer.transaction import WriteTxnMarkersRequest

    Marker = WriteTxnMarkersRequest.WritableTxnMarker
    writable = Marker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transaction_result=False,
        topics=[Marker.WritableTxnMarkerTopic(name=partition[0], partition_indexes=[partition[1]])],
        coordinator_epoch=marker.coordinator_epoch,
    )
    [result] = send_request(client, WriteTxnMarkersRequest(markers=[writable]), leader).markers
    code: int = result.topics[0].partitions[0].error_code
    return code


def fence_producer(client: Any, transactional_id: str, timeout_ms: int) -> None:
    """Fence the producer of a transactional id and abort its open transaction.

    Sends InitProducerId as a new producer does, until no transaction is being completed.
    """
    from kafka.protocol.producer.transaction import InitProducerIdRequest

    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=timeout_ms, producer_id=-1, producer_epoch=-1
    )

    def send() -> tuple[int, None]:
        return send_request(client, request, _find_coordinator(client, transactional_id)).error_code, None

    _raise_error(*_retry(send), f"transactional id {transactional_id}: ")


def _retry(send: Callable[[], tuple[int, Response]]) -> tuple[int, Response]:
    """Send until the error code is not retriable, for at most RETRY_FOR_S seconds."""
    deadline = time.monotonic() + RETRY_FOR_S
    while True:
        code, response = send()
        if code not in RETRIABLE_ERRORS or time.monotonic() >= deadline:
            return code, response
        time.sleep(RETRY_EVERY_S)


def _raise_error(code: int, response: Response, subject: str = "") -> Response:
    """Return the response of a request without an error; otherwise raise CliError."""
    if code:
        raise CliError(subject + error_code_text(code))
    return response
