"""Selects the log to compact next (Kafka: LogCleanerManager)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kbroker.common import KafkaError
from kbroker.config import BrokerConfig
from kbroker.replica.logs.partition_maintenance import PartitionMaintenance
from kbroker.replica.partition import Partition
from kbroker.runtime.periodic_task import iterate_yielding
from kbroker.storage.cleaner.compaction_plan import (
    LogToClean,
    find_log_to_clean,
    find_undated_segments,
    load_first_timestamps_blocking,
)

if TYPE_CHECKING:
    from kbroker.runtime.environment import Environment

# If a log's compaction keeps failing, for example for lack of disk space, its backoff doubles up to this factor.
MAX_BACKOFF_FACTOR = 16
# The default of max.compaction.lag.ms: no limit.
NO_MAX_LAG_MS = (1 << 63) - 1


class Candidate(NamedTuple):
    partition: Partition
    log_to_clean: LogToClean

    @property
    def priority(self) -> tuple[bool, float]:
        return self.log_to_clean.is_overdue, self.log_to_clean.cleanable_ratio


class Backoff(NamedTuple):
    # On the monotonic clock.
    until_ms: int
    duration_ms: int


class LogCleanerManager:
    """Selects the logs that are ready to be compacted.

    As in Kafka, a log is ready when enough of it is dirty (min.cleanable.dirty.ratio) or overdue
    (max.compaction.lag.ms). A damaged log is uncleanable until the next start.
    """

    def __init__(
        self, environment: Environment, maintenance: PartitionMaintenance, config: Callable[[], BrokerConfig]
    ) -> None:
        self._environment = environment
        self._maintenance = maintenance
        self._config = config
        self._uncleanable: dict[Partition, None] = {}
        self._backoffs: dict[Partition, Backoff] = {}

    async def next_candidate(self, is_stopped: Callable[[], bool]) -> Candidate | None:
        """Return an overdue log, or else the ready log with the highest dirty ratio."""
        best: Candidate | None = None
        uncleaned = list(self._maintenance.uncleaned)
        async for partition in iterate_yielding(self._environment, uncleaned, is_stopped):
            candidate = await self._candidate(partition)
            if candidate is not None and (best is None or candidate.priority > best.priority):
                best = candidate
        if best is None or best.partition in self._maintenance.compactions or best.partition.is_closed:
            # Another worker has chosen the log meanwhile, or its topic was deleted. The next run tries again.
            return None
        return best

    async def _candidate(self, partition: Partition) -> Candidate | None:
        log, config = partition.log, partition.log.config
        if partition.is_closed or not config.is_compacted:
            self._maintenance.uncleaned.pop(partition, None)
            return None
        if partition in self._maintenance.compactions or partition in self._uncleanable or self._backs_off(partition):
            return None
        if log.is_truncating:
            return None
        if config.max_compaction_lag_ms < NO_MAX_LAG_MS:
            await self._prepare_max_lag(partition)
        found = find_log_to_clean(log, self._environment.clock.now_ms(), partition.last_stable_offset)
        if found is None:
            if self._is_clean(partition):
                self._maintenance.uncleaned.pop(partition, None)
            return None
        return Candidate(partition, found) if found.needs_cleaning(config.min_cleanable_dirty_ratio) else None

    def _is_clean(self, partition: Partition) -> bool:
        """Return whether the log needs no compaction until its next append.

        An append to an unflushed partition does not mark it as uncleaned again.
        """
        log = partition.log
        may_become_overdue = log.active.size and log.config.max_compaction_lag_ms < NO_MAX_LAG_MS
        is_flushed = partition not in self._maintenance.unflushed
        return log.cleaned_to >= log.active.base_offset and not may_become_overdue and is_flushed

    async def _prepare_max_lag(self, partition: Partition) -> None:
        """Roll the active segment if its time limit has passed, and load the timestamps of segments."""
        log = partition.log
        try:
            if log.health.offline is None and not log.health.full:
                log.maybe_roll(self._environment.clock.now_ms())
        except KafkaError:
            # There is no disk space for another segment; the next append reports it.
            return
        segments = find_undated_segments(log)
        if segments:
            await self._environment.offload(load_first_timestamps_blocking, segments)

    # Failures.

    def mark_uncleanable(self, partition: Partition) -> None:
        self._uncleanable[partition] = None
        self._maintenance.uncleaned.pop(partition, None)

    def has_failed(self, partition: Partition) -> bool:
        """Return whether the last compaction of the log failed."""
        return partition in self._backoffs

    def back_off(self, partition: Partition) -> None:
        backoff_ms = self._config().log_cleaner_backoff_ms
        last_ms = self._backoffs[partition].duration_ms if partition in self._backoffs else 0
        duration_ms = min(max(2 * last_ms, backoff_ms), MAX_BACKOFF_FACTOR * backoff_ms)
        self._backoffs[partition] = Backoff(self._environment.clock.mono_ms() + duration_ms, duration_ms)

    def clear_backoff(self, partition: Partition) -> None:
        self._backoffs.pop(partition, None)

    def _backs_off(self, partition: Partition) -> bool:
        backoff = self._backoffs.get(partition)
        return backoff is not None and self._environment.clock.mono_ms() < backoff.until_ms

    def remove_closed(self) -> None:
        """Remove the partitions that have left this broker."""
        closed = [partition for partition in (*self._uncleanable, *self._backoffs) if partition.is_closed]
        for partition in closed:
            self._uncleanable.pop(partition, None)
            self._backoffs.pop(partition, None)
