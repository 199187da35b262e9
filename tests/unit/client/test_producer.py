"""The producer: partitions, rounds, errors of records, batches that are sent again."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kbroker.client import producer as producer_module
from kbroker.client import retries
from kbroker.client.cluster import ClusterClient
from kbroker.client.connection import BrokerUnreachable
from kbroker.client.producer import BlockingProducer, DeliveryError, UnknownPartition
from kbroker.client.requests import BrokerError
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k00_produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from protocol.messages.k03_metadata import MetadataResponsePartition, MetadataResponseTopic
from protocol.messages.k22_transactions import InitProducerIdResponse
from protocol.records.batch import BatchHeader, iter_batch_records, parse_header
from protocol.records.record import Record
from tests.unit.support.socket_broker import SocketBroker, metadata

PRODUCER_ID = 7000


class FakeLeader:
    """Leads all partitions of a topic `t`. `errors`: fields of the next responses for single batches."""

    def __init__(self, partitions: int) -> None:
        self.errors: deque[dict[str, Any]] = deque()
        self.init_errors: list[int] = []
        self.batches: list[tuple[int, BatchHeader, list[Record]]] = []
        self.broker = SocketBroker({ApiKey.PRODUCE: self._produce, ApiKey.INIT_PRODUCER_ID: self._init})
        rows = [MetadataResponsePartition(partition_index=index, leader_id=1) for index in range(partitions)]
        self.broker.handlers[ApiKey.METADATA] = metadata(
            self.broker, topics=[MetadataResponseTopic(name="t", partitions=rows)]
        )

    def _init(self, request: object) -> InitProducerIdResponse:
        code = self.init_errors.pop() if self.init_errors else 0
        return InitProducerIdResponse(producer_id=PRODUCER_ID, producer_epoch=0, error_code=code)

    def _produce(self, request: ProduceRequest) -> ProduceResponse | None:
        rows = []
        for data in request.topic_data[0].partition_data:
            batch = bytes(data.records or b"")
            header = parse_header(batch)
            fields = self.errors.popleft() if self.errors else {}
            if fields.pop("disconnects", False):
                return None
            if not fields:
                self.batches.append((data.index, header, list(iter_batch_records(batch, header))))
            rows.append(PartitionProduceResponse(index=data.index, **fields))
        return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=rows)])

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for _, _, records in self.batches for record in records]


Open = Callable[..., tuple[BlockingProducer, FakeLeader]]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Start a leader, and return a producer that is connected to it."""
    monkeypatch.setattr(retries, "RETRY_EVERY_S", 0.0)
    opened: list[tuple[ClusterClient, FakeLeader]] = []

    def open_producer(partitions: int = 1, **settings: Any) -> tuple[BlockingProducer, FakeLeader]:
        leader = FakeLeader(partitions)
        cluster = ClusterClient([leader.broker.address], client_id="test", timeout_s=10.0)
        opened.append((cluster, leader))
        return BlockingProducer(cluster, **settings), leader

    yield open_producer
    for cluster, leader in opened:
        cluster.close()
        leader.broker.close()


def test_records_of_a_flush_are_one_batch_with_sequence_numbers(start: Open) -> None:
    producer, leader = start()
    producer.add("t", b"k", b"v", [("h", b"1"), ("n", None)], timestamp=5)
    producer.add("t", None, b"w", timestamp=9)
    producer.flush()
    producer.add_values("t", [b"x"])
    producer.flush()
    (_, first, records), (_, second, _) = leader.batches
    assert [(r.timestamp, r.key, r.value, r.headers) for r in records] == [
        (5, b"k", b"v", ((b"h", b"1"), (b"n", None))),
        (9, None, b"w", ()),
    ]
    assert (first.producer_id, first.base_sequence, first.max_timestamp) == (PRODUCER_ID, 0, 9)
    assert (second.base_sequence, producer.acknowledged) == (2, 3)


def test_a_broker_that_has_just_started_may_have_no_producer_ids_yet(start: Open) -> None:
    producer, leader = start()
    leader.init_errors = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    producer.add_values("t", [b"a"])
    producer.flush()
    assert producer.acknowledged == 1
    other, leader = start()
    leader.init_errors = [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
    other.add_values("t", [b"a"])
    with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
        other.flush()


def test_without_idempotence_batches_have_no_sequence_and_errors_are_retried_as_asked(start: Open) -> None:
    acknowledged: list[tuple[int, list[int]]] = []
    producer, leader = start(
        is_idempotent=False,
        retried={ErrorCode.NOT_LEADER_OR_FOLLOWER},
        on_acknowledged=lambda batch: acknowledged.append((batch.partition.partition, list(batch.numbers))),
    )
    leader.errors += [{"error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER}, {}, {"error_code": 56}]
    producer.add_values("t", [b"a", b"b"])
    producer.flush()
    assert (leader.batches[0][1].producer_id, acknowledged) == (-1, [(0, [1, 2])])
    producer.add_values("t", [b"c"])
    with pytest.raises(DeliveryError, match="KAFKA_STORAGE_ERROR"):
        producer.flush()


def test_a_broker_that_gets_no_producer_ids_may_have_a_full_disk(start: Open) -> None:
    producer, leader = start(delivery_for_s=-1.0)
    leader.init_errors = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    producer.add_values("t", [b"a"])
    with pytest.raises(BrokerError, match="produce: the broker gets no producer ids; maybe no broker can write"):
        producer.flush()


def test_a_key_has_the_partition_of_kafkas_partitioner(start: Open) -> None:
    producer, leader = start(partitions=10)
    for key in (b"a", b"user-17", b""):
        producer.add("t", key, b"v")
    producer.add("t", b"a", b"v", partition=9)
    producer.flush()
    # murmur2 of the keys, as in Kafka's UtilsTest: the test of kbroker.pipeline compares it with kafka-python's.
    assert {index: [record.key for record in records] for index, _, records in leader.batches} == {
        producer._target("t", b"a", None).partition: [b"a"],
        producer._target("t", b"user-17", None).partition: [b"user-17"],
        producer._target("t", b"", None).partition: [b""],
        9: [b"a"],
    }


def test_full_batches_are_sent_before_the_flush_and_use_all_partitions(
    start: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, "BATCH_BYTES", 1000)
    producer, leader = start(partitions=3)
    values = [b"%050d" % number for number in range(100)]
    producer.add_values("t", values)
    assert len(leader.batches) >= 3
    producer.flush()
    assert sorted(v for v in leader.values if v) == values
    assert {index for index, _, _ in leader.batches} == {0, 1, 2}
    assert max(header.size for _, header, _ in leader.batches) < 1200


def test_a_partition_must_exist(start: Open) -> None:
    producer, _ = start(partitions=2)
    with pytest.raises(UnknownPartition, match="topic t has no partition 7: it has 2"):
        producer.add("t", None, b"v", partition=7)


def test_an_error_names_the_record(start: Open) -> None:
    producer, leader = start()
    producer.add_values("t", [b"a", b"b"])
    producer.flush()
    bad = BatchIndexAndErrorMessage(batch_index=1, batch_index_error_message="no key")
    leader.errors.append({"error_code": ErrorCode.INVALID_RECORD, "record_errors": [bad]})
    producer.add_values("t", [b"c", b"d", b"e"])
    with pytest.raises(DeliveryError) as failed:
        producer.flush()
    assert (failed.value.number, failed.value.code, failed.value.message) == (4, ErrorCode.INVALID_RECORD, "no key")
    assert producer.acknowledged == 2


@pytest.mark.parametrize(
    "failure", [{"error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER}, {"disconnects": True}], ids=["moved", "disconnected"]
)
def test_a_batch_is_sent_again_with_its_sequence_number(start: Open, failure: dict[str, Any]) -> None:
    producer, leader = start()
    leader.errors.append(failure)
    producer.add_values("t", [b"a", b"b"])
    producer.flush()
    [(_, header, _)] = leader.batches
    assert (header.base_sequence, producer.acknowledged) == (0, 2)


def test_a_batch_that_was_stored_before_is_acknowledged(start: Open) -> None:
    producer, leader = start()
    leader.errors.append({"error_code": ErrorCode.DUPLICATE_SEQUENCE_NUMBER})
    producer.add_values("t", [b"a"])
    producer.flush()
    assert producer.acknowledged == 1


def test_a_batch_that_is_too_large_is_split(start: Open) -> None:
    producer, leader = start()
    too_large = {"error_code": ErrorCode.MESSAGE_TOO_LARGE}
    leader.errors += [dict(too_large), dict(too_large)]
    producer.add_values("t", [b"a", b"b", b"c", b"d"])
    producer.flush()
    assert leader.values == [b"a", b"b", b"c", b"d"]
    assert [header.base_sequence for _, header, _ in leader.batches] == [0, 1, 2]
    leader.errors.append(too_large)
    producer.add_values("t", [b"e"])
    with pytest.raises(DeliveryError, match="record 5: MESSAGE_TOO_LARGE"):
        producer.flush()


def test_what_it_waits_for_is_reported_and_named_at_the_deadline(start: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(1000))
    monkeypatch.setattr(retries, "monotonic", lambda: float(next(times)))
    waits: list[str] = []
    producer, leader = start()
    producer._cluster.on_wait = waits.append
    leader.errors += [{"error_code": ErrorCode.KAFKA_STORAGE_ERROR} for _ in range(100)]
    producer.add_values("t", [b"a"])
    with pytest.raises(DeliveryError, match="record 1: KAFKA_STORAGE_ERROR"):
        producer.flush()
    assert waits == ["t-0: KAFKA_STORAGE_ERROR"]


def test_without_a_broker_the_delivery_ends(start: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    producer, leader = start()
    producer.add_values("t", [b"a"])
    producer.flush()
    monkeypatch.setattr(producer_module, "DELIVERY_FOR_S", 0.0)
    leader.broker.close()
    producer.add_values("t", [b"b"])
    with pytest.raises(BrokerUnreachable):
        producer.flush()


def test_acks_0_waits_for_no_response(start: Open) -> None:
    producer, _ = start(acks=0)
    producer.add_values("t", [b"a"])
    producer.flush()
    assert producer.acknowledged == 1
    assert not producer._in_flight


def test_a_topic_that_nobody_creates(start: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "UNKNOWN_TOPIC_FOR_S", 0.0)
    producer, leader = start()
    missing = MetadataResponseTopic(name="t", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    leader.broker.handlers[ApiKey.METADATA] = metadata(leader.broker, topics=[missing])
    with pytest.raises(BrokerError, match="topic t: UNKNOWN_TOPIC_OR_PARTITION"):
        producer.add_values("t", [b"a"])
