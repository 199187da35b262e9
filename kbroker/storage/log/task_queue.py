"""A queue of blocking tasks of one log, which run in the background one at a time.

A task captures the state that it needs when it is created, on the event loop; its job does the work in a thread; its
callback applies the result on the event loop. So no thread changes the state of a log.
"""

from collections.abc import Callable
from errno import EIO, ENOMEM
from typing import NamedTuple, Protocol, TypeVar

from kbroker.storage.log.log_health import is_shortage

# Required tasks are retried this long after a shortage, in milliseconds.
RETRY_MS = 1_000

T = TypeVar("T")


class BackgroundRunner(Protocol):
    """Runs jobs in threads: those of the broker's thread pool, or virtual ones in the simulation."""

    def __call__(self, job: Callable[[], T], then: Callable[[T], None], delay_ms: int = 0, /) -> None:
        """Run `job` in a thread after `delay_ms`, then `then(result)` on the event loop. The job does not raise."""
        ...


class Task(NamedTuple):
    job: Callable[[], object]
    then: Callable[[object], None]
    required: bool


class SerialTaskQueue:
    """Runs tasks in the order in which they were added. A task starts when the result of the one before it was applied.

    If a job raises an OSError, `on_error` is called with it instead of the task's callback, and the next task starts.
    `is_closing`: required tasks are no longer retried.
    """

    __slots__ = ("_is_running", "_on_error", "_queue", "_run", "_when_idle", "is_closing")

    def __init__(self, run: BackgroundRunner, on_error: Callable[[OSError], None]) -> None:
        self._run = run
        self._on_error = on_error
        # A list: an empty deque takes 760 bytes, and few tasks ever wait.
        self._queue: list[Task] = []
        self._is_running = False
        self.is_closing = False
        self._when_idle: list[Callable[[], None]] = []

    def add(self, job: Callable[[], T], then: Callable[[T], None], *, required: bool = False) -> None:
        """Add a task: `job` for a thread, and `then`, which is called with its result.

        Later tasks rely on a `required` one: after a shortage (log_health.py) its job is called again before they
        start, so it must be able to continue where it failed.
        """
        self._queue.append(Task(job, then, required))  # type: ignore[arg-type]
        if not self._is_running:
            self._start_next()

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, as soon as no task is left; immediately if there is none."""
        if self._is_running:
            self._when_idle.append(callback)
        else:
            callback()

    def _start_next(self) -> None:
        if not self._queue:
            self._is_running = False
            callbacks, self._when_idle = self._when_idle, []
            for callback in callbacks:
                callback()
            return
        self._is_running = True
        self._start(self._queue.pop(0))

    def _start(self, task: Task, delay_ms: int = 0) -> None:
        def attempt() -> tuple[object, OSError | None]:
            try:
                return task.job(), None
            except OSError as error:
                return None, error
            except MemoryError:
                return None, OSError(ENOMEM, "out of memory")
            except Exception as error:
                # A programming error must not prevent later tasks, such as the closing of the log.
                return None, OSError(EIO, f"{type(error).__name__}: {error}")

        def finish(outcome: tuple[object, OSError | None]) -> None:
            result, error = outcome
            if error is not None and task.required and is_shortage(error):
                if not self.is_closing:
                    self._on_error(error)
                    self._start(task, RETRY_MS)
                    return
                error = OSError(EIO, f"not completed before the log was closed: {error}")
            try:
                if error is None:
                    task.then(result)
                else:
                    self._on_error(error)
            finally:
                self._start_next()

        self._run(attempt, finish, delay_ms)
