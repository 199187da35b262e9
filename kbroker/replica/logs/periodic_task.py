"""Work that is done again and again, and work over many partitions, which must not hold up the loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from kbroker.runtime.event_log import EventLogger

if TYPE_CHECKING:
    from asyncio import Task, TimerHandle

    from kbroker.runtime.environment import Environment

T = TypeVar("T")
log = EventLogger("kbroker.logs")
A_TURN = 50


def always() -> bool:
    return True


class PeriodicTask:
    """A piece of work that is repeated while it is `wanted`: at most one at a time, `period_ms` after the last one."""

    def __init__(
        self,
        environment: Environment,
        name: str,
        period_ms: Callable[[], int],
        work: Callable[[], Awaitable[None]],
        wanted: Callable[[], object] = always,
    ) -> None:
        self._environment = environment
        self._name = name
        self._period_ms = period_ms
        self._work = work
        self._wanted = wanted
        self._timer: TimerHandle | None = None
        self._task: Task[None] | None = None
        self._stopped = False

    def arm(self) -> None:
        """Begin after the period, if there is something to do and nothing under way."""
        if self._timer is None and self._task is None and not self._stopped and self._wanted():
            self._timer = self._environment.loop.call_later(self._period_ms() / 1000, self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._task = self._environment.loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._work()
        except Exception as error:
            log.failure("regular work failed", error, work=self._name)
        self._task = None
        self.arm()

    async def stop(self) -> None:
        """Wait for what is under way."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await self._task


async def iterate_yielding(
    environment: Environment, many: Iterable[T], stopped: Callable[[], bool]
) -> AsyncIterator[T]:
    """Each of them, with turns of the loop between, until it is stopped."""
    for number, one in enumerate(many):
        if number % A_TURN == A_TURN - 1:
            await environment.turn()
        if stopped():
            return
        yield one
