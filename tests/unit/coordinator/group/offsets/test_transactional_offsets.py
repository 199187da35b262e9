"""Offsets committed in transactions: restarts, slow commits, deletions, expiration, and other writers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.group.group import Committer
from kbroker.coordinator.group.records import OffsetAndMetadata, OffsetKey, OffsetRecord
from kbroker.coordinator.runtime.operation import RecordProducer
from kbroker.metadata.topics.topic_names import GROUP_METADATA_TOPIC
from kbroker.storage.producers.transactions import TransactionMarker
from protocol.errors import ErrorCode
from protocol.messages.k08_offset_commits import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from protocol.messages.k09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from protocol.messages.k15_groups import ListGroupsRequest
from protocol.messages.k22_transactions import EndTxnRequest, InitProducerIdRequest
from protocol.messages.k42_delete_groups import DeleteGroupsRequest
from protocol.records.batch import build_batch, parse_header
from tests.unit.coordinator.group.test_group_coordinator import DAY_MS, commit_error, commit_request
from tests.unit.support.group_coordinator import NODE, Harness
from tests.unit.support.internal_log import MemoryLog

Make = Callable[..., Harness]
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT


def commit_of(
    producer: tuple[int, int], offset: int, *, name: str = "T", group: str = "g", partition: int = 0
) -> TxnOffsetCommitRequest:
    committed = TxnOffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_metadata="m"
    )
    return TxnOffsetCommitRequest(
        transactional_id=name,
        group_id=group,
        producer_id=producer[0],
        producer_epoch=producer[1],
        topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[committed])],
    )


class Writer:
    """A producer of transactions version 2."""

    def __init__(self, broker: Harness, name: str = "T") -> None:
        self.broker = broker
        self.name = name
        response = broker.call(InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000), 5)
        assert response.error_code == 0
        self.producer = (response.producer_id, response.producer_epoch)

    def commit(self, offset: int, **where: Any) -> ErrorCode:
        return error_of(self.broker.call(commit_of(self.producer, offset, name=self.name, **where), 5))

    def end_request(self, *, committed: bool = True) -> EndTxnRequest:
        producer_id, epoch = self.producer
        return EndTxnRequest(
            transactional_id=self.name, producer_id=producer_id, producer_epoch=epoch, committed=committed
        )

    def end(self, *, committed: bool = True) -> None:
        response = self.broker.call(self.end_request(committed=committed), 5)
        assert response.error_code == 0
        self.producer = (response.producer_id, response.producer_epoch)
        self.broker.loop.run_ready()

    def marker(self, *, committed: bool = True) -> TransactionMarker:
        """Return the marker that ends its open transaction."""
        return TransactionMarker(self.producer[0], self.producer[1] + 1, committed, 0, 2)


def error_of(response: Any) -> ErrorCode:
    return ErrorCode(response.topics[0].partitions[0].error_code)


def tp_of(broker: Harness, group: str = "g") -> TopicPartition:
    return TopicPartition(GROUP_METADATA_TOPIC, broker.groups.runtime.partition_for(group))


def write_marker(broker: Harness, marker: TransactionMarker, group: str = "g") -> list[ErrorCode]:
    """Write a marker. Returns a list, to which the result is added."""
    results: list[ErrorCode] = []
    broker.groups.runtime.complete_transaction(tp_of(broker, group), marker, results.append)
    return results


def fetch_of(group: str, *partitions: int, stable: bool = True) -> OffsetFetchRequest:
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=list(partitions))]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)], require_stable=stable)


def fetched(broker: Harness, group: str = "g", *, stable: bool = True) -> list[int | ErrorCode]:
    """Return the offsets of the three partitions of "t", or their errors."""
    (topic,) = broker.call(fetch_of(group, 0, 1, 2, stable=stable), 9).groups[0].topics
    return [
        ErrorCode(partition.error_code) if partition.error_code else partition.committed_offset
        for partition in topic.partitions
    ]


def group_ids(broker: Harness) -> list[str]:
    return [group.group_id for group in broker.call(ListGroupsRequest(), 5).groups]


# Restarts.


def test_a_log_of_apache_kafka_is_loaded_with_the_same_result(make: Make) -> None:
    """The log of the recorded scenarios (transactional/offsets.txt) is cut after each batch and loaded. The result must
    be what Kafka returned at that point.
    """
    data = bytearray((Path(__file__).parents[2] / "data" / "kafka-4.3.1-pending.log").read_bytes())
    responses: dict[int, list[int | ErrorCode]] = {}
    pos = 0
    while pos < len(data):
        header = parse_header(data, pos)
        pos += header.size
        log = MemoryLog()
        log.batches[TopicPartition(GROUP_METADATA_TOPIC, 0)] = [bytearray(data[:pos])]
        responses[header.last_offset] = fetched(make(log, offsets_topic_num_partitions=1))
    assert responses == {
        1: [UNSTABLE, UNSTABLE, -1],
        2: [5, 6, -1],
        4: [UNSTABLE, 6, UNSTABLE],
        5: [5, 6, -1],
        7: [UNSTABLE, UNSTABLE, -1],
        8: [UNSTABLE, UNSTABLE, -1],
        9: [61, 60, -1],
        10: [UNSTABLE, 60, -1],
        11: [UNSTABLE, 60, -1],
        12: [UNSTABLE, 60, -1],
        13: [71, 60, -1],
        15: [UNSTABLE, 60, UNSTABLE],
        17: [-1, 60, -1],
        18: [-1, 60, -1],
        19: [UNSTABLE, 60, -1],
        22: [-1, -1, -1],
        23: [-1, -1, -1],
        24: [-1, -1, -1],
    }


# The high watermark lags behind.


def test_offsets_count_when_the_marker_is_committed_not_when_it_is_written(broker: Harness) -> None:
    writer = Writer(broker)
    writer.commit(5)
    broker.log.held = True
    results = write_marker(broker, writer.marker())
    assert results == []
    assert fetched(broker) == [UNSTABLE, -1, -1]
    assert fetched(broker, stable=False) == [-1, -1, -1]
    broker.log.commit()
    assert results == [ErrorCode.NONE]
    assert fetched(broker) == [5, -1, -1]


def test_a_stable_fetch_waits_for_a_transactional_commit_in_flight(broker: Harness) -> None:
    writer = Writer(broker)
    writer.commit(4, partition=1)
    broker.log.held = True
    commit = broker.start(commit_of(writer.producer, 5), 5)
    fetch = broker.start(fetch_of("g", 0), 9)
    assert not commit.done()
    assert not fetch.done()
    broker.log.commit()
    broker.loop.run_ready()
    assert error_of(commit.result()) is ErrorCode.NONE
    assert error_of(fetch.result().groups[0]) is UNSTABLE


def test_a_marker_fails_when_the_partition_is_lost_and_is_written_again(broker: Harness, make: Make) -> None:
    writer = Writer(broker)
    writer.commit(5)
    broker.log.held = True
    results = write_marker(broker, writer.marker())
    broker.run(broker.elect(tp_of(broker).partition, NODE + 1))
    broker.log.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert results == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert write_marker(broker, writer.marker()) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    # The first marker is in the log, and the new leader commits it; the second one ends nothing more.
    broker.log.held = False
    successor = make(broker.log)
    assert fetched(successor) == [5, -1, -1]
    successor.log.held = False
    assert write_marker(successor, writer.marker()) == [ErrorCode.NONE]
    assert fetched(successor) == [5, -1, -1]


def test_a_marker_for_a_partition_that_does_not_exist(broker: Harness) -> None:
    results: list[ErrorCode] = []
    broker.groups.runtime.complete_transaction(
        TopicPartition(GROUP_METADATA_TOPIC, 77), TransactionMarker(1, 1, True, 0, 2), results.append
    )
    assert results == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


# Markers.


def test_markers_without_offsets_and_repeated_markers_change_nothing(broker: Harness) -> None:
    assert write_marker(broker, TransactionMarker(4711, 1, True, 0, 2)) == [ErrorCode.NONE]
    writer = Writer(broker)
    writer.commit(5)
    marker = writer.marker()
    assert write_marker(broker, marker) == write_marker(broker, marker) == [ErrorCode.NONE]
    assert fetched(broker) == [5, -1, -1]


def test_a_late_marker_does_not_end_the_next_transaction(broker: Harness) -> None:
    writer = Writer(broker)
    writer.commit(5)
    late = writer.marker()
    writer.end()
    writer.commit(6)
    assert write_marker(broker, late) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert fetched(broker) == [UNSTABLE, -1, -1]
    writer.end(committed=False)
    assert fetched(broker) == [5, -1, -1]


def test_the_marker_of_a_former_coordinator_is_fenced(broker: Harness) -> None:
    writer = Writer(broker)
    writer.commit(5)
    assert write_marker(broker, writer.marker()._replace(coordinator_epoch=7)) == [ErrorCode.NONE]
    old = TransactionMarker(writer.producer[0], writer.producer[1] + 2, True, 6, 2)
    assert write_marker(broker, old) == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]


# Verification (KIP-890).


def test_a_commit_fails_if_its_transaction_is_aborted_while_it_waits(broker: Harness) -> None:
    """The transaction may end between the verification and the append. No offset may stay pending forever."""
    writer = Writer(broker)
    writer.commit(1, group="other")
    broker.log.held = True
    waiting = broker.start(commit_request(3), 9)
    delete = broker.start(DeleteGroupsRequest(groups_names=["g"]), 2)
    commit = broker.start(commit_of(writer.producer, 5), 5)
    broker.log.commit(1)
    broker.loop.run_ready()
    assert not commit.done()
    write_marker(broker, writer.marker(committed=False))
    while broker.log.waiting:
        broker.log.commit()
        broker.loop.run_ready()
    assert (commit_error(waiting.result()), delete.result().results[0].error_code) == (0, 0)
    assert error_of(commit.result()) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert fetched(broker) == [-1, -1, -1]


def test_a_guard_is_invalid_after_the_end_of_its_transaction(broker: Harness) -> None:
    """As above, with an older client, whose markers have the epoch of its batches."""
    writer = Writer(broker)
    guard = broker.log.begin_verification(tp_of(broker), *writer.producer)
    assert write_marker(broker, TransactionMarker(*writer.producer, False, 0, 1)) == [ErrorCode.NONE]
    producer = RecordProducer(*writer.producer, guard, True)
    offsets = [OffsetRecord(OffsetKey("g", "t", 0), OffsetAndMetadata(5))]
    with pytest.raises(KafkaError) as error_info:
        broker.run(broker.groups.commit_transactional_offsets("g", Committer("", None, -1, 5), producer, offsets))
    assert error_info.value.code is ErrorCode.INVALID_TXN_STATE
    assert fetched(broker) == [-1, -1, -1]


def test_offsets_that_cannot_be_written_are_not_pending(broker: Harness) -> None:
    writer = Writer(broker)
    writer.commit(1, partition=1)
    broker.log.append_error = ErrorCode.KAFKA_STORAGE_ERROR
    assert writer.commit(5) is ErrorCode.NOT_COORDINATOR
    broker.log.append_error = None
    assert fetched(broker) == [-1, UNSTABLE, -1]


# Time.


def test_neither_offsets_nor_groups_expire_while_they_are_pending(broker: Harness) -> None:
    writer = Writer(broker)
    broker.call(commit_request(1), 9)
    writer.commit(5)
    writer.commit(5, group="h")
    writer.commit(5, group="i")
    # The transaction coordinator would abort the transaction long before; this is about the group coordinator.
    broker.run(broker.transactions.stop())
    broker.loop.pass_ms(8 * DAY_MS)
    assert fetched(broker) == [UNSTABLE, -1, -1]
    assert fetched(broker, stable=False) == [1, -1, -1]
    assert sorted(group_ids(broker)) == ["g", "h", "i"]
    assert write_marker(broker, writer.marker(committed=False), "h") == [ErrorCode.NONE]
    assert write_marker(broker, writer.marker(committed=False), "g") == [ErrorCode.NONE]
    assert write_marker(broker, writer.marker(), "i") == [ErrorCode.NONE]
    assert fetched(broker) == [1, -1, -1]
    broker.loop.pass_ms(600_000)
    # The offsets are as old as their commits, the one of the committed transaction too.
    assert group_ids(broker) == []


def test_a_transaction_that_times_out_is_aborted_in_its_groups(broker: Harness) -> None:
    writer = Writer(broker)
    writer.commit(5)
    broker.loop.pass_ms(59_000)
    assert fetched(broker) == [UNSTABLE, -1, -1]
    broker.loop.pass_ms(15_000)
    assert fetched(broker) == [-1, -1, -1]
    assert writer.commit(6) is ErrorCode.INVALID_PRODUCER_EPOCH


# Deletions.


def test_pending_offsets_of_a_deleted_topic_are_deleted(broker: Harness, make: Make) -> None:
    writer = Writer(broker)
    writer.commit(5)
    writer.commit(6, group="h")
    broker.call(commit_request(7), 9)
    broker.run(broker.delete_topic("t"))
    broker.loop.run_ready()
    for harness in (broker, make(broker.log)):
        assert fetched(harness) == [-1, -1, -1]
        assert fetched(harness, "h") == [-1, -1, -1]
    writer.end()
    assert fetched(broker) == [-1, -1, -1]
    assert fetched(make(broker.log), "h") == [-1, -1, -1]


def test_a_group_that_is_deleted_while_a_marker_is_in_flight_does_not_come_back(broker: Harness, make: Make) -> None:
    writer = Writer(broker)
    writer.commit(5)
    broker.log.held = True
    results = write_marker(broker, writer.marker())
    delete = broker.start(DeleteGroupsRequest(groups_names=["g"]), 2)
    broker.log.commit(1)
    assert results == [ErrorCode.NONE]
    assert fetched(broker, stable=False) == [5, -1, -1]
    broker.log.commit()
    broker.loop.run_ready()
    assert delete.result().results[0].error_code == 0
    for harness in (broker, make(broker.log)):
        assert group_ids(harness) == []
        assert fetched(harness) == [-1, -1, -1]


def test_a_tombstone_deletes_pending_offsets_while_loading_too(make: Make) -> None:
    """The offset is deleted before its transaction ends."""
    broker = make()
    broker.create_topic("t", 3)
    writer = Writer(broker)
    writer.commit(5)
    tp = tp_of(broker)
    tombstone = build_batch([(1, b"\0\1\0\1g\0\1t\0\0\0\0", None, ())])
    broker.log.append_internal(tp, tombstone)
    successor = make(broker.log)
    assert fetched(successor) == [-1, -1, -1]
    assert write_marker(successor, writer.marker()) == [ErrorCode.NONE]
    assert fetched(successor) == [-1, -1, -1]
