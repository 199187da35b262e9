"""What brokers know of transactions, and ending one, on Apache Kafka as well (KIP-664).

A transaction is known in two places: its coordinator says which producer has which partitions in it, and each
partition's leader knows which producers have one open. A hanging one is open in a partition, and its coordinator
does not know of that.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from kbroker.cli.common.client import chunks, error_code_text, send_request, topic_error_text
from kbroker.cli.common.errors import CliError
from kbroker.cli.common.parsing import TopicPartitions
from kbroker.cli.common.progress import ProgressBar
from protocol.errors import ErrorCode

Answer = TypeVar("Answer")
Partition = tuple[str, int]

MOST_PARTITIONS = 1000  # in one request
RETRY_FOR_S = 30.0
RETRY_EVERY_S = 0.1
# In these a transaction is neither open nor being completed.
IDLE = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})
# What passes by itself: a coordinator that is loading or moving, a transaction that is being completed.
PASSING = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)


class Filters(NamedTuple):
    """Which transactions are wanted: of any of the states, any of the producer ids, older, and like the pattern."""

    states: Sequence[str] = ()
    producer_ids: Sequence[int] = ()
    longer_than_ms: int | None = None
    pattern: str | None = None

    def version(self) -> int:
        """The first version of ListTransactions that has them: durations came with KIP-994, patterns with KIP-1152."""
        return 2 if self.pattern is not None else 1 if self.longer_than_ms is not None else 0


class Listed(NamedTuple):
    """One line of a listing; `coordinator` is a broker's id."""

    transactional_id: str
    state: str
    producer_id: int
    coordinator: int


class Described(NamedTuple):
    """A transaction as its coordinator has it. `start_ms` is None where none is open."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int | None
    partitions: frozenset[Partition]
    coordinator: int


class Producer(NamedTuple):
    """A producer as a partition's leader has it; None is what it has not done: no record, no marker, none open."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    last_sequence: int | None
    last_timestamp: int | None
    coordinator_epoch: int | None
    start_offset: int | None


def list_transactions(client: Any, filters: Filters) -> list[Listed]:
    """Those of all coordinators, by transactional id."""
    found = []
    for node in sorted(broker["broker_id"] for broker in client.describe_cluster()["brokers"]):
        answer = _list_of(client, node, filters)
        found += [
            Listed(row.transactional_id, row.transaction_state, row.producer_id, node)
            for row in answer.transaction_states
        ]
    if filters.longer_than_ms is not None:
        # For a coordinator a transaction that never began is older than any: it counts from the time -1.
        found = [row for row in found if row.state not in IDLE]
    return sorted(found)


def _list_of(client: Any, node: int, filters: Filters) -> Any:
    from kafka.protocol.admin import ListTransactionsRequest

    request = ListTransactionsRequest(
        state_filters=list(filters.states),
        producer_id_filters=list(filters.producer_ids),
        duration_filter=-1 if filters.longer_than_ms is None else filters.longer_than_ms,
        transactional_id_pattern=filters.pattern,
        min_version=filters.version(),
    )

    def ask() -> tuple[int, Any]:
        answer = send_request(client, request, node)
        return answer.error_code, answer

    return _insist(ask, "")


def describe_transactions(client: Any, transactional_ids: Sequence[str]) -> dict[str, Described | int]:
    """Each of them, or the error code that there is in its place."""
    found: dict[str, Described | int] = {}
    for transactional_id in transactional_ids:
        code, described = _describe(client, transactional_id)
        found[transactional_id] = code if described is None else described
    return found


def _describe(client: Any, transactional_id: str) -> tuple[int, Described | None]:
    from kafka.protocol.admin import DescribeTransactionsRequest

    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])

    def ask() -> tuple[int, tuple[int, Described | None]]:
        node = _coordinator(client, transactional_id)
        [row] = send_request(client, request, node).transaction_states
        if row.error_code:
            return row.error_code, (row.error_code, None)
        return 0, (0, _described(row, node))

    return _insist(ask, f"transactional id {transactional_id}: ", forgiven=True)


def _described(row: Any, node: int) -> Described:
    return Described(
        row.transactional_id,
        row.transaction_state,
        row.producer_id,
        row.producer_epoch,
        row.transaction_timeout_ms,
        _known(row.transaction_start_time_ms),
        frozenset((topic.topic, partition) for topic in row.topics for partition in topic.partitions),
        node,
    )


def _coordinator(client: Any, transactional_id: str) -> int:
    """The broker that answers for it. Kafka creates the coordinators' topic when it is asked for the first time."""
    from kafka.protocol.metadata import FindCoordinatorRequest

    request = FindCoordinatorRequest(key_type=1, coordinator_keys=[transactional_id], min_version=4)

    def ask() -> tuple[int, int]:
        [found] = send_request(client, request).coordinators
        return found.error_code, found.node_id

    return _insist(ask, f"transactional id {transactional_id}: ")


def describe_producers(client: Any, partitions: Mapping[Partition, int]) -> list[Producer]:
    """The producers of partitions, each asked of the broker whose id stands there; by partition and producer id."""
    by_node: dict[int, list[Partition]] = {}
    for partition, node in partitions.items():
        by_node.setdefault(node, []).append(partition)
    found: list[Producer] = []
    with ProgressBar("asking for producers", len(partitions)) as work:
        for node, wanted in by_node.items():
            for part in chunks(sorted(wanted), MOST_PARTITIONS):
                found += _producers_of(client, node, part)
                work.advance(len(part))
    return sorted(found)


def _producers_of(client: Any, node: int, partitions: Sequence[Partition]) -> Iterable[Producer]:
    from kafka.protocol.admin import DescribeProducersRequest

    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    Topic = DescribeProducersRequest.TopicRequest
    request = DescribeProducersRequest(
        topics=[Topic(name=topic, partition_indexes=indexes) for topic, indexes in by_topic.items()]
    )
    for topic in send_request(client, request, node).topics:
        for row in topic.partitions:
            if row.error_code:
                name = f"{topic.name}-{row.partition_index}"
                raise CliError(f"{name}: {error_code_text(row.error_code, row.error_message)}")
            for producer in row.active_producers:
                yield _producer(topic.name, row.partition_index, producer)


def _producer(topic: str, partition: int, row: Any) -> Producer:
    return Producer(
        topic,
        partition,
        row.producer_id,
        row.producer_epoch,
        _known(row.last_sequence),
        _known(row.last_timestamp),
        _known(row.coordinator_epoch),
        _known(row.current_txn_start_offset),
    )


def _known(number: int) -> int | None:
    return None if number < 0 else number


def leaders(client: Any, topics: Sequence[str] | None) -> dict[Partition, int]:
    """The leaders of the partitions of these topics, or of all. Raises CliError for a topic that does not exist."""
    found: dict[Partition, int] = {}
    for topic in client.describe_topics(None if topics is None else list(topics)):
        if topic["error_code"]:
            raise CliError(topic_error_text(topic["name"], topic["error_code"]))
        for row in topic["partitions"]:
            found[topic["name"], row["partition_index"]] = row["leader_id"]
    return found


def chosen(known: dict[Partition, int], choices: Sequence[TopicPartitions]) -> dict[Partition, int]:
    """Those of the partitions, all where nothing is chosen; CliError for one that its topic does not have."""
    for topic, partitions in choices:
        count = sum(name == topic for name, _ in known)
        for partition in partitions or ():
            if (topic, partition) not in known:
                raise CliError(f"topic {topic} has no partition {partition}: it has {count}")
    return {tp: node for tp, node in known.items() if not choices or any(choice.includes(*tp) for choice in choices)}


def write_abort(client: Any, node: int, partition: Partition, producer: tuple[int, int, int]) -> int:
    """Have an abort marker written into one partition; gives the error code, 0 when it is written.

    `producer`: its id, its epoch, and the coordinator epoch of the marker.
    """
    from kafka.protocol.producer.transaction import WriteTxnMarkersRequest

    Marker = WriteTxnMarkersRequest.WritableTxnMarker
    producer_id, producer_epoch, coordinator_epoch = producer
    marker = Marker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transaction_result=False,
        topics=[Marker.WritableTxnMarkerTopic(name=partition[0], partition_indexes=[partition[1]])],
        coordinator_epoch=coordinator_epoch,
    )
    [answer] = send_request(client, WriteTxnMarkersRequest(markers=[marker]), node).markers
    code: int = answer.topics[0].partitions[0].error_code
    return code


def fence(client: Any, transactional_id: str, timeout_ms: int) -> None:
    """Take the transactional id away from its producer, whose open transaction is aborted.

    As a new producer of that id does it: InitProducerId, until nothing is being completed any more.
    """
    from kafka.protocol.producer.transaction import InitProducerIdRequest

    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=timeout_ms, producer_id=-1, producer_epoch=-1
    )

    def ask() -> tuple[int, None]:
        return send_request(client, request, _coordinator(client, transactional_id)).error_code, None

    _insist(ask, f"transactional id {transactional_id}: ")


def _insist(ask: Callable[[], tuple[int, Answer]], what: str, *, forgiven: bool = False) -> Answer:
    """The answer, asked for again while its error is one that passes.

    Any other error is a CliError that begins with `what`; `forgiven`: the answer tells it.
    """
    deadline = time.monotonic() + RETRY_FOR_S
    while True:
        code, answer = ask()
        if code in PASSING and time.monotonic() < deadline:
            time.sleep(RETRY_EVERY_S)
            continue
        if code and not forgiven:
            raise CliError(what + error_code_text(code))
        return answer
