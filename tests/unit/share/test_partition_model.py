"""Random histories of a share partition against a model that knows each record on its own."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from types import ModuleType

import pytest

from kbroker.common import KafkaError
from kbroker.coordinator.share.share_partition_state import DeliveryState, PersistedState, StateBatch, StateWrite
from kbroker.share import partition
from kbroker.share.delivery import Acknowledgement, AcknowledgeType, DeliveryPolicy, ScannedBatch
from kbroker.share.in_flight import Span
from kbroker.share.partition import SharePartition, StateChange

RECORDS = 60
LOCK_MS = 1000
DONE = (DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED)


@dataclass
class Record:
    """`holder`: who has it until `until_ms`, None if nobody. `deliveries`: in this leader epoch, or stored before."""

    deliveries: int = 0
    holder: str | None = None
    until_ms: int = 0


@dataclass
class History:
    """A share partition, the state that the coordinator has stored of it by offset, and the model."""

    random: Random
    policy: DeliveryPolicy
    holes: set[int]
    now_ms: int = 0
    start: int = 0
    stored: dict[int, StateBatch] = field(default_factory=dict)
    records: dict[int, Record] = field(default_factory=dict)
    unsent: list[StateChange] = field(default_factory=list)
    writing: tuple[list[StateChange], StateWrite, Callable[[], None]] | None = None
    acknowledged: set[int] = field(default_factory=set)
    letters: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.partition = SharePartition(PersistedState(0, 0, ()), 0)

    # What members do.

    def acquire(self, member: str = "") -> int:
        self.partition.archive_before(0)
        offset = self.partition.next_fetch_offset(self.policy, self.now_ms)
        if offset is None or offset >= RECORDS:
            return 0
        last = min(offset + self.random.randrange(1, 25), RECORDS) - 1
        batches, first = [], offset
        while first <= last:
            end = min(first + self.random.randrange(1, 8), last + 1) - 1
            spans: list[Span] = []
            for each in range(first, end + 1):
                if each in self.holes:
                    continue
                if spans and spans[-1].last + 1 == each:
                    spans[-1] = Span(spans[-1].first, each)
                else:
                    spans.append(Span(each, each))
            if spans:
                batches.append(ScannedBatch(spans))
            first = end + 1
        is_strict, most = self.random.random() < 0.5, self.random.randrange(1, 20)
        member = member or self.random.choice("AB")
        acquired = self.partition.acquire(
            member, batches, Span(offset, last), self.policy, self.now_ms, most, self.random.randrange(0, 9), is_strict
        )
        count = sum(each.last - each.first + 1 for each in acquired)
        assert not is_strict or count <= most
        for each in acquired:
            for number in range(each.first, each.last + 1):
                record = self.records.setdefault(number, Record())
                assert number not in self.holes
                assert record.holder is None, f"{number} is held by {record.holder}"
                assert number not in self.acknowledged, f"{number} was acknowledged"
                record.deliveries += 1
                assert record.deliveries == each.delivery_count <= self.policy.delivery_count_limit
                record.holder, record.until_ms = member, self.now_ms + LOCK_MS
        return count

    def acknowledge(self) -> None:
        member = self.random.choice("AB")
        first = self.random.randrange(RECORDS)
        last = min(first + self.random.randrange(6), RECORDS - 1)
        kind = self.random.choice([1, 1, 1, 2, 3, 0, 4])
        pending = {
            number
            for change in [*self.unsent, *(self.writing[0] if self.writing else [])]
            for update in change.updates
            for number in range(update.range.first, update.range.last + 1)
        }
        wanted = [n for n in range(max(first, self.partition.start), last + 1) if n not in self.holes]
        may = bool(wanted) and all(
            n in self.records and self.records[n].holder == member and n not in pending for n in wanted
        )
        try:
            change = self.partition.acknowledge(member, [Acknowledgement(first, last, kind)], self.policy, self.now_ms)
        except KafkaError:
            # Holes that no acquisition has come to are not known yet.
            assert not may or self.holes.intersection(range(first, last + 1)), f"{member} has {first} to {last}"
            return
        assert may or not wanted, f"{member} acknowledged {first} to {last}"
        for n in wanted:
            if kind == AcknowledgeType.RENEW:
                self.records[n].until_ms = self.now_ms + LOCK_MS
            elif kind == AcknowledgeType.REJECT:
                self.rejected.add(n)
        if change.updates:
            self.unsent.append(change)

    def close_session(self) -> None:
        self._submit(self.partition.release_member(self.random.choice("AB"), self.policy))

    def pass_time(self) -> None:
        self.now_ms += self.random.choice([10, 200, LOCK_MS])
        self._submit(self.partition.expire_locks(self.policy, self.now_ms))

    def write_letters(self) -> None:
        for each in self.partition.dead_letters():
            # A letter is written only for what the coordinator has stored as such.
            assert all(self.stored[n].state == DeliveryState.ARCHIVING for n in range(each.first, each.last + 1))
            self.letters.update(range(each.first, each.last + 1))
            self._submit(self.partition.archive_dead_letters(Span(each.first, each.last)))

    def _submit(self, change: StateChange) -> None:
        if change.updates:
            self.unsent.append(change)

    # What the coordinator does.

    def begin_write(self) -> None:
        if self.writing is None:
            changes, self.unsent = self.unsent, []
            self.writing = (changes, *self.partition.begin_write(changes))

    def end_write(self, fails: bool | None = None) -> None:
        if self.writing is None:
            return
        changes, write, undo = self.writing
        self.writing = None
        if self.random.random() < 0.3 if fails is None else fails:
            undo()
            for change in changes:
                self.partition.roll_back(change, self.now_ms)
            return
        self._store(write)
        for change in changes:
            for update in change.updates:
                for n in range(update.range.first, update.range.last + 1):
                    self.records[n].holder = None
            self.partition.commit(change)

    def _store(self, write: StateWrite) -> None:
        assert write.start_offset >= self.start
        for batch in write.batches:
            for n in range(batch.first, batch.last + 1):
                former = self.stored.get(n)
                assert former is None or former.state not in DONE or batch.state == former.state
                self.stored[n] = batch
                if batch.state == DeliveryState.ACKNOWLEDGED:
                    self.acknowledged.add(n)
        # What the start has passed was finished by this write.
        for n in range(self.start, write.start_offset):
            if n not in self.stored or self.stored[n].state not in DONE:
                record = self.records.get(n)
                assert n in self.holes or (record is not None and record.holder is not None) or n in self.letters
        finished = sum(batch.state in DONE for n, batch in self.stored.items() if n >= write.start_offset)
        assert write.delivery_complete_count >= finished
        self.start = write.start_offset

    def fail_over(self) -> None:
        """A new leader reads what is stored. The outcome of a write in flight is unknown to the former one."""
        if self.writing is not None and self.random.random() < 0.5:
            changes, write, _ = self.writing
            self._store(write)
            for change in changes:
                for update in change.updates:
                    if update.state is DeliveryState.ACKNOWLEDGED:
                        self.acknowledged.update(range(update.range.first, update.range.last + 1))
        self.writing, self.unsent = None, []
        batches = [each._replace(first=n, last=n) for n, each in sorted(self.stored.items()) if n >= self.start]
        self.partition = SharePartition(PersistedState(0, self.start, tuple(batches)), 1)
        for n, record in self.records.items():
            record.holder = None
            record.deliveries = self.stored[n].delivery_count if n in self.stored else 0

    def check(self) -> None:
        ranges = self.partition.ranges
        assert self.start <= self.partition.start
        if ranges:
            assert ranges[0].first == self.partition.start
            assert ranges[-1].last == self.partition.end
        for before, after in pairwise(ranges):
            assert before.last + 1 == after.first
        assert all(each.first <= each.last for each in ranges)


def _step(history: History) -> None:
    steps = [history.acquire] * 4 + [history.acknowledge] * 8 + [history.begin_write, history.end_write] * 5
    steps += [history.pass_time, history.write_letters, history.write_letters, history.close_session]
    if history.random.random() < 0.02:
        steps = [history.fail_over]
    history.random.choice(steps)()
    history.check()


def _drain(history: History) -> None:
    """Let everything end well: each record is then acknowledged or archived, and the state is that the start passed."""
    for _ in range(400):
        history.end_write(fails=False)
        history.now_ms += 10 * LOCK_MS
        history._submit(history.partition.expire_locks(history.policy, history.now_ms))
        history.write_letters()
        history.begin_write()
        history.end_write(fails=False)
        history.acquire("A")
        for each in history.partition.ranges:
            if each.member_id == "A" and not each.is_pending:
                history._submit(
                    history.partition.acknowledge(
                        each.member_id, [Acknowledgement(each.first, each.last, 1)], history.policy, history.now_ms
                    )
                )
        history.begin_write()
        history.end_write(fails=False)
        history.check()
        if history.partition.start >= RECORDS:
            return
    raise AssertionError(f"records from {history.partition.start} on are never finished: {history.partition.ranges}")


def run_history(seed: int) -> None:
    random = Random(seed)
    policy = DeliveryPolicy(
        delivery_count_limit=random.choice([2, 3, 5]),
        lock_duration_ms=LOCK_MS,
        max_record_locks=random.choice([5, 20, 100]),
        retry_delays_ms=random.choice([(), (100, 5000)]),
        has_dead_letters=random.random() < 0.5,
    )
    holes = {n for n in range(RECORDS) if random.random() < random.choice([0, 0.2, 0.9])}
    history = History(random, policy, holes)
    for _ in range(400):
        _step(history)
    _drain(history)
    delivered = {n for n in range(RECORDS) if n not in holes}
    assert delivered == set(history.records)
    if policy.has_dead_letters:
        finished = {n for n in history.stored if history.stored[n].state == DeliveryState.ARCHIVED} - holes
        gaps = finished - history.letters
        assert not gaps & history.rejected


@pytest.mark.parametrize("seed", range(60))
def test_each_record_has_one_holder_and_none_is_lost(seed: int) -> None:
    run_history(seed)


MISTAKES = {
    "a lock never expires": ("each.lock_until_ms <= now_ms and not each.is_pending", "False"),
    "expiry does not wait for a pending write": (
        "lock_until_ms <= now_ms and not each.is_pending",
        "lock_until_ms <= now_ms",
    ),
    "another member's acknowledgement is accepted": ("if each.member_id != member_id:", "if False:"),
    "a record is acknowledged while its state is pending": (
        "if each.state is not DeliveryState.ACQUIRED or each.is_pending:",
        "if each.state is not DeliveryState.ACQUIRED:",
    ),
    "a hole is never archived": ("self._archive_hole(Span(position, scanned.last))", "pass"),
    "archived without a dead letter": (
        "change.add(each, policy.final_state)",
        "change.add(each, DeliveryState.ARCHIVED)",
    ),
    "deliveries are not counted": ("taken.delivery_count += 1", "pass"),
    "the start passes open records": ("is_finished = state in FINISHED and", "is_finished = True or"),
    "exhausted records are delivered again": (
        "change.add(each, state, due_ms if state is DeliveryState.AVAILABLE else 0)",
        "change.add(each, DeliveryState.AVAILABLE)",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = MISTAKES[mistake]
    source = inspect.getsource(partition)
    assert old in source
    planted = ModuleType("planted")
    # The dataclasses look up their module.
    monkeypatch.setitem(sys.modules, "planted", planted)
    exec(compile(source.replace(old, new), partition.__file__, "exec"), planted.__dict__)
    monkeypatch.setattr(sys.modules[__name__], "SharePartition", planted.SharePartition)
    for seed in range(60):
        try:
            run_history(seed)
        except (AssertionError, ValueError):
            return
    raise AssertionError("no history has found the mistake")
