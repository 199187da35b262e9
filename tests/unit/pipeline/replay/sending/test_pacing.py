"""Rate and speed limits of a replay, with a clock that advances only while a pacer waits."""

import pytest

from kbroker.pipeline.replay.sending.pacing import MAX_WAIT_S, Pacer, RatePacer, SpeedPacer, UnlimitedPacer


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def send_times(pacer: Pacer, clock: Clock, due_ms: list[int]) -> list[float]:
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


def test_without_a_limit_all_rows_are_sendable():
    assert UnlimitedPacer().sendable_until([1, 2, 3], 1) == 3


@pytest.mark.parametrize("rate", [0.5, 3, 100, 12_345.6])
def test_a_rate_is_kept(rate):
    clock = Clock()
    count = max(3, round(rate * 4))
    times = send_times(RatePacer(rate, clock), clock, [0] * count)
    assert times[-1] == pytest.approx(count / rate, rel=0.15)
    # never more in any second than a step ahead of the rate
    for start in range(0, count, max(1, count // 50)):
        within_second = sum(times[start] <= at < times[start] + 1 for at in times)
        assert within_second <= rate * 1.2 + 2


def test_an_unused_rate_does_not_accumulate():
    clock = Clock()
    pacer = RatePacer(100, clock)
    assert pacer.sendable_until([0] * 1000, 0) == 0
    clock.now += 60
    assert pacer.sendable_until([0] * 1000, 0) <= 20


def test_a_speed_follows_the_timestamps():
    clock = Clock()
    origin = 1_388_534_400_000
    due_ms = [origin, origin + 10, origin + 1000, origin + 1000, origin + 60_000]
    times = send_times(SpeedPacer(2, clock.now, origin, clock), clock, due_ms)
    assert times == pytest.approx([0, 0.005, 0.5, 0.5, 30], abs=0.001)


def test_a_task_that_starts_late_catches_up_with_the_common_start():
    clock = Clock()
    begin_s = clock.now
    clock.now += 7
    pacer = SpeedPacer(1, begin_s, 0, clock)
    assert pacer.sendable_until([0, 6_999, 7_000, 7_001], 0) == 3
    assert pacer.wait_s([0, 6_999, 7_000, 8_000], 3) == pytest.approx(1)
