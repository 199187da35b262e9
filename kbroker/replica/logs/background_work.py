"""What a data directory has done in threads while nobody waits for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from asyncio import Task, TimerHandle

    from kbroker.runtime.environment import Environment

T = TypeVar("T")


class BackgroundWork:
    """The `Background` that storage/chores.py asks for, of all logs together."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._tasks: dict[Task[None], None] = {}
        self._delayed: set[TimerHandle] = set()

    def __call__(self, job: Callable[[], T], then: Callable[[T], None], delay_ms: int = 0) -> None:
        """A job in a thread, after a delay, and its result on the loop."""
        if delay_ms > 0:

            def begin() -> None:
                self._delayed.discard(timer)
                self(job, then)

            timer = self._environment.loop.call_later(delay_ms / 1000, begin)
            self._delayed.add(timer)
            return
        self.spawn(self._run(job, then))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Something that takes its turns on the loop itself."""
        task = self._environment.loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _run(self, job: Callable[[], T], then: Callable[[T], None]) -> None:
        result: Awaitable[T] = self._environment.offload(job)
        then(await result)

    async def finish(self) -> None:
        """Wait for what is under way. What was left for later is not begun: the next start does it."""
        for timer in self._delayed:
            timer.cancel()
        for task in list(self._tasks):
            await task
