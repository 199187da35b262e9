"""Compaction, as the loop sees it: what of a log may be compacted, whether it is worth it, and putting the result in
the place of the segments that it was made from. The work between is in compactor.py. The active segment is never
touched.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kbroker.storage import file_names
from kbroker.storage.cleaner import segment_swap as swaps
from kbroker.storage.cleaner.cleaner import CleanedSegment, CompactionPlan, CompactionResult
from kbroker.storage.cleaner.source_segments import SourceSegment
from kbroker.storage.indexes.segment_indexes import OffsetIndex, TimeIndex
from kbroker.storage.indexes.transaction_index import AbortedTransaction, TransactionIndex, iter_aborted
from kbroker.storage.log import retention
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.recovery.segment_loading import first_timestamp

if TYPE_CHECKING:
    from kbroker.storage.log.log import Log


@dataclass(slots=True, frozen=True)
class LogToClean:
    """A log in which something may be compacted. `clean_bytes` and `dirty_bytes` are those of the closed segments
    before and from `first_dirty` on; `overdue`: max.compaction.lag.ms has passed."""

    sources: tuple[SourceSegment, ...]
    first_dirty: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool

    @property
    def ratio(self) -> float:
        return self.dirty_bytes / (self.clean_bytes + self.dirty_bytes)

    def worth(self, dirty_ratio: float) -> bool:
        """Whether to do it now: enough was written since the last time, or some of it too long ago."""
        return self.overdue or self.ratio > dirty_ratio


def candidate(log: "Log", now_ms: int, limit: int) -> LogToClean | None:
    """What could be compacted, None if nothing. `limit`: offsets from here on are not stable yet.

    What is younger than min.compaction.lag.ms, and all that follows it, waits; so does what is not synced, as after a
    crash: a power loss would take the latest record of a key, and the one before it would be gone.
    """
    if log.offline is not None:
        return None
    config = log.config
    young_ms = now_ms - config.min_compaction_lag_ms
    first_dirty = max(log.cleaned_to, log.log_start_offset)
    sources = []
    clean = dirty = 0
    oldest = now_ms
    for segment in log.segments:
        end = segment.end_offset
        if end is None or end > min(limit, log.recovery_point):
            break
        if end <= first_dirty:
            clean += segment.size
        elif config.min_compaction_lag_ms > 0 and segment.largest_timestamp() > young_ms:
            break
        else:
            dirty += segment.size
            if segment.first_timestamp is not None and 0 < segment.first_timestamp < oldest:
                oldest = segment.first_timestamp
        sources.append(SourceSegment(segment.base_offset, end, segment.size))
    if not dirty:
        return None
    return LogToClean(tuple(sources), first_dirty, clean, dirty, now_ms - oldest > config.max_compaction_lag_ms)


def plan(
    log: "Log",
    found: LogToClean,
    aborted_later: tuple[AbortedTransaction, ...],
    now_ms: int,
    *,
    map_bytes: int,
    io_bytes: int,
    rate: float | None = None,
) -> CompactionPlan:
    """What the compactor is to do. `aborted_later`: of `aborted_later_blocking`."""
    config = log.config
    return CompactionPlan(
        log.directory,
        found.sources,
        found.first_dirty,
        now_ms,
        config.delete_retention_ms,
        config.segment_bytes,
        config.index_interval_bytes,
        map_bytes,
        io_bytes,
        rate,
        *log.producers.last_words(),
        aborted_later,
    )


def aborted_later_blocking(log: "Log", found: LogToClean) -> tuple[AbortedTransaction, ...]:
    """What was aborted of the sources by markers that come after them. Raises OSError, ValueError if an index cannot
    be right, SegmentGone."""
    start, end = found.sources[0].base_offset, found.sources[-1].end_offset
    entries: list[AbortedTransaction] = []
    for segment in log.segments:
        if segment.base_offset >= end and segment.collect_aborted(end, end, True, entries):
            break
    return tuple(one for one in entries if one.first_offset >= start)


def undated(log: "Log") -> list[LogSegment]:
    """Closed segments that are not compacted yet and of which it is not known when they began."""
    return [
        segment
        for segment in log.segments
        if segment.first_timestamp is None and segment.size and (segment.end_offset or 0) > log.cleaned_to
    ]


def date_blocking(segments: list[LogSegment]) -> None:
    """Look when these segments began."""
    for segment in segments:
        try:
            segment.first_timestamp = first_timestamp(segment.disk.open(segment.path(), write=False))
        except OSError:
            # It is gone, or the log will soon be known not to be readable.
            continue


def sweep_blocking(log: "Log") -> None:
    """Remove what a compactor has left that was killed."""
    try:
        listed = log.disk.listdir(log.directory)
        for name in listed:
            if name.endswith(file_names.CLEANED):
                log.disk.unlink(f"{log.directory}/{name}")
    except OSError:
        # The topic is deleted; or the next start removes it.
        return


def install(log: "Log", result: CompactionResult, done: Callable[[], None]) -> None:
    """Put compacted segments in the place of their sources, by chores; then `cleaned_to` moves and `done` is called.
    Sources that retention took stay gone."""
    settled = 0

    def on_settled() -> None:
        nonlocal settled
        settled += 1

    for cleaned in result.cleaned:
        _install_one(log, cleaned, on_settled)

    def finished() -> None:
        # If the disk failed meanwhile the log is offline, and the next start looks at what there is.
        if settled == len(result.cleaned):
            log.cleaned_to = max(log.cleaned_to, result.cleaned_to)
        done()

    log.chores.when_idle(finished)


def _install_one(log: "Log", cleaned: CleanedSegment, on_settled: Callable[[], None]) -> None:
    disk, directory, base = log.disk, log.directory, cleaned.base_offset

    def promote() -> LogSegment:
        segment = _loaded(log, cleaned)
        swaps.promote(disk, directory, base)
        return segment

    def replace(segment: LogSegment) -> None:
        bases = list(cleaned.bases)
        sources = [one for one in log.segments if one.base_offset in bases]
        if [one.base_offset for one in sources] != bases or log.offline is not None:
            segment.file = None
            log.chores.add(lambda: swaps.abandon(disk, directory, base), lambda _: on_settled())
            return
        at = log.segments.index(sources[0])
        log.segments = [*log.segments[:at], segment, *log.segments[at + len(sources) :]]
        for source in sources:
            source.retired = True
        log.snapshots.difference_update(bases[1:])
        log.chores.add(lambda: _exchange(sources, segment), lambda paths: settle(segment, paths))

    def settle(segment: LogSegment, paths: list[str]) -> None:
        assert segment.index is not None
        assert segment.times is not None
        segment.persisted((len(segment.index.entries), len(segment.times.timestamps), len(segment.aborted)))
        retention.unlink_later(log, paths)
        on_settled()

    log.chores.add(promote, replace)


def _loaded(log: "Log", cleaned: CleanedSegment) -> LogSegment:
    """The segment with its file open and its indexes in memory: it is read before its files have their names."""
    segment = LogSegment(log.disk, log.directory, cleaned.base_offset, 0)
    segment.size = cleaned.size
    segment.end_offset = cleaned.end_offset
    segment.first_timestamp = cleaned.first_timestamp
    segment.max_timestamp = cleaned.max_timestamp
    segment.max_timestamp_offset = cleaned.max_timestamp_offset
    try:
        segment.index = OffsetIndex.decode(log.disk.read(segment.path(file_names.INDEX) + file_names.CLEANED))
        segment.times = TimeIndex.decode(log.disk.read(segment.path(file_names.TIME_INDEX) + file_names.CLEANED))
    except ValueError as error:
        raise OSError(f"an index that was just written is damaged: {error}") from error
    if cleaned.aborted:
        segment.aborted = TransactionIndex()
        for entry in iter_aborted(log.disk, segment.path(file_names.TXN_INDEX) + file_names.CLEANED):
            segment.aborted.add(entry)
    segment.file = log.disk.open(segment.path() + file_names.CLEANED, write=False)
    return segment


def _exchange(sources: list[LogSegment], segment: LogSegment) -> list[str]:
    """The sources' files are renamed away, the new ones get their names; no crash leaves both of them."""
    renamed = [path for source in sources[1:] for path in source.rename_deleted()]
    renamed += sources[0].rename_deleted(file_names.SEGMENT_SUFFIXES)
    segment.disk.sync_dir(segment.directory)
    swaps.install(segment.disk, segment.directory, segment.base_offset)
    return renamed
