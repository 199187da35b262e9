"""How pages read the cluster: in a few threads, each with a client of its own, and in bounded time.

kbroker.client is blocking. A page passes a function of a ClusterClient to `read`, or to `cached` if several requests
may share what it returns.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from kbroker.client.cluster import ClusterClient
from kbroker.client.requests import MAX_VERSIONS
from kbroker.console.settings import ConsoleSettings

P = ParamSpec("P")
T = TypeVar("T")

CLIENT_ID = "kbroker-console"
MAX_THREADS = 8
# A page reports an error after this time; its request may still be in flight.
DEADLINE_S = 15.0
CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S = 3.0, 10.0
# A result is used again for this time; for the longer one, while a newer one is being read.
MAX_AGE_S, STALE_FOR_S = 2.0, 10.0
MAX_CACHED = 64


class ClusterTimeout(Exception):
    """The cluster has not responded within DEADLINE_S."""


class _CachedRead(NamedTuple):
    task: "asyncio.Task[Any]"
    begun_s: float


class KafkaReader:
    """Runs functions of a ClusterClient in threads."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings = settings
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="console")
        self._idle: list[ClusterClient] = []
        self._cached: dict[Hashable, _CachedRead] = {}

    async def read(self, function: Callable[Concatenate[ClusterClient, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function with a ClusterClient and these arguments, and return its result.

        Raises what the function raises, and ClusterTimeout.
        """

        def call() -> T:
            cluster = self._idle.pop() if self._idle else connect(self._settings)
            try:
                result = function(cluster, *args, **kwargs)
            except BaseException:
                # A request may still be in flight.
                cluster.close()
                raise
            # Topics may have been created or moved before the next request.
            cluster.forget_topics()
            self._idle.append(cluster)
            return result

        call_in_thread = asyncio.get_running_loop().run_in_executor(self._threads, call)
        try:
            return await asyncio.wait_for(call_in_thread, DEADLINE_S)
        except TimeoutError:
            raise ClusterTimeout(f"the cluster has not responded within {DEADLINE_S:.0f} s") from None

    async def cached(
        self, function: Callable[Concatenate[ClusterClient, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Like `read`, but requests share results, which are up to STALE_FOR_S old. The arguments must be hashable."""
        key = function, args, tuple(sorted(kwargs.items()))
        found = self._cached.pop(key, None)
        age_s = monotonic() - found.begun_s if found is not None else STALE_FOR_S
        is_usable = found is not None and (not found.task.done() or (age_s < STALE_FOR_S and _has_result(found.task)))
        if found is None or (found.task.done() and age_s > MAX_AGE_S):
            newest = _CachedRead(asyncio.create_task(self.read(function, *args, **kwargs)), monotonic())
            # Its error is not reported if no request waits for it.
            newest.task.add_done_callback(_has_result)
        else:
            newest = found
        self._cached[key] = newest
        while len(self._cached) > MAX_CACHED:
            del self._cached[next(iter(self._cached))]
        # The request of one user may end, and others wait for the same result.
        result: T = await asyncio.shield(found.task if found is not None and is_usable else newest.task)
        return result

    def forget(self) -> None:
        """Discard cached results, after a change."""
        self._cached.clear()

    def close(self) -> None:
        for cluster in self._idle:
            cluster.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


def connect(settings: ConsoleSettings, max_versions: Mapping[int, int] = MAX_VERSIONS) -> ClusterClient:
    """Return a client of the cluster, which connects with its first request."""
    return ClusterClient(
        settings.bootstrap, client_id=CLIENT_ID, timeout_s=REQUEST_TIMEOUT_S, connect_timeout_s=CONNECT_TIMEOUT_S,
        security=settings.security, max_versions=max_versions,
    )  # fmt: skip


def _has_result(task: "asyncio.Task[Any]") -> bool:
    return not task.cancelled() and task.exception() is None


class Sample(NamedTuple):
    """Numbers by name at a time (time.monotonic)."""

    at_s: float
    values: Mapping[str, int]


class Samples:
    """The last samples of a set of numbers: for rates, and for curves."""

    EVERY_S, RATE_OVER_S = 5.0, 30.0

    # A quarter of an hour of a page that is refreshed.
    def __init__(self, max_samples: int = 180) -> None:
        self.samples: deque[Sample] = deque(maxlen=max_samples)

    def add(self, values: Mapping[str, int]) -> None:
        """Add a sample, unless one with the same names is younger than EVERY_S."""
        now_s = monotonic()
        for sample in reversed(self.samples):
            if now_s - sample.at_s >= self.EVERY_S:
                break
            if values.keys() <= sample.values.keys():
                return
        self.samples.append(Sample(now_s, values))

    def rate(self, name: str, value: int) -> float | None:
        """Return the growth per second to the current value, over about RATE_OVER_S; None if it is not known yet."""
        now_s = monotonic()
        known = [sample for sample in self.samples if name in sample.values and now_s - sample.at_s >= 1]
        if not known:
            return None
        since = next((sample for sample in reversed(known) if now_s - sample.at_s >= self.RATE_OVER_S), known[0])
        # A topic that was created again begins at 0.
        return max(0.0, (value - since.values[name]) / (now_s - since.at_s))
