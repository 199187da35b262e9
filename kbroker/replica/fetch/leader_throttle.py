"""Withholds the records of throttled partitions from followers that are not in sync (KIP-73)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.replica.quota.throttled_replicas import should_leader_throttle

if TYPE_CHECKING:
    from kbroker.replica.fetch.fetch_session import FetchPartition, FetchSession
    from kbroker.replica.partition import Partition
    from kbroker.replica.quota.replication_quota import ReplicationQuota
    from kbroker.runtime.environment import Clock

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
