"""Background work of one log, away from the loop and one piece at a time.

A log is given a `Background`: a function that runs a blocking job in a thread, after a delay if one is asked for,
and then gives its result to a function on the loop. The broker makes it from its offload and its timers, the
simulation from virtual ones. What a job needs is captured on the loop when it is made; what it brings about is
applied on the loop when it is done, so no thread holds state of a log.
"""

from collections import deque
from collections.abc import Callable
from errno import EIO
from typing import Protocol, TypeVar

T = TypeVar("T")


class BackgroundRunner(Protocol):
    def __call__(self, job: Callable[[], T], then: Callable[[T], None], delay_ms: int = 0, /) -> None:
        """Run `job` in a thread after `delay_ms`, then `then(result)` on the loop. Jobs given here do not raise."""
        ...


class SerialTaskQueue:
    """Jobs in the order in which they were added; the next begins when the one before has been applied.

    A job that raises OSError is given to `failed` instead of its `then`; later jobs still run. Jobs that must answer
    in any case catch it themselves.
    """

    __slots__ = ("_background", "_failed", "_queue", "_running", "_when_idle")

    def __init__(self, background: BackgroundRunner, failed: Callable[[OSError], None]) -> None:
        self._background = background
        self._failed = failed
        self._queue: deque[tuple[Callable[[], object], Callable[[object], None]]] = deque()
        self._running = False
        self._when_idle: list[Callable[[], None]] = []

    def add(self, job: Callable[[], T], then: Callable[[T], None]) -> None:
        self._queue.append((job, then))  # type: ignore[arg-type]
        if not self._running:
            self._next()

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call back once, when no job is left: at once if there is none."""
        if self._running:
            self._when_idle.append(callback)
        else:
            callback()

    def _next(self) -> None:
        if not self._queue:
            self._running = False
            waiting, self._when_idle = self._when_idle, []
            for callback in waiting:
                callback()
            return
        self._running = True
        job, then = self._queue.popleft()

        def attempt() -> tuple[object, OSError | None]:
            try:
                return job(), None
            except OSError as error:
                return None, error
            except Exception as error:
                # A mistake of ours must not keep the log's later chores, its closing among them, from being done.
                return None, OSError(EIO, f"{type(error).__name__}: {error}")

        def finish(outcome: tuple[object, OSError | None]) -> None:
            result, error = outcome
            try:
                if error is None:
                    then(result)
                else:
                    self._failed(error)
            finally:
                self._next()

        self._background(attempt, finish)
