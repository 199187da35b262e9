"""The consumer of partitions: positions, isolation, errors of partitions."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kbroker.client import consumer as consumer_module
from kbroker.client import retries
from kbroker.client.cluster import ClusterClient
from kbroker.client.consumer import LOG_APPEND_TIME, PartitionConsumer
from kbroker.client.offsets import READ_COMMITTED
from kbroker.client.requests import BrokerError
from kbroker.common import TopicPartition
from protocol.apis import ApiKey
from protocol.errors import ErrorCode, MalformedError
from protocol.messages.k01_fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from protocol.messages.k03_metadata import MetadataResponsePartition, MetadataResponseTopic
from protocol.records.batch import LOG_APPEND_TIME as LOG_APPEND_TIME_FLAG
from protocol.records.batch import TRANSACTIONAL, build_batch, patch_max_timestamp
from protocol.records.control import EndTransactionMarker, build_end_marker
from tests.unit.support.socket_broker import SocketBroker, metadata

TP = TopicPartition("t", 0)


def batch(base_offset: int, *values: bytes, **fields: Any) -> bytes:
    return bytes(build_batch([(5, None, value, ()) for value in values], base_offset=base_offset, **fields))


Start = Callable[..., tuple[PartitionConsumer, list[FetchRequest]]]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Return a consumer of TP from offset 0, whose broker responds to each fetch with the next partition data."""
    monkeypatch.setattr(retries, "RETRY_EVERY_S", 0.0)
    opened: list[Any] = []

    def open_consumer(*responses: PartitionData, **settings: Any) -> tuple[PartitionConsumer, list[FetchRequest]]:
        left, requests = list(responses), []

        def fetch(request: FetchRequest) -> FetchResponse:
            requests.append(request)
            data = left.pop(0) if left else PartitionData(partition_index=0)
            return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data])])

        earliest = ListOffsetsPartitionResponse(partition_index=0, offset=7)
        broker = SocketBroker({ApiKey.FETCH: fetch})
        rows = [MetadataResponsePartition(partition_index=0, leader_id=1)]
        broker.handlers[ApiKey.METADATA] = metadata(broker, topics=[MetadataResponseTopic(name="t", partitions=rows)])
        broker.handlers[ApiKey.LIST_OFFSETS] = lambda request: ListOffsetsResponse(
            topics=[ListOffsetsTopicResponse(name="t", partitions=[earliest])]
        )
        cluster = ClusterClient([broker.address], client_id="test", timeout_s=10.0)
        opened.extend((cluster, broker))
        return PartitionConsumer(cluster, {TP: 0}, **settings), requests

    yield open_consumer
    for each in opened:
        each.close()


def test_records_are_taken_in_portions_from_the_position_on(start: Start) -> None:
    consumer, requests = start(PartitionData(records=batch(0, b"a", b"b", b"c") + batch(3, b"d")))
    consumer.seek({TP: 1})
    assert [record.value for record in consumer.poll(1)] == [b"b"]
    assert consumer.positions == {TP: 2}
    assert [(record.offset, record.value) for record in consumer.poll(10)] == [(2, b"c"), (3, b"d")]
    assert consumer.positions == {TP: 4}
    assert len(requests) == 1
    assert consumer.poll(10) == []
    assert requests[1].topics[0].partitions[0].fetch_offset == 4


def test_the_time_of_the_log_replaces_that_of_the_records(start: Start) -> None:
    data = bytearray(batch(0, b"a"))
    patch_max_timestamp(data, 0, len(data), LOG_APPEND_TIME_FLAG, 99)
    consumer, _ = start(PartitionData(records=bytes(data)))
    [record] = consumer.poll(10)
    assert (record.timestamp, record.timestamp_type) == (99, LOG_APPEND_TIME)


def test_records_of_aborted_transactions_are_skipped_when_only_committed_ones_are_read(start: Start) -> None:
    fields = {"attributes": TRANSACTIONAL, "producer_epoch": 0}
    log = batch(0, b"aborted", producer_id=1, **fields) + batch(1, b"committed", producer_id=2, **fields)
    for offset, producer_id, committed in ((2, 1, False), (3, 2, True)):
        marker = build_end_marker(EndTransactionMarker(committed, 0), producer_id, 0, 5)
        marker[:8] = offset.to_bytes(8, "big")
        log += bytes(marker)
    log += batch(4, b"next", producer_id=1, **fields)
    data = PartitionData(records=log, aborted_transactions=[AbortedTransaction(producer_id=1, first_offset=0)])
    consumer, _ = start(data, isolation_level=READ_COMMITTED)
    assert [record.value for record in consumer.poll(10)] == [b"committed", b"next"]
    consumer, _ = start(data)
    assert [record.value for record in consumer.poll(10)] == [b"aborted", b"committed", b"next"]
    assert consumer.positions == {TP: 5}


def test_after_a_deletion_it_reads_from_the_log_start(start: Start) -> None:
    deleted = PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
    consumer, _ = start(deleted, PartitionData(records=batch(7, b"a")))
    assert consumer.poll(10) == []
    assert [record.offset for record in consumer.poll(10)] == [7]


def test_records_that_are_not_selected_are_passed(start: Start) -> None:
    first, second = batch(0, b"x1", b"2", b"x3", b"4"), batch(4, b"5")
    consumer, _ = start(
        PartitionData(records=first + second), selects=lambda record: (record.value or b"").startswith(b"x")
    )
    assert [record.offset for record in consumer.poll(1)] == [0]
    # Up to the next one that is selected.
    assert consumer.positions == {TP: 2}
    assert [record.offset for record in consumer.poll(5)] == [2]
    assert consumer.positions == {TP: 5}


def test_a_leader_that_moves_is_asked_again_until_the_deadline(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = PartitionData(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    consumer, _ = start(moved, PartitionData(records=batch(0, b"a")), moved)
    assert consumer.poll(10) == []
    assert len(consumer.poll(10)) == 1
    monkeypatch.setattr(consumer_module, "RETRY_FOR_S", -1.0)
    with pytest.raises(BrokerError, match="t-0: NOT_LEADER_OR_FOLLOWER"):
        consumer.poll(10)


def test_an_error_that_lasts_is_raised_at_once(start: Start) -> None:
    consumer, _ = start(PartitionData(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        consumer.poll(10)


def test_a_damaged_batch_is_an_error(start: Start) -> None:
    damaged = bytearray(batch(0, b"a"))
    damaged[-1] ^= 1
    consumer, _ = start(PartitionData(records=bytes(damaged)))
    with pytest.raises(MalformedError, match="t-0: the batch at offset 0 has a wrong CRC"):
        consumer.poll(10)
