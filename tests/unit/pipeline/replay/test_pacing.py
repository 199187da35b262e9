"""How quickly records of a replay go, by a clock that stands still unless somebody waits."""

import pytest

from kbroker.pipeline.replay.pacing import LONGEST_WAIT_S, Pacer, Rate, Speed, Unpaced


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def sent(pacer: Pacer, clock: Clock, dues: list[int]) -> list[float]:
    """When each record goes, in seconds since the first could."""
    began, times = clock.now, []
    while len(times) < len(dues):
        end = pacer.allowed(dues, len(times))
        if end == len(times):
            wait = pacer.wait_s(dues, len(times))
            assert 0 <= wait <= LONGEST_WAIT_S
            clock.now += max(wait, 1e-6)
        times += [clock.now - began] * (end - len(times))
    return times


def test_without_a_limit_all_goes_at_once():
    assert Unpaced().allowed([1, 2, 3], 1) == 3


@pytest.mark.parametrize("rate", [0.5, 3, 100, 12_345.6])
def test_a_rate_is_kept(rate):
    clock = Clock()
    count = max(3, round(rate * 4))
    times = sent(Rate(rate, clock), clock, [0] * count)
    assert times[-1] == pytest.approx(count / rate, rel=0.15)
    # never more in any second than a step ahead of the rate
    for start in range(0, count, max(1, count // 50)):
        within = sum(times[start] <= at < times[start] + 1 for at in times)
        assert within <= rate * 1.2 + 2


def test_what_a_rate_did_not_use_is_not_made_up_for():
    clock = Clock()
    pacer = Rate(100, clock)
    assert pacer.allowed([0] * 1000, 0) == 0
    clock.now += 60
    assert pacer.allowed([0] * 1000, 0) <= 20


def test_speed_follows_the_time_of_the_records():
    clock = Clock()
    origin = 1_388_534_400_000
    dues = [origin, origin + 10, origin + 1000, origin + 1000, origin + 60_000]
    times = sent(Speed(2, clock.now, origin, clock), clock, dues)
    assert times == pytest.approx([0, 0.005, 0.5, 0.5, 30], abs=0.001)


def test_speed_has_one_beginning_for_all_tasks():
    clock = Clock()
    begin = clock.now
    clock.now += 7
    late = Speed(1, begin, 0, clock)
    assert late.allowed([0, 6_999, 7_000, 7_001], 0) == 3
    assert late.wait_s([0, 6_999, 7_000, 8_000], 3) == pytest.approx(1)
