"""Waits for the cluster: requests that are repeated while no broker responds, and which failures of a job pass.

Also how a run is stopped from a signal handler or another thread.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from kbroker.archive.decoding.registry import RegistryError
from kbroker.pipeline.cluster_admin import BrokerUnavailableError, ClusterAdmin
from kbroker.pipeline.errors import PipelineError


class RunStopped(Exception):
    """The run was asked to stop. Its current work is abandoned."""


class StopEvent:
    """Asks a run to stop: after the current batch when set once, immediately when set twice."""

    def __init__(self) -> None:
        self.count = 0
        self._event = threading.Event()

    def set(self) -> None:
        self.count += 1
        self._event.set()

    def wait(self, seconds: float) -> None:
        """Wait for `seconds`; raises RunStopped as soon as the event is set."""
        if self._event.wait(seconds):
            raise RunStopped


_TRANSIENT = re.compile(
    r"org\.apache\.kafka\.common\.errors\.\w+"
    r"|org\.apache\.kafka\.common\.KafkaException"
    r"|Cannot fetch record for offset|Tried to fetch \d+ but the returned record offset"
    r"|Timed out waiting for a node assignment|Failed to update metadata|No resolvable bootstrap urls"
    # A partition was created after the start offsets were chosen.
    r"|you must specify all TopicPartitions"
)
_PERMANENT = re.compile(
    r"errors\.(?:\w*Auth\w+|UnsupportedVersion|InvalidTopic|InvalidConfiguration|Serialization|RecordDeserialization"
    r"|CorruptRecord|Config)Exception|No space left on device|OutOfMemoryError|Disk quota exceeded"
)


def is_transient(error: BaseException) -> bool:
    """Return whether the error, or one of its causes, shows that a server was unavailable or changing."""
    texts = list(_texts(error))
    if any(_PERMANENT.search(text) for text in texts):
        return False
    return isinstance(error, BrokerUnavailableError | RegistryError) or any(_TRANSIENT.search(text) for text in texts)


def is_overflow(error: BaseException) -> bool:
    """Return whether a job failed because of a timestamp that Spark cannot hold in microseconds."""
    return any("long overflow" in text for text in _texts(error))


def _texts(error: BaseException | None) -> Iterator[str]:
    """Yield the messages and Java stack traces of an error and its causes."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        try:
            yield str(error)
        except Exception:  # py4j requests the text from the JVM, which may have ended
            yield type(error).__name__
        yield str(getattr(error, "_stackTrace", "") or "")
        error = error.__cause__ or error.__context__


T = TypeVar("T")

FIRST_PAUSE_S = 0.25
MAX_PAUSE_S = 5.0
# For a moment, a new leader does not know its high watermark and may return an older offset.
SETTLE_S = 10.0
_SETTLE_PAUSE_S = 0.5


class RetryingCluster:
    """A ClusterAdmin whose requests are repeated for at most `wait_s` seconds. Not thread-safe."""

    def __init__(self, bootstrap: str, wait_s: float, stop: StopEvent, warn: Callable[[str], None]) -> None:
        self._cluster = ClusterAdmin(bootstrap)
        self._wait_s = wait_s
        self._stop = stop
        self._warn = warn

    def call(self, request: Callable[[ClusterAdmin], T]) -> T:
        """Return the result of a request. Raises BrokerUnavailableError after `wait_s`, and RunStopped."""
        deadline = time.monotonic() + self._wait_s
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return request(self._cluster)
            except BrokerUnavailableError as error:
                if time.monotonic() + pause_s > deadline:
                    raise
                if pause_s == FIRST_PAUSE_S:
                    self._warn(f"{error}; retrying")
            self._stop.wait(pause_s)
            pause_s = min(MAX_PAUSE_S, pause_s * 2)

    def call_until_valid(self, request: Callable[[ClusterAdmin], T], check: Callable[[T], None]) -> T:
        """Return the result of a request that `check` accepts. Raises the PipelineError of `check` after SETTLE_S."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            result = self.call(request)
            try:
                check(result)
                return result
            except PipelineError:
                if time.monotonic() > deadline:
                    raise
            self._stop.wait(_SETTLE_PAUSE_S)

    def close(self) -> None:
        self._cluster.close()
