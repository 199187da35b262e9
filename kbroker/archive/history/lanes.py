"""Threads for calls: each partition has a lane of its own, so a file that cannot be read delays no other partition."""

import threading
import traceback
from collections import deque
from collections.abc import Callable, Hashable

MAX_WAITING = 32  # of one lane
MAX_THREADS = 32

Job = Callable[[], None]


class Lanes:
    """Runs the jobs of each key in their order, each key in a thread. Thread-safe."""

    def __init__(self, max_threads: int = MAX_THREADS) -> None:
        self._max_threads = max_threads
        self._jobs: dict[Hashable, deque[Job]] = {}  # those that wait, of each key that has a thread or waits for one
        self._ready: deque[Hashable] = deque()
        self._idle = 0
        self._threads = 0
        self._changed = threading.Condition()

    def submit(self, key: Hashable, job: Job, is_optional: bool = False) -> bool:
        """Run a job after those of the same key; return False if too many wait.

        An optional job is dropped if others of its key wait or run.
        """
        with self._changed:
            waiting = self._jobs.get(key)
            if waiting is not None:
                if is_optional or len(waiting) >= MAX_WAITING:
                    return False
                waiting.append(job)
                return True
            self._jobs[key] = deque([job])
            self._ready.append(key)
            if self._idle >= len(self._ready):
                self._changed.notify()
            elif self._threads < self._max_threads:
                self._threads += 1
                threading.Thread(target=self._run, name="history", daemon=True).start()
            return True

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: bool(self._ready))
                self._idle -= 1
                key = self._ready.popleft()
                job = self._jobs[key].popleft()
            try:
                job()
            except Exception:
                # A thread that ended would stop the lane for ever.
                traceback.print_exc()
            with self._changed:
                if self._jobs[key]:
                    self._ready.append(key)
                else:
                    del self._jobs[key]
