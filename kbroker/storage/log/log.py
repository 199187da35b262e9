"""A partition's log: its segments, offsets, producer state and leader epochs. Only this module changes a Log.

The methods run on the event loop, except those named *_blocking: these run in a thread, perhaps while the event loop
appends (segment.py explains why that is safe). All other work that waits for the disk is a task of the log
(task_queue.py).
"""

from collections.abc import Callable, Iterable, Sequence
from errno import EIO, ENOSPC
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from kbroker.common import Buffer, KafkaError
from kbroker.config.topic_config import TopicConfig
from kbroker.storage.log import durability, rolling
from kbroker.storage.log.control_batches import MarkerBatch, apply_control_batch
from kbroker.storage.log.loaded_log import LoadedLog
from kbroker.storage.log.log_health import event_log
from kbroker.storage.log.reading.log_reads import LogReads
from kbroker.storage.log.reading.position_cache import PositionCache
from kbroker.storage.log.retention import count_expired_segments
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.log.segment_deletion import RenameDeleted, unlink_blocking
from kbroker.storage.log.task_queue import BackgroundRunner, SerialTaskQueue
from kbroker.storage.recovery import truncation
from kbroker.storage.shortage import is_unbegun_sync
from protocol.errors import ErrorCode
from protocol.records.batch import CONTROL, LENGTH_OVERHEAD, PREFIX, BatchHeader
from protocol.records.control import EndTransactionMarker, find_end_marker

if TYPE_CHECKING:
    from random import Random

T = TypeVar("T")

_PROBE_BYTES = 1 << 16


class Log(LogReads):
    """Created by recovery.open_log. Its base LogReads is the read side; LogHealth decides whether it accepts appends.

    Everything below `cleaned_to` is compacted. `repairs`: what was repaired when the log was opened, one line each.
    """

    __slots__ = (
        "_append_epoch",
        "_background",
        "_directory_sync",
        "_epoch_file",
        "_index_full",
        "_jitter_ms",
        "_limits",
        "_random",
        "_tasks",
        "active",
        "cleaned_to",
        "directory",
        "disk",
        "epochs",
        "producers",
        "repairs",
        "snapshots",
        "topic_id",
    )

    def __init__(self, loaded: LoadedLog, topic_id: bytes, background: BackgroundRunner, random: "Random") -> None:
        super().__init__()
        self.disk = loaded.disk
        self.directory = loaded.directory
        self.tp = loaded.tp
        self.topic_id = topic_id
        self.config = loaded.config
        self._background = background
        self._tasks = SerialTaskQueue(background, self._task_failed)
        self._random = random
        # The leader epoch of the last append.
        self._append_epoch = -1
        self.repairs = loaded.repairs
        self._start(loaded)

    def _start(self, loaded: LoadedLog) -> None:
        self.segments = loaded.segments
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.recovery_point = loaded.recovery_point
        self.cleaned_to = loaded.cleaned_to
        self.producers = loaded.producers
        self.epochs = loaded.epochs
        self.snapshots = loaded.snapshots
        self._epoch_file = loaded.epoch_file
        self._directory_sync = loaded.directory_sync
        self.last_aborted_offset = max([segment.indexes.transaction.last_offset for segment in self.segments])
        self._activate(self.segments[-1])
        self.clear_position_cache()

    def clear_position_cache(self) -> None:
        self.positions = PositionCache(self.active)

    # Appends.

    def append(self, batch: Buffer, header: BatchHeader, leader_epoch: int, now_ms: int) -> int:
        """Append a validated batch in a writable buffer, and return its base offset.

        The offset and the epoch are written into the buffer. Raises KafkaError: KAFKA_STORAGE_ERROR if the batch could
        not be written, in which case the file is unchanged; RECORD_LIST_TOO_LARGE if it exceeds segment.bytes.
        """
        _, length, _, _, _, attributes, delta, _, timestamp, producer_id, _, _, _ = header
        size = length + LENGTH_OVERHEAD
        base = self.log_end_offset
        last = base + delta
        segment = self.active
        max_size, max_timestamp, max_offset, max_now_ms = self._limits
        if segment.size + size > max_size or timestamp > max_timestamp or last > max_offset or now_ms > max_now_ms:
            segment = self._prepare_append(size, timestamp, last, now_ms)
        PREFIX.pack_into(batch, 0, base, length, leader_epoch)
        self._write(segment, batch, size)
        # Reading threads rely on the order of these steps, up to the log end offset (segment.py).
        position = segment.size
        self.positions.add_append(base, position)
        if segment.add_batch(position, size, last, timestamp, self.config.index_interval_bytes):
            self._on_index_entry(segment, position)
        if producer_id >= 0:
            if attributes & CONTROL:
                self._apply_control_batch(segment, header, base, find_end_marker(batch))
            else:
                self.producers.update(header, base)
        if leader_epoch != self._append_epoch:
            self._start_epoch(leader_epoch, base)
        self.log_end_offset = last + 1
        return base

    def append_markers(self, batches: Sequence[MarkerBatch], leader_epoch: int, now_ms: int) -> int:
        """Append control batches of one record each with one write, all or none. Returns the first one's offset.

        Raises the errors of `append`; for segment.bytes they count as one batch.
        """
        data = [batch for batch, _, _ in batches]
        size = sum(map(len, data))
        base = self.log_end_offset
        timestamp = max([header.max_timestamp for _, header, _ in batches])
        segment = self._prepare_append(size, timestamp, base + len(batches) - 1, now_ms)
        for offset, (batch, header, _) in enumerate(batches, base):
            PREFIX.pack_into(batch, 0, offset, header.batch_length, leader_epoch)
        self._write(segment, b"".join(data), size)
        if leader_epoch != self._append_epoch:
            self._start_epoch(leader_epoch, base)
        for offset, (_, header, marker) in enumerate(batches, base):
            position = segment.size
            self.positions.add_append(offset, position)
            if segment.add_batch(position, header.size, offset, header.max_timestamp, self.config.index_interval_bytes):
                self._on_index_entry(segment, position)
            self._apply_control_batch(segment, header, offset, marker)
        self.log_end_offset = base + len(batches)
        return base

    def _prepare_append(self, size: int, timestamp: int, last_offset: int, now_ms: int) -> LogSegment:
        """Check an append that may exceed a limit: reject it, or roll. Returns the segment for it."""
        if self.append_error is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.append_error)
        segment_bytes = self.config.segment_bytes
        if size > segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE, f"a batch of {size} bytes exceeds segment.bytes, {segment_bytes}"
            )
        if self.active.size and (
            self.active.size + size > segment_bytes
            or self._index_full
            or self._limits.is_reached(timestamp, last_offset, now_ms)
        ):
            self._roll(now_ms)
        if not self.active.size:
            self.active.begin(timestamp)
            self._update_limits()
        return self.active

    def _write(self, segment: LogSegment, data: Buffer, size: int) -> None:
        try:
            written = segment.file.append(data)  # type: ignore[union-attr]
        except OSError as error:
            raise self._cut_back(error) from error
        if written != size:
            raise self._cut_back(OSError(ENOSPC, f"{written} of {size} bytes written"))

    def _on_index_entry(self, segment: LogSegment, position: int) -> None:
        """Do what is not necessary after every batch. Called when the batch at `position` got index entries."""
        if segment.indexes.is_full(self.config.segment_index_bytes):
            self._index_full = True
            self._update_limits()
        start_writeback = segment.take_writeback(position)
        if start_writeback is not None:
            self._background(start_writeback, _ignore)

    def _apply_control_batch(
        self, segment: LogSegment, header: BatchHeader, offset: int, marker: EndTransactionMarker | None
    ) -> None:
        index = segment.indexes.transaction
        apply_control_batch(self.producers, index, header, offset, marker)
        self.last_aborted_offset = max(self.last_aborted_offset, index.last_offset)

    def _cut_back(self, error: OSError) -> KafkaError:
        """Truncate the file after a failed write so that it ends with a complete batch. Returns the error to raise."""
        try:
            self.active.cut_torn_append()
        except OSError as worse:
            error = worse
        self._append_failed(error)
        self._update_limits()
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))

    # Rolling.

    def roll(self, now_ms: int) -> None:
        """Close the active segment, unless it is empty, and begin another one. Raises KafkaError."""
        if self.active.size:
            self._roll(now_ms)

    def maybe_roll(self, now_ms: int) -> None:
        """Roll if the time limit of the active segment (segment.ms) has passed. Raises KafkaError."""
        if self.active.size and self._limits.is_time_over(now_ms):
            self._roll(now_ms)

    def _roll(self, now_ms: int) -> None:
        closed, base = self.active, self.log_end_offset
        segment = LogSegment(self.disk, self.directory, base, now_ms)
        try:
            segment.create_file()
        except OSError as error:
            raise self._cut_back(error) from error
        closed.close(base)
        self._directory_sync.mark_changed()
        self.segments = [*self.segments, segment]
        self.positions.start_segment(segment)
        self._activate(segment)
        # Transactions aborted before the snapshot must be in the indexes: recovery reads the log only from there on.
        unwritten = [
            other
            for other in self.segments
            if other.indexes.transaction.has_unwritten and other is not closed and other is not segment
        ]
        self._add_checkpoint(base, [*unwritten, closed], sync=True)

    def _activate(self, segment: LogSegment) -> None:
        self.active = segment
        self._index_full = False
        self._jitter_ms = rolling.choose_jitter_ms(self.config, self._random)
        self._update_limits()

    def _update_limits(self) -> None:
        limits = rolling.compute_limits(self.config, self.active, self._jitter_ms)
        self._limits = limits
        # Checked after the assignment, since a thread may take the log offline meanwhile.
        if self.append_error is not None or self._index_full:
            self._limits = limits._replace(size=rolling.CHECK_ALL)

    def set_config(self, config: TopicConfig) -> None:
        """Apply new configs."""
        self.config = config
        self._update_limits()

    # Errors.

    def _set_offline(self, reason: str) -> None:
        super()._set_offline(reason)
        self._limits = self._limits._replace(size=rolling.CHECK_ALL)

    def probe_blocking(self) -> bool:
        """Return whether a log that is `full` could accept appends again. Truncates the rest of a failed write."""
        path = f"{self.directory}/probe"
        try:
            self.disk.write_atomic(path, bytes(_PROBE_BYTES), sync=False)
            self.disk.unlink(path)
            self.active.cut_torn_append()
        except OSError:
            return False
        return True

    def suspend(self) -> None:
        """Reject appends, as on a full disk."""
        self.full = True
        self._update_limits()

    def resume(self) -> None:
        """Accept appends again, after a successful probe."""
        self.full = self.read_only = False
        self._update_limits()

    # Leader epochs and the high watermark.

    def assign_leader_epoch(self, epoch: int) -> None:
        """Start a leader epoch of this broker at the log end offset. The next append writes it to the file."""
        self.epochs.assign(epoch, self.log_end_offset)

    def _start_epoch(self, epoch: int, offset: int) -> None:
        self._append_epoch = epoch
        if epoch >= 0:
            self.epochs.assign(epoch, offset)
            self._write_epochs()

    def _write_epochs(self) -> None:
        """Write leader-epoch-checkpoint if the epochs have changed."""
        write = self._epoch_file.write_job(self.epochs.entries)
        if write is not None:
            self._tasks.add(write, _ignore)

    def update_high_watermark(self, offset: int) -> None:
        """Mark transactions as stable that ended below the high watermark."""
        self.producers.on_high_watermark_updated(offset)

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

    def complete_flush(self, offset: int) -> None:
        """Advance the recovery point to `offset`, below which everything is synced."""
        if self._offline is None:
            self.recovery_point = max(self.recovery_point, min(offset, self.log_end_offset))

    def checkpoint(self, done: Callable[[], None] | None = None) -> None:
        """Sync the log, and write its current index entries and a producer snapshot.

        Recovery then reads only later batches, even within a segment (Kafka reads all of an unflushed segment). `done`
        is called when no task is left.
        """
        if self._offline is None:
            self._write_epochs()
            segments = [segment for segment in self.segments if segment.needs_index_write]
            if segments or self._has_unsynced():
                self._add_checkpoint(self.log_end_offset, segments)
        if done is not None:
            self._tasks.when_idle(done)

    def _has_unsynced(self) -> bool:
        end_offset = self.log_end_offset
        return durability.needs_sync(self.segments, self.recovery_point, end_offset) or self.snapshots.is_missing(
            end_offset, self.segments[0].base_offset
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

        `done(True)` is called if all of that succeeded.
        """
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

        self._tasks.is_closing = True
        self._tasks.add(job, then)

    @property
    def is_closing(self) -> bool:
        """Whether `close` has been called."""
        return self._tasks.is_closing

    def close_idle_files(self) -> None:
        """Close the files of closed segments that were not read since the last call."""
        self.close_closed_segments(idle_only=True)

    def close_closed_segments(self, *, idle_only: bool = False) -> None:
        """Close the files of closed segments. Reads in progress keep theirs open."""
        for segment in self.segments:
            if segment.end_offset is not None and segment.end_offset <= self.recovery_point:
                segment.close_unneeded_files(idle_only)

    # Removal and replacement of records and segments.

    def delete_records(self, offset: int) -> None:
        """Advance the log start offset. The next `enforce_retention` frees the space."""
        self._advance_log_start(min(offset, self.log_end_offset))

    def _advance_log_start(self, offset: int) -> None:
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.epochs.truncate_from_start(offset)
            self._write_epochs()

    def enforce_retention(self, now_ms: int, high_watermark: int) -> int:
        """Delete expired segments that are synced; returns their number. If all have expired, the log first rolls to an
        empty one."""
        if self._offline is not None:
            return 0
        count = count_expired_segments(
            self.segments, self.config, now_ms, self.log_start_offset, self.log_end_offset, high_watermark
        )
        if count and count == len(self.segments):
            try:
                self.roll(now_ms)
            except KafkaError:
                # The disk is full. Deleting the closed segments frees space.
                count -= 1
        # Until its file is renamed, a power loss would leave an unsynced segment torn, and recovery would remove the
        # synced segments that follow it.
        synced = sum(1 for segment in self.segments[1:] if segment.base_offset <= self.recovery_point)
        count = min(count, synced)
        if count:
            self._remove_oldest_segments(count)
        return count

    def _remove_oldest_segments(self, count: int) -> None:
        removed, kept = self.segments[:count], self.segments[count:]
        for segment in removed:
            segment.retire()
        self.segments = kept
        self._advance_log_start(kept[0].base_offset)
        self.snapshots.remove([segment.base_offset for segment in removed])
        self._tasks.add(RenameDeleted(removed), self.unlink_later, required=True)

    def unlink_later(self, paths: Iterable[str]) -> None:
        """Unlink renamed files after file.delete.delay.ms."""
        self._background(partial(unlink_blocking, self.disk, paths), _ignore, self.config.file_delete_delay_ms)

    def replace_segments(self, base_offsets: Sequence[int], replacement: LogSegment) -> list[LogSegment] | None:
        """Replace the segments with these base offsets by a compacted one. Returns the replaced segments.

        Returns None, and changes nothing, if retention has removed one of them or the log is offline. The snapshot at
        the first base offset is kept; those of the other segments are deleted with them.
        """
        replaced = [segment for segment in self.segments if segment.base_offset in base_offsets]
        if [segment.base_offset for segment in replaced] != list(base_offsets) or self._offline is not None:
            return None
        at = self.segments.index(replaced[0])
        self.segments = [*self.segments[:at], replacement, *self.segments[at + len(replaced) :]]
        for segment in replaced:
            segment.retire()
        self.snapshots.remove(base_offsets[1:])
        return replaced

    def truncate_blocking(self, offset: int) -> None:
        """Remove all batches that contain or follow `offset`, as a follower does if its leader lacks them.

        Nothing else may use the log, and no task may be left. Raises OSError, KafkaError.
        """
        if offset >= self.log_end_offset:
            return
        loaded = LoadedLog(self.disk, self.directory, self.tp, self.config)
        loaded.segments = self.segments
        loaded.log_start_offset = self.log_start_offset
        loaded.log_end_offset = self.log_end_offset
        loaded.recovery_point = self.recovery_point
        loaded.cleaned_to = self.cleaned_to
        loaded.producers = self.producers
        loaded.epochs = self.epochs
        loaded.snapshots = self.snapshots
        loaded.epoch_file = self._epoch_file
        loaded.directory_sync = self._directory_sync
        truncation.truncate_blocking(loaded, max(offset, self.log_start_offset))
        self._start(loaded)

    def mark_cleaned(self, offset: int) -> None:
        """Record that everything below `offset` is compacted."""
        self.cleaned_to = max(self.cleaned_to, offset)

    def add_task(self, job: Callable[[], T], then: Callable[[T], None], *, required: bool = False) -> None:
        """Run `job` in a thread when the tasks before it are done, then `then` with its result on the event loop.

        `required`: as in SerialTaskQueue.add.
        """
        self._tasks.add(job, then, required=required)

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, as soon as no task is left."""
        self._tasks.when_idle(callback)


def _ignore(_: object) -> None:
    pass
