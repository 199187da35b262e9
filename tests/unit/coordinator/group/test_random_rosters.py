"""Random stories of a group with ORDERED operations (toy_groups.py) on three brokers, each from a seed.

Replicas get records late, leaders fail, appends fail. The state of a coordinator is always the replay of its log up to
the last append, and a response has nothing that is not committed. Mistakes that are planted are found.
"""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from kbroker.common import KafkaError
from kbroker.coordinator.group.kinds import GROUP_KINDS
from kbroker.coordinator.group.records import GroupRecordCodec, OffsetAndMetadata, OffsetKey, OffsetRecord
from kbroker.coordinator.runtime.coordinator_context import ACTIVE, CoordinatorContext
from kbroker.coordinator.runtime.key_lock import KeyLock
from kbroker.coordinator.runtime.loader import PartitionLoader
from kbroker.coordinator.runtime.operation import CoordinatorResult, LockMode
from protocol.errors import NO_ERROR, ErrorCode
from protocol.records.batch import body_of, iter_headers
from protocol.records.record import iter_records
from tests.sampling import third_of
from tests.unit.coordinator.group.toy_groups import EpochRecord, Roster, RosterMember, Rosters
from tests.unit.support.coordinator_cluster import GROUPS, IDS, Cluster, Node

STEPS = 150
# The seeds within which each planted mistake is found.
SEEDS_TO_FIND = 12
KINDS = (*GROUP_KINDS, Rosters)
CODEC = GroupRecordCodec([kind.codec for kind in KINDS])
EXPECTED_ERRORS = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}
State = tuple[int, dict[str, str]]


def by_the_log(node: Node, end: int) -> State:
    """Return the epoch and the members of the group by the log of a broker, below an offset."""
    epoch, members = 0, {}
    data = b"".join(node.log.batches.get(GROUPS, []))
    for pos, header in iter_headers(data):
        for raw in iter_records(body_of(data, pos, header.size), header.count, header.base_timestamp):
            record = CODEC.decode(raw.key, raw.value)
            if header.base_offset + raw.offset_delta >= end:
                return epoch, members
            if isinstance(record, EpochRecord):
                epoch = record.epoch or 0
            elif isinstance(record, RosterMember):
                if record.topic is None:
                    members.pop(record.name, None)
                else:
                    members[record.name] = record.topic
    return epoch, members


class Story:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.cluster = Cluster(KINDS)
        for node in self.cluster.nodes.values():
            node.image.features = node.image.features._replace(levels={"roster.version": 1})
        self.waiting = 0
        self.errors: set[ErrorCode] = set()
        # The highest epoch in a response: no coordinator may be behind it.
        self.highest = 0

    def step(self) -> None:
        random, cluster = self.random, self.cluster
        for _ in range(random.randrange(4)):
            self.send()
        node = cluster.leader(GROUPS)
        if random.random() < 0.05:
            # Between the replay and the append.
            node.log.append_error = ErrorCode.KAFKA_STORAGE_ERROR
        node.log.is_under_min_isr = random.random() < 0.03
        if random.random() < 0.2:
            cluster.held = not cluster.held
        cluster.loop.run_ready()
        node.log.append_error = None
        self.check()
        if random.random() < 0.2:
            cluster.replicate(GROUPS, random.choice([id for id in IDS if id != node.id]))
        if random.random() < 0.3:
            cluster.replicate(GROUPS, commit=False)
            start, end = node.log.high_watermarks[GROUPS], node.log.end_offset(GROUPS)
            node.log.advance(GROUPS, random.choice((end, random.randint(start, end))))
            self.check()
        if random.random() < 0.06:
            cluster.elect(GROUPS, random.choice(IDS))
        if random.random() < 0.2:
            cluster.loop.pass_ms(random.choice((1, 300, 1_100)))
        cluster.loop.run_ready()
        self.check()

    def send(self) -> None:
        """Send a request to the coordinator; some requests conflict in any way that their modes know."""
        name = f"m{self.random.randrange(4)}"
        offset = OffsetRecord(OffsetKey("g", "a", 0), OffsetAndMetadata(self.random.randrange(99)))

        def raise_epoch(rosters: Rosters) -> CoordinatorResult[int]:
            epoch = rosters.read_epoch("g").response + 10
            return CoordinatorResult(epoch, [EpochRecord("g", epoch)])

        operations: list[tuple[Callable[[Rosters], CoordinatorResult[Any]], LockMode]] = [
            (lambda rosters: rosters.join("g", name, "a"), LockMode.ORDERED),
            (lambda rosters: rosters.leave("g", name), LockMode.ORDERED),
            (lambda rosters: rosters.read_epoch("g"), LockMode.ORDERED),
            (lambda rosters: CoordinatorResult(0, [offset]), LockMode.SHARED),
            (raise_epoch, LockMode.EXCLUSIVE_AFTER_SHARED),
        ]
        operation, mode = self.random.choices(operations, (4, 2, 4, 2, 1))[0]
        node = self.cluster.leader(GROUPS)
        try:
            context = node.groups.runtime.context("g")
        except KafkaError as error:
            self.errors.add(error.code)
            return
        self.waiting += 1

        def respond(epoch: int | None, error: KafkaError | None) -> None:
            self.waiting -= 1
            if error is not None:
                self.errors.add(error.code)
                return
            assert epoch is not None
            committed, _ = by_the_log(node, node.log.high_watermarks[GROUPS])
            assert epoch <= committed, f"the response has epoch {epoch}, {committed} is committed"
            self.highest = max(self.highest, epoch)

        context.write(lambda shard: operation(shard.kind(Rosters)), respond, "g", mode)

    def check(self) -> None:
        """Compare the state of each coordinator with its log. An EXCLUSIVE write is replayed later."""
        for node in self.cluster.nodes.values():
            for context in node.groups.runtime.contexts():
                lock = context._locks.get("g")
                if context.state is ACTIVE and not context._queue and (lock is None or not lock.is_held):
                    group = context.shard.find(Roster, "g")
                    state = (0, {}) if group is None else (group.epoch, group.topics)
                    assert state == by_the_log(node, node.log.end_offset(GROUPS))
                    assert state[0] >= self.highest, "an epoch of a response is lost"

    def end(self) -> None:
        """Everything gets a response, and all members time out."""
        for node in self.cluster.nodes.values():
            node.log.is_under_min_isr = False
        for _ in range(8):
            self.cluster.release()
            self.cluster.loop.pass_ms(1_100)
        self.check()
        assert self.waiting == 0
        assert self.errors <= EXPECTED_ERRORS
        context = self.cluster.leader(GROUPS).groups.runtime.context("g")
        assert context.locked_keys() == []
        group = context.shard.find(Roster, "g")
        assert group is None or group.topics == {}


def run(seed: int) -> None:
    story = Story(seed)
    try:
        for _ in range(STEPS):
            story.step()
        story.end()
    finally:
        story.cluster.close()


@pytest.mark.parametrize("seed", third_of(range(30)))
def test_a_random_story(seed: int) -> None:
    run(seed)


# Planted mistakes.


def read_responds_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CoordinatorContext, "_add_read", lambda context, _, read: context._complete(read, NO_ERROR))


def failed_append_leaves_what_was_replayed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        CoordinatorContext, "_close_and_reload", lambda context, error: context._fail_all(events(context), error)
    )


def events(context: CoordinatorContext[Any]) -> list[Any]:
    queue, context._queue = context._queue, []
    return queue


def commit_replays_again(patch: pytest.MonkeyPatch) -> None:
    settle = CoordinatorContext._settle

    def replay_and_settle(context: CoordinatorContext[Any], event: Any, error: ErrorCode) -> None:
        for record in event.result.records if error is NO_ERROR else ():
            context.shard.replay(record, -1, -1)
        settle(context, event, error)

    patch.setattr(CoordinatorContext, "_settle", replay_and_settle)


def ordered_does_not_wait_for_exclusive(patch: pytest.MonkeyPatch) -> None:
    admits = KeyLock._admits
    patch.setattr(KeyLock, "_admits", lambda lock, mode: mode is LockMode.ORDERED or admits(lock, mode))


def load_does_not_wait_for_the_commit(patch: pytest.MonkeyPatch) -> None:
    async def load(loader: PartitionLoader, shard: Any) -> None:
        await loader._leader_end_offset()
        await loader._replay(shard)

    patch.setattr(PartitionLoader, "load", load)


MISTAKES = (
    read_responds_before_the_commit,
    failed_append_leaves_what_was_replayed,
    commit_replays_again,
    ordered_does_not_wait_for_exclusive,
    load_does_not_wait_for_the_commit,
)


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_planted_mistake_is_found(mistake: Callable[[pytest.MonkeyPatch], None], patch: pytest.MonkeyPatch) -> None:
    mistake(patch)
    for seed in range(SEEDS_TO_FIND):
        try:
            run(seed)
        except (AssertionError, KeyError):
            return
    pytest.fail("no story has found it")
