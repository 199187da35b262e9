"""One task: rows of several targets, divided into batches, skipped if they were sent before, paced."""

import pytest

from kbroker.common import TopicPartition
from kbroker.pipeline.replay.sending.batch_encoder import ProducerSettings, ReplayBatch
from kbroker.pipeline.replay.sending.task import Pacing, SendSettings, SendTask

pa = pytest.importorskip("pyarrow", reason="not run: pyarrow is not installed (extra `spark`)")

TARGETS = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)]
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class RecordingProducer:
    """Stands in for ReplayProducer and records its calls. `positions`: how many records each target has."""

    def __init__(self, positions: dict[TopicPartition, int] | None = None) -> None:
        self.positions = positions or {}
        self.batches: list[ReplayBatch] = []
        self.flushed_after: list[int] = []

    def position(self, target: TopicPartition) -> int:
        return self.positions.get(target, 0)

    def send(self, batch: ReplayBatch) -> None:
        self.batches.append(batch)

    def flush(self) -> None:
        self.flushed_after.append(len(self.batches))

    def values(self, number: int) -> list[tuple[int, bytes | None]]:
        """Return (position, value) of each record sent to a target, in order."""
        of_target = [batch for batch in self.batches if batch.target == TARGETS[number]]
        return [(batch.position + i, value) for batch in of_target for i, value in enumerate(batch.values)]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1e-6)


def rows(targets, due_ms=None, size=1):
    count = len(targets)
    return pa.record_batch(
        {
            "target": pa.array(targets, pa.int32()),
            "due": pa.array(due_ms or range(count), pa.int64()),
            "timestamp": pa.array(due_ms or range(count), pa.int64()),
            "topic": pa.array(["s"] * count),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "key": pa.array([None] * count, pa.binary()),
            "value": pa.array([b"%d" % n * size for n in range(count)], pa.binary()),
            "headers": pa.array([None] * count, HEADERS),
        }
    )


def send_task(producer, clock=None, **settings):
    clock = clock or Clock()
    send_settings = SendSettings("", ProducerSettings(1, 0, 0), TARGETS, {}, None, 1.0, **settings)
    return SendTask(producer, send_settings, clock, clock.sleep)


def test_rows_go_to_their_targets_in_order_of_position():
    producer = RecordingProducer()
    task = send_task(producer)
    task.send(rows([0, 0, 1]))
    task.send(rows([1, 1, 2]))
    assert producer.values(0) == [(0, b"0"), (1, b"1")]
    assert producer.values(1) == [(0, b"2"), (1, b"0"), (2, b"1")]
    assert producer.values(2) == [(0, b"2")]
    assert task.positions == {0: 2, 1: 3, 2: 1}


def test_rows_sent_before_are_skipped_within_and_across_arrow_batches():
    producer = RecordingProducer({TARGETS[0]: 3, TARGETS[1]: 1, TARGETS[2]: 99})
    task = send_task(producer)
    task.send(rows([0, 0, 2, 2]))
    assert producer.batches == []
    task.send(rows([0, 1, 0, 1, 2, 0]))
    assert producer.values(0) == [(3, b"2"), (4, b"5")]
    assert producer.values(1) == [(1, b"3")]
    assert producer.values(2) == []
    assert (task.sent_before, task.positions[0]) == ({0: 3, 2: 99, 1: 1}, 5)


def test_batches_are_limited_by_size_and_a_larger_record_is_alone():
    producer = RecordingProducer()
    send_task(producer, batch_bytes=500).send(rows([0] * 20, size=100))
    assert [len(batch.values) for batch in producer.batches[:3]] == [3, 3, 3]
    assert producer.values(0) == [(n, b"%d" % n * 100) for n in range(20)]
    producer = RecordingProducer()
    send_task(producer, batch_bytes=50).send(rows([0] * 5, size=100))
    assert [len(batch.values) for batch in producer.batches] == [1] * 5


def test_at_a_speed_targets_alternate_by_time_and_a_pause_begins_with_a_flush():
    producer, clock = RecordingProducer(), Clock()
    task = send_task(producer, clock, pacing=Pacing(speed=10.0, begin_s=1.0, origin_ms=5000))
    task.send(rows([0, 1, 0, 1], [5000, 5000, 15_000, 15_000]))
    assert [(batch.target.partition, batch.position) for batch in producer.batches] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert clock.now == pytest.approx(2.0)
    assert producer.flushed_after[0] == 0
    assert producer.flushed_after[-1] == 2


def test_at_a_rate_rows_are_sent_in_steps():
    producer, clock = RecordingProducer(), Clock()
    send_task(producer, clock, pacing=Pacing(rates={0: 50.0})).send(rows([0] * 100))
    assert producer.values(0) == [(n, b"%d" % n) for n in range(100)]
    assert clock.now == pytest.approx(2.0, rel=0.1)
    assert len(producer.batches) == pytest.approx(20, abs=3)
