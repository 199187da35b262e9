"""A partition's log: its segments, offsets, producer state and leader epochs. Only Log and its bases change a Log.

The methods run on the event loop, except those named *_blocking: these run in a thread, perhaps while the event loop
appends (segment.py explains why that is safe). All other work that waits for the disk is a task of the log
(task_queue.py).
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from kbroker.common import KafkaError
from kbroker.storage.checkpoint_files import IndexEntries
from kbroker.storage.log.loaded_log import LoadedLog
from kbroker.storage.log.reading.position_cache import PositionCache
from kbroker.storage.log.retention import count_expired_segments
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.log.segment_deletion import RenameDeleted, unlink_blocking
from kbroker.storage.log.task_queue import BackgroundRunner
from kbroker.storage.log.writing.log_durability import ignore
from kbroker.storage.log.writing.log_truncation import LogTruncation

if TYPE_CHECKING:
    from random import Random

# Most logs share it. Nothing is added.
_NO_REPAIRS: list[str] = []


class Log(LogTruncation):
    """Created by recovery.open_log. Its bases: LogReads is the read side, LogAppends and LogTruncation the write side;
    LogHealth decides whether it accepts appends.

    `repairs`: what was repaired when the log was opened, one line each. `checkpointed_high_watermark`: the high
    watermark of the last checkpoint; the log start offset if it had none.
    """

    __slots__ = ("checkpointed_high_watermark", "repairs", "topic_id")

    def __init__(self, loaded: LoadedLog, topic_id: bytes, background: BackgroundRunner, random: "Random") -> None:
        super().__init__(loaded, background, random)
        self.topic_id = topic_id
        self.repairs = loaded.repairs or _NO_REPAIRS
        self._start(loaded)
        self.checkpointed_high_watermark = max(
            min(loaded.high_watermark or 0, self.log_end_offset), self.log_start_offset
        )

    def clear_position_cache(self) -> None:
        self.positions = PositionCache(self.active)
        self.contents = object()

    def update_high_watermark(self, offset: int) -> None:
        """Mark transactions as stable that ended below the high watermark."""
        self.producers.on_high_watermark_updated(offset)

    def transaction_index_entries(self) -> IndexEntries:
        """Return the numbers of entries in the transaction index files, by the base offsets of their segments."""
        indexes = {segment.base_offset: segment.indexes.transaction.persisted for segment in self.segments}
        return {base_offset: count for base_offset, count in indexes.items() if count}

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
        if self._offline is not None or self.is_truncating:
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
        self.contents = object()
        self._advance_log_start(kept[0].base_offset)
        self.snapshots.remove([segment.base_offset for segment in removed])
        self._tasks.add(RenameDeleted(removed), self.unlink_later, required=True)

    def unlink_later(self, paths: Iterable[str]) -> None:
        """Unlink renamed files after file.delete.delay.ms."""
        self._background(partial(unlink_blocking, self.disk, paths), ignore, self.config.file_delete_delay_ms)

    def replace_segments(self, base_offsets: Sequence[int], replacement: LogSegment) -> list[LogSegment] | None:
        """Replace the segments with these base offsets by a compacted one. Returns the replaced segments.

        Returns None, and changes nothing, if retention has removed one of them, a truncation is in progress or the log
        is offline. The snapshot at the first base offset is kept; those of the other segments are deleted with them.
        """
        replaced = [segment for segment in self.segments if segment.base_offset in base_offsets]
        is_changed = [segment.base_offset for segment in replaced] != list(base_offsets) or self.is_truncating
        if is_changed or self._offline is not None:
            return None
        at = self.segments.index(replaced[0])
        self.segments = [*self.segments[:at], replacement, *self.segments[at + len(replaced) :]]
        self.contents = object()
        for segment in replaced:
            segment.retire()
        self.snapshots.remove(base_offsets[1:])
        return replaced

    def mark_cleaned(self, offset: int) -> None:
        """Record that everything below `offset` is compacted."""
        self.cleaned_to = max(self.cleaned_to, offset)
