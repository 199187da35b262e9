"""Random producers, faults, failovers and crashes: what must hold of every transaction whatever happens.

Every partition of a transaction gets the marker of what is decided in the log, none gets another, and its producer is
told nothing else. When the faults are over, nothing stays prepared or open.
"""

import asyncio
import random
from collections import defaultdict
from dataclasses import dataclass

import pytest

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.internal_log import TransactionMarker
from kbroker.coordinator.transaction.transaction_metadata import TransactionMetadata
from kbroker.coordinator.transaction.transaction_state import IDLE, PREPARED, PREVIOUS, TransactionState
from protocol.errors import ErrorCode
from tests.unit.support.transaction_coordinator import A0, A1, B0, Harness

# The version of transactions that a transactional id's clients speak. To one of version 2 a transaction of version 0
# can look like its own, in Kafka too: its epoch is the next one.
VERSIONS = {"x": 2, "y": 2, "z": 0}
PARTITIONS = (A0, A1, B0)
ERRORS = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)  # fmt: skip
STEPS = 150


@dataclass
class Producer:
    """A client that thinks that the transactional id is its own."""

    id: str
    me: tuple[int, int] = (-1, -1)
    version: int = 2


class World:
    """Producers, and a coordinator that is now and then another one."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.h = Harness()
        self.died: list[Harness] = []
        self.producers: list[Producer] = []
        self.markers: list[tuple[TopicPartition, TransactionMarker]] = []
        # What producers of version 2 were told: (transactional id, producer id, epoch) -> committed.
        self.told: dict[tuple[str, int, int], bool] = {}

    def step(self) -> None:
        self.h.log.held = self.random.random() < 0.1
        self.h.markers.held = self.random.random() < 0.15
        self.h.log.refusal = ErrorCode.NOT_ENOUGH_REPLICAS if self.random.random() < 0.05 else None
        self.h.markers.errors = {tp: self.random.choice(ERRORS) for tp in PARTITIONS if self.random.random() < 0.1}
        self.random.choices(
            (self.begin, self.add, self.end, self.end_again, self.wait, self.crash, self.move),
            (2, 6, 6, 2, 2, 0.5, 0.5),
        )[0]()

    def begin(self) -> None:
        id = self.random.choice(list(VERSIONS))
        producer = Producer(id, version=VERSIONS[id])
        self.producers.append(producer)
        task = self.h.start(self.h.transactions.init_producer_id(producer.id, 60_000))
        self.settle()
        if task.done() and task.exception() is None:
            producer.me = task.result()

    def chosen(self) -> Producer:
        return self.producers[-1 - min(int(self.random.expovariate(0.7)), len(self.producers) - 1)]

    def add(self) -> None:
        if not self.producers:
            return
        producer, tp = self.chosen(), self.random.choice(PARTITIONS)
        task = self.h.start(self.h.transactions.add_partitions(producer.id, *producer.me, [tp], producer.version))
        self.settle()
        assert not task.done() or task.exception() is None or isinstance(task.exception(), KafkaError)

    def end(self) -> None:
        if self.producers:
            producer = self.chosen()
            self.end_with(producer, producer.me, self.random.random() < 0.6)

    def end_again(self) -> None:
        """A request that was on its way for long: of an epoch that was."""
        if self.producers:
            producer = self.chosen()
            epoch = max(0, producer.me[1] - self.random.randrange(3))
            self.end_with(producer, (producer.me[0], epoch), self.random.random() < 0.5)

    def end_with(self, producer: Producer, me: tuple[int, int], committed: bool) -> None:
        task = self.h.start(self.h.transactions.end(producer.id, *me, committed, producer.version))
        self.settle()
        if not task.done() or task.exception() is not None:
            return
        if producer.version == 2:
            key = (producer.id, *me)
            assert self.told.setdefault(key, committed) is committed, f"{key} was told both"
            if me == producer.me:
                producer.me = task.result()

    def settle(self) -> None:
        """What was held back goes on, or the partition's leader changes and it never does."""
        if self.h.log.waiting and self.random.random() < 0.2:
            self.move()
        self.h.log.held = False
        self.h.log.commit()
        self.h.loop.settle()

    def wait(self) -> None:
        self.h.markers.held = False
        self.h.markers.answer(self.random.choice((ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)))
        self.h.loop.pass_ms(self.random.choice((1, 1000, 30_000)))

    def move(self) -> None:
        for leader in (2, 1):
            self.h.elect(leader)

    def crash(self) -> None:
        """Another process finds the log as it is."""
        self.markers += self.h.markers.written
        self.died.append(self.h)
        self.h.log.waiting.clear()
        self.h = self.h.restarted()
        self.h.producer_ids.given = self.died[-1].producer_ids.given

    def calm(self) -> None:
        """All faults are over."""
        self.h.log.held = self.h.markers.held = False
        self.h.log.refusal = None
        self.h.markers.errors = {}
        self.h.log.commit()
        self.h.markers.answer()
        self.h.loop.pass_ms(90_000)
        self.markers += self.h.markers.written

    def close(self) -> None:
        for harness in (*self.died, self.h):
            for task in asyncio.all_tasks(harness.loop):
                task.cancel()
            harness.close()


def judge(environment: World) -> None:
    records = [record for record in environment.h.records() if isinstance(record, TransactionMetadata)]
    prepared = [record for record in records if record.state in PREPARED]
    _judge_order(records)
    _judge_markers(prepared, environment.markers)
    decided = {
        (one.transactional_id, one.producer_id, one.producer_epoch - 1): one.state is TransactionState.PREPARE_COMMIT
        for one in prepared
        if one.version == 2
    }
    for key, committed in environment.told.items():
        assert decided[key] is committed, f"{key} was told otherwise than was decided"
    for transaction in environment.h.transactions.list():
        assert transaction.state in IDLE, f"{transaction} does not end"


def _judge_order(records: list[TransactionMetadata]) -> None:
    last: dict[str, TransactionMetadata] = {}
    for record in records:
        before = last.get(record.transactional_id)
        if before is not None:
            assert before.state in PREVIOUS[record.state]
            if record.producer_id == before.producer_id:
                assert record.producer_epoch >= before.producer_epoch
        last[record.transactional_id] = record


def _judge_markers(
    prepared: list[TransactionMetadata], markers: list[tuple[TopicPartition, TransactionMarker]]
) -> None:
    wanted: dict[tuple[TopicPartition, int, int, bool], int] = defaultdict(int)
    for one in prepared:
        for tp in one.partitions:
            wanted[tp, one.producer_id, one.producer_epoch, one.state is TransactionState.PREPARE_COMMIT] += 1
    got: dict[tuple[TopicPartition, int, int, bool], int] = defaultdict(int)
    ends: dict[tuple[TopicPartition, int, int], bool] = {}
    for tp, marker in markers:
        key = (tp, marker.producer_id, marker.producer_epoch)
        got[*key, marker.committed] += 1
        if marker.transaction_version == 2:
            assert ends.setdefault(key, marker.committed) is marker.committed, f"{key} was ended both ways"
    assert got.keys() == wanted.keys()
    for key, count in wanted.items():
        assert got[key] >= count, f"{key} has too few markers"


@pytest.mark.parametrize("seed", range(60))
def test_random_transactions(seed: int):
    environment = World(seed)
    try:
        for _ in range(STEPS):
            environment.step()
        environment.calm()
        judge(environment)
    finally:
        environment.close()


def test_what_happens_in_these_stories():
    """They would prove little if nothing were committed, fenced, resumed."""
    states: defaultdict[str, int] = defaultdict(int)
    told = crashes = 0
    for seed in range(10):
        environment = World(seed)
        try:
            for _ in range(STEPS):
                environment.step()
            environment.calm()
            for state in environment.h.states():
                states[state] += 1
            told += len(environment.told)
            crashes += len(environment.died)
        finally:
            environment.close()
    assert min(states[name] for name in ("Ongoing", "PrepareCommit", "PrepareAbort", "CompleteAbort")) > 50
    assert told > 50
    assert crashes > 10
