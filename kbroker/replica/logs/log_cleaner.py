"""Compaction of the logs whose cleanup policy says so: the one that needs it most first, each in a process of its own.

As in Kafka a log is ready when enough of it is dirty (min.cleanable.dirty.ratio) or when something in it has waited
too long (max.compaction.lag.ms); log.cleaner.threads are at work at once. A log that turns out to be damaged stays as
it is and is left alone until the next start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kbroker.common import KafkaError
from kbroker.config import BrokerConfig
from kbroker.replica.partition import Partition
from kbroker.replica.replica_manager import ReplicaManager
from kbroker.runtime import event_log as events
from kbroker.runtime.environment import ProcessJobFailed
from kbroker.runtime.periodic_task import PeriodicTask, iterate_yielding
from kbroker.storage.cleaner.cleaner import run
from kbroker.storage.cleaner.compaction_plan import CompactionPlan, CompactionResult, decode_result, encode_plan
from kbroker.storage.cleaner.log_to_clean import (
    LogToClean,
    find_aborted_later_blocking,
    find_log_to_clean,
    find_undated_segments,
    load_first_timestamps_blocking,
    make_plan,
    remove_leftovers_blocking,
)
from kbroker.storage.cleaner.segment_replacement import install_result
from kbroker.storage.indexes.transaction_index import AbortedTransaction
from kbroker.storage.log.segment_indexes import SegmentGone

if TYPE_CHECKING:
    from asyncio import Task

    from kbroker.runtime.environment import Environment, ProcessJob

log = events.EventLogger("kbroker.cleaning")

# A log whose compaction fails (no room, say) is tried again after the backoff, then after twice that, and so on.
LONGEST_PAUSE = 16
SMALLEST_IO_BYTES = 1 << 16
NEVER = (1 << 63) - 1


class Choice(NamedTuple):
    partition: Partition
    found: LogToClean


class LogCleaner:
    """All compactions of one broker."""

    def __init__(self, environment: Environment, replicas: ReplicaManager, config: Callable[[], BrokerConfig]) -> None:
        self._environment = environment
        self._replicas = replicas
        self._upkeep = replicas.dirty_partitions
        self._config = config
        self._stopped = False
        # Partitions that are damaged; when others that failed are tried again (monotonic ms), and after what pause.
        self._uncleanable: dict[Partition, None] = {}
        self._paused: dict[Partition, tuple[int, int]] = {}
        self._workers: set[Task[None]] = set()
        self._round = PeriodicTask(
            environment,
            "compaction",
            lambda: config().log_cleaner_backoff_ms,
            self._begin,
            lambda: self._upkeep.uncleaned,
        )

    def start(self) -> None:
        if self._config().log_cleaner_enable:
            self._upkeep.listen(self._round.schedule)
            self._round.schedule()

    async def stop(self) -> None:
        self._stopped = True
        await self._round.stop()
        for running in list(self._upkeep.cleaning.values()):
            await running.stop()
        for worker in list(self._workers):
            await worker

    async def _begin(self) -> None:
        """Let as many be at work as there may be. One that finds nothing to do ends."""
        for partition in [one for one in (*self._uncleanable, *self._paused) if one.is_closed]:
            self._uncleanable.pop(partition, None)
            self._paused.pop(partition, None)
        for _ in range(self._config().log_cleaner_threads - len(self._workers)):
            worker = self._environment.loop.create_task(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def _work(self) -> None:
        while not self._stopped and len(self._workers) <= self._config().log_cleaner_threads:
            choice = await self._choose()
            if choice is None:
                return
            try:
                await self._compact(choice)
            except Exception as error:
                log.failure("compaction failed", error, partition=choice.partition.tp)
                self._pause(choice.partition)

    # Which.

    async def _choose(self) -> Choice | None:
        """What has waited too long, else the log of which most is dirty."""
        best: Choice | None = None
        async for partition in iterate_yielding(self._environment, list(self._upkeep.uncleaned), lambda: self._stopped):
            found = await self._candidate(partition)
            if found is not None and (best is None or _urgency(found) > _urgency(best.found)):
                best = Choice(partition, found)
        if best is None or best.partition in self._upkeep.cleaning or best.partition.is_closed:
            # Another worker was faster, or the topic is gone: the next round looks again.
            return None
        return best

    async def _candidate(self, partition: Partition) -> LogToClean | None:
        storage, config = partition.log, partition.log.config
        if partition.is_closed or not config.is_compacted:
            self._upkeep.uncleaned.pop(partition, None)
            return None
        if partition in self._upkeep.cleaning or partition in self._uncleanable or self._is_paused(partition):
            return None
        if config.max_compaction_lag_ms < NEVER:
            await self._mind_lag(partition)
        found = find_log_to_clean(storage, self._environment.clock.now_ms(), partition.last_stable_offset)
        if found is None:
            if self._is_finished(partition):
                self._upkeep.uncleaned.pop(partition, None)
            return None
        return found if found.needs_cleaning(config.min_cleanable_dirty_ratio) else None

    def _is_finished(self, partition: Partition) -> bool:
        """Nothing is left to do until an append, which is announced only if all was synced before."""
        storage = partition.log
        waits = storage.active.size and storage.config.max_compaction_lag_ms < NEVER
        return storage.cleaned_to >= storage.active.base_offset and not waits and partition not in self._upkeep.dirty

    async def _mind_lag(self, partition: Partition) -> None:
        """What is to be compacted in time must be in a closed segment by then, though nothing is appended."""
        storage = partition.log
        try:
            if storage.offline is None and not storage.full:
                storage.maybe_roll(self._environment.clock.now_ms())
        except KafkaError:
            # No room for another segment: appends will say so.
            return
        segments = find_undated_segments(storage)
        if segments:
            await self._environment.offload(load_first_timestamps_blocking, segments)

    # Doing it.

    async def _compact(self, choice: Choice) -> None:
        partition = choice.partition
        now_ms, began_ms = self._environment.clock.now_ms(), self._environment.clock.mono_ms()
        try:
            later = await self._environment.offload(find_aborted_later_blocking, partition.log, choice.found)
        except (OSError, ValueError, SegmentGone) as error:
            self._failed(partition, CompactionResult(failure=str(error), damaged=isinstance(error, ValueError)))
            return
        if partition.is_closed or partition in self._upkeep.cleaning:
            return
        plan = self._plan(choice, later, now_ms)
        running = self._upkeep.cleaning[partition] = _Running(self._environment, plan)
        try:
            result = await running.result()
            if result is None:
                await self._environment.offload(remove_leftovers_blocking, partition.log)
                if not running.unwanted:
                    log.error("compaction failed", partition=partition.tp, reason=running.failure)
                    self._pause(partition)
            elif result.failure is not None:
                self._failed(partition, result)
            elif not partition.is_closed:
                await self._install(partition, result, began_ms)
        finally:
            del self._upkeep.cleaning[partition]
            running.over()

    def _plan(self, choice: Choice, aborted_later: tuple[AbortedTransaction, ...], now_ms: int) -> CompactionPlan:
        config = self._config()
        threads = max(config.log_cleaner_threads, 1)
        rate = config.log_cleaner_io_max_bytes_per_second
        return make_plan(
            choice.partition.log,
            choice.found,
            aborted_later,
            now_ms,
            map_bytes=int(config.log_cleaner_dedupe_buffer_size * config.log_cleaner_io_buffer_load_factor) // threads,
            # Half of it to read, half of it to write.
            io_bytes=max(config.log_cleaner_io_buffer_size // threads // 2, SMALLEST_IO_BYTES),
            rate=rate / threads if 0 < rate < NEVER else None,
        )

    async def _install(self, partition: Partition, result: CompactionResult, began_ms: int) -> None:
        storage = partition.log
        before = storage.size_bytes
        try:
            # Recovery takes gaps above the recovery point for losses.
            await self._replicas.logs.write_checkpoints()
        except OSError as error:
            log.warning("compaction put off", partition=partition.tp, reason=error)
            await self._environment.offload(remove_leftovers_blocking, storage)
            self._pause(partition)
            return
        installed = self._environment.loop.create_future()
        install_result(storage, result, lambda: installed.set_result(None))
        await installed
        if storage.cleaned_to < result.cleaned_to:
            # The log has said why, unless it was closed.
            await self._environment.offload(remove_leftovers_blocking, storage)
            self._pause(partition)
            return
        self._paused.pop(partition, None)
        self._upkeep.work.compacted(before - storage.size_bytes, self._environment.clock.mono_ms() - began_ms)
        log.info(
            "log compacted",
            partition=partition.tp,
            up_to=result.cleaned_to,
            bytes_before=before,
            bytes_after=storage.size_bytes,
            ms=self._environment.clock.mono_ms() - began_ms,
        )
        if not partition.is_closed:
            # So that a restart does not begin again.
            await self._replicas.logs.write_checkpoints()

    def _failed(self, partition: Partition, result: CompactionResult) -> None:
        if partition.is_closed or self._stopped:
            return
        if result.damaged:
            self._uncleanable[partition] = None
            self._upkeep.uncleaned.pop(partition, None)
            self._upkeep.work.compaction_failures += 1
            log.error("log is not compacted until a restart", partition=partition.tp, reason=result.failure)
            return
        if partition not in self._paused:
            log.warning("log could not be compacted, tried again", partition=partition.tp, reason=result.failure)
        self._pause(partition)

    def _pause(self, partition: Partition) -> None:
        self._upkeep.work.compaction_failures += 1
        backoff_ms = self._config().log_cleaner_backoff_ms
        _, last_ms = self._paused.get(partition, (0, 0))
        pause_ms = min(max(2 * last_ms, backoff_ms), LONGEST_PAUSE * backoff_ms)
        self._paused[partition] = (self._environment.clock.mono_ms() + pause_ms, pause_ms)

    def _is_paused(self, partition: Partition) -> bool:
        return self._environment.clock.mono_ms() < self._paused.get(partition, (0, 0))[0]


def _urgency(found: LogToClean) -> tuple[bool, float]:
    return found.is_overdue, found.cleanable_ratio


class _Running:
    """One compaction under way."""

    def __init__(self, environment: Environment, plan: CompactionPlan) -> None:
        self.unwanted = False
        self.failure = ""
        self._errand: ProcessJob = environment.apart(run, encode_plan(plan))
        self._over = environment.loop.create_future()

    async def result(self) -> CompactionResult | None:
        """None if the process has ended without one."""
        try:
            return decode_result(await self._errand.done)
        except ProcessJobFailed as error:
            self.failure = str(error)
            return None

    def over(self) -> None:
        self._over.set_result(None)

    async def stop(self) -> None:
        self.unwanted = True
        self._errand.kill()
        await self._over
