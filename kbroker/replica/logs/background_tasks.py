"""Tasks of the logs of one data directory that no request waits for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from asyncio import Task, TimerHandle

    from kbroker.runtime.environment import Environment

T = TypeVar("T")


class BackgroundTasks:
    """The BackgroundRunner of storage/log/task_queue.py."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        # A dict because its order, unlike that of a set, is the same in every simulation of a seed.
        self._tasks: dict[Task[None], None] = {}
        self._delayed: set[TimerHandle] = set()

    def __call__(self, job: Callable[[], T], then: Callable[[T], None], delay_ms: int = 0) -> None:
        if delay_ms > 0:

            def start() -> None:
                self._delayed.discard(timer)
                self(job, then)

            timer = self._environment.loop.call_later(delay_ms / 1000, start)
            self._delayed.add(timer)
            return
        self.spawn(self._run(job, then))

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine on the event loop, as a task that `finish` waits for."""
        task = self._environment.loop.create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _run(self, job: Callable[[], T], then: Callable[[T], None]) -> None:
        result: Awaitable[T] = self._environment.offload(job)
        then(await result)

    async def finish(self) -> None:
        """Wait for the running tasks. Delayed ones are not started any more: the next start does their work."""
        for timer in self._delayed:
            timer.cancel()
        for task in list(self._tasks):
            await task
