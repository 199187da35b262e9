"""Asking brokers that may be away for a while, and being asked to end meanwhile."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.kafka import BrokerGone, Cluster

T = TypeVar("T")

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 5.0
# A new leader may not know for a moment how far its log is readable.
SETTLING_S = 10.0


class Ended(Exception):
    """The run was asked to end, and what it was at is left as it is."""


class Stop:
    """Asks a run to end: once, after the batch that runs; twice, at once. Signal handlers may call `ask`."""

    def __init__(self) -> None:
        self.asked = 0
        self._event = threading.Event()

    def ask(self) -> None:
        """One more time."""
        self.asked += 1
        self._event.set()

    def pause(self, seconds: float) -> None:
        """Waits so long; raises Ended as soon as the run is asked to end."""
        if self._event.wait(seconds):
            raise Ended


class Brokers:
    """The brokers at an address, asked again until they answer, for `wait_s` seconds at most. One thread at a time."""

    def __init__(self, bootstrap: str, wait_s: float, stop: Stop, warn: Callable[[str], None]) -> None:
        self._cluster = Cluster(bootstrap)
        self._wait_s = wait_s
        self._stop = stop
        self._warn = warn

    def ask(self, question: Callable[[Cluster], T]) -> T:
        """The answer. Raises BrokerGone when there was none in time, and Ended."""
        deadline = time.monotonic() + self._wait_s
        pause = FIRST_PAUSE_S
        while True:
            try:
                return question(self._cluster)
            except BrokerGone as error:
                if time.monotonic() + pause > deadline:
                    raise
                if pause == FIRST_PAUSE_S:
                    self._warn(f"{error}; waiting for it")
            self._stop.pause(pause)
            pause = min(LONGEST_PAUSE_S, pause * 2)

    def settled(self, question: Callable[[Cluster], T], require: Callable[[T], None]) -> T:
        """As `ask`, again and again for some seconds where `require` raises PipelineError about the answer."""
        deadline = time.monotonic() + SETTLING_S
        while True:
            answer = self.ask(question)
            try:
                require(answer)
                return answer
            except PipelineError:
                if time.monotonic() > deadline:
                    raise
            self._stop.pause(0.5)

    def close(self) -> None:
        """Ends the connection."""
        self._cluster.close()
