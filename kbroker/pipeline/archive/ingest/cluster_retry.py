"""Requests to brokers that are repeated while no broker responds."""

import time
from collections.abc import Callable
from typing import TypeVar

from kbroker.pipeline.archive.ingest.stop import StopEvent
from kbroker.pipeline.cluster_admin import BrokerUnavailableError, ClusterAdmin
from kbroker.pipeline.errors import PipelineError

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
