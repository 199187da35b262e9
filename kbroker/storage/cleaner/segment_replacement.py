"""Replaces the source segments of a compaction in their log by the compacted ones."""

from collections.abc import Callable
from errno import EIO
from functools import partial
from typing import TYPE_CHECKING

from kbroker.storage import file_names
from kbroker.storage.cleaner import segment_swap
from kbroker.storage.cleaner.compaction_plan import CleanedSegment, CompactionResult
from kbroker.storage.indexes.offset_index import OffsetIndex
from kbroker.storage.indexes.time_index import TimeIndex
from kbroker.storage.indexes.transaction_index import TransactionIndex, iter_transaction_index
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.shortage import is_shortage

if TYPE_CHECKING:
    from kbroker.storage.log.log import Log


def install_result(log: "Log", result: CompactionResult, done: Callable[[], None]) -> None:
    """Replace the sources by the compacted segments, in tasks of the log. Then set `cleaned_to` and call `done`.

    Segments that retention has deleted meanwhile stay deleted.
    """
    replacements = [_Replacement(log, cleaned) for cleaned in result.cleaned]
    for replacement in replacements:
        replacement.start()

    def finish() -> None:
        # After an error the log is offline, and the next start finishes or undoes the replacement.
        if all(replacement.is_done for replacement in replacements):
            log.mark_cleaned(result.cleaned_to)
        done()

    log.when_idle(finish)


class _Replacement:
    """Three steps: complete the new files as `.swap`, replace the segments in the log, rename the files."""

    def __init__(self, log: "Log", cleaned: CleanedSegment) -> None:
        self._log = log
        self._cleaned = cleaned
        self.is_done = False

    def start(self) -> None:
        self._log.add_task(self._promote_blocking, self._replace)

    def _promote_blocking(self) -> LogSegment:
        log = self._log
        segment = _load(log, self._cleaned)
        try:
            segment_swap.promote(log.disk, log.directory, self._cleaned.base_offset)
        except OSError as error:
            if is_shortage(error):
                # Otherwise the next start would complete the replacement, although the sources may have changed since.
                self._undo_promotion(error)
            raise
        return segment

    def _undo_promotion(self, reason: OSError) -> None:
        """Undo the renames to `.swap`. Raises an OSError that takes the log offline."""
        try:
            segment_swap.abandon(self._log.disk, self._log.directory, self._cleaned.base_offset)
        except OSError as error:
            raise OSError(EIO, f"a replacement was neither completed ({reason}) nor undone: {error}") from error

    def _replace(self, segment: LogSegment) -> None:
        log = self._log
        sources = log.replace_segments(self._cleaned.source_offsets, segment)
        if sources is None:
            segment.close_files()
            abandon = partial(segment_swap.abandon, log.disk, log.directory, self._cleaned.base_offset)
            log.add_task(abandon, self._finish, required=True)
        else:
            log.add_task(
                _ExchangeFiles(sources, segment),
                lambda deleted: self._finish_replaced(segment, deleted),
                required=True,
            )

    def _finish_replaced(self, segment: LogSegment, deleted: list[str]) -> None:
        segment.mark_indexes_written(segment.indexes.current_counts())
        self._log.unlink_later(deleted)
        self._finish(None)

    def _finish(self, _: object) -> None:
        self.is_done = True


def _load(log: "Log", cleaned: CleanedSegment) -> LogSegment:
    """Return the segment with its file open and its indexes in memory: it is read before its files have final names."""
    segment = LogSegment(log.disk, log.directory, cleaned.base_offset, 0)
    try:
        offsets = OffsetIndex.decode(log.disk.read(segment.path(file_names.INDEX) + file_names.CLEANED))
        times = TimeIndex.decode(log.disk.read(segment.path(file_names.TIME_INDEX) + file_names.CLEANED))
    except ValueError as error:
        raise OSError(f"an index that was just written is damaged: {error}") from error
    transactions = TransactionIndex()
    if cleaned.has_transaction_index:
        for entry in iter_transaction_index(log.disk, segment.path(file_names.TXN_INDEX) + file_names.CLEANED):
            transactions.add(entry)
    segment.use_cleaned(
        log.disk.open(segment.path() + file_names.CLEANED, write=False), cleaned.size, cleaned.end_offset
    )
    segment.indexes.use(offsets, times)
    segment.indexes.use_transaction_index(transactions)
    segment.use_timestamps(cleaned.first_timestamp, cleaned.max_timestamp, cleaned.max_timestamp_offset)
    return segment


class _ExchangeFiles:
    """A task that renames the source files to `.deleted` and the new files to their final names.

    Returns the paths to unlink. A crash never leaves both sets of files. After an OSError the task may be called again,
    and continues where it failed.
    """

    def __init__(self, sources: list[LogSegment], segment: LogSegment) -> None:
        self._sources = sources
        self._segment = segment
        self._deleted: list[str] = []
        # Once this is set, the file with the name of the first source is the new segment.
        self._sources_are_deleted = False

    def __call__(self) -> list[str]:
        segment = self._segment
        if not self._sources_are_deleted:
            for source in self._sources[1:]:
                self._deleted += source.rename_deleted_blocking()
            # The producer snapshot at the first base offset belongs to the new segment.
            self._deleted += self._sources[0].rename_deleted_blocking(file_names.SEGMENT_SUFFIXES)
            segment.disk.sync_dir(segment.directory)
            self._sources_are_deleted = True
        segment_swap.install(segment.disk, segment.directory, segment.base_offset)
        return self._deleted
