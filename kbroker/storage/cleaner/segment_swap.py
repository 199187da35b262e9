"""Replaces segments by compacted ones so that a crash at any point leaves the old or the new files, as Kafka does.

New files are written as `.cleaned`, and renamed to `.swap` when they are complete and synced. From then on the
replacement is always completed, by `finish_swaps` at the next start if necessary. The source files are removed, then
the new files get their final names.
"""

from collections.abc import Callable, Iterable
from errno import EIO
from functools import partial

from kbroker.runtime.disk import Disk
from kbroker.storage import file_names
from kbroker.storage.cleaner.compaction_plan import CleanedSegment, CompactionResult
from kbroker.storage.log.batch_scan import BatchScan
from kbroker.storage.log.indexes import OffsetIndex, TimeIndex
from kbroker.storage.log.log import Log
from kbroker.storage.log.log_health import is_shortage
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.log.transaction_index import TransactionIndex, iter_transaction_index

# The files of a compacted segment, the log last. There may be no transaction index.
NEW_SUFFIXES = (file_names.INDEX, file_names.TIME_INDEX, file_names.TXN_INDEX, file_names.LOG)


def promote(disk: Disk, directory: str, base_offset: int) -> None:
    """Rename `.cleaned` files, which are synced, to `.swap`. The log is last: it makes the replacement valid."""
    for suffix in NEW_SUFFIXES:
        path = file_names.segment_file(directory, base_offset, suffix)
        if suffix != file_names.TXN_INDEX or disk.exists(path + file_names.CLEANED):
            disk.rename(path + file_names.CLEANED, path + file_names.SWAP)
    disk.sync_dir(directory)


def install(disk: Disk, directory: str, base_offset: int) -> None:
    """Rename `.swap` files to their final names, after the sources were removed. The log is last here as well."""
    for suffix in NEW_SUFFIXES:
        path = file_names.segment_file(directory, base_offset, suffix)
        if disk.exists(path + file_names.SWAP):
            disk.rename(path + file_names.SWAP, path)


def abandon(disk: Disk, directory: str, base_offset: int) -> None:
    """Remove `.swap` files whose sources have changed. The log is first, so that no start installs the others."""
    for suffix in reversed(NEW_SUFFIXES):
        path = file_names.segment_file(directory, base_offset, suffix) + file_names.SWAP
        if disk.exists(path):
            disk.unlink(path)


def remove_cleaned(disk: Disk, directory: str, base_offset: int) -> None:
    """Remove the `.cleaned` files of a segment that could not be completed."""
    for suffix in NEW_SUFFIXES:
        try:
            disk.unlink(file_names.segment_file(directory, base_offset, suffix) + file_names.CLEANED)
        except OSError:
            # It was not written yet, or else the next start removes it.
            continue


def finish_swaps(disk: Disk, directory: str, listed: Iterable[str]) -> list[str]:
    """At startup, remove incomplete replacements and finish complete ones. Returns one line for each finished one."""
    repairs = []
    base_offsets = []
    swaps = []
    for name in listed:
        if name.endswith(file_names.CLEANED):
            disk.unlink(f"{directory}/{name}")
        elif name.endswith(file_names.LOG + file_names.SWAP):
            swaps.append(int(name[:20]))
        else:
            parsed = file_names.parse_segment_file(name)
            if parsed is not None and parsed[1] == file_names.LOG:
                base_offsets.append(parsed[0])
    for swap in swaps:
        path = file_names.segment_file(directory, swap, file_names.LOG) + file_names.SWAP
        end_offset = _find_end_offset(disk, path, swap)
        for base_offset in base_offsets:
            if swap <= base_offset < end_offset:
                _remove_segment(disk, directory, base_offset)
        disk.sync_dir(directory)
        install(disk, directory, swap)
        repairs.append(f"{directory}: compaction of offsets {swap} to {end_offset - 1} was finished")
    for name in listed:
        # Indexes that were renamed before the log was.
        if name.endswith(file_names.SWAP) and disk.exists(f"{directory}/{name}"):
            disk.unlink(f"{directory}/{name}")
    return repairs


def _find_end_offset(disk: Disk, path: str, base_offset: int) -> int:
    file = disk.open(path, write=False)
    scan = BatchScan(file, 0, file.size(), base_offset, base_offset, check_crc=False)
    for _ in scan:
        pass
    return max(scan.next_offset, base_offset + 1)


def _remove_segment(disk: Disk, directory: str, base_offset: int) -> None:
    for suffix in file_names.SEGMENT_SUFFIXES:
        path = file_names.segment_file(directory, base_offset, suffix)
        if disk.exists(path):
            disk.unlink(path)


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

    log.durability.when_idle(finish)


class _Replacement:
    """Three steps: complete the new files as `.swap`, replace the segments in the log, rename the files."""

    def __init__(self, log: "Log", cleaned: CleanedSegment) -> None:
        self._log = log
        self._cleaned = cleaned
        self.is_done = False

    def start(self) -> None:
        self._log.durability.add_task(self._promote_blocking, self._replace)

    def _promote_blocking(self) -> LogSegment:
        log = self._log
        segment = _load(log, self._cleaned)
        try:
            promote(log.disk, log.directory, self._cleaned.base_offset)
        except OSError as error:
            if is_shortage(error):
                # Otherwise the next start would complete the replacement, although the sources may have changed since.
                self._undo_promotion(error)
            raise
        return segment

    def _undo_promotion(self, reason: OSError) -> None:
        """Undo the renames to `.swap`. Raises an OSError that takes the log offline."""
        try:
            abandon(self._log.disk, self._log.directory, self._cleaned.base_offset)
        except OSError as error:
            raise OSError(EIO, f"a replacement was neither completed ({reason}) nor undone: {error}") from error

    def _replace(self, segment: LogSegment) -> None:
        log = self._log
        sources = log.replace_segments(self._cleaned.source_offsets, segment)
        if sources is None:
            segment.close_files()
            undo = partial(abandon, log.disk, log.directory, self._cleaned.base_offset)
            log.durability.add_task(undo, self._finish, required=True)
        else:
            log.durability.add_task(
                _ExchangeFiles(sources, segment), lambda deleted: self._finish_replaced(segment, deleted), required=True
            )

    def _finish_replaced(self, segment: LogSegment, deleted: list[str]) -> None:
        segment.mark_indexes_written(segment.indexes.current_counts())
        self._log.durability.unlink_later(deleted)
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
        install(segment.disk, segment.directory, segment.base_offset)
        return self._deleted
