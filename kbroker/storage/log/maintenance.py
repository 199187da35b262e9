"""What keeps a log durable and quick to open: syncs, index files, producer snapshots, closing.

Segments' closing and checkpoints are chores of the log: captured on the loop, done in a thread, applied on the loop.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.storage import file_names
from kbroker.storage.log.segment import IndexCounts, LogSegment

if TYPE_CHECKING:
    from kbroker.storage.log.log import Log

# Segments whose indexes were written, with the counts of their entries.
Written = list[tuple[LogSegment, IndexCounts]]


def sync_segments(log: "Log", up_to: int) -> None:
    """Sync the segments that hold offsets from the recovery point to `up_to` or were cut, and new directory entries."""
    start = log.recovery_point
    if up_to <= start and not _any_cut(log):
        return
    created = log.files_created
    for segment in log.segments:
        end = segment.end_offset
        if segment.cut or (start < up_to and segment.base_offset < up_to and (end is None or end > start)):
            # First: a cut on the loop meanwhile is another one.
            segment.cut = False
            _sync(segment)
    synced = log.directory_synced
    if synced < created:
        log.disk.sync_dir(log.directory)
        if synced < 0:
            log.disk.sync_dir(log.directory.rpartition("/")[0])
        log.directory_synced = created


def _any_cut(log: "Log") -> bool:
    """Whether bytes that were cut off a file may come back with a power loss, where recovery does not look."""
    return any(segment.cut for segment in log.segments)


def _sync(segment: LogSegment) -> None:
    try:
        file = segment.file or segment.disk.open(segment.path(), write=False)
    except FileNotFoundError:
        # Retention was faster: nothing is left to be kept.
        if segment.retired:
            return
        raise
    file.fdatasync()


def finish_segment(log: "Log", segment: LogSegment, end_offset: int) -> None:
    """After a roll: sync the closed segment, write its indexes and the producer snapshot at its end."""
    # Recovery learns of transactions from the newest snapshot on: what was aborted before it has to be in the indexes.
    others = [one for one in log.segments if one.aborted.unwritten and one is not segment and one is not log.active]
    persists = [(one, one.persist_job(sync=True)) for one in (*others, segment)]
    snapshot = _snapshot_job(log, end_offset, sync=True)
    epochs = _epochs_job(log)

    def job() -> Written:
        log.flush_blocking(end_offset)
        epochs()
        written = [(one, persist()) for one, persist in persists]
        snapshot()
        return written

    log.chores.add(job, lambda written: _written(log, end_offset, written))


def checkpoint(log: "Log", done: Callable[[], None] | None) -> None:
    """Sync up to now, and write index entries and the producer snapshot up to there.

    A recovery then reads what comes after, even if that is in the middle of a segment (Kafka would read all of an
    unflushed segment).
    """
    end_offset = log.log_end_offset
    if log.offline is None:
        log.write_epochs()
        job = _write_job(log, end_offset)
        if job is not None:
            log.chores.add(job, lambda written: _written(log, end_offset, written))
    if done is not None:
        log.chores.when_idle(done)


def close(log: "Log", clean: bool, done: Callable[[bool], None]) -> None:
    """As `checkpoint`, with complete index files; then let go of all files."""
    end_offset = log.log_end_offset
    if log.read_only:
        log.offline = "the file system is read-only"
    for segment in log.segments:
        segment.note_time()
    write = _write_job(log, end_offset, complete=True) if clean and log.offline is None else None
    if write is not None:
        log.write_epochs()

    def job() -> Written | None:
        try:
            return write() if write is not None else []
        except Exception as error:
            # Whatever it was: those who wait for the end hear of it, and the next start recovers the log.
            log.offline = f"closing failed: {error}"
            return None

    def then(written: Written | None) -> None:
        worked = clean and written is not None and log.offline is None
        if worked and written is not None:
            _written(log, end_offset, written)
        log.offline = "closed"
        for segment in log.segments:
            segment.file = segment.index_file = None
        done(worked)

    log.chores.add(job, then)


def _write_job(log: "Log", end_offset: int, complete: bool = False) -> Callable[[], Written] | None:
    """A job that makes the log durable up to `end_offset` and its other files complete; None if they are."""
    segments = [segment for segment in log.segments if segment.needs_persist]
    if complete and log.active not in segments and not log.active.files_exist:
        segments.append(log.active)
    unchanged = end_offset == log.recovery_point and not _any_cut(log)
    if unchanged and not segments and not _needs_snapshot(log, end_offset):
        return None
    persists = [(segment, segment.persist_job()) for segment in segments]
    snapshot = _snapshot_job(log, end_offset)
    epochs = _epochs_job(log)

    def job() -> Written:
        log.flush_blocking(end_offset)
        epochs()
        written = [(segment, persist()) for segment, persist in persists]
        snapshot()
        return written

    return job


def _written(log: "Log", end_offset: int, written: Written) -> None:
    for segment, counts in written:
        segment.persisted(counts)
    log.complete_flush(end_offset)


def _epochs_job(log: "Log") -> Callable[[], None]:
    """A job that makes leader-epoch-checkpoint durable: recovery completes it only from the recovery point on."""
    data = log.epochs_written
    if data == log.epochs_synced:
        return _nothing
    path = f"{log.directory}/{file_names.LEADER_EPOCHS}"

    def job() -> None:
        log.disk.write_atomic(path, data)
        log.epochs_synced = data

    return job


def _snapshot_job(log: "Log", offset: int, *, sync: bool = False) -> Callable[[], None]:
    """A job that writes the producers' state of now, at log end offset `offset`.

    Snapshots between segments are of use only while they are the newest: older ones are removed. They need no sync:
    each has a CRC, and without one recovery reads more headers. That of a segment's base is synced, since retention
    may take the headers.
    """
    if not _needs_snapshot(log, offset):
        return _nothing
    data = log.producers.to_snapshot()
    bases = {segment.base_offset for segment in log.segments}
    stale = [old for old in log.snapshots if old < offset and old not in bases]
    log.snapshots.difference_update(stale)
    log.snapshots.add(offset)
    disk, directory = log.disk, log.directory

    def job() -> None:
        disk.write_atomic(file_names.segment_file(directory, offset, file_names.SNAPSHOT), data, sync=sync)
        for old in stale:
            try:
                disk.unlink(file_names.segment_file(directory, old, file_names.SNAPSHOT))
            except FileNotFoundError:
                # There was no room to write it.
                continue

    return job


def _needs_snapshot(log: "Log", offset: int) -> bool:
    """An empty log has no producers; of the same offset there is but one state."""
    return offset not in log.snapshots and offset > log.segments[0].base_offset


def _nothing() -> None:
    pass
