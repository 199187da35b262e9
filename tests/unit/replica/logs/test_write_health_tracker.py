"""When a broker counts as one that cannot write, and when as one that can again."""

from kbroker.metadata.image import WriteHealth
from kbroker.replica.logs.disk_health import (
    DOUBT_MS,
    FORGET_MS,
    MAX_PROBATION_MS,
    MIN_PROBATION_MS,
    STABLE_MS,
    WriteHealthTracker,
)

OK, PROBATION, FAILING = WriteHealth
ERROR = "no space"


def recover(tracker: WriteHealthTracker, now_ms: int) -> int:
    """Let writes succeed until the probation begins; returns its duration, in steps of a second."""
    for now in range(now_ms, now_ms + STABLE_MS + 1, STABLE_MS):
        tracker.check(now, None, None)
    assert tracker.health is PROBATION
    now = began_ms = now_ms + STABLE_MS
    while tracker.health is PROBATION:
        now += 1_000
        tracker.check(now, None, None)
    assert tracker.health is OK
    return now - began_ms


def test_a_failed_probe_is_enough() -> None:
    tracker = WriteHealthTracker()
    assert tracker.check(0, ERROR, None)
    assert (tracker.health, tracker.error) == (FAILING, ERROR)
    assert not tracker.check(1, "another", None)
    assert tracker.error == "another"


def test_one_failed_append_is_not_if_the_probe_succeeds() -> None:
    tracker = WriteHealthTracker()
    assert not tracker.check(0, None, ERROR)
    assert not tracker.check(DOUBT_MS, None, ERROR)
    assert tracker.check(2 * DOUBT_MS - 1, None, ERROR), "every append fails, but not the probe"
    assert tracker.health is FAILING
    tracker.check(2 * DOUBT_MS, None, None)
    tracker.check(2 * DOUBT_MS + STABLE_MS - 1, None, ERROR)
    tracker.check(2 * DOUBT_MS + STABLE_MS, None, None)
    assert tracker.health is FAILING, "an append has failed in between"


def test_the_probation_begins_after_a_second_of_successes() -> None:
    tracker = WriteHealthTracker()
    tracker.check(0, ERROR, None)
    assert not tracker.check(100, None, None)
    assert not tracker.check(100 + STABLE_MS - 1, None, None)
    assert tracker.check(100 + STABLE_MS, None, None)
    assert (tracker.health, tracker.error) == (PROBATION, ERROR)
    assert not tracker.check(100 + STABLE_MS + MIN_PROBATION_MS - 1, None, None)
    assert tracker.check(100 + STABLE_MS + MIN_PROBATION_MS, None, None)
    assert (tracker.health, tracker.error) == (OK, "")


def test_a_disk_that_fills_again_and_again_has_longer_probations() -> None:
    tracker = WriteHealthTracker()
    now_ms, found = 0, []
    for _ in range(6):
        tracker.check(now_ms, ERROR, None)
        found.append(recover(tracker, now_ms + 10_000))
        now_ms += 200_000
    assert found == [5_000, 10_000, 20_000, 40_000, MAX_PROBATION_MS, MAX_PROBATION_MS]
    now_ms += FORGET_MS
    tracker.check(now_ms, ERROR, None)
    assert recover(tracker, now_ms + 1) == MIN_PROBATION_MS


def test_a_failure_ends_the_probation() -> None:
    tracker = WriteHealthTracker()
    for now_ms, error in ((0, ERROR), (1, None), (1 + STABLE_MS, None)):
        tracker.check(now_ms, error, None)
    assert tracker.health is PROBATION
    assert tracker.check(2_000, ERROR, None)
    assert tracker.health is FAILING
