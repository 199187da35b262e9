"""WriteTxnMarkers: end the transaction of a producer in partitions of this broker."""

import pytest

from protocol.errors import ErrorCode
from protocol.messages.k27_write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tests.unit.support.simulated_broker import Machine, broker_test
from tests.unit.support.transactional_producer import init_producer, write_marker

UNKNOWN = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


@broker_test
@pytest.mark.parametrize("version", [1, 2])
async def test_a_hanging_transaction_is_aborted(m: Machine, version: int) -> None:
    producer = await init_producer(m)
    assert (await producer.send("a", b"x", b"y")).error_code == 0
    assert m.partition("a").last_stable_offset == 0
    partitions = {"a": [0, 1, 9], "nope": [0]}
    assert await write_marker(producer.client, producer.producer_id, producer.epoch, partitions, version=version) == {
        ("a", 0): 0, ("a", 1): 0, ("a", 9): UNKNOWN, ("nope", 0): UNKNOWN,
    }  # fmt: skip
    assert m.partition("a").last_stable_offset == 3
    assert m.partition("a", 1).log.log_end_offset == 1


@broker_test
@pytest.mark.parametrize("version", [1, 2])
async def test_former_epochs_and_former_coordinators_are_fenced(m: Machine, version: int) -> None:
    producer = await init_producer(m)
    await producer.init()
    assert (await producer.send("a", b"x")).error_code == 0
    where = ("a", 0)
    old = await write_marker(producer.client, producer.producer_id, producer.epoch - 1, {"a": [0]}, version=version)
    assert old == {where: ErrorCode.INVALID_PRODUCER_EPOCH}
    producer_id, epoch = producer.producer_id, producer.epoch
    done = await write_marker(producer.client, producer_id, epoch, {"a": [0]}, coordinator_epoch=3, version=version)
    assert done == {where: 0}
    late = await write_marker(producer.client, producer_id, epoch, {"a": [0]}, coordinator_epoch=2, version=version)
    assert late == {where: ErrorCode.TRANSACTION_COORDINATOR_FENCED}


@broker_test
async def test_from_transactions_version_2_on_the_epoch_must_be_higher(m: Machine) -> None:
    producer = await init_producer(m)
    assert (await producer.send("a", b"x")).error_code == 0
    for epoch, code in ((producer.epoch, ErrorCode.INVALID_PRODUCER_EPOCH), (producer.epoch + 1, ErrorCode.NONE)):
        errors = await write_marker(producer.client, producer.producer_id, epoch, {"a": [0]}, transaction_version=2)
        assert errors == {("a", 0): code}


@broker_test
async def test_negative_ids_and_epochs_are_rejected(m: Machine) -> None:
    producer = await init_producer(m)
    where, failed = ("a", 0), int(ErrorCode.UNKNOWN_SERVER_ERROR)
    assert await write_marker(producer.client, -1, 0, {"a": [0], "nope": [0]}) == {where: failed, ("nope", 0): UNKNOWN}
    assert await write_marker(producer.client, 5, -1, {"a": [0]}) == {where: failed}
    assert await write_marker(producer.client, 5, 0, {"a": [0]}, transaction_version=-1) == {where: failed}
    assert m.partition("a").log.log_end_offset == 0


@broker_test
@pytest.mark.parametrize("version", [1, 2])
async def test_the_results_of_a_producer_are_returned_together(m: Machine, version: int) -> None:
    producer = await init_producer(m)

    def marker(producer_id: int, topic: str, *partitions: int) -> WritableTxnMarker:
        topics = [WritableTxnMarkerTopic(name=topic, partition_indexes=list(partitions))]
        return WritableTxnMarker(producer_id=producer_id, producer_epoch=0, topics=topics)

    markers = [marker(70, "a", 0), marker(71, "a", 1), marker(70, "a", 2), marker(72, "a")]
    response = await producer.client.request(WriteTxnMarkersRequest(markers=markers), version, WriteTxnMarkersResponse)
    assert [
        (
            row.producer_id,
            [(topic.name, [partition.partition_index for partition in topic.partitions]) for topic in row.topics],
        )
        for row in response.markers
    ] == [(70, [("a", [0, 2])]), (71, [("a", [1])])]
    empty = await producer.client.request(WriteTxnMarkersRequest(), version, WriteTxnMarkersResponse)
    assert empty.markers == []


@broker_test(request_timeout_ms=1000)
async def test_a_marker_that_is_not_committed_in_time_times_out(m: Machine) -> None:
    producer = await init_producer(m)
    assert (await producer.send("a", b"x")).error_code == 0
    m.broker.services.marker_writer.write = lambda tp, marker, on_written: None  # type: ignore[method-assign]
    assert await write_marker(producer.client, producer.producer_id, producer.epoch, {"a": [0], "nope": [0]}) == {
        ("a", 0): ErrorCode.REQUEST_TIMED_OUT, ("nope", 0): UNKNOWN,
    }  # fmt: skip
