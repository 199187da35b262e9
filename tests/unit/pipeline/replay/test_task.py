"""One task: rows of several targets, cut into batches, skipped where they are there already, paced."""

import pytest

from kbroker.pipeline.replay.encoding import Batch, Target, Writer
from kbroker.pipeline.replay.task import Paced, Settings, Task

pa = pytest.importorskip("pyarrow", reason="not run: pyarrow is not installed (extra `spark`)")

TARGETS = [Target("t", 0), Target("t", 1), Target("u", 0)]
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class Sender:
    """Takes note of what it is given. `have`: what each target has already."""

    def __init__(self, have: dict[Target, int] | None = None) -> None:
        self.have = have or {}
        self.batches: list[Batch] = []
        self.flushed_at: list[int] = []

    def position(self, target: Target) -> int:
        return self.have.get(target, 0)

    def send(self, batch: Batch) -> None:
        self.batches.append(batch)

    def flush(self) -> None:
        self.flushed_at.append(len(self.batches))

    def values(self, number: int) -> list[tuple[int, bytes | None]]:
        """(position, value) of what a target got, in order."""
        mine = [batch for batch in self.batches if batch.target == TARGETS[number]]
        return [(batch.position + i, value) for batch in mine for i, value in enumerate(batch.values)]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += max(seconds, 1e-6)


def rows(targets, dues=None, size=1):
    count = len(targets)
    return pa.record_batch(
        {
            "target": pa.array(targets, pa.int32()),
            "due": pa.array(dues or range(count), pa.int64()),
            "timestamp": pa.array(dues or range(count), pa.int64()),
            "topic": pa.array(["s"] * count),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "key": pa.array([None] * count, pa.binary()),
            "value": pa.array([b"%d" % n * size for n in range(count)], pa.binary()),
            "headers": pa.array([None] * count, HEADERS),
        }
    )


def task_of(sender, clock=None, **settings):
    clock = clock or Clock()
    made = Settings("", Writer(1, 0, 0), TARGETS, {}, None, 1.0, **settings)
    return Task(sender, made, clock, clock.pause)


def test_rows_go_to_their_targets_at_their_positions():
    sender = Sender()
    task = task_of(sender)
    task.take(rows([0, 0, 1]))
    task.take(rows([1, 1, 2]))
    assert sender.values(0) == [(0, b"0"), (1, b"1")]
    assert sender.values(1) == [(0, b"2"), (1, b"0"), (2, b"1")]
    assert sender.values(2) == [(0, b"2")]
    assert task.next == {0: 2, 1: 3, 2: 1}


def test_what_is_there_already_is_skipped_within_and_across_batches():
    sender = Sender({TARGETS[0]: 3, TARGETS[1]: 1, TARGETS[2]: 99})
    task = task_of(sender)
    task.take(rows([0, 0, 2, 2]))
    assert sender.batches == []
    task.take(rows([0, 1, 0, 1, 2, 0]))
    assert sender.values(0) == [(3, b"2"), (4, b"5")]
    assert sender.values(1) == [(1, b"3")]
    assert sender.values(2) == []
    assert (task.had, task.next[0]) == ({0: 3, 2: 99, 1: 1}, 5)


def test_batches_are_cut_by_size_and_a_large_record_goes_alone():
    sender = Sender()
    task_of(sender, batch_bytes=500).take(rows([0] * 20, size=100))
    assert [len(batch.values) for batch in sender.batches[:3]] == [3, 3, 3]
    assert sender.values(0) == [(n, b"%d" % n * 100) for n in range(20)]
    sender = Sender()
    task_of(sender, batch_bytes=50).take(rows([0] * 5, size=100))
    assert [len(batch.values) for batch in sender.batches] == [1] * 5


def test_at_a_speed_targets_take_turns_by_time_and_all_is_settled_before_a_pause():
    sender, clock = Sender(), Clock()
    task = task_of(sender, clock, paced=Paced(speed=10.0, begin_s=1.0, origin_ms=5000))
    task.take(rows([0, 1, 0, 1], [5000, 5000, 15_000, 15_000]))
    assert [(batch.target.partition, batch.position) for batch in sender.batches] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert clock.now == pytest.approx(2.0)
    assert sender.flushed_at[0] == 0
    assert sender.flushed_at[-1] == 2


def test_at_a_rate_rows_of_a_target_go_in_steps():
    sender, clock = Sender(), Clock()
    task_of(sender, clock, paced=Paced(rates={0: 50.0})).take(rows([0] * 100))
    assert sender.values(0) == [(n, b"%d" % n) for n in range(100)]
    assert clock.now == pytest.approx(2.0, rel=0.1)
    assert len(sender.batches) == pytest.approx(20, abs=3)
