"""The sorted set of pending records, compared with a plain sorted list."""

import tracemalloc
from random import Random

import pytest

from kbroker.queues.delay import pending_records
from kbroker.queues.delay.pending_records import CHUNK_RECORDS, PendingRecords
from tests.sampling import third_of
from tests.unit.support.turns import pauses_of


def content(pending: PendingRecords) -> list[tuple[int, int]]:
    return pending.after(None, len(pending) + 1)


def test_records_that_are_due_at_the_same_time_are_in_the_order_of_their_offsets():
    pending = PendingRecords()
    for due, offset in [(20, 3), (10, 9), (20, 1), (10, 2), (20, 2)]:
        pending.add((due, offset))
    assert content(pending) == [(10, 2), (10, 9), (20, 1), (20, 2), (20, 3)]
    assert pending.due(10, 5) == [(10, 2), (10, 9)]
    assert pending.first_due_ms() == 10


@pytest.mark.parametrize("seed", third_of(range(6)))
def test_it_is_a_sorted_set(seed):
    random = Random(seed)
    pending, expected = PendingRecords(), set()
    dues = random.choice([3, 100, 10**6])
    for step in range(3 * CHUNK_RECORDS):
        if expected and random.random() < 0.3:
            entry = random.choice(sorted(expected)) if step % 50 == 0 else min(expected)
            assert pending.discard_all([entry]) == 1
            expected.remove(entry)
        else:
            entry = (random.randrange(dues), random.randrange(10 * CHUNK_RECORDS))
            pending.add(entry)
            expected.add(entry)
        assert not pending.discard_all([(-1, 5)])
    ordered = sorted(expected)
    assert len(pending) == len(ordered)
    assert content(pending) == ordered
    middle = ordered[len(ordered) // 2]
    assert pending.after(middle, 3000) == ordered[len(ordered) // 2 + 1 :][:3000]
    assert pending.lowest_offset() == min([offset for _, offset in ordered])
    assert middle in pending
    assert (middle[0], -7) not in pending


def test_chunks_are_loaded_again():
    pending, loaded = PendingRecords(), PendingRecords()
    for offset in range(5000):
        pending.add((offset % 7, offset))
    chunks = [(dues.tobytes(), offsets.tobytes()) for dues, offsets in pending.share_chunks()]
    for chunk in chunks:
        loaded.load_chunk(*chunk)
    assert content(loaded) == content(pending)
    assert loaded.lowest_offset() == 0
    with pytest.raises(ValueError, match="order"):
        loaded.load_chunk(*chunks[0])


def test_shared_chunks_do_not_change():
    pending = PendingRecords()
    for offset in range(5000):
        pending.add((offset % 7, offset))
    before = content(pending)
    shared = pending.share_chunks()
    for offset in range(0, 5000, 2):
        pending.discard_all([(offset % 7, offset)])
        pending.add((3, 10_000 + offset))
    pending.drop_below(2500)
    assert [entry for dues, offsets in shared for entry in zip(dues, offsets, strict=True)] == before


@pytest.mark.parametrize("below", [0, 1, 700, 5000, 9999, 10_000])
def test_records_below_an_offset_are_dropped(below):
    random = Random(below)
    entries = [(random.randrange(1000), offset) for offset in range(10_000)]
    pending = PendingRecords()
    for entry in entries:
        pending.add(entry)
    # In turns, while others are removed and added.
    for _ in pauses_of(pending.drop_below, below):
        for entry in random.sample(entries[below:], min(5, 10_000 - below)):
            pending.discard_all([entry])
            pending.add(entry)
    assert content(pending) == sorted(entry for entry in entries if entry[1] >= below)
    assert len(pending) == 10_000 - below
    assert pending.lowest_offset() == (below if below < 10_000 else None)


def test_a_record_takes_at_most_36_bytes():
    tracemalloc.start()
    try:
        pending = PendingRecords()
        random = Random(1)
        for offset in range(50_000):
            pending.add((random.randrange(10**9), offset))
        # Not what other threads allocate, such as those of clients that another test has left.
        own = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, pending_records.__file__)])
    finally:
        tracemalloc.stop()
    assert 0 < sum(trace.size for trace in own.traces) / 50_000 <= 36


def test_the_lowest_offset_is_found_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    pending = PendingRecords()
    for offset in range(4 * CHUNK_RECORDS):
        pending.add((offset * 7919 % 10_007, offset))
    removed = sorted(pending.after(None, 10_000), key=lambda entry: entry[1])[:3000]
    pending.discard_all(removed)
    steps: list[None] = []
    monkeypatch.setattr(pending_records, "yield_if_due", lambda: steps.append(None))
    assert pending.lowest_offset() == 3000
    assert 3 <= len(steps) <= 8
    assert pending.lowest_offset() == 3000
    assert len(steps) <= 8
