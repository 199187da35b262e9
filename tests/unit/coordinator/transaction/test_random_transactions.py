"""Random producers, faults, failovers and crashes, each from a seed.

Every partition of a transaction gets the marker of the decision in the log and no other one, and its producer gets a
response with the same outcome. When the faults are over, no transaction stays prepared or open.
"""

import asyncio
import random
from collections import defaultdict
from dataclasses import dataclass

import pytest

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.transaction.transaction_metadata import (
    IDLE,
    PREPARED,
    VALID_PREVIOUS_STATES,
    TransactionMetadata,
    TransactionState,
)
from kbroker.storage.producers.transactions import TransactionMarker
from protocol.errors import ErrorCode
from tests.sampling import third_of
from tests.unit.support.transaction_coordinator import A0, A1, B0, Harness

# The transactions version of the clients of each transactional id. Clients of one id must have the same version: in
# Kafka too, a client of version 2 can take a transaction of version 0, whose epoch is the next one, for its own.
VERSIONS = {"x": 2, "y": 2, "z": 0}
PARTITIONS = (A0, A1, B0)
ERRORS = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)  # fmt: skip
STEPS = 150


@dataclass
class Producer:
    """A client that uses a transactional id, though another one may have fenced it."""

    id: str
    me: tuple[int, int] = (-1, -1)
    version: int = 2


class Story:
    """Producers, and a coordinator that fails over now and then."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.h = Harness()
        self.crashed: list[Harness] = []
        self.producers: list[Producer] = []
        self.markers: list[tuple[TopicPartition, TransactionMarker]] = []
        # Outcomes in responses to producers of version 2: (transactional id, producer id, epoch) -> committed.
        self.outcomes: dict[tuple[str, int, int], bool] = {}

    def step(self) -> None:
        self.h.log.held = self.random.random() < 0.1
        self.h.markers.held = self.random.random() < 0.15
        self.h.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS if self.random.random() < 0.05 else None
        self.h.markers.errors = {tp: self.random.choice(ERRORS) for tp in PARTITIONS if self.random.random() < 0.1}
        self.random.choices(
            (self.begin, self.add, self.end, self.end_late, self.wait, self.crash, self.fail_over),
            (2, 6, 6, 2, 2, 0.5, 0.5),
        )[0]()

    def begin(self) -> None:
        id = self.random.choice(list(VERSIONS))
        producer = Producer(id, version=VERSIONS[id])
        self.producers.append(producer)
        task = self.h.start_operation(self.h.transactions.init_producer_id(producer.id, 60_000))
        self.commit()
        if task.done() and task.exception() is None:
            producer.me = task.result()

    def chosen(self) -> Producer:
        return self.producers[-1 - min(int(self.random.expovariate(0.7)), len(self.producers) - 1)]

    def add(self) -> None:
        if not self.producers:
            return
        producer, tp = self.chosen(), self.random.choice(PARTITIONS)
        task = self.h.start_operation(
            self.h.transactions.add_partitions(producer.id, *producer.me, [tp], producer.version)
        )
        self.commit()
        assert not task.done() or task.exception() is None or isinstance(task.exception(), KafkaError)

    def end(self) -> None:
        if self.producers:
            producer = self.chosen()
            self.end_with(producer, producer.me, self.random.random() < 0.6)

    def end_late(self) -> None:
        """Send a late request, with a former epoch."""
        if self.producers:
            producer = self.chosen()
            epoch = max(0, producer.me[1] - self.random.randrange(3))
            self.end_with(producer, (producer.me[0], epoch), self.random.random() < 0.5)

    def end_with(self, producer: Producer, me: tuple[int, int], committed: bool) -> None:
        task = self.h.start_operation(
            self.h.transactions.end_transaction(producer.id, *me, committed, producer.version)
        )
        self.commit()
        if not task.done() or task.exception() is not None:
            return
        if producer.version == 2:
            key = (producer.id, *me)
            assert self.outcomes.setdefault(key, committed) is committed, f"{key} got both outcomes"
            if me == producer.me:
                producer.me = task.result()

    def commit(self) -> None:
        """Commit the appends that wait, or elect another leader so that they fail."""
        if self.h.log.waiting and self.random.random() < 0.2:
            self.fail_over()
        self.h.log.held = False
        self.h.log.commit()
        self.h.loop.run_ready()

    def wait(self) -> None:
        self.h.markers.held = False
        self.h.markers.complete(self.random.choice((ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)))
        self.h.loop.pass_ms(self.random.choice((1, 1000, 30_000)))

    def fail_over(self) -> None:
        for leader in (2, 1):
            self.h.elect(leader)

    def crash(self) -> None:
        """Continue with another process that has the same log."""
        self.markers += self.h.markers.written
        self.crashed.append(self.h)
        self.h.log.waiting.clear()
        self.h = self.h.crash()
        self.h.producer_ids.last_id = self.crashed[-1].producer_ids.last_id

    def end_faults(self) -> None:
        self.h.log.held = self.h.markers.held = False
        self.h.log.append_error = None
        self.h.markers.errors = {}
        self.h.log.commit()
        self.h.markers.complete()
        self.h.loop.pass_ms(90_000)
        self.markers += self.h.markers.written

    def close(self) -> None:
        for harness in (*self.crashed, self.h):
            for task in asyncio.all_tasks(harness.loop):
                task.cancel()
            harness.close()


def check(story: Story) -> None:
    records = [record for record in story.h.records() if isinstance(record, TransactionMetadata)]
    prepared = [record for record in records if record.state in PREPARED]
    _check_transitions(records)
    _check_markers(prepared, story.markers)
    decided = {
        (transaction.transactional_id, transaction.producer_id, transaction.producer_epoch - 1): transaction.state
        is TransactionState.PREPARE_COMMIT
        for transaction in prepared
        if transaction.client_transaction_version == 2
    }
    for key, committed in story.outcomes.items():
        assert decided[key] is committed, f"{key} got another outcome than was decided"
    for transaction in story.h.transactions.list_transactions():
        assert transaction.state in IDLE, f"{transaction} does not end"


def _check_transitions(records: list[TransactionMetadata]) -> None:
    last: dict[str, TransactionMetadata] = {}
    for record in records:
        before = last.get(record.transactional_id)
        if before is not None:
            assert before.state in VALID_PREVIOUS_STATES[record.state]
            if record.producer_id == before.producer_id:
                assert record.producer_epoch >= before.producer_epoch
        last[record.transactional_id] = record


def _check_markers(
    prepared: list[TransactionMetadata], markers: list[tuple[TopicPartition, TransactionMarker]]
) -> None:
    expected: dict[tuple[TopicPartition, int, int, bool], int] = defaultdict(int)
    for transaction in prepared:
        for tp in transaction.partitions:
            expected[
                tp,
                transaction.producer_id,
                transaction.producer_epoch,
                transaction.state is TransactionState.PREPARE_COMMIT,
            ] += 1
    marker_counts: dict[tuple[TopicPartition, int, int, bool], int] = defaultdict(int)
    ends: dict[tuple[TopicPartition, int, int], bool] = {}
    for tp, marker in markers:
        key = (tp, marker.producer_id, marker.producer_epoch)
        marker_counts[*key, marker.committed] += 1
        if marker.transaction_version == 2:
            assert ends.setdefault(key, marker.committed) is marker.committed, f"{key} was ended both ways"
    assert marker_counts.keys() == expected.keys()
    for key, count in expected.items():
        assert marker_counts[key] >= count, f"{key} has too few markers"


@pytest.mark.parametrize("seed", third_of(range(60)))
def test_random_transactions(seed: int):
    story = Story(seed)
    try:
        for _ in range(STEPS):
            story.step()
        story.end_faults()
        check(story)
    finally:
        story.close()


def test_the_stories_have_commits_aborts_and_crashes():
    states: defaultdict[str, int] = defaultdict(int)
    outcomes = crashes = 0
    for seed in range(10):
        story = Story(seed)
        try:
            for _ in range(STEPS):
                story.step()
            story.end_faults()
            for state in story.h.states():
                states[state] += 1
            outcomes += len(story.outcomes)
            crashes += len(story.crashed)
        finally:
            story.close()
    assert min(states[name] for name in ("Ongoing", "PrepareCommit", "PrepareAbort", "CompleteAbort")) > 50
    assert outcomes > 50
    assert crashes > 10
