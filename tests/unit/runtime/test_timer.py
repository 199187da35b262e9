"""One timer for many deadlines."""

import asyncio

import pytest

from kbroker.runtime.deadlines import DeadlineTimer
from kbroker.simulation.runtime.environment import simulated_environment
from kbroker.simulation.runtime.loop import SimLoop


class Story:
    def __init__(self) -> None:
        self.loop = SimLoop()
        self.environment = simulated_environment(1, loop=self.loop)
        self.start_ms = self.environment.clock.mono_ms()
        self.expired: list[tuple[str, int]] = []
        self.timer: DeadlineTimer[str] = DeadlineTimer(
            self.environment.clock.mono_ms, self.loop.call_later, self.on_expired
        )

    def on_expired(self, key: str) -> None:
        self.expired.append((key, self.environment.clock.mono_ms() - self.start_ms))
        if key == "again" and len(self.expired) < 3:
            self.set("again", self.expired[-1][1] + 10)

    def set(self, key: str, deadline_ms: int) -> None:
        self.timer.set(key, self.start_ms + deadline_ms)

    def pass_ms(self, milliseconds: int) -> None:
        self.loop.run_until_complete(asyncio.sleep(milliseconds / 1000))


@pytest.fixture
def story():
    story = Story()
    yield story
    story.loop.close()


def test_each_deadline_expires_at_its_time(story: Story) -> None:
    story.set("b", 200)
    story.set("a", 100)
    story.set("cancelled", 150)
    story.set("moved", 50)
    story.set("moved", 300)
    story.timer.cancel("cancelled")
    assert sorted(story.timer.keys()) == ["a", "b", "moved"]
    story.pass_ms(1000)
    assert story.expired == [("a", 100), ("b", 200), ("moved", 300)]
    assert len(story.timer) == 0


def test_an_expired_key_may_get_a_new_deadline(story: Story) -> None:
    story.set("later", 500)
    story.set("again", 10)
    story.pass_ms(1000)
    assert story.expired == [("again", 10), ("again", 20), ("again", 30), ("later", 500)]


def test_nothing_expires_after_stop(story: Story) -> None:
    story.set("a", 100)
    story.timer.stop()
    story.pass_ms(1000)
    assert story.expired == []
