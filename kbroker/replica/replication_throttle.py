"""Replication throttles (KIP-73): the rate of throttled replicas on one side of this broker, and the leader's side.

The rate is that of Kafka (ReplicationQuotaManager, SimpleRate): the bytes of the samples in the last `window_count`
windows, divided by the time since the oldest of them began, which counts as at least one window. A replica is throttled
only while the rate is above the limit, so a batch of any size can be fetched: it is followed by a pause. Replicas in
the ISR are never throttled: a throttle must not remove them from it, nor delay producers with acks=all.
"""

from collections import deque
from collections.abc import Callable

from kbroker.config import BrokerConfig
from kbroker.config.values import LONG_MAX
from kbroker.replica.fetch.fetch_session import FetchPartition, FetchSession
from kbroker.replica.partition import Partition
from kbroker.runtime.environment import Clock

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


def should_leader_throttle(partition: Partition, replica_id: int, quota: ReplicationQuota, now_ms: int) -> bool:
    """Return whether a follower gets no records of the partition for now."""
    return partition.is_leader_throttled and replica_id not in partition.state.maximal_isr and quota.is_exceeded(now_ms)


def should_follower_throttle(partition: Partition, lag: int, quota: ReplicationQuota, now_ms: int) -> bool:
    """Return whether this follower does not fetch the partition for now.

    `lag`: the number of committed records that it does not have; -1 if it is unknown.
    """
    return (
        partition.is_follower_throttled
        and lag != 0
        and partition.state.local_id not in partition.state.isr
        and quota.is_exceeded(now_ms)
    )


# Withheld partitions whose throttle was removed are read after at most this time.
LOOK_MS = 1_000
# A response contains at most the bytes of this time for throttled replicas. The follower receives and appends them
# before it fetches again, and the records of its in-sync partitions wait meanwhile. The rate is still reached if the
# round trip is shorter than this time.
RESPONSE_MS = 50
MIN_RESPONSE_BYTES = 256 * 1024


class LeaderThrottle:
    """The leader's side of the throttle. It is called for throttled partitions only."""

    def __init__(self, quota: ReplicationQuota, clock: Clock) -> None:
        self.quota = quota
        self._clock = clock

    def begin_read(self, session: FetchSession) -> bool:
        """Make the withheld partitions of a session ready if the quota allows, or after LOOK_MS.

        Returns whether they are still withheld. Until then a request does not check them one by one.
        """
        now_ms = self._clock.mono_ms()
        if self.quota.is_exceeded(now_ms) and now_ms < session.next_look_ms:
            return True
        session.ready.update(session.withheld)
        session.withheld.clear()
        return False

    def withholds(self, fetched: FetchPartition, partition: Partition) -> bool:
        """Return whether the follower gets no records for now. If so, appends do not complete its waiting requests."""
        session, now_ms = fetched.session, self._clock.mono_ms()
        replica_id = session.replica_id
        if should_leader_throttle(partition, replica_id, self.quota, now_ms):
            if not session.withheld:
                session.next_look_ms = now_ms + LOOK_MS
            session.withheld[fetched] = None
            session.ready.pop(fetched, None)
            partition.replica_fetchers.pop(fetched, None)
            partition.stop_waiting_for(replica_id)
            return True
        partition.replica_fetchers[fetched] = None
        return False

    def max_response_bytes(self) -> int:
        """Return the most bytes of a response that may be for replicas that are throttled and not in sync."""
        return max(self.quota.allowance(RESPONSE_MS), MIN_RESPONSE_BYTES)

    def record(self, size: int) -> None:
        """Count the bytes of a response, also those for followers that are in sync."""
        self.quota.record(size, self._clock.mono_ms())

    def deadline_ms(self, deadline_ms: int) -> int:
        """Return when a request with withheld records must be completed: at its deadline, or when the quota allows."""
        return min(deadline_ms, self.quota.allowed_at_ms(self._clock.mono_ms()))
