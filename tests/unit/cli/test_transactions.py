"""`kbroker transactions`: JSON, filters, and which transactions hang."""

import pytest

from kbroker.cli.common.errors import CliError
from kbroker.cli.transactions.app import description_json
from kbroker.cli.transactions.hanging import abort_marker
from kbroker.cli.transactions.requests import (
    PartitionProducer,
    list_transactions,
    unknown_to_coordinators,
    with_old_transaction,
)
from kbroker.client.cluster import ClusterClient
from protocol.apis import ApiKey
from protocol.client import UnsupportedVersionError
from protocol.messages.k60_describe_cluster import DescribeClusterBroker, DescribeClusterResponse
from protocol.messages.k65_describe_transactions import TopicData, TransactionState
from protocol.messages.k66_list_transactions import ListTransactionsRequest, ListTransactionsResponse
from tests.unit.support.socket_broker import SocketBroker, metadata


def producer(partition: int = 0, **changes: int | None) -> PartitionProducer:
    row = PartitionProducer("t", partition, 7, 2, 10, 5_000, None, 40)
    return row._replace(**changes)  # type: ignore[arg-type]


def described(*, producer_id: int = 7, start_ms: int = 1_000, **partitions: list[int]) -> TransactionState:
    topics = [TopicData(topic=topic, partitions=indexes) for topic, indexes in partitions.items()]
    return TransactionState(producer_id=producer_id, transaction_start_time_ms=start_ms, topics=topics)


def test_json_has_partitions_in_order_and_the_duration() -> None:
    fields = description_json(described(b=[0], a=[2, 0]), 1, now_ms=4_500)
    assert [tuple(row.values()) for row in fields["partitions"]] == [("a", 0), ("a", 2), ("b", 0)]
    assert fields["duration_ms"] == 3_500
    assert description_json(described(start_ms=-1), 1, now_ms=4_500)["duration_ms"] is None
    # The broker's clock may be ahead of ours.
    assert description_json(described(), 1, now_ms=900)["duration_ms"] == 0


def test_only_open_transactions_of_idle_producers_are_candidates() -> None:
    silent, unknown = producer(), producer(last_timestamp_ms=None)
    done, busy = producer(start_offset=None), producer(last_timestamp_ms=8_000)
    assert with_old_transaction([silent, done, busy, unknown], 6_000) == [silent, unknown]


@pytest.mark.parametrize(
    ("known", "hangs"),
    [
        (described(t=[0]), False),
        (described(t=[1], other=[0]), True),
        (described(producer_id=8, t=[0]), True),
        (None, True),
    ],
)
def test_a_transaction_that_no_coordinator_knows_hangs(known: TransactionState | None, hangs: bool) -> None:
    hanging = unknown_to_coordinators([producer()], [] if known is None else [known])
    assert hanging == ([producer()] if hangs else [])


def test_the_abort_marker_is_for_the_transaction_that_begins_at_the_offset() -> None:
    producers = [producer(producer_id=1, start_offset=None), producer(coordinator_epoch=3), producer(start_offset=41)]
    assert abort_marker(producers, ("t", 0), 40).coordinator_epoch == 3
    assert abort_marker(producers, ("t", 0), 41).coordinator_epoch == 0
    with pytest.raises(CliError, match="t-0 has no open transaction that begins at offset 39"):
        abort_marker(producers, ("t", 0), 39)


@pytest.mark.parametrize(
    ("selection", "first"),
    [
        (ListTransactionsRequest(state_filters=["Ongoing"], producer_id_filters=[1]), 0),
        (ListTransactionsRequest(duration_filter=0), 1),
        (ListTransactionsRequest(transactional_id_pattern=""), 2),
    ],
)
def test_a_filter_requires_the_version_that_introduced_it(selection: ListTransactionsRequest, first: int) -> None:
    for version in range(3):
        broker = SocketBroker(max_versions={ApiKey.LIST_TRANSACTIONS: version})
        broker.handlers |= {
            ApiKey.METADATA: metadata(broker),
            ApiKey.DESCRIBE_CLUSTER: lambda _: DescribeClusterResponse(brokers=[DescribeClusterBroker(broker_id=1)]),
            ApiKey.LIST_TRANSACTIONS: lambda _: ListTransactionsResponse(),
        }
        with ClusterClient([broker.address], client_id="test") as client:
            if version >= first:
                assert list_transactions(client, selection) == []
            else:
                with pytest.raises(UnsupportedVersionError):
                    list_transactions(client, selection)
        broker.close()
