"""Repeated background work."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from kbroker.runtime.event_log import EventLogger

if TYPE_CHECKING:
    from asyncio import Task, TimerHandle

    from kbroker.runtime.environment import Environment

log = EventLogger("kbroker")


def always() -> bool:
    return True


class PeriodicTask:
    """Runs a coroutine repeatedly, in turns: one at a time, `period_ms()` milliseconds after the end of the last one.

    While `is_needed()` is false, nothing is scheduled, so an idle broker sleeps. Code that makes it true calls
    `schedule`. A run that raises is logged, and the next one is scheduled.
    """

    def __init__(
        self,
        environment: Environment,
        name: str,
        period_ms: Callable[[], int],
        run: Callable[[], Coroutine[Any, Any, None]],
        is_needed: Callable[[], object] = always,
    ) -> None:
        self._environment = environment
        self._name = name
        self._period_ms = period_ms
        self._run_once = run
        self._is_needed = is_needed
        self._timer: TimerHandle | None = None
        self._task: Task[None] | None = None
        self._stopped = False

    def schedule(self) -> None:
        """Schedule a run, unless one is scheduled or running, or none is needed."""
        if self._timer is None and self._task is None and not self._stopped and self._is_needed():
            self._timer = self._environment.loop.call_later(self._period_ms() / 1000, self._start)

    def _start(self) -> None:
        self._timer = None
        self._task = self._environment.loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._environment.turns.run(self._run_once())
        except Exception as error:
            log.failure("periodic task failed", error, task=self._name)
        self._task = None
        self.schedule()

    async def stop(self) -> None:
        """Stop scheduling runs, and wait for the current one."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await self._task
