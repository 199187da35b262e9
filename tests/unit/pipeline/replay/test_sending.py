"""The task that sends, and its pacing."""

import pytest

from kbroker.common import TopicPartition
from kbroker.pipeline.replay.batch_encoder import ProducerSettings, ReplayBatch
from kbroker.pipeline.replay.sending import MAX_WAIT_S, Pacer, Pacing, RatePacer, SendSettings, SendTask, SpeedPacer

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


class WallClock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def send_times(pacer: Pacer, clock: WallClock, due_ms: list[int]) -> list[float]:
    """Return when each record is sent, in seconds after the start."""
    began, times = clock.now, []
    while len(times) < len(due_ms):
        end = pacer.sendable_until(due_ms, len(times))
        if end == len(times):
            wait_s = pacer.wait_s(due_ms, len(times))
            assert 0 <= wait_s <= MAX_WAIT_S
            clock.now += max(wait_s, 1e-6)
        times += [clock.now - began] * (end - len(times))
    return times


@pytest.mark.parametrize("rate", [0.5, 3, 100, 12_345.6])
def test_a_rate_is_kept(rate):
    clock = WallClock()
    count = max(3, round(rate * 4))
    times = send_times(RatePacer(rate, clock), clock, [0] * count)
    assert times[-1] == pytest.approx(count / rate, rel=0.15)
    # never more in any second than a step ahead of the rate
    for start in range(0, count, max(1, count // 50)):
        within_second = sum(times[start] <= at < times[start] + 1 for at in times)
        assert within_second <= rate * 1.2 + 2


def test_an_unused_rate_does_not_accumulate():
    clock = WallClock()
    pacer = RatePacer(100, clock)
    assert pacer.sendable_until([0] * 1000, 0) == 0
    clock.now += 60
    assert pacer.sendable_until([0] * 1000, 0) <= 20


def test_a_speed_follows_the_timestamps():
    clock = WallClock()
    origin = 1_388_534_400_000
    due_ms = [origin, origin + 10, origin + 1000, origin + 1000, origin + 60_000]
    times = send_times(SpeedPacer(2, clock.now, origin, clock), clock, due_ms)
    assert times == pytest.approx([0, 0.005, 0.5, 0.5, 30], abs=0.001)


def test_a_task_that_starts_late_catches_up_with_the_common_start():
    clock = WallClock()
    begin_s = clock.now
    clock.now += 7
    pacer = SpeedPacer(1, begin_s, 0, clock)
    assert pacer.sendable_until([0, 6_999, 7_000, 7_001], 0) == 3
    assert pacer.wait_s([0, 6_999, 7_000, 8_000], 3) == pytest.approx(1)
