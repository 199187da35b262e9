"""Leaves throttled partitions that are not in sync out of a fetcher's requests (KIP-73)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from kbroker.replica.quota.throttled_replicas import should_follower_throttle

if TYPE_CHECKING:
    from asyncio import TimerHandle

    from kbroker.replica.fetcher.partition_fetch_state import PartitionFetchState
    from kbroker.replica.quota.replication_quota import ReplicationQuota
    from kbroker.runtime.environment import Environment

# A changed rate applies to partitions that already wait after at most this time, as does a changed list of replicas.
MAX_WAIT_MS = 1_000


class PausingFetcher(Protocol):
    """The ReplicaFetcher that the partitions belong to."""

    def pause(self, state: PartitionFetchState) -> None: ...

    def resume(self, state: PartitionFetchState) -> None: ...


class FollowerThrottle:
    """The follower's side of the throttle, for one fetcher. Partitions are paused until the quota allows more bytes."""

    def __init__(self, environment: Environment, fetcher: PausingFetcher, quota: ReplicationQuota) -> None:
        self.quota = quota
        self._environment = environment
        self._fetcher = fetcher
        # When all partitions are checked next (monotonic).
        self._next_look_ms = 0
        self._paused: list[PartitionFetchState] = []
        # Resumes them.
        self._timer: TimerHandle | None = None

    def before_request(self, named: Iterable[PartitionFetchState], fetched: Iterable[PartitionFetchState]) -> None:
        """Pause the partitions that must not be fetched now.

        Called while the quota has samples. `named`: partitions in the next request. `fetched`: all partitions of the
        fetcher. These are in the leader's session, so they are checked when the quota is first exceeded, then once a
        second.
        """
        now_ms = self._environment.clock.mono_ms()
        if not self.quota.is_exceeded(now_ms):
            self._next_look_ms = now_ms
            return
        if now_ms >= self._next_look_ms:
            self._next_look_ms = now_ms + MAX_WAIT_MS
            named = fetched
        for state in list(named):
            if state.is_paused or not should_follower_throttle(state.partition, state.lag, self.quota, now_ms):
                continue
            self._fetcher.pause(state)
            self._paused.append(state)
        self._set_timer(now_ms)

    def _set_timer(self, now_ms: int) -> None:
        if self._paused and self._timer is None:
            delay_ms = min(self.quota.allowed_at_ms(now_ms) - now_ms, MAX_WAIT_MS)
            self._timer = self._environment.loop.call_later(delay_ms / 1000, self._resume)

    def record(self, size: int) -> None:
        """Count the bytes fetched of a throttled partition, also if it is in sync."""
        self.quota.record(size, self._environment.clock.mono_ms())

    def _resume(self) -> None:
        """Resume the partitions that may be fetched: all of them, unless the timer has fired early (MAX_WAIT_MS)."""
        self._timer = None
        now_ms = self._environment.clock.mono_ms()
        paused, self._paused = self._paused, []
        for state in paused:
            if should_follower_throttle(state.partition, state.lag, self.quota, now_ms):
                self._paused.append(state)
            else:
                self._fetcher.resume(state)
        self._set_timer(now_ms)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._paused.clear()
