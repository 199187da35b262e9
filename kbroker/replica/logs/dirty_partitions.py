"""What is to be done to partitions besides serving them: which have unsynced data, a full disk, no log; their syncs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from kbroker.common import KafkaError, TopicPartition
from kbroker.replica.partition import Partition
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.metrics import LogWork
from kbroker.storage.shortage import is_unbegun_sync
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from asyncio import Task

    from kbroker.runtime.environment import Environment

event_log = EventLogger("kbroker.logs")


# How long a sync that is waited for and could not begin is put off, in seconds.
FLUSH_AGAIN_S = 1.0


class Cleaner(Protocol):
    """A compaction under way."""

    async def stop(self) -> None:
        """End it; it has no effect from then on."""
        ...


class DirtyPartitions:
    """Kept by the replica manager, worked off by housekeeping and cleaning, which are told when there is more to do."""

    def __init__(self, environment: Environment) -> None:
        # Partitions with unsynced data: [first append, last append] since the last sync, in wall-clock ms.
        self.dirty: dict[Partition, list[int]] = {}
        # Partitions that were appended to since their last checkpoint.
        self.unchecked: dict[Partition, None] = {}
        # Partitions of compacted topics in which there may be something to compact.
        self.uncleaned: dict[Partition, None] = {}
        # Partitions whose appends are refused until there is room on the disk.
        self.full: dict[Partition, None] = {}
        # Partitions that are this broker's and whose logs could not be opened, with their topics' ids.
        self.missing: dict[TopicPartition, bytes] = {}
        # All appends are refused: the broker was started on a full disk, and there are no new leader epochs yet.
        self.held = False
        # Whether an operation had no file descriptor since files were closed last.
        self.out_of_files = False
        # What is under way: compactions.
        self.cleaning: dict[Partition, Cleaner] = {}
        self.work = LogWork()
        self._listeners: list[Callable[[], None]] = []
        self._environment = environment
        self._flushes: set[Task[None]] = set()

    def listen(self, on_more: Callable[[], None]) -> None:
        self._listeners.append(on_more)

    def _tell(self) -> None:
        for on_more in self._listeners:
            on_more()

    def note_dirty(self, partition: Partition, now_ms: int) -> None:
        """It has unsynced data, and had none before."""
        self.dirty[partition] = [now_ms, now_ms]
        self.unchecked[partition] = None
        if partition.log.config.is_compacted:
            self.uncleaned[partition] = None
        self._tell()

    def on_append(self, partition: Partition, now_ms: int) -> None:
        """It was appended to at `now_ms`; a sync is begun if flush.messages asks for one."""
        times = self.dirty.get(partition)
        if times is None:
            self.note_dirty(partition, now_ms)
        else:
            times[1] = now_ms
        log = partition.log
        if log.log_end_offset - log.recovery_point >= log.config.flush_messages:
            self.request_flush(partition)

    def note_repaired(self, partition: Partition) -> None:
        """What recovery has made anew, in memory, is to be written with the next checkpoint."""
        self.unchecked[partition] = None
        self._tell()

    def note_uncleaned(self, partition: Partition) -> None:
        """It begins to serve, or its configs have changed: if it is compacted, look whether there is work to do."""
        if partition.log.config.is_compacted:
            self.uncleaned[partition] = None
            self._tell()

    def hold(self, partition: Partition) -> None:
        """Refuse appends as long as all are held, then until there is room on the disk."""
        partition.log.suspend()
        self.full[partition] = None

    def on_append_failed(self, partition: Partition) -> None:
        """The disk is full; or it fails, and then nobody who waits here will be served."""
        if partition.log.offline is not None:
            partition.fail_waiting(ErrorCode.KAFKA_STORAGE_ERROR)
        elif partition.log.full and partition not in self.full:
            event_log.error("appends are refused", partition=partition.tp, reason=partition.log.refusal)
            self.full[partition] = None
            self._tell()

    def note_out_of_files(self) -> None:
        self.out_of_files = True
        self._tell()

    def note_missing(self, missing: dict[TopicPartition, bytes]) -> None:
        self.missing.update(missing)
        if missing:
            self._tell()

    async def forget(self, partition: Partition) -> None:
        """It leaves this broker. Afterwards nothing is under way that writes into its directory."""
        for kept in (self.dirty, self.unchecked, self.uncleaned, self.full):
            kept.pop(partition, None)
        cleaner = self.cleaning.get(partition)
        if cleaner is not None:
            await cleaner.stop()

    # Syncs that are waited for (flush.before.ack).

    def request_flush(self, partition: Partition) -> None:
        """Sync what has been appended; one sync at a time serves all appends before it (group commit)."""
        if partition.is_flushing:
            return
        partition.is_flushing = True
        task = self._environment.loop.create_task(self._flush(partition))
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)

    async def _flush(self, partition: Partition) -> None:
        log = partition.log
        try:
            while not partition.is_closed:
                # A checkpoint may have synced what is waited for; and who waited may append, which takes another sync.
                partition.advance_high_watermark()
                if log.recovery_point >= log.log_end_offset:
                    break
                if not await self.flush_now(partition):
                    await self._pause()
        except KafkaError as error:
            partition.fail_waiting(error.code)
        finally:
            partition.is_flushing = False

    async def _pause(self) -> None:
        over = self._environment.loop.create_future()
        self._environment.loop.call_later(FLUSH_AGAIN_S, over.set_result, None)
        await over

    async def flush_now(self, partition: Partition) -> bool:
        """Sync one log in a thread; False if it could not begin for want of file descriptors and may be tried again.

        A sync that has begun and failed takes the log offline: it is never tried again (fsyncgate).

        Raises KafkaError, also for a log that was offline before.
        """
        log = partition.log
        if log.offline is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, log.offline)
        target, began_ms = log.log_end_offset, self._environment.clock.now_ms()
        try:
            await self._environment.offload(log.flush_blocking, target)
        except Exception as error:
            if isinstance(error, OSError) and is_unbegun_sync(error) and log.offline is None:
                log.on_shortage("sync", error)
                return False
            if not partition.is_closed:
                log.mark_offline(f"sync failed: {error}")
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, log.offline) from error
        log.complete_flush(target)
        if log.recovery_point >= log.log_end_offset:
            self.dirty.pop(partition, None)
        elif partition in self.dirty:
            # What is left was appended since then.
            self.dirty[partition][0] = began_ms
        return True

    async def wait_for_flushes(self) -> None:
        """No sync is under way that was asked for."""
        for flush in list(self._flushes):
            await flush
