"""Many producers: their memory, snapshots that later batches do not change, and what runs on the event loop."""

import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.storage.log.log import Log
from kbroker.storage.producers.producer_state_manager import MAX_RECENT, ProducerStateManager
from kbroker.storage.producers.producer_table import (
    ENTRY,
    MAX_BATCHES,
    ROWS_PER_CHUNK,
    FrozenProducers,
    ProducerStateEntry,
    ProducerTable,
)
from protocol.records.batch import BatchHeader, build_batch, parse_header
from tests.unit.support.compaction import DAY
from tests.unit.support.log_lab import NOW, Lab, append, batch
from tests.unit.support.turns import pauses_of

MANY = 300_000
BYTES_PER_PRODUCER = 300
# Calls of functions in one step on the event loop: less than 2 ms, at 0.2 us each.
CALLS_PER_STEP = 4_000

_HEADER = parse_header(build_batch([(NOW, b"k", b"v", ())], producer_id=1, producer_epoch=0, base_sequence=0))


def header(producer_id: int, sequence: int = 0) -> BatchHeader:
    return _HEADER._replace(producer_id=producer_id, base_sequence=sequence, max_timestamp=NOW + producer_id % 1000)


def many_producers(count: int) -> ProducerStateManager:
    rows = [ENTRY.pack(producer_id, 0, 0, producer_id, 0, NOW, -1, -1) for producer_id in range(count)]
    return ProducerStateManager.from_snapshot(bytes(FrozenProducers(rows, count).encode()))


@contextmanager
def counted_calls() -> Iterator[list[int]]:
    """Count the calls of functions, also of those written in C, whose time does not depend on the machine."""
    calls = [0]

    def count(_: object, event: str, __: object) -> None:
        calls[0] += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def step_sizes(steps: Iterator[None]) -> list[int]:
    """Return the calls of each step of a generator."""
    sizes = []
    while True:
        with counted_calls() as calls:
            if next(steps, steps) is steps:
                return sizes
        sizes.append(calls[0])


@pytest.mark.parametrize("batches", [1, MAX_BATCHES])
def test_a_producer_takes_at_most_300_bytes(batches: int) -> None:
    count, offset = 20_000, 1 << 33
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        producers = ProducerStateManager()
        for producer_id in range(10_000, 10_000 + count):
            for number in range(batches):
                producers.update(header(producer_id, 300 * number), offset)
                offset += 1
        size = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(producers) == count
    assert size <= BYTES_PER_PRODUCER * count


@pytest.mark.parametrize("change", [Log.roll, lambda log, _: log.durability.checkpoint()], ids=["roll", "checkpoint"])
def test_a_roll_with_300_000_producers_takes_no_longer_than_with_few(
    tmp_path: Path, change: Callable[[Log, int], None]
) -> None:
    lab = Lab(tmp_path)
    log = lab.open()
    append(log, batch())
    log.producers = many_producers(MANY)
    for producer_id in range(2 * MAX_RECENT):
        log.producers.update(header(MANY + producer_id), 1)
    lab.background.hold = True
    with counted_calls() as calls:
        change(log, NOW)
    assert calls[0] <= CALLS_PER_STEP
    path = lab.path / "00000000000000000001.snapshot"
    # What is appended before the thread writes the snapshot is not in it.
    before = sorted(log.producers.freeze())
    for producer_id in range(0, MANY, 1000):
        log.producers.update(header(producer_id, 1), 1 << 40)
    lab.background.run()
    assert sorted(ProducerStateManager.from_snapshot(path.read_bytes()).freeze()) == before


def test_the_first_batches_after_a_snapshot_copy_one_chunk_each() -> None:
    producers = many_producers(MANY)
    producers.freeze()
    for producer_id in range(0, MANY, ROWS_PER_CHUNK):
        with counted_calls() as calls:
            producers.check(header(producer_id, 1))
            producers.update(header(producer_id, 1), 1 << 40)
        assert calls[0] <= CALLS_PER_STEP
    with counted_calls() as calls:
        producers.freeze()
    assert calls[0] <= CALLS_PER_STEP


def test_expiration_and_descriptions_of_producers_run_in_small_steps() -> None:
    producers = many_producers(MANY)
    # A turn ends after a quarter of a millisecond.
    assert max(step_sizes(pauses_of(producers.remove_expired, NOW, DAY))) <= CALLS_PER_STEP / 4
    active = producers.active()
    with counted_calls() as calls:
        next(active)
    assert calls[0] <= CALLS_PER_STEP
    assert len(producers) == MANY
    assert producers.remove_expired(NOW + DAY, DAY) == MANY
    assert len(producers) == 0
    assert sum(1 for _ in active) == MANY - 1


def test_producers_that_write_during_the_expiration_stay() -> None:
    producers = many_producers(3 * ROWS_PER_CHUNK)
    steps = pauses_of(producers.remove_expired, NOW + DAY, DAY)
    next(steps)
    for producer_id in range(0, 3 * ROWS_PER_CHUNK, 100):
        producers.update(header(producer_id, 7)._replace(max_timestamp=NOW + DAY), 1 << 40)
    left = {producer.producer_id for producer in producers.active()}
    list(steps)
    written = set(range(0, 3 * ROWS_PER_CHUNK, 100))
    assert written <= {producer.producer_id for producer in producers.active()} <= left


# (producer id, number of batches or None to remove it), or None to freeze the table.
Change = tuple[int, int | None] | None


@given(st.lists(st.none() | st.tuples(st.integers(0, 12), st.none() | st.integers(0, 9)), max_size=60))
def test_a_table_is_like_a_dict(changes: list[Change]) -> None:
    table, model = ProducerTable(), {}
    frozen = []
    for at, change in enumerate(changes):
        if change is None:
            frozen.append((table.freeze(), sorted(model)))
            continue
        producer_id, count = change
        if count is None:
            if producer_id in table:
                table.remove(producer_id)
                del model[producer_id]
            continue
        entry = ProducerStateEntry(at)
        for number in range(count):
            entry.batches.append((number, number, 100 * at + number, 0, NOW))
        del entry.batches[:-MAX_BATCHES]
        entry.last_timestamp = NOW
        table.put(producer_id, entry)
        model[producer_id] = (at, entry.batches)
    assert len(table) == len(model)
    for producer_id in range(13):
        found = table.get(producer_id)
        assert (found is None) == (producer_id not in model)
        if found is not None:
            assert (found.epoch, found.last_batches()) == model[producer_id]
    for rows, ids in frozen:
        assert sorted(saved.producer_id for saved in rows) == ids


def test_older_batches_are_kept_while_producers_take_turns() -> None:
    producers, offset = ProducerStateManager(), 0
    for number in range(8):
        for producer_id in range(2 * MAX_RECENT):
            assert producers.check(header(producer_id, number)) is None
            producers.update(header(producer_id, number), offset)
            offset += 1
    for producer_id in range(2 * MAX_RECENT):
        for number in range(8 - MAX_BATCHES, 8):
            base = number * 2 * MAX_RECENT + producer_id
            assert producers.check(header(producer_id, number)) == (base, base, NOW + producer_id % 1000)
