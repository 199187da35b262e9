"""Deadlines by key: order, moved and cancelled deadlines, memory."""

from random import Random

from kbroker.runtime.deadlines import MAX_STALE_ENTRIES, Deadlines


def test_the_earliest_deadline_comes_first_and_once() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for key, when_ms in (("c", 30), ("a", 10), ("b", 20)):
        deadlines.set(key, when_ms)
    assert deadlines.next_ms() == 10
    assert deadlines.pop_due(9) is None
    assert [deadlines.pop_due(25), deadlines.pop_due(25), deadlines.pop_due(25)] == ["a", "b", None]
    assert deadlines.next_ms() == 30


def test_a_deadline_can_be_moved_both_ways_and_cancelled() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 10)
    deadlines.set("b", 15)
    deadlines.set("a", 20)
    assert deadlines.next_ms() == 15
    deadlines.set("a", 5)
    assert deadlines.next_ms() == 5
    deadlines.cancel("a")
    assert deadlines.next_ms() == 15
    deadlines.cancel("b")
    deadlines.cancel("nobody")
    assert deadlines.next_ms() is None


def test_a_time_before_which_no_deadline_passes() -> None:
    deadlines: Deadlines[str] = Deadlines()
    assert deadlines.not_before_ms() is None
    deadlines.set("a", 10)
    deadlines.set("a", 20)
    assert deadlines.not_before_ms() == 10
    assert deadlines.pop_due(10) is None
    assert deadlines.not_before_ms() == 20
    deadlines.set("b", 15)
    assert deadlines.not_before_ms() == 15
    deadlines.cancel("a")
    deadlines.cancel("b")
    assert deadlines.pop_due(15) is None
    assert deadlines.not_before_ms() is None


def test_it_agrees_with_a_plain_dict() -> None:
    random = Random(5)
    for _ in range(50):
        deadlines: Deadlines[int] = Deadlines()
        plain: dict[int, int] = {}
        now_ms = 0
        for _ in range(300):
            key, choice = random.randrange(20), random.random()
            if choice < 0.6:
                plain[key] = now_ms + random.randrange(100)
                deadlines.set(key, plain[key])
            elif choice < 0.75:
                plain.pop(key, None)
                deadlines.cancel(key)
            else:
                now_ms += random.randrange(40)
                while (due := deadlines.pop_due(now_ms)) is not None:
                    assert plain.pop(due) <= now_ms
                assert all(when_ms > now_ms for when_ms in plain.values())
            assert deadlines.next_ms() == min(plain.values(), default=None)
            assert len(deadlines) == len(plain)


def test_moved_and_cancelled_deadlines_use_no_memory() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for now_ms in range(10_000):
        deadlines.set(0, now_ms + 100)
        deadlines.set(now_ms, now_ms + 50_000)
        deadlines.cancel(now_ms)
    assert len(deadlines._heap) <= 2 * len(deadlines) + MAX_STALE_ENTRIES + 1
