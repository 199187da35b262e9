"""ReplicationQuota: the rate of the throttled replicas on one side of this broker (Kafka: ReplicationQuotaManager).

The rate is Kafka's SimpleRate: the bytes of the samples in the last `window_count` windows, divided by the time since
the oldest of them began, which counts as at least one window. A replica is throttled only while the rate is above the
limit, so a batch of any size can be fetched: it is followed by a pause.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.config.values import LONG_MAX

if TYPE_CHECKING:
    from kbroker.config import BrokerConfig

DEFAULT_WINDOW_COUNT = 11
DEFAULT_WINDOW_MS = 1_000


class _Sample:
    """Bytes that were recorded within one window. Times are in milliseconds."""

    __slots__ = ("last_ms", "size", "start_ms")

    def __init__(self, now_ms: int) -> None:
        self.start_ms = self.last_ms = now_ms
        self.size = 0


class ReplicationQuota:
    """`limit` returns the bytes per second that are allowed now. `now_ms` is monotonic.

    `samples`: the oldest is the first. While there are none, the quota is not exceeded.
    """

    def __init__(
        self, limit: Callable[[], int], window_count: int = DEFAULT_WINDOW_COUNT, window_ms: int = DEFAULT_WINDOW_MS
    ) -> None:
        self._limit = limit
        self._window_ms = window_ms
        self._expiry_ms = window_count * window_ms
        self.samples: deque[_Sample] = deque()

    def record(self, size: int, now_ms: int) -> None:
        """Count `size` bytes of a throttled replica, in sync or not."""
        samples = self.samples
        if not samples or now_ms - samples[-1].start_ms >= self._window_ms:
            self._remove_expired(now_ms)
            samples.append(_Sample(now_ms))
        samples[-1].size += size
        samples[-1].last_ms = now_ms

    def rate(self, now_ms: int) -> float:
        """Return the bytes per second."""
        size, elapsed_ms = self._measure(now_ms)
        return size * 1000 / elapsed_ms

    def allowance(self, duration_ms: int) -> int:
        """Return how many bytes the limit allows in some milliseconds."""
        return self._limit() * duration_ms // 1000

    def is_exceeded(self, now_ms: int) -> bool:
        if not self.samples:
            return False
        size, elapsed_ms = self._measure(now_ms)
        return size * 1000 > self._limit() * elapsed_ms

    def _measure(self, now_ms: int) -> tuple[int, int]:
        """Return the bytes, and the milliseconds over which they are counted."""
        self._remove_expired(now_ms)
        samples = self.samples
        elapsed_ms = now_ms - samples[0].start_ms if samples else 0
        return sum([sample.size for sample in samples]), max(elapsed_ms, self._window_ms)

    def _remove_expired(self, now_ms: int) -> None:
        samples = self.samples
        while samples and now_ms - samples[0].last_ms >= self._expiry_ms:
            samples.popleft()

    def allowed_at_ms(self, now_ms: int) -> int:
        """Return when the quota is no longer exceeded, if nothing else is recorded; `now_ms` if it is not exceeded."""
        if not self.is_exceeded(now_ms):
            return now_ms
        limit, size = self._limit(), sum([sample.size for sample in self.samples])
        at_ms = now_ms
        for sample in self.samples:
            # The rate of this sample and the later ones falls as time passes, until this one expires.
            expires_ms = sample.last_ms + self._expiry_ms
            if size * 1000 <= limit * self._window_ms:
                return at_ms
            if limit > 0:
                allowed_ms = max(at_ms, sample.start_ms + -(-size * 1000 // limit))
                if allowed_ms < expires_ms:
                    return allowed_ms
            at_ms = max(at_ms, expires_ms)
            size -= sample.size
        return at_ms


def unlimited_quota() -> ReplicationQuota:
    return ReplicationQuota(lambda: LONG_MAX)


def leader_quota(config: Callable[[], BrokerConfig]) -> ReplicationQuota:
    """Return the quota for bytes that this broker sends to followers (leader.replication.throttled.rate)."""
    return _quota(config(), lambda: config().leader_replication_throttled_rate)


def follower_quota(config: Callable[[], BrokerConfig]) -> ReplicationQuota:
    """Return the quota for bytes that this broker fetches as a follower (follower.replication.throttled.rate)."""
    return _quota(config(), lambda: config().follower_replication_throttled_rate)


def _quota(config: BrokerConfig, limit: Callable[[], int]) -> ReplicationQuota:
    window_ms = config.replication_quota_window_size_seconds * 1000
    return ReplicationQuota(limit, config.replication_quota_window_num, window_ms)
