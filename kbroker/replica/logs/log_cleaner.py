"""Compacts logs (cleanup.policy=compact), each in a process, at most log.cleaner.threads at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.common import KafkaError
from kbroker.config import BrokerConfig
from kbroker.replica.logs.partition_maintenance import Compaction
from kbroker.replica.partition import Partition
from kbroker.replica.replica_manager import ReplicaManager
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.periodic_task import PeriodicTask
from kbroker.runtime.turns import paced
from kbroker.storage.cleaner.compaction_plan import (
    CompactionPlan,
    CompactionResult,
    LogToClean,
    encode_plan,
    find_aborted_later_blocking,
    find_log_to_clean,
    find_undated_segments,
    load_first_timestamps_blocking,
    remove_leftovers_blocking,
)
from kbroker.storage.cleaner.segment_swap import install_result
from kbroker.storage.log.segment_indexes import SegmentGone
from kbroker.storage.log.transaction_index import AbortedTransaction

if TYPE_CHECKING:
    from asyncio import Task

    from kbroker.runtime.environment import Environment
    from kbroker.storage.log.log import Log

# If a log's compaction keeps failing, for example for lack of disk space, its backoff doubles up to this factor.
MAX_BACKOFF_FACTOR = 16
# The default of max.compaction.lag.ms: no limit.
NO_MAX_LAG_MS = (1 << 63) - 1
MIN_IO_BYTES = 1 << 16
# The default of log.cleaner.io.max.bytes.per.second is higher, and means no limit.
MAX_RATE = (1 << 63) - 1

event_log = EventLogger("kbroker.cleaning")

Candidate = tuple[Partition, LogToClean]


class LogCleaner:
    """As in Kafka, a log is ready to be compacted when enough of it is dirty (min.cleanable.dirty.ratio) or overdue
    (max.compaction.lag.ms). A damaged log is uncleanable until the next start.
    """

    def __init__(self, environment: Environment, replicas: ReplicaManager, config: Callable[[], BrokerConfig]) -> None:
        self._environment = environment
        self._logs = replicas.logs
        self._maintenance = replicas.maintenance
        self._config = config
        self._uncleanable: dict[Partition, None] = {}
        # (end on the monotonic clock, duration) of the logs whose last compaction failed, in ms.
        self._backoffs: dict[Partition, tuple[int, int]] = {}
        self._stopped = False
        self._workers: set[Task[None]] = set()
        self._task = PeriodicTask(
            environment,
            "compaction",
            lambda: config().log_cleaner_backoff_ms,
            self._start_workers,
            lambda: self._maintenance.uncleaned,
        )

    def start(self) -> None:
        if self._config().log_cleaner_enable:
            self._maintenance.add_listener(self._task.schedule)
            self._task.schedule()

    async def stop(self) -> None:
        self._stopped = True
        await self._task.stop()
        for compaction in list(self._maintenance.compactions.values()):
            await compaction.stop()
        for worker in list(self._workers):
            await worker

    async def _start_workers(self) -> None:
        """Start as many workers as log.cleaner.threads allows. A worker ends when no log is ready."""
        for partition in [partition for partition in (*self._uncleanable, *self._backoffs) if partition.is_closed]:
            self._uncleanable.pop(partition, None)
            self._backoffs.pop(partition, None)
        for _ in range(self._config().log_cleaner_threads - len(self._workers)):
            worker = self._environment.loop.create_task(self._run_worker())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def _run_worker(self) -> None:
        while not self._stopped and len(self._workers) <= self._config().log_cleaner_threads:
            candidate = await self._environment.turns.run(self._next_candidate())
            if candidate is None:
                return
            try:
                await self._compact(*candidate)
            except Exception as error:
                event_log.failure("compaction failed", error, partition=candidate[0].tp)
                self._back_off(candidate[0])

    # The choice of a log.

    async def _next_candidate(self) -> Candidate | None:
        """Return an overdue log, or else the ready log with the highest dirty ratio."""
        best: Candidate | None = None
        for partition in paced(list(self._maintenance.uncleaned)):
            if self._stopped:
                break
            candidate = await self._candidate(partition)
            if candidate is not None and (best is None or candidate[1].priority > best[1].priority):
                best = candidate
        if best is None or best[0] in self._maintenance.compactions or best[0].is_closed:
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
        return (partition, found) if found.needs_cleaning(config.min_cleanable_dirty_ratio) else None

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

    # Compaction.

    async def _compact(self, partition: Partition, to_clean: LogToClean) -> None:
        now_ms, began_ms = self._environment.clock.now_ms(), self._environment.clock.mono_ms()
        truncations = partition.log.truncations
        try:
            aborted_later = await self._environment.offload(find_aborted_later_blocking, partition.log, to_clean)
        except (OSError, ValueError, SegmentGone) as error:
            self._on_failure(partition, CompactionResult(failure=str(error), damaged=isinstance(error, ValueError)))
            return
        if partition.is_closed or partition in self._maintenance.compactions:
            return
        plan = self._plan(partition.log, to_clean, aborted_later, now_ms)
        task = await self._environment.offload(encode_plan, plan)
        if self._stopped or partition.is_closed or partition in self._maintenance.compactions:
            return
        compaction = self._maintenance.compactions[partition] = Compaction(self._environment, task)
        try:
            result = await compaction.result()
            if result is None:
                await self._environment.offload(remove_leftovers_blocking, partition.log)
                if not compaction.is_stopped:
                    event_log.error("compaction failed", partition=partition.tp, reason=compaction.failure)
                    self._back_off(partition)
            elif result.failure is not None:
                self._on_failure(partition, result)
            elif not partition.is_closed:
                await self._install(partition, result, began_ms, truncations)
        finally:
            del self._maintenance.compactions[partition]
            compaction.mark_ended()

    def _plan(
        self, log: Log, to_clean: LogToClean, aborted_later: tuple[AbortedTransaction, ...], now_ms: int
    ) -> CompactionPlan:
        config = self._config()
        threads = max(config.log_cleaner_threads, 1)
        rate = config.log_cleaner_io_max_bytes_per_second
        return CompactionPlan(
            log.directory,
            to_clean.sources,
            to_clean.first_dirty_offset,
            now_ms,
            log.config.delete_retention_ms,
            log.config.segment_bytes,
            log.config.index_interval_bytes,
            map_bytes=int(config.log_cleaner_dedupe_buffer_size * config.log_cleaner_io_buffer_load_factor) // threads,
            # Half of the buffer is for reading, half for writing.
            io_bytes=max(config.log_cleaner_io_buffer_size // threads // 2, MIN_IO_BYTES),
            rate=rate / threads if 0 < rate < MAX_RATE else None,
            aborted_later=aborted_later,
            producers=log.producers.freeze(),
        )

    async def _install(self, partition: Partition, result: CompactionResult, began_ms: int, truncations: int) -> None:
        log = partition.log
        bytes_before = log.size_bytes
        try:
            # Recovery would treat gaps above the recovery point as lost records.
            await self._logs.write_checkpoints()
        except OSError as error:
            event_log.warning("compaction postponed", partition=partition.tp, reason=error)
            await self._environment.offload(remove_leftovers_blocking, log)
            self._back_off(partition)
            return
        if log.truncations != truncations:
            # The sources may have had batches that are no longer in the log.
            await self._environment.offload(remove_leftovers_blocking, log)
            return
        installed = self._environment.loop.create_future()
        install_result(log, result, lambda: installed.set_result(None))
        await installed
        if log.cleaned_to < result.cleaned_to:
            # The log has logged the reason, unless it was closed.
            await self._environment.offload(remove_leftovers_blocking, log)
            self._back_off(partition)
            return
        self._backoffs.pop(partition, None)
        duration_ms = self._environment.clock.mono_ms() - began_ms
        self._maintenance.stats.add_compaction(bytes_before - log.size_bytes, duration_ms)
        event_log.info(
            "log compacted",
            partition=partition.tp,
            up_to=result.cleaned_to,
            bytes_before=bytes_before,
            bytes_after=log.size_bytes,
            ms=duration_ms,
        )
        if not partition.is_closed:
            # This keeps the log from being compacted again after a restart.
            await self._logs.write_checkpoints()

    def _on_failure(self, partition: Partition, result: CompactionResult) -> None:
        if partition.is_closed or self._stopped:
            return
        if result.damaged:
            self._uncleanable[partition] = None
            self._maintenance.uncleaned.pop(partition, None)
            self._maintenance.stats.compaction_failures += 1
            event_log.error("log is not compacted until a restart", partition=partition.tp, reason=result.failure)
            return
        if partition not in self._backoffs:
            event_log.warning(
                "log could not be compacted, will be retried", partition=partition.tp, reason=result.failure
            )
        self._back_off(partition)

    def _back_off(self, partition: Partition) -> None:
        self._maintenance.stats.compaction_failures += 1
        backoff_ms = self._config().log_cleaner_backoff_ms
        _, last_ms = self._backoffs.get(partition, (0, 0))
        duration_ms = min(max(2 * last_ms, backoff_ms), MAX_BACKOFF_FACTOR * backoff_ms)
        self._backoffs[partition] = (self._environment.clock.mono_ms() + duration_ms, duration_ms)

    def _backs_off(self, partition: Partition) -> bool:
        backoff = self._backoffs.get(partition)
        return backoff is not None and self._environment.clock.mono_ms() < backoff[0]
