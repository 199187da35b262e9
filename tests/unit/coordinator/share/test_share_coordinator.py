"""The state of share partitions over time: order of writes, fencing, elections, deletion, pruning."""

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest

from kbroker.coordinator.share.records import ShareSnapshot, ShareTombstone, ShareUpdate
from kbroker.coordinator.share.share_coordinator import PRUNE_INTERVAL_MS
from kbroker.coordinator.share.share_partition_state import (
    PersistedState,
    SharePartitionKey,
    StateBatch,
    StateSummary,
    is_coordinator_key,
)
from kbroker.coordinator.share.share_shard import COLD_PARTITION_SNAPSHOT_INTERVAL_MS
from kbroker.coordinator.share.state_batches import combine_batches
from protocol.errors import ErrorCode
from protocol.records.batch import parse_header
from tests.unit.support.internal_log import MemoryLog
from tests.unit.support.share_coordinator import KEY, TOPIC_ID, TP, Harness, change, outcome
from tests.unit.support.share_lines import random_requests, run

AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4
OTHER = SharePartitionKey("g", TOPIC_ID, 1)
DELAYED_UNTIL_MS = 1_700_000_099_000


@pytest.fixture
def h() -> Iterator[Harness]:
    harness = Harness(share_coordinator_snapshot_update_records_per_snapshot=3)
    yield harness
    harness.close()


def test_a_write_sees_those_before_it_and_responds_after_its_commit(h: Harness):
    h.initialize()
    h.log.held = True
    fencing = h.start_operation(h.share_states.read(KEY, 5))
    first = h.start_operation(h.share_states.write(KEY, change((0, 4, ACKNOWLEDGED, 1), leader=5, start=5)))
    second = h.start_operation(h.share_states.write(KEY, change((9, 9, AVAILABLE, 2), leader=5)))
    old = h.start_operation(h.share_states.write(KEY, change((5, 9, ACKNOWLEDGED, 9), leader=4)))
    reading = h.start_operation(h.share_states.read(KEY, 5))
    assert not any(task.done() for task in (fencing, first, second, old, reading))
    h.log.commit()
    h.loop.run_ready()
    assert outcome(first) is None
    assert outcome(second) is None
    assert outcome(old) is ErrorCode.FENCED_LEADER_EPOCH
    assert outcome(fencing) == PersistedState(0, 0, ())
    assert outcome(reading) == PersistedState(0, 5, (StateBatch(9, 9, AVAILABLE, 2),))


def test_a_write_that_arrives_twice_or_late_takes_nothing_back(h: Harness):
    h.initialize()
    early = (0, 9, AVAILABLE, 1)
    h.write(early, start=0)
    h.write((0, 5, ACKNOWLEDGED, 1), start=4)
    h.write(early, start=0)
    assert h.read() == PersistedState(0, 4, (StateBatch(4, 5, ACKNOWLEDGED, 1), StateBatch(6, 9, AVAILABLE, 1)))


def test_a_delay_of_a_range_is_kept(h: Harness):
    h.initialize()
    delayed = StateBatch(2, 3, AVAILABLE, 1, DELAYED_UNTIL_MS)
    write = change((0, 5, AVAILABLE, 1))
    assert h.call(h.share_states.write, KEY, write._replace(batches=(*write.batches, delayed))) is None
    expected = (StateBatch(0, 1, AVAILABLE, 1), delayed, StateBatch(4, 5, AVAILABLE, 1))
    assert h.read() == PersistedState(0, 0, expected)
    successor = h.crash()
    assert successor.read() == PersistedState(0, 0, expected)
    successor.close()


def test_the_state_survives_elections_and_an_old_leader_stays_fenced(h: Harness):
    h.initialize(start=3)
    h.read(leader=7)
    h.write((3, 4, ACKNOWLEDGED, 1), leader=7)
    h.elect(2)
    assert h.write(leader=7) is ErrorCode.NOT_COORDINATOR
    h.elect(1)
    assert h.write((3, 4, AVAILABLE, 9), leader=6) is ErrorCode.FENCED_LEADER_EPOCH
    assert h.read(leader=8) == PersistedState(0, 3, (StateBatch(3, 4, ACKNOWLEDGED, 1),))
    assert h.write(leader=7) is ErrorCode.FENCED_LEADER_EPOCH


def test_a_failed_append_leaves_nothing_behind(h: Harness):
    h.initialize()
    h.write((0, 0, ACKNOWLEDGED, 1))
    h.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    assert h.write((1, 1, ACKNOWLEDGED, 1)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    h.log.append_error = None
    h.loop.pass_ms(10_000)
    assert h.read() == PersistedState(0, 0, (StateBatch(0, 0, ACKNOWLEDGED, 1),))


def test_a_deleted_topic_leaves_no_state(h: Harness):
    h.initialize()
    h.initialize(key=OTHER)
    h.delete_topic("t")
    assert h.partitions == {}
    assert [type(record) for record in h.records()] == [ShareSnapshot, ShareSnapshot, ShareTombstone, ShareTombstone]
    assert h.read() is ErrorCode.INVALID_REQUEST


def test_a_topic_that_is_deleted_during_the_load_leaves_no_state(h: Harness):
    h.initialize()
    h.log.without_role.add(TP)
    h.elect(1)
    h.delete_topic("t")
    h.log.without_role.clear()
    h.loop.pass_ms(5_000)
    assert h.partitions == {}


# Pruning.


def test_records_before_the_oldest_snapshot_in_use_are_deleted(h: Harness):
    h.initialize()
    h.initialize(key=OTHER)
    for offset in range(4):
        h.write((offset, offset, ACKNOWLEDGED, 1))
    # The snapshots are at 0 (KEY), 1 (OTHER) and 5 (KEY).
    h.run(h.share_states.prune())
    assert h.log.start_offset(TP) == 1
    h.loop.pass_ms(COLD_PARTITION_SNAPSHOT_INTERVAL_MS)
    h.write((4, 4, ACKNOWLEDGED, 1))
    h.run(h.share_states.prune())
    h.loop.run_ready()
    h.run(h.share_states.prune())
    assert h.log.start_offset(TP) > 5
    successor = h.crash()
    assert successor.read() == PersistedState(0, 0, (StateBatch(0, 4, ACKNOWLEDGED, 1),))
    assert successor.read(key=OTHER) == PersistedState(0, 0, ())
    successor.close()


def test_no_snapshots_are_written_while_nothing_happens(h: Harness):
    h.initialize()
    h.initialize(key=OTHER)
    for _ in range(4):
        h.loop.pass_ms(PRUNE_INTERVAL_MS + 1000)
    assert h.log.end_offset(TP) == 4


def test_a_snapshot_that_may_be_lost_replaces_none(h: Harness):
    for _ in range(5):
        h.initialize()
    h.run(h.share_states.prune())
    assert h.log.start_offset(TP) == 4
    h.log.held = True
    h.start_operation(h.share_states.initialize(KEY, 1, 9))
    h.start_operation(h.share_states.initialize(OTHER, 1, 9))
    h.run(h.share_states.prune())
    assert h.log.start_offset(TP) == 4
    h.log.commit()
    h.loop.run_ready()
    h.run(h.share_states.prune())
    assert h.log.start_offset(TP) == 5


def test_without_states_all_records_are_deleted(h: Harness):
    h.initialize()
    h.write((0, 0, ACKNOWLEDGED, 1))
    h.call(h.share_states.delete, KEY)
    h.run(h.share_states.prune())
    assert h.log.start_offset(TP) == 3


@pytest.mark.parametrize("seed", range(20))
def test_whatever_pruning_leaves_is_the_same_state(seed: int):
    """The log may begin at any offset up to that of the last pruning: a follower deletes later than its leader."""
    h = Harness(share_coordinator_snapshot_update_records_per_snapshot=random.Random(seed).choice([1, 2, 5]))
    h.initialize(key=SharePartitionKey(f"g{seed}", TOPIC_ID, 0))
    for line in random_requests(seed)[:40]:
        run(line, TOPIC_ID, h.send)
    expected = h.partitions
    batches = h.log.batches[TP]
    bound = h.share_states.runtime.contexts()[0].shard.redundant_before()
    for first in {parse_header(batch).base_offset for batch in batches if parse_header(batch).base_offset <= bound}:
        log = MemoryLog()
        log.batches[TP] = [batch for batch in batches if parse_header(batch).base_offset >= first]
        successor = h.crash(log)
        states = {key: partition.state for key, partition in successor.partitions.items()}
        assert states == {key: partition.state for key, partition in expected.items()}
        assert successor.share_states.runtime.contexts()[0].shard.redundant_before() == bound
        successor.close()
    h.close()


# Parts.


def test_ranges_are_those_of_the_highest_count_and_state():
    rng = random.Random(3)
    for _ in range(300):
        model: dict[int, tuple[int, int, int]] = {}
        batches: tuple[StateBatch, ...] = ()
        for _ in range(5):
            start = rng.choice([0, 0, 4])
            changes = [_random_batch(rng) for _ in range(rng.randrange(1, 4))]
            batches = combine_batches(batches, changes, start)
            for each in sorted(changes):
                for offset in range(each.first, each.last + 1):
                    new = (each.delivery_count, each.state, each.due_ms)
                    model[offset] = new if offset not in model or model[offset][:2] <= new[:2] else model[offset]
            model = {offset: state for offset, state in model.items() if offset >= start}
            assert {
                offset: (batch.delivery_count, batch.state, batch.due_ms)
                for batch in batches
                for offset in range(batch.first, batch.last + 1)
            } == model
            for left, right in pairwise(batches):
                assert left.last < right.first
                assert left.last + 1 < right.first or left[2:] != right[2:]


def _random_batch(rng: random.Random) -> StateBatch:
    first = rng.randrange(20)
    due_ms = rng.choice([-1, -1, DELAYED_UNTIL_MS])
    return StateBatch(first, first + rng.randrange(6), rng.choice([0, 2, 4]), rng.randrange(1, 4), due_ms)


def test_a_partition_without_state_has_a_summary(h: Harness):
    assert h.call(h.share_states.read_summary, KEY) == StateSummary(0, 0, -1, -1)


@pytest.mark.parametrize(
    ("key", "is_valid"),
    [
        ("g:noEWmUKzSv6SiL5O4xxcUw:0", True),
        ("a:b:noEWmUKzSv6SiL5O4xxcUw:-1", True),
        ("g:noEWmUKzSv6SiL5O4xxcUw:0:", True),
        ("g:x:0", False),
        ("g", False),
        ("", False),
        (":noEWmUKzSv6SiL5O4xxcUw:0", False),
        (" :noEWmUKzSv6SiL5O4xxcUw:0", False),
        ("g:noEWmUKzSv6SiL5O4xxcUw:x", False),
        ("g:noEWmUKzSv6SiL5O4xxcUw:", False),
    ],
)
def test_keys_are_valid_as_in_kafka(key: str, is_valid: bool):
    assert is_coordinator_key(key) is is_valid


def test_an_update_of_an_older_snapshot_is_ignored(h: Harness):
    h.initialize()
    shard = h.share_states.runtime.contexts()[0].shard
    snapshot = shard.partitions[KEY].state
    shard.replay(snapshot._replace(snapshot_epoch=7, start_offset=4), -1, -1)
    for epoch, start in ((7, 5), (6, 9), (8, 9)):
        shard.replay(ShareUpdate(KEY, epoch, 3, start, 0), -1, -1)
    assert h.read(leader=3) == PersistedState(0, 5, ())
    shard.replay(ShareUpdate(OTHER, 0, 0, 0, 0), -1, -1)
    assert OTHER not in shard.partitions
