"""Makes a log durable: syncs its segments and its directory, writes checkpoints, and removes files.

Everything that waits for the disk is a task. A task captures the state that it needs when it is created, on the event
loop; its job does the work in a thread; its callback applies the result on the event loop. So no thread changes the
state of a log.
"""

from collections.abc import Callable, Iterable, Sequence
from errno import EIO, ENOMEM
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from kbroker.runtime.disk import Disk
from kbroker.storage.log.log_health import event_log, is_shortage, is_unbegun_sync
from kbroker.storage.log.log_state import LogState
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.log.segment_indexes import IndexCounts

# Required tasks are retried this long after a shortage, in milliseconds.
RETRY_MS = 1_000

T = TypeVar("T")


class BackgroundRunner(Protocol):
    """Runs jobs in threads: those of the broker's thread pool, or virtual ones in the simulation."""

    def __call__(self, job: Callable[[], T], then: Callable[[T], None], delay_ms: int = 0, /) -> None:
        """Run `job` in a thread after `delay_ms`, then `then(result)` on the event loop. The job does not raise."""
        ...


class Task(NamedTuple):
    job: Callable[[], object]
    then: Callable[[object], None]
    required: bool


class SerialTaskQueue:
    """Runs tasks in the order in which they were added. A task starts when the result of the one before it was applied.

    If a job raises an OSError, `on_failure` is called with it instead of the task's callback, and the next task starts.
    `is_closing`: required tasks are no longer retried.
    """

    __slots__ = ("_queue", "_when_idle", "background", "is_closing")

    def __init__(self, background: BackgroundRunner) -> None:
        self.background = background
        # The tasks that wait, None while none runs. Tuples: few ever wait, and a broker may have 10,000 logs.
        self._queue: tuple[Task, ...] | None = None
        self.is_closing = False
        self._when_idle: tuple[Callable[[], None], ...] = ()

    def on_failure(self, error: OSError) -> None:
        raise NotImplementedError

    def add_task(self, job: Callable[[], T], then: Callable[[T], None], *, required: bool = False) -> None:
        """Add a task: `job` for a thread, and `then`, which is called with its result.

        Later tasks rely on a `required` one: after a shortage (log_health.py) its job is called again before they
        start, so it must be able to continue where it failed.
        """
        is_first, task = self._queue is None, Task(job, then, required)  # type: ignore[arg-type]
        self._queue = (*(self._queue or ()), task)
        if is_first:
            self._start_next()

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, as soon as no task is left; immediately if there is none."""
        if self._queue is not None:
            self._when_idle += (callback,)
        else:
            callback()

    def _start_next(self) -> None:
        if not self._queue:
            self._queue = None
            callbacks, self._when_idle = self._when_idle, ()
            for callback in callbacks:
                callback()
            return
        task, *rest = self._queue
        self._queue = tuple(rest)
        self._start(task)

    def _start(self, task: Task, delay_ms: int = 0) -> None:
        def attempt() -> tuple[object, OSError | None]:
            try:
                return task.job(), None
            except OSError as error:
                return None, error
            except MemoryError:
                return None, OSError(ENOMEM, "out of memory")
            except Exception as error:
                # A programming error must not prevent later tasks, such as the closing of the log.
                return None, OSError(EIO, f"{type(error).__name__}: {error}")

        def finish(outcome: tuple[object, OSError | None]) -> None:
            result, error = outcome
            if error is not None and task.required and is_shortage(error):
                if not self.is_closing:
                    self.on_failure(error)
                    self._start(task, RETRY_MS)
                    return
                error = OSError(EIO, f"not completed before the log was closed: {error}")
            try:
                if error is None:
                    task.then(result)
                else:
                    self.on_failure(error)
            finally:
                self._start_next()

        self.background(attempt, finish, delay_ms)


_PROBE_BYTES = 1 << 16

# Segments whose indexes were written, with their numbers of entries.
WrittenIndexes = list[tuple[LogSegment, IndexCounts]]


class LogDurability(SerialTaskQueue):
    """The syncs, checkpoints and tasks of one log."""

    __slots__ = ("_log",)

    def __init__(self, log: LogState, background: BackgroundRunner) -> None:
        super().__init__(background)
        self._log = log

    def on_failure(self, error: OSError) -> None:
        self._log.health.task_failed(error)

    def write_epochs(self) -> None:
        """Write leader-epoch-checkpoint if the epochs have changed."""
        write = self._log.epoch_file.write_job(self._log.epochs.entries)
        if write is not None:
            self.add_task(write, ignore)

    def delete_segments(self, segments: Sequence[LogSegment]) -> None:
        """Rename the files of segments that were removed from the log; unlink them after file.delete.delay.ms."""
        self.add_task(RenameDeleted(segments), self.unlink_later, required=True)

    def unlink_later(self, paths: Iterable[str]) -> None:
        """Unlink renamed files after file.delete.delay.ms."""
        log = self._log
        self.background(partial(unlink_blocking, log.disk, paths), ignore, log.config.file_delete_delay_ms)

    # Syncs and checkpoints.

    def flush_blocking(self, up_to: int) -> int:
        """Sync the records below `up_to`. Returns `up_to`, for `LogState.complete_flush` on the event loop.

        Raises OSError and takes the log offline if the disk fails: a failed sync is never repeated. The log stays
        online if the sync could not start for lack of file descriptors.
        """
        log = self._log
        if log.health.offline is not None:
            raise OSError(EIO, log.health.offline)
        try:
            if needs_sync(log.segments, log.recovery_point, up_to):
                sync_segments(log.segments, log.recovery_point, up_to)
                log.directory_sync.sync_blocking()
        except OSError as error:
            if not is_unbegun_sync(error):
                log.health.mark_offline(f"sync failed: {error}")
            raise
        return up_to

    def probe_blocking(self) -> bool:
        """Return whether the disk of a log that is `full` has space again."""
        path = f"{self._log.directory}/probe"
        try:
            self._log.disk.write_atomic(path, bytes(_PROBE_BYTES), sync=False)
            self._log.disk.unlink(path)
        except OSError:
            return False
        return True

    def checkpoint(self, done: Callable[[], None] | None = None) -> None:
        """Sync the log, and write its current index entries and a producer snapshot.

        Recovery then reads only later batches, even within a segment (Kafka reads all of an unflushed segment). `done`
        is called when no task is left.
        """
        log = self._log
        if log.health.offline is None and not log.is_truncating:
            self.write_epochs()
            segments = [segment for segment in log.segments if segment.needs_index_write]
            if segments or self._has_unsynced():
                self.add_checkpoint(log.log_end_offset, segments)
        if done is not None:
            self.when_idle(done)

    def _has_unsynced(self) -> bool:
        log, end_offset = self._log, self._log.log_end_offset
        return (
            needs_sync(log.segments, log.recovery_point, end_offset)
            or log.durable_recovery_point < log.recovery_point
            or log.snapshots.is_missing(end_offset, log.segments[0].base_offset)
        )

    def add_checkpoint(self, end_offset: int, segments: Sequence[LogSegment], *, sync: bool = False) -> None:
        """Write the indexes of `segments`, and a snapshot at the log end offset. With `sync` both are synced."""
        write = self._checkpoint_job(end_offset, segments, sync=sync)
        self.add_task(write, partial(self._complete_checkpoint, end_offset))

    def _checkpoint_job(
        self, end_offset: int, segments: Sequence[LogSegment], *, sync: bool = False
    ) -> Callable[[], WrittenIndexes]:
        """Return a job for a thread that writes a checkpoint of the log's current state.

        The log is synced first, so that indexes and snapshot never describe more than what is durable. The snapshot is
        written last: recovery reads the log from the newest snapshot on, so earlier aborted transactions must be in the
        indexes.
        """
        log = self._log
        base_offsets = {segment.base_offset for segment in log.segments}
        sync_epochs = log.epoch_file.sync_job()
        index_jobs = [(segment, segment.indexes.write_job(sync)) for segment in segments]
        write_snapshot = log.snapshots.write_job(end_offset, log.producers, base_offsets, sync=sync)

        def write() -> WrittenIndexes:
            self.flush_blocking(end_offset)
            sync_epochs()
            written = [(segment, write_indexes()) for segment, write_indexes in index_jobs]
            write_snapshot()
            return written

        return write

    def _complete_checkpoint(self, end_offset: int, written: WrittenIndexes) -> None:
        for segment, counts in written:
            segment.mark_indexes_written(counts)
        self._log.complete_flush(end_offset)

    def close(self, clean: bool, done: Callable[[bool], None]) -> None:
        """Finish all tasks and close the files. With `clean`, first write a checkpoint with complete index files.

        `done(True)` is called if all of that succeeded. A truncation in progress is completed first.
        """
        log, health = self._log, self._log.health
        self.is_closing = True
        if log.is_truncating:
            log.when_truncated(partial(self.close, clean, done))
            return
        end_offset = log.log_end_offset
        if health.read_only:
            health.close("the file system is read-only")
        write: Callable[[], WrittenIndexes] | None = None
        if clean and health.offline is None:
            for segment in log.segments:
                segment.add_time_entry()
            self.write_epochs()
            segments, active = [segment for segment in log.segments if segment.needs_index_write], log.segments[-1]
            if active not in segments and not active.indexes.has_files:
                segments.append(active)
            if segments or self._has_unsynced():
                write = self._checkpoint_job(end_offset, segments)

        def job() -> WrittenIndexes | None:
            try:
                return write() if write is not None else []
            except Exception as error:
                # `done` must be called whatever happens. The next start recovers the log.
                health.close(f"closing failed: {error}")
                event_log.warning("log not closed cleanly, the next start checks it", partition=log.tp, reason=error)
                return None

        def then(written: WrittenIndexes | None) -> None:
            worked = clean and written is not None and health.offline is None
            if worked and written is not None:
                self._complete_checkpoint(end_offset, written)
            health.close("closed")
            for segment in log.segments:
                segment.close_files()
            done(worked)

        self.add_task(job, then)


def needs_sync(segments: Iterable[LogSegment], recovery_point: int, up_to: int) -> bool:
    return up_to > recovery_point or any(segment.unsynced_truncation for segment in segments)


def sync_segments(segments: Iterable[LogSegment], recovery_point: int, up_to: int) -> None:
    """Sync the segments with offsets in [recovery_point, up_to) and those that were truncated. Raises OSError."""
    for segment in segments:
        end = segment.end_offset
        is_unsynced = recovery_point < up_to and segment.base_offset < up_to and (end is None or end > recovery_point)
        if is_unsynced or segment.unsynced_truncation:
            segment.sync_blocking()


class RenameDeleted:
    """A job that renames the files of segments to `.deleted` and returns their new paths.

    After an OSError it may be called again; it continues where it failed.
    """

    def __init__(self, segments: Sequence[LogSegment]) -> None:
        self._segments = segments
        self._renamed: list[str] = []

    def __call__(self) -> list[str]:
        for segment in self._segments:
            self._renamed += segment.rename_deleted_blocking()
        return self._renamed


def unlink_blocking(disk: Disk, paths: Iterable[str]) -> None:
    for path in paths:
        try:
            disk.unlink(path)
        except OSError:
            # The partition's directory was removed; or the next start removes the file.
            continue


def ignore(_: object) -> None:
    """Ignore the result of a background job."""
