"""Makes a log durable: syncs its segments and its directory, and writes checkpoints."""

from collections.abc import Callable, Iterable, Sequence

from kbroker.runtime.disk import Disk
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.log.segment_indexes import IndexCounts

# Segments whose indexes were written, with their numbers of entries.
WrittenIndexes = list[tuple[LogSegment, IndexCounts]]


def needs_sync(segments: Iterable[LogSegment], recovery_point: int, up_to: int) -> bool:
    return up_to > recovery_point or any(segment.unsynced_truncation for segment in segments)


def sync_segments(segments: Iterable[LogSegment], recovery_point: int, up_to: int) -> None:
    """Sync the segments with offsets in [recovery_point, up_to) and those that were truncated. Raises OSError."""
    for segment in segments:
        end = segment.end_offset
        is_unsynced = recovery_point < up_to and segment.base_offset < up_to and (end is None or end > recovery_point)
        if is_unsynced or segment.unsynced_truncation:
            segment.sync_blocking()


class DirectorySync:
    """Syncs the directory of a log, and the data directory that contains it, when file names have changed."""

    __slots__ = ("_changes", "_directory", "_disk", "_parent_is_synced", "_synced_changes")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        # The number of changes, and the number of those that are synced.
        self._changes = 0
        self._synced_changes = 0
        self._parent_is_synced = True

    def mark_changed(self) -> None:
        """Record that a file was created, renamed or removed."""
        self._changes += 1

    def mark_unsynced(self) -> None:
        """Record that it is not known whether any name is durable, even that of the directory."""
        self._changes += 1
        self._parent_is_synced = False

    def sync_blocking(self) -> None:
        """Sync the directory if names have changed since the last sync. Raises OSError."""
        # Read before the sync: a change during it requires another sync.
        changes = self._changes
        if self._synced_changes == changes:
            return
        self._disk.sync_dir(self._directory)
        if not self._parent_is_synced:
            self._disk.sync_dir(self._directory.rpartition("/")[0])
            self._parent_is_synced = True
        self._synced_changes = changes


def checkpoint_job(
    flush: Callable[[], object],
    sync_epochs: Callable[[], None],
    segments: Sequence[LogSegment],
    write_snapshot: Callable[[], None],
    *,
    sync_indexes: bool,
) -> Callable[[], WrittenIndexes]:
    """Return a job for a thread that writes a checkpoint of a log's current state.

    The log is synced first, so that indexes and snapshot never describe more than what is durable. The snapshot is
    written last: recovery reads the log from the newest snapshot on, so earlier aborted transactions must be in the
    indexes.
    """
    index_jobs = [(segment, segment.indexes.write_job(sync_indexes)) for segment in segments]

    def write() -> WrittenIndexes:
        flush()
        sync_epochs()
        written = [(segment, write_indexes()) for segment, write_indexes in index_jobs]
        write_snapshot()
        return written

    return write
