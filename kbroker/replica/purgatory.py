"""The purgatory: requests that wait for a condition, at most until a deadline.

The append or sync that makes the condition true completes the operation itself; the purgatory only tracks deadlines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from kbroker.runtime.delayed_response import DelayedResponse
from kbroker.runtime.timer import DeadlineTimer

if TYPE_CHECKING:
    from asyncio import Task

    from kbroker.runtime.environment import Environment

R = TypeVar("R")


class DelayedOperation(DelayedResponse[R]):
    """A waiting request. It is in the purgatory from `watch` until it is completed, abandoned or expired."""

    __slots__ = ("_purgatory",)

    def __init__(self, purgatory: Purgatory) -> None:
        super().__init__()
        self._purgatory = purgatory

    def watch(self, deadline_ms: int) -> None:
        """Wait at most until `deadline_ms` (monotonic)."""
        self._purgatory.set(self, deadline_ms)

    def stop_watching(self) -> None:
        self._purgatory.cancel(self)

    def complete(self, response: R) -> None:
        self._purgatory.cancel(self)
        super().complete(response)

    def abandon(self) -> None:
        self._purgatory.cancel(self)
        super().abandon()

    def expire(self) -> None:
        """Complete with the current results, because the deadline has passed."""
        raise NotImplementedError


class Purgatory(DeadlineTimer[DelayedOperation[Any]]):
    def __init__(self, environment: Environment) -> None:
        super().__init__(environment, self._expire_operation)
        self._loop, self._turns = environment.loop, environment.turns
        # The rest of expirations with many elements.
        self._expiring: set[Task[None]] = set()

    def _expire_operation(self, operation: DelayedOperation[Any]) -> None:
        rest = self._turns.call(operation.expire)
        if rest is not None:
            task = self._loop.create_task(rest)
            self._expiring.add(task)
            task.add_done_callback(self._expiring.discard)
