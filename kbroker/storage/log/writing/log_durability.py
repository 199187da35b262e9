"""Makes a log durable: syncs, checkpoints, and the tasks that wait for the disk."""

from collections.abc import Callable, Sequence
from errno import EIO
from functools import partial
from typing import TypeVar

from kbroker.storage.log import durability
from kbroker.storage.log.leader_epoch_cache import LeaderEpochCache
from kbroker.storage.log.loaded_log import LoadedLog
from kbroker.storage.log.log_health import event_log
from kbroker.storage.log.reading.log_reads import LogReads
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.log.task_queue import BackgroundRunner, SerialTaskQueue
from kbroker.storage.producers.producer_state_manager import ProducerStateManager
from kbroker.storage.shortage import is_unbegun_sync

T = TypeVar("T")


class LogDurability(LogReads):
    """A base of Log. Everything below `cleaned_to` is compacted.

    `truncations`: how often the log was truncated since it was opened. `is_truncating`: nothing else may change the log
    now.
    """

    __slots__ = (
        "_after_truncation",
        "_background",
        "_directory_sync",
        "_epoch_file",
        "_started_tasks",
        "active",
        "cleaned_to",
        "directory",
        "disk",
        "epochs",
        "is_truncating",
        "producers",
        "snapshots",
        "truncations",
    )

    active: LogSegment
    epochs: LeaderEpochCache
    producers: ProducerStateManager
    cleaned_to: int

    def __init__(self, loaded: LoadedLog, background: BackgroundRunner) -> None:
        super().__init__()
        self.disk = loaded.disk
        self.directory = loaded.directory
        self.tp = loaded.tp
        self.config = loaded.config
        self.snapshots = loaded.snapshots
        self._epoch_file = loaded.epoch_file
        self._directory_sync = loaded.directory_sync
        self._background = background
        # None before the first task.
        self._started_tasks: SerialTaskQueue | None = None
        self.truncations = 0
        self.is_truncating = False
        # Called once when the truncation in progress has ended.
        self._after_truncation: tuple[Callable[[], None], ...] = ()

    @property
    def _tasks(self) -> SerialTaskQueue:
        if self._started_tasks is None:
            self._started_tasks = SerialTaskQueue(self._background, self._task_failed)
        return self._started_tasks

    def _write_epochs(self) -> None:
        """Write leader-epoch-checkpoint if the epochs have changed."""
        write = self._epoch_file.write_job(self.epochs.entries)
        if write is not None:
            self._tasks.add(write, ignore)

    # Syncs and checkpoints.

    def flush_blocking(self, up_to: int) -> int:
        """Sync the records below `up_to`. Returns `up_to`, for `complete_flush` on the event loop.

        Raises OSError and takes the log offline if the disk fails: a failed sync is never repeated. The log stays
        online if the sync could not start for lack of file descriptors.
        """
        if self._offline is not None:
            raise OSError(EIO, self._offline)
        try:
            if durability.needs_sync(self.segments, self.recovery_point, up_to):
                durability.sync_segments(self.segments, self.recovery_point, up_to)
                self._directory_sync.sync_blocking()
        except OSError as error:
            if not is_unbegun_sync(error):
                self.mark_offline(f"sync failed: {error}")
            raise
        return up_to

    @property
    def durable_recovery_point(self) -> int:
        """The recovery point for the checkpoint file. Recovery looks for leader epochs only from there on, so it is not
        above an epoch that is not durable in its file yet."""
        unsynced = self._epoch_file.first_unsynced(self.epochs.entries)
        return self.recovery_point if unsynced is None else min(self.recovery_point, unsynced)

    def complete_flush(self, offset: int, truncations: int | None = None) -> None:
        """Advance the recovery point to `offset`, below which everything is synced.

        `truncations`: the number of truncations when the flush began. After another one the flush counts for nothing,
        since other batches may have the synced offsets.
        """
        if self._offline is None and truncations in (None, self.truncations):
            self.recovery_point = max(self.recovery_point, min(offset, self.log_end_offset))

    def checkpoint(self, done: Callable[[], None] | None = None) -> None:
        """Sync the log, and write its current index entries and a producer snapshot.

        Recovery then reads only later batches, even within a segment (Kafka reads all of an unflushed segment). `done`
        is called when no task is left.
        """
        if self._offline is None and not self.is_truncating:
            self._write_epochs()
            segments = [segment for segment in self.segments if segment.needs_index_write]
            if segments or self._has_unsynced():
                self._add_checkpoint(self.log_end_offset, segments)
        if done is not None:
            self.when_idle(done)

    def _has_unsynced(self) -> bool:
        end_offset = self.log_end_offset
        return (
            durability.needs_sync(self.segments, self.recovery_point, end_offset)
            or self.durable_recovery_point < self.recovery_point
            or self.snapshots.is_missing(end_offset, self.segments[0].base_offset)
        )

    def _add_checkpoint(self, end_offset: int, segments: Sequence[LogSegment], *, sync: bool = False) -> None:
        write = self._checkpoint_job(end_offset, segments, sync=sync)
        self._tasks.add(write, partial(self._complete_checkpoint, end_offset))

    def _checkpoint_job(
        self, end_offset: int, segments: Sequence[LogSegment], *, sync: bool = False
    ) -> Callable[[], durability.WrittenIndexes]:
        """Return a job that writes the indexes of `segments` and a snapshot. With `sync` it also syncs them."""
        base_offsets = {segment.base_offset for segment in self.segments}
        return durability.checkpoint_job(
            partial(self.flush_blocking, end_offset),
            self._epoch_file.sync_job(),
            segments,
            self.snapshots.write_job(end_offset, self.producers, base_offsets, sync=sync),
            sync_indexes=sync,
        )

    def _complete_checkpoint(self, end_offset: int, written: durability.WrittenIndexes) -> None:
        for segment, counts in written:
            segment.mark_indexes_written(counts)
        self.complete_flush(end_offset)

    def close(self, clean: bool, done: Callable[[bool], None]) -> None:
        """Finish all tasks and close the files. With `clean`, first write a checkpoint with complete index files.

        `done(True)` is called if all of that succeeded. A truncation in progress is completed first.
        """
        self._tasks.is_closing = True
        if self.is_truncating:
            self._after_truncation += (partial(self.close, clean, done),)
            return
        end_offset = self.log_end_offset
        if self.read_only:
            self._set_offline("the file system is read-only")
        write: Callable[[], durability.WrittenIndexes] | None = None
        if clean and self._offline is None:
            for segment in self.segments:
                segment.add_time_entry()
            self._write_epochs()
            segments = [segment for segment in self.segments if segment.needs_index_write]
            if self.active not in segments and not self.active.indexes.has_files:
                segments.append(self.active)
            if segments or self._has_unsynced():
                write = self._checkpoint_job(end_offset, segments)

        def job() -> durability.WrittenIndexes | None:
            try:
                return write() if write is not None else []
            except Exception as error:
                # `done` must be called whatever happens. The next start recovers the log.
                self._set_offline(f"closing failed: {error}")
                event_log.warning("log not closed cleanly, the next start checks it", partition=self.tp, reason=error)
                return None

        def then(written: durability.WrittenIndexes | None) -> None:
            worked = clean and written is not None and self._offline is None
            if worked and written is not None:
                self._complete_checkpoint(end_offset, written)
            self._set_offline("closed")
            for segment in self.segments:
                segment.close_files()
            done(worked)

        self._tasks.add(job, then)

    @property
    def is_closing(self) -> bool:
        """Whether `close` has been called."""
        return self._started_tasks is not None and self._started_tasks.is_closing

    def add_task(self, job: Callable[[], T], then: Callable[[T], None], *, required: bool = False) -> None:
        """Run `job` in a thread when the tasks before it are done, then `then` with its result on the event loop.

        `required`: as in SerialTaskQueue.add.
        """
        self._tasks.add(job, then, required=required)

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, as soon as no task is left."""
        if self._started_tasks is None:
            callback()
        else:
            self._started_tasks.when_idle(callback)


def ignore(_: object) -> None:
    """Ignore the result of a background job."""
