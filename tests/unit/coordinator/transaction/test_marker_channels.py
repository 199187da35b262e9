"""Transaction markers for partitions that other brokers lead."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.transaction import transaction_markers
from kbroker.coordinator.transaction.transaction_markers import TransactionMarkerChannels
from kbroker.metadata.image import BrokerRegistration, MetadataImage, PartitionRegistration, TopicImage
from kbroker.storage.producers.transactions import TransactionMarker
from protocol.errors import ErrorCode, MalformedError
from protocol.messages.k27_write_txn_markers import WriteTxnMarkersRequest
from tests.unit.support.internal_log import VirtualLoop, virtual_environment
from tests.unit.support.peers import FakePeers
from tests.unit.support.transaction_coordinator import FakeMarkerWriter

NODE, SECOND, THIRD = 1, 2, 3
OWN, AT_SECOND, AT_SECOND_TOO, AT_THIRD = (TopicPartition("t", index) for index in range(4))
NONE = ErrorCode.NONE
# (producer id, epoch, committed, coordinator epoch, version)
A, B = TransactionMarker(70, 1, True, 5, 2), TransactionMarker(71, 0, False, 5, 0)


class Story:
    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.peers = FakePeers()
        self.local = FakeMarkerWriter()
        self.results: list[tuple[TopicPartition, ErrorCode]] = []
        self.image = MetadataImage()
        self.image.brokers = {id: BrokerRegistration(id, "h", 9092) for id in (NODE, SECOND, THIRD)}
        self.image.topics["t"] = TopicImage("t", b"1" * 16)
        for leader in (NODE, SECOND, SECOND, THIRD):
            self.image.topics["t"].partitions.append(PartitionRegistration(leader, 0, [leader], [leader]))
        environment = virtual_environment(self.loop)
        self.channels = TransactionMarkerChannels(environment, NODE, self.image, lambda: 30_000, self.local, self.peers)

    def write(self, marker: TransactionMarker, *partitions: TopicPartition) -> None:
        for tp in partitions:
            self.channels.write(tp, marker, self.record(tp))

    def record(self, tp: TopicPartition) -> Callable[[ErrorCode], None]:
        return lambda error: self.results.append((tp, error))

    def requests(self) -> list[tuple[int, list[tuple[Any, ...]]]]:
        """Return the requests so far: the broker, and the fields and partitions of each marker."""
        return [(broker_id, _markers(request)) for broker_id, request in self.peers.requests]


def _markers(request: WriteTxnMarkersRequest) -> list[tuple[Any, ...]]:
    return [
        (
            row.producer_id, row.producer_epoch, row.transaction_result, row.coordinator_epoch, row.transaction_version,
            [(topic.name, topic.partition_indexes) for topic in row.topics],
        )
        for row in request.markers
    ]  # fmt: skip


@pytest.fixture
def story() -> Iterator[Story]:
    story = Story()
    yield story
    story.loop.run_ready()
    story.loop.close()


def test_the_markers_of_one_iteration_share_a_request_to_each_broker(story: Story) -> None:
    story.write(A, AT_SECOND, AT_THIRD, OWN)
    story.write(B, AT_SECOND, AT_SECOND_TOO)
    story.loop.run_ready()
    assert story.requests() == [
        (SECOND, [(70, 1, True, 5, 2, [("t", [1])]), (71, 0, False, 5, 0, [("t", [1, 2])])]),
        (THIRD, [(70, 1, True, 5, 2, [("t", [3])])]),
    ]
    assert story.local.written == [(OWN, A)]
    assert story.results == [(OWN, NONE)]
    story.peers.respond(SECOND)
    story.loop.run_ready()
    assert story.results == [(OWN, NONE), (AT_SECOND, NONE), (AT_SECOND, NONE), (AT_SECOND_TOO, NONE)]


def test_a_request_that_waits_does_not_delay_later_ones(story: Story) -> None:
    story.write(A, AT_SECOND)
    story.loop.run_ready()
    story.write(B, AT_SECOND)
    story.loop.run_ready()
    assert len(story.peers.requests) == 2


def test_each_partition_has_its_own_error(story: Story) -> None:
    story.write(A, AT_SECOND, AT_SECOND_TOO)
    story.loop.run_ready()
    story.peers.respond(SECOND, {AT_SECOND_TOO: ErrorCode.NOT_LEADER_OR_FOLLOWER})
    story.loop.run_ready()
    assert story.results == [(AT_SECOND, NONE), (AT_SECOND_TOO, ErrorCode.NOT_LEADER_OR_FOLLOWER)]


def test_two_markers_of_one_producer_have_two_requests(story: Story) -> None:
    """The response has the results of a producer together, so they could not be told apart."""
    later = A._replace(producer_epoch=2)
    story.write(A, AT_SECOND)
    story.write(later, AT_SECOND)
    story.write(A, AT_SECOND_TOO)
    story.loop.run_ready()
    assert story.requests() == [
        (SECOND, [(70, 1, True, 5, 2, [("t", [1, 2])])]),
        (SECOND, [(70, 2, True, 5, 2, [("t", [1])])]),
    ]


@pytest.mark.parametrize("error", [ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT])
def test_an_unreachable_broker_fails_all_markers_of_the_request(story: Story, error: ErrorCode) -> None:
    story.write(A, AT_SECOND, AT_SECOND_TOO)
    story.loop.run_ready()
    story.peers.fail(SECOND, KafkaError(error))
    story.loop.run_ready()
    assert story.results == [(AT_SECOND, error), (AT_SECOND_TOO, error)]


def test_a_partition_without_a_live_leader_fails_at_once(story: Story) -> None:
    del story.image.brokers[SECOND]
    story.image.topics["t"].partitions[3].leader = -1
    story.write(A, AT_SECOND, AT_THIRD)
    expected = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert story.results == [(AT_SECOND, expected), (AT_THIRD, expected)]
    assert story.requests() == []


def test_a_result_that_is_missing_or_unknown_is_an_error(story: Story) -> None:
    story.write(A, AT_SECOND, AT_SECOND_TOO)
    story.loop.run_ready()
    story.peers.respond(SECOND, {AT_SECOND_TOO: 32000}, without={AT_SECOND})
    story.loop.run_ready()
    unknown = ErrorCode.UNKNOWN_SERVER_ERROR
    assert story.results == [(AT_SECOND, unknown), (AT_SECOND_TOO, unknown)]


def test_the_size_of_a_request_is_limited(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_markers, "MAX_PARTITIONS", 2)
    for producer_id in range(5):
        story.write(A._replace(producer_id=producer_id), AT_SECOND)
    story.loop.run_ready()
    assert [[row[0] for row in rows] for _, rows in story.requests()] == [[0, 1], [2, 3], [4]]


def test_a_malformed_response_is_an_error_of_each_marker(story: Story) -> None:
    """Else the transaction would never be completed by this coordinator."""
    story.write(A, AT_SECOND, AT_SECOND_TOO)
    story.loop.run_ready()
    story.peers.fail(SECOND, MalformedError("truncated"))
    story.loop.run_ready()
    network_exception = ErrorCode.NETWORK_EXCEPTION
    assert story.results == [(AT_SECOND, network_exception), (AT_SECOND_TOO, network_exception)]
