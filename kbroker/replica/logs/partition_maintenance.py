"""The partitions that need a flush, a checkpoint, compaction, disk space or another attempt to open their log.

Logs are synced in threads: on request (flush.before.ack, flush.messages) and for the flush task (flush.ms).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kbroker.common import KafkaError, TopicPartition
from kbroker.replica.partition import Partition
from kbroker.runtime.environment import ProcessJobFailed
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.metrics import MaintenanceStats
from kbroker.storage.cleaner.cleaner import run
from kbroker.storage.cleaner.compaction_plan import CompactionResult, decode_result
from kbroker.storage.log.log_health import is_unbegun_sync
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from asyncio import Task

    from kbroker.runtime.environment import Environment, ProcessJob

event_log = EventLogger("kbroker.logs")

# If a requested sync cannot start, it is retried after this delay.
RETRY_S = 1.0


class LogFlusher:
    """`unflushed`: the partitions with unsynced data, which a flush updates (see PartitionMaintenance)."""

    def __init__(self, environment: Environment, unflushed: dict[Partition, list[int]]) -> None:
        self._environment = environment
        self._unflushed = unflushed
        self._tasks: set[Task[None]] = set()

    def request_flush(self, partition: Partition) -> None:
        """Sync the log, then advance the high watermark.

        One sync runs at a time; the next one covers all appends that were made meanwhile (group commit).
        """
        if partition.is_flushing:
            return
        partition.is_flushing = True
        task = self._environment.loop.create_task(self._flush(partition))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _flush(self, partition: Partition) -> None:
        log = partition.log
        try:
            while not partition.is_closed:
                # A checkpoint may have synced the log already. A request that completes now may append, which requires
                # another sync.
                partition.advance_high_watermark()
                if log.recovery_point >= log.log_end_offset:
                    break
                if not await self.flush(partition):
                    await self._environment.sleep(RETRY_S)
        except KafkaError as error:
            partition.fail_waiting(error.code)
        finally:
            partition.is_flushing = False

    async def flush(self, partition: Partition) -> bool:
        """Sync the log. Returns False if no file descriptor was free; then the sync may be retried.

        A sync that started and failed takes the log offline and is never retried: the kernel may have dropped the data
        and reports success the next time (fsyncgate). Raises KafkaError, also if the log was offline before.
        """
        log = partition.log
        if log.health.offline is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, log.health.offline)
        target, truncations, began_ms = log.log_end_offset, log.truncations, self._environment.clock.now_ms()
        try:
            await self._environment.offload(log.durability.flush_blocking, target)
        except Exception as error:
            if isinstance(error, OSError) and is_unbegun_sync(error) and log.health.offline is None:
                log.health.on_shortage("sync", error)
                return False
            if not partition.is_closed:
                log.health.mark_offline(f"sync failed: {error}")
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, log.health.offline) from error
        log.complete_flush(target, truncations)
        if log.recovery_point >= log.log_end_offset:
            self._unflushed.pop(partition, None)
        elif partition in self._unflushed:
            # The remaining data was appended after the sync began.
            self._unflushed[partition][0] = began_ms
        return True

    async def wait(self) -> None:
        """Wait for the requested syncs in progress."""
        for task in list(self._tasks):
            await task


class Compaction:
    """A compaction that runs in a process. `is_stopped`: it was killed on request."""

    def __init__(self, environment: Environment, task: bytes | bytearray) -> None:
        self.is_stopped = False
        self.failure = ""
        self._job: ProcessJob = environment.process_runner(run, task)
        self._ended = environment.loop.create_future()

    async def result(self) -> CompactionResult | None:
        """Wait for the process. Returns None if it has ended without a result; the reason is in `failure`."""
        try:
            return decode_result(await self._job.done)
        except ProcessJobFailed as error:
            self.failure = str(error)
            return None

    def mark_ended(self) -> None:
        self._ended.set_result(None)

    async def stop(self) -> None:
        """Kill the compaction and wait until it has ended. It changes nothing afterwards."""
        self.is_stopped = True
        self._job.kill()
        await self._ended


class PartitionMaintenance:
    """The partitions that ScheduledTasks and LogCleaner process. Listeners (`add_listener`) are called for new ones.

    It is the PartitionListener of all partitions.
    """

    def __init__(self, environment: Environment, on_write_failed: Callable[[str], None]) -> None:
        """`on_write_failed` is called with the reason when a log rejects an append because it cannot be written."""
        self.mono_ms = environment.clock.mono_ms
        # Partitions with unsynced data: [first append, last append] since the last flush, in wall-clock ms.
        self.unflushed: dict[Partition, list[int]] = {}
        # Partitions with appends since their last checkpoint.
        self.uncheckpointed: dict[Partition, None] = {}
        # Partitions of compacted topics that may have something to compact.
        self.uncleaned: dict[Partition, None] = {}
        # Partitions that reject appends until the disk has space.
        self.full: dict[Partition, None] = {}
        # Assigned partitions whose logs could not be opened, with their topic ids.
        self.unopened: dict[TopicPartition, bytes] = {}
        # Whether all partitions reject appends: the broker started on a full disk and could not store leader epochs.
        self.appends_suspended = False
        # Whether an operation lacked a file descriptor since files were last closed.
        self.out_of_descriptors = False
        # Partitions with several replicas, whose high watermarks are checkpointed.
        self.replicated: dict[Partition, None] = {}
        self.compactions: dict[Partition, Compaction] = {}
        self._on_write_failed = on_write_failed
        self.stats = MaintenanceStats()
        self.flusher = LogFlusher(environment, self.unflushed)
        self._listeners: list[Callable[[], None]] = []

    def add_listener(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()

    def mark_unflushed(self, partition: Partition, now_ms: int) -> None:
        """Record that a partition now has unsynced data."""
        self.unflushed[partition] = [now_ms, now_ms]
        self.uncheckpointed[partition] = None
        if partition.log.config.is_compacted:
            self.uncleaned[partition] = None
        self._notify()

    def mark_uncheckpointed(self, partition: Partition) -> None:
        """Record that recovery has rebuilt state of the log in memory, which the next checkpoint writes."""
        self.uncheckpointed[partition] = None
        self._notify()

    def mark_uncleaned(self, partition: Partition) -> None:
        """Record that the cleaner has to check the partition, since it was opened or its configs have changed."""
        if partition.log.config.is_compacted:
            self.uncleaned[partition] = None
            self._notify()

    def mark_replicated(self, partition: Partition, replica_count: int) -> None:
        """Record how many replicas a partition has now."""
        if replica_count < 2:
            self.replicated.pop(partition, None)
        elif partition not in self.replicated:
            self.replicated[partition] = None
            self._notify()

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """Return the high watermarks to checkpoint. During a truncation one may be above the log end offset."""
        return {
            partition.tp: min(partition.high_watermark, partition.log.log_end_offset) for partition in self.replicated
        }

    def mark_unopened(self, partitions: dict[TopicPartition, bytes]) -> None:
        self.unopened.update(partitions)
        if partitions:
            self._notify()

    def on_append(self, partition: Partition, now_ms: int) -> None:
        times = self.unflushed.get(partition)
        if times is None:
            self.mark_unflushed(partition, now_ms)
        else:
            times[1] = now_ms
        log = partition.log
        if partition.flush_before_ack or log.log_end_offset - log.recovery_point >= log.config.flush_messages:
            self.flusher.request_flush(partition)

    def on_append_failed(self, partition: Partition) -> None:
        if partition.log.health.offline is not None:
            partition.fail_waiting(ErrorCode.KAFKA_STORAGE_ERROR)
            return
        reason = partition.log.health.append_error
        # Until appends resume they are refused without a write, which says nothing about the disk.
        if reason is None or partition in self.full:
            return
        self._on_write_failed(reason)
        event_log.error("appends are rejected", partition=partition.tp, reason=reason)
        self.full[partition] = None
        self._notify()

    def suspend_all_appends(self, partitions: Iterable[Partition]) -> None:
        """Reject appends to these and later partitions: their leader epochs cannot be renewed on a full disk."""
        self.appends_suspended = True
        self._on_write_failed("no space left on the disk")
        for partition in partitions:
            self.suspend_appends(partition)

    def suspend_appends(self, partition: Partition) -> None:
        """Reject appends while `appends_suspended`, and then until the disk has space."""
        partition.log.health.suspend()
        self.full[partition] = None

    def on_out_of_descriptors(self) -> None:
        self.out_of_descriptors = True
        self._notify()

    async def remove(self, partition: Partition) -> None:
        """Remove a partition from all sets. Afterwards no task writes to its directory."""
        for partitions in (self.unflushed, self.uncheckpointed, self.uncleaned, self.full, self.replicated):
            partitions.pop(partition, None)
        compaction = self.compactions.get(partition)
        if compaction is not None:
            await compaction.stop()
