"""Offsets of open transactions: what counts when they end, and what is pending until then."""

from random import Random

import pytest

from kbroker.coordinator.group.offsets.pending_offsets import PendingOffset, PendingOffsets
from kbroker.coordinator.group.records import OffsetAndMetadata, OffsetKey

A, B = 1, 2
KEY = OffsetKey("g", "t", 0)


def pending_at(place: int, key: OffsetKey = KEY) -> PendingOffset:
    """An offset that says where it stands."""
    return PendingOffset(key, OffsetAndMetadata(place), place)


def ended(offsets: PendingOffsets, producer_id: int) -> list[int]:
    return [one.place for one in offsets.end(producer_id)]


def test_an_offset_is_pending_until_its_transaction_ends() -> None:
    offsets = PendingOffsets()
    assert not offsets
    offsets.add(A, pending_at(5))
    assert offsets
    assert offsets.has("g", "t", 0)
    assert not offsets.has("g", "t", 1)
    assert not offsets.has("h", "t", 0)
    assert list(offsets.of_group("g")) == [("t", 0)]
    assert ended(offsets, A) == [5]
    assert not offsets
    assert not offsets.has("g", "t", 0)
    assert list(offsets.groups()) == []
    assert ended(offsets, A) == []


def test_of_a_transactions_commits_of_one_partition_the_last_counts() -> None:
    offsets = PendingOffsets()
    offsets.add(A, pending_at(5))
    offsets.add(A, pending_at(6))
    assert ended(offsets, A) == [6]


def test_what_a_later_commit_has_overtaken_stays_pending_and_does_not_count() -> None:
    offsets = PendingOffsets()
    offsets.add(A, pending_at(5))
    offsets.overtake(KEY)
    assert offsets.has("g", "t", 0)
    assert ended(offsets, A) == []
    assert not offsets.has("g", "t", 0)


def test_of_two_transactions_the_one_that_wrote_last_counts_whichever_ends_first() -> None:
    offsets = PendingOffsets()
    offsets.add(A, pending_at(5))
    offsets.add(B, pending_at(6))
    assert ended(offsets, A) == [5]
    offsets.overtake(KEY, 5)
    assert ended(offsets, B) == [6]

    offsets.add(A, pending_at(7))
    offsets.add(B, pending_at(8))
    assert ended(offsets, B) == [8]
    offsets.overtake(KEY, 8)
    assert offsets.has("g", "t", 0)
    assert ended(offsets, A) == []


def test_an_offset_that_is_deleted_does_not_come_back_with_its_transaction() -> None:
    offsets = PendingOffsets()
    other = OffsetKey("g", "t", 1)
    offsets.add(A, pending_at(5))
    offsets.add(A, pending_at(6, other))
    offsets.add(B, pending_at(7))
    offsets.forget(KEY)
    offsets.forget(KEY)
    assert list(offsets.of_group("g")) == [("t", 1)]
    assert ended(offsets, B) == []
    assert ended(offsets, A) == [6]
    assert not offsets


class KafkasWay:
    """As Apache Kafka does it: each offset is kept with its place in the log, and the ends of transactions compare."""

    def __init__(self) -> None:
        self.committed: dict[OffsetKey, int] = {}
        self.pending: dict[int, dict[OffsetKey, int]] = {}

    def commit(self, key: OffsetKey, place: int) -> None:
        self.committed[key] = place

    def write(self, producer_id: int, key: OffsetKey, place: int) -> None:
        self.pending.setdefault(producer_id, {})[key] = place

    def delete(self, key: OffsetKey) -> None:
        self.committed.pop(key, None)
        for offsets in self.pending.values():
            offsets.pop(key, None)

    def end(self, producer_id: int, committed: bool) -> None:
        for key, place in self.pending.pop(producer_id, {}).items():
            if committed and place > self.committed.get(key, -1):
                self.committed[key] = place


class OurWay:
    def __init__(self) -> None:
        self.committed: dict[OffsetKey, int] = {}
        self.pending = PendingOffsets()

    def commit(self, key: OffsetKey, place: int) -> None:
        self.pending.overtake(key)
        self.committed[key] = place

    def write(self, producer_id: int, key: OffsetKey, place: int) -> None:
        self.pending.add(producer_id, pending_at(place, key))

    def delete(self, key: OffsetKey) -> None:
        self.pending.forget(key)
        self.committed.pop(key, None)

    def end(self, producer_id: int, committed: bool) -> None:
        for one in self.pending.end(producer_id):
            if committed:
                self.pending.overtake(one.key, one.place)
                self.committed[one.key] = one.place


@pytest.mark.parametrize("seed", range(30))
def test_any_order_of_commits_and_ends_comes_to_what_it_comes_to_in_kafka(seed: int) -> None:
    random = Random(seed)
    ours, kafkas = OurWay(), KafkasWay()
    keys = [OffsetKey(group, "t", index) for group in "gh" for index in range(2)]
    for place in range(400):
        key, producer_id = random.choice(keys), random.randrange(4)
        choice = random.random()
        committed = random.random() < 0.6
        for way in (ours, kafkas):
            if choice < 0.25:
                way.commit(key, place)
            elif choice < 0.65:
                way.write(producer_id, key, place)
            elif choice < 0.75:
                way.delete(key)
            else:
                way.end(producer_id, committed)
        assert ours.committed == kafkas.committed
        open_now = {one for offsets in kafkas.pending.values() for one in offsets}
        for one in keys:
            assert ours.pending.has(one.group_id, one.topic, one.partition) == (one in open_now)
        assert {OffsetKey(g, *one) for g in ours.pending.groups() for one in ours.pending.of_group(g)} == open_now
