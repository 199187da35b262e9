"""Partitions of transactions whose coordinator is on another broker."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.transaction.add_partitions_to_txn_manager import (
    AddPartitionsToTxnManager,
    PartitionErrors,
    ProducerIdentity,
)
from kbroker.metadata.image import BrokerRegistration
from kbroker.metadata.topics.topic_names import TRANSACTION_STATE_TOPIC
from protocol.errors import ErrorCode
from tests.unit.support.peers import FakePeers
from tests.unit.support.transaction_coordinator import A0, A1, B0, NODE, Harness

REMOTE = 2
NONE = ErrorCode.NONE
PRODUCER, OTHER = ProducerIdentity("t", 70, 1), ProducerIdentity("u", 71, 0)


class Story(Harness):
    """The coordinator of all transactional ids is broker 2."""

    def __init__(self) -> None:
        super().__init__()
        self.metadata.brokers[REMOTE] = BrokerRegistration(REMOTE, "h", 9092)
        self.elect(REMOTE)
        self.peers = FakePeers()
        self.manager = AddPartitionsToTxnManager(
            self.environment, NODE, self.metadata, lambda: 30_000, self.transactions, self.peers
        )

    def verify(self, producer: Any, *partitions: TopicPartition, id: str = "t") -> "asyncio.Task[PartitionErrors]":
        return self.loop.create_task(self.manager.verify(producer, partitions))

    def add(
        self, producer: Any, *partitions: TopicPartition, id: str = "t", version: int = 2
    ) -> "asyncio.Task[PartitionErrors]":
        return self.loop.create_task(self.manager.add(producer, partitions))

    def requests(self) -> list[tuple[int, list[tuple[Any, ...]]]]:
        return [
            (
                broker_id,
                [
                    (row.transactional_id, row.producer_id, row.producer_epoch, row.verify_only,
                     [(topic.name, topic.partitions) for topic in row.topics])
                    for row in request.transactions
                ],
            )
            for broker_id, request in self.peers.requests
        ]  # fmt: skip


def error_of(task: "asyncio.Task[PartitionErrors]") -> ErrorCode:
    error = task.exception()
    assert isinstance(error, KafkaError)
    return error.code


@pytest.fixture
def story() -> Iterator[Story]:
    story = Story()
    yield story
    story.close()


def test_the_coordinator_is_asked_for_all_transactions_of_an_iteration_at_once(story: Story) -> None:
    verifying, adding = story.verify(PRODUCER, A0, B0, A1), story.add(OTHER, A1)
    story.loop.run_ready()
    assert story.requests() == [
        (REMOTE, [("t", 70, 1, True, [("a", [0, 1]), ("b", [0])]), ("u", 71, 0, False, [("a", [1])])])
    ]
    story.peers.respond(REMOTE, {A1: ErrorCode.TRANSACTION_ABORTABLE})
    story.loop.run_ready()
    assert verifying.result() == {A0: NONE, B0: NONE, A1: ErrorCode.TRANSACTION_ABORTABLE}
    assert adding.result() == {A1: ErrorCode.TRANSACTION_ABORTABLE}


def test_a_transactional_id_is_in_a_request_once(story: Story) -> None:
    tasks = [story.add(PRODUCER, A0), story.add(PRODUCER, A1), story.add(OTHER, B0)]
    story.loop.run_ready()
    assert [[row[0] for row in rows] for _, rows in story.requests()] == [["t", "u"], ["t"]]
    story.peers.respond(REMOTE)
    story.peers.respond(REMOTE)
    story.loop.run_ready()
    assert [task.result() for task in tasks] == [{A0: NONE}, {A1: NONE}, {B0: NONE}]


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (ErrorCode.NETWORK_EXCEPTION, ErrorCode.NETWORK_EXCEPTION),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION),
    ],
)
def test_an_unreachable_coordinator_is_a_network_error(story: Story, error: ErrorCode, result: ErrorCode) -> None:
    task = story.verify(PRODUCER, A0)
    story.loop.run_ready()
    story.peers.fail(REMOTE, KafkaError(error))
    story.loop.run_ready()
    assert error_of(task) is result


def test_without_a_leader_the_coordinator_is_not_available(story: Story) -> None:
    del story.metadata.brokers[REMOTE]
    task = story.verify(PRODUCER, A0)
    story.loop.run_ready()
    assert error_of(task) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    story.delete_topic(TRANSACTION_STATE_TOPIC)
    task = story.add(PRODUCER, A0)
    story.loop.run_ready()
    assert error_of(task) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_partition_without_a_result_is_not_verified(story: Story) -> None:
    task = story.verify(PRODUCER, A0, A1)
    story.loop.run_ready()
    story.peers.respond(REMOTE, without={A1})
    story.loop.run_ready()
    assert task.result() == {A0: NONE, A1: ErrorCode.UNKNOWN_SERVER_ERROR}


def test_a_failure_of_the_request_itself_fails_its_callers(story: Story) -> None:
    task = story.verify(PRODUCER, A0)
    story.loop.run_ready()
    story.peers.fail(REMOTE, ValueError("malformed"))
    story.loop.set_exception_handler(lambda loop, context: None)
    story.loop.run_ready()
    assert error_of(task) is ErrorCode.NETWORK_EXCEPTION


def test_the_own_coordinator_is_called_directly(story: Story) -> None:
    story.elect(NODE)
    producer = ProducerIdentity("t", *open_transaction_of(story))
    assert story.manager.is_local("t")
    verifying, adding = story.verify(producer, A0, B0), story.add(producer, B0)
    story.loop.run_ready()
    assert verifying.result() == {A0: NONE, B0: ErrorCode.TRANSACTION_ABORTABLE}
    assert adding.result() == {B0: NONE}
    assert story.manager.verify_local(producer, [B0]) == {B0: NONE}
    assert story.requests() == []


def open_transaction_of(story: Story) -> tuple[int, int]:
    """Return a producer with an open transaction in a-0."""
    producer: tuple[int, int] = story.init()
    story.run(story.transactions.add_partitions("t", *producer, [A0], 2))
    return producer
