"""Answers that are given once: when it is settled, or when the time is over."""

import pytest

from kbroker.coordinator.timeouts import ResponseTimeouts
from protocol.errors import ErrorCode
from tests.unit.support.group_coordinator import VirtualLoop

LATE = ErrorCode.COORDINATOR_NOT_AVAILABLE


class Stage:
    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.answers: list[tuple[str, ErrorCode, int]] = []
        self.timeout_ms = 100
        self.in_time = ResponseTimeouts(self.loop, lambda: self.timeout_ms)

    def begin(self, name: str):
        def answer(error: ErrorCode) -> None:
            self.answers.append((name, error, self.loop.elapsed_ns // 1_000_000))

        return self.in_time.begin(answer, LATE)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_what_is_settled_in_time_is_answered_then_and_once(stage: Stage) -> None:
    settle = stage.begin("a")
    stage.loop.pass_ms(50)
    settle(ErrorCode.NONE)
    stage.loop.pass_ms(500)
    assert stage.answers == [("a", ErrorCode.NONE, 50)]


def test_what_takes_too_long_is_answered_at_its_time_and_once(stage: Stage) -> None:
    settle = stage.begin("a")
    stage.loop.pass_ms(60)
    stage.begin("b")
    stage.loop.pass_ms(500)
    settle(ErrorCode.NONE)
    assert stage.answers == [("a", LATE, 100), ("b", LATE, 160)]


def test_each_has_the_time_that_was_configured_when_it_began(stage: Stage) -> None:
    stage.begin("a")
    stage.timeout_ms = 300
    stage.begin("b")
    stage.loop.pass_ms(500)
    assert stage.answers == [("a", LATE, 100), ("b", LATE, 300)]


def test_nothing_is_kept_of_what_was_settled(stage: Stage) -> None:
    first = stage.begin("first")
    for settle in [stage.begin(str(number)) for number in range(10)]:
        settle(ErrorCode.NONE)
    assert len(stage.in_time._waiting) == 11
    first(ErrorCode.NONE)
    assert not stage.in_time._waiting
