"""Measures how long the work of each kind stands still during a fault."""

import threading
import time
from collections.abc import Callable, Collection
from enum import Enum
from typing import NamedTuple

from tests.compat.support import eventually

INTERVAL_S = 0.1


class Kind(Enum):
    WRITES = "writes"
    READS = "reads"
    TRANSACTIONS = "transactions"


class Stream(NamedTuple):
    """Work that always goes on. `count`: what is done so far. `partition`: of the topic, -1 if it needs several."""

    name: str
    kind: Kind
    partition: int
    count: Callable[[], int]


class Progress:
    """Watches all streams from a thread. `longest_s`: the longest time without progress since `begin`, by stream."""

    def __init__(self, streams: Collection[Stream]) -> None:
        self.streams = list(streams)
        self.error: BaseException | None = None
        self._lock = threading.Lock()
        self._counts = {stream.name: 0 for stream in self.streams}
        self._since_s: dict[str, float] = {}
        self._longest_s: dict[str, float] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self.begin(self.streams)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def begin(self, streams: Collection[Stream]) -> None:
        """Measure these streams anew."""
        now = time.monotonic()
        with self._lock:
            for stream in streams:
                self._counts[stream.name] = stream.count()
                self._since_s[stream.name] = now
                self._longest_s[stream.name] = 0.0

    def longest_s(self, kind: Kind) -> float:
        with self._lock:
            return max(self._longest_s[stream.name] for stream in self.streams if stream.kind == kind)

    def slowest(self, kind: Kind) -> str:
        with self._lock:
            names = [stream.name for stream in self.streams if stream.kind == kind]
            return max(names, key=lambda name: self._longest_s[name])

    def wait_for_all(self, streams: Collection[Stream], description: str, check: Callable[[], None]) -> None:
        """Wait until each of these streams has advanced. `check` is called meanwhile, and may raise."""
        before = {stream.name: stream.count() for stream in streams}

        def waiting() -> list[str]:
            if self.error is not None:
                raise self.error
            check()
            return [stream.name for stream in streams if stream.count() <= before[stream.name]]

        try:
            eventually(lambda: not waiting(), f"work goes on {description}", interval=0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}; no progress: {', '.join(waiting())}") from error

    def _run(self) -> None:
        try:
            while not self._stopping.wait(INTERVAL_S):
                self._look()
        except BaseException as error:
            self.error = error

    def _look(self) -> None:
        now = time.monotonic()
        with self._lock:
            for stream in self.streams:
                name, count = stream.name, stream.count()
                self._longest_s[name] = max(self._longest_s[name], now - self._since_s[name])
                if count > self._counts[name]:
                    self._counts[name], self._since_s[name] = count, now
