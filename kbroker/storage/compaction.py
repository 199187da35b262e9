"""Compaction: of each key only the latest record is kept, offsets stay as they are.

On the loop a `Plan` captures what is to be done; `run_blocking` does it on files of its own, in a thread, with
nothing of the log's state at hand, so that it may as well run in another process; `install` puts the result in the
place of the segments that it was made from. The active segment is never touched.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from errno import ENOSPC
from typing import TYPE_CHECKING

from kbroker.storage import names, retention, swaps
from kbroker.storage.backend import Disk, DiskFile
from kbroker.storage.filtering import filter_batch, records_of
from kbroker.storage.scan import MAX_RELATIVE_OFFSET, Scan
from kbroker.storage.segment import Segment
from protocol.errors import MalformedError
from protocol.records.batch import CONTROL, DELETE_HORIZON, TRANSACTIONAL, BatchHeader, parse_header
from protocol.records.record import Record

if TYPE_CHECKING:
    from kbroker.storage.log import Log

# What an entry of the map takes beside its key, about.
_ENTRY_BYTES = 120
_WRITE_BYTES = 1 << 20
_MAX_SEQUENCE = 0x7FFFFFFF


class CompactionFailed(Exception):
    """A segment is damaged or has gone: the log stays as it is."""


@dataclass(slots=True, frozen=True)
class Source:
    """A closed segment: offsets [base_offset, end_offset), `size` bytes."""

    base_offset: int
    end_offset: int
    size: int


@dataclass(slots=True, frozen=True)
class Plan:
    """`sources`: all segments up to the last that may be compacted, `first_dirty` the offset from which keys are
    looked at. `map_bytes` bounds the memory for keys. `last_batches`: (producer id, epoch, last sequence) of each
    producer's last batch."""

    directory: str
    sources: tuple[Source, ...]
    first_dirty: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_interval_bytes: int
    map_bytes: int
    last_batches: frozenset[tuple[int, int, int]]


@dataclass(slots=True, frozen=True)
class Cleaned:
    """What replaces `sources`: one segment, its files complete and synced under their `.cleaned` names."""

    sources: tuple[Source, ...]
    segment: Segment


@dataclass(slots=True, frozen=True)
class Result:
    """`cleaned_to`: below this offset each key is there once."""

    cleaned: tuple[Cleaned, ...]
    cleaned_to: int


def plan(log: "Log", now_ms: int, limit: int, *, dirty_ratio: float, map_bytes: int) -> Plan | None:
    """What to compact now, None if it is not worth it. `limit`: offsets from here on are not committed yet.

    Worth it is a log of which more than `dirty_ratio` by bytes was written since it was last compacted, or whose
    oldest such record is older than max.compaction.lag.ms.
    """
    config = log.config
    sources = []
    for segment in log.segments:
        end = segment.end_offset
        recent = segment.base_offset >= log.cleaned_to and (
            segment.largest_timestamp() > now_ms - config.min_compaction_lag_ms
        )
        if end is None or end > limit or (config.min_compaction_lag_ms > 0 and recent):
            break
        sources.append(Source(segment.base_offset, end, segment.size))
    dirty = sum(source.size for source in sources if source.end_offset > log.cleaned_to)
    if not dirty or log.offline is not None:
        return None
    first = next(
        segment for segment in log.segments if segment.end_offset is None or segment.end_offset > log.cleaned_to
    )
    oldest = first.first_timestamp
    overdue = now_ms - (first.largest_timestamp() if oldest is None else oldest) > config.max_compaction_lag_ms
    if dirty <= dirty_ratio * sum(source.size for source in sources) and not overdue:
        return None
    return Plan(
        log.directory,
        tuple(sources),
        max(log.cleaned_to, log.log_start_offset),
        now_ms,
        config.delete_retention_ms,
        config.segment_bytes,
        config.index_interval_bytes,
        map_bytes,
        frozenset((one.producer_id, one.producer_epoch, one.last_sequence) for one in log.producers.active()),
    )


def run_blocking(disk: Disk, task: Plan, given_up: Callable[[], bool] = lambda: False) -> Result:
    """Write compacted segments. Raises CompactionFailed and OSError; then what was written is removed again.

    `given_up` is asked at each segment: it fails when the result is not wanted any more.
    """
    offsets, cleaned_to = _latest_offsets(disk, task, given_up)
    done: list[Cleaned] = []
    try:
        for group in groups(task, cleaned_to):
            _go_on(given_up)
            done.append(_Writer(disk, task, group, offsets, cleaned_to).run())
    except FileNotFoundError as error:
        _remove(disk, task, done)
        raise CompactionFailed(f"a segment has gone: {error}") from error
    except (CompactionFailed, OSError):
        _remove(disk, task, done)
        raise
    return Result(tuple(done), cleaned_to)


def _go_on(given_up: Callable[[], bool]) -> None:
    if given_up():
        raise CompactionFailed("it is not wanted any more")


def _latest_offsets(disk: Disk, task: Plan, given_up: Callable[[], bool]) -> tuple[dict[bytes, int], int]:
    """Each key's latest offset in what is dirty, and up to where: all of it, or as far as the memory reached."""
    offsets: dict[bytes, int] = {}
    room = task.map_bytes
    for source in task.sources:
        if source.end_offset <= task.first_dirty:
            continue
        _go_on(given_up)
        for header, batch in _batches(disk, task.directory, source):
            if header.last_offset < task.first_dirty or _left_alone(header):
                continue
            for record in _records(batch, header):
                if record.key is not None:
                    if record.key not in offsets:
                        room -= len(record.key) + _ENTRY_BYTES
                    offsets[record.key] = header.base_offset + record.offset_delta
            if room <= 0:
                return offsets, header.next_offset
    return offsets, task.sources[-1].end_offset


def groups(task: Plan, cleaned_to: int) -> Iterator[tuple[Source, ...]]:
    """Neighbours that fit one segment together."""
    group: list[Source] = []
    for source in task.sources:
        if source.base_offset >= cleaned_to:
            break
        size = sum(one.size for one in group) + source.size
        if group and (size > task.segment_bytes or source.end_offset - group[0].base_offset > MAX_RELATIVE_OFFSET):
            yield tuple(group)
            group = []
        group.append(source)
    if group:
        yield tuple(group)


def _batches(disk: Disk, directory: str, source: Source) -> Iterator[tuple[BatchHeader, bytes]]:
    file = disk.open(names.segment_file(directory, source.base_offset, names.LOG), write=False)
    base = source.base_offset
    scan = Scan(file, 0, source.size, base, base, check_crc=True)
    for position, header in scan:
        yield header, file.pread(header.size, position)
    if scan.fault is not None:
        raise CompactionFailed(f"segment {base} of {directory} has at {scan.position} {scan.fault}")


def _records(batch: bytes, header: BatchHeader) -> Iterator[Record]:
    try:
        yield from records_of(batch, header)
    except MalformedError as error:
        raise CompactionFailed(f"batch at offset {header.base_offset}: {error}") from error


def _left_alone(header: BatchHeader) -> bool:
    """Markers, and what may belong to an aborted transaction."""
    return bool(header.attributes & (CONTROL | TRANSACTIONAL))


class _Writer:
    """Makes one segment of a group of sources."""

    def __init__(
        self, disk: Disk, task: Plan, sources: tuple[Source, ...], offsets: dict[bytes, int], cleaned_to: int
    ) -> None:
        self._disk = disk
        self._task = task
        self._sources = sources
        self._offsets = offsets
        self._cleaned_to = cleaned_to
        self._segment = Segment(disk, task.directory, sources[0].base_offset, task.now_ms)
        self._buffer = bytearray()

    def run(self) -> Cleaned:
        segment = self._segment
        path = segment.path() + names.CLEANED
        try:
            file = segment.file = _empty_file(self._disk, path)
            for source in self._sources:
                for header, batch in _batches(self._disk, self._task.directory, source):
                    kept = batch if _left_alone(header) else self._filter(batch, header)
                    if kept is not None:
                        self._add(file, kept)
            self._flush(file)
            file.fdatasync()
            segment.close_indexes(self._sources[-1].end_offset)
            self._write_indexes()
        except BaseException:
            _remove_files(self._disk, self._task.directory, segment.base_offset)
            raise
        return Cleaned(self._sources, segment)

    def _filter(self, batch: bytes, header: BatchHeader) -> bytes | bytearray | None:
        task = self._task
        offsets = self._offsets
        tombstones_go = header.attributes & DELETE_HORIZON and header.base_timestamp <= task.now_ms

        def keep(offset: int, record: Record) -> bool:
            if offset >= self._cleaned_to:
                return True
            if record.key is None or offsets.get(record.key, -1) > offset:
                return False
            return record.value is not None or not tombstones_go

        last_sequence = (header.base_sequence + header.last_offset_delta) & _MAX_SEQUENCE
        try:
            return filter_batch(
                batch,
                header,
                keep,
                delete_horizon_ms=task.now_ms + task.delete_retention_ms,
                keep_empty=(header.producer_id, header.producer_epoch, last_sequence) in task.last_batches,
            )
        except MalformedError as error:
            raise CompactionFailed(f"batch at offset {header.base_offset}: {error}") from error

    def _add(self, file: DiskFile, batch: bytes | bytearray) -> None:
        position = self._segment.size
        self._segment.note_batch(position, parse_header(batch), self._task.index_interval_bytes)
        self._buffer += batch
        if len(self._buffer) >= _WRITE_BYTES:
            self._flush(file)

    def _flush(self, file: DiskFile) -> None:
        if self._buffer and file.append(self._buffer) != len(self._buffer):
            raise OSError(ENOSPC, "no space left to compact")
        self._buffer = bytearray()

    def _write_indexes(self) -> None:
        segment = self._segment
        assert segment.index is not None
        assert segment.times is not None
        for suffix, data in (
            (names.INDEX, segment.index.encode(0, len(segment.index.entries))),
            (names.TIME_INDEX, segment.times.encode(0, len(segment.times.timestamps))),
        ):
            file = _empty_file(self._disk, segment.path(suffix) + names.CLEANED)
            if file.append(data) != len(data):
                raise OSError(ENOSPC, "no space left to compact")
            file.fdatasync()


def _empty_file(disk: Disk, path: str) -> DiskFile:
    file = disk.open(path, create=True)
    file.truncate(0)
    return file


def _remove(disk: Disk, task: Plan, cleaned: list[Cleaned]) -> None:
    for one in cleaned:
        _remove_files(disk, task.directory, one.segment.base_offset)


def _remove_files(disk: Disk, directory: str, base_offset: int) -> None:
    for suffix in swaps.NEW_SUFFIXES:
        try:
            disk.unlink(names.segment_file(directory, base_offset, suffix) + names.CLEANED)
        except OSError:
            # Not written yet; or the next start removes it.
            continue


def install(log: "Log", result: Result) -> None:
    """Put compacted segments in the place of their sources, by chores. Sources that retention took stay gone."""
    for cleaned in result.cleaned:
        _install_one(log, cleaned)
    log.cleaned_to = max(log.cleaned_to, result.cleaned_to)


def _install_one(log: "Log", cleaned: Cleaned) -> None:
    disk, directory, segment = log.disk, log.directory, cleaned.segment
    base = segment.base_offset
    bases = [source.base_offset for source in cleaned.sources]

    def promote() -> None:
        swaps.promote(disk, directory, base)

    def replace(_: None) -> None:
        sources = [one for one in log.segments if one.base_offset in bases]
        if [one.base_offset for one in sources] != bases or log.offline is not None:
            log.chores.add(lambda: swaps.abandon(disk, directory, base), _ignore)
            return
        at = log.segments.index(sources[0])
        log.segments = [*log.segments[:at], segment, *log.segments[at + len(sources) :]]
        for source in sources:
            source.retired = True
        log.snapshots.difference_update(bases[1:])
        log.chores.add(lambda: _exchange(sources, segment), settle)

    def settle(paths: list[str]) -> None:
        assert segment.index is not None
        assert segment.times is not None
        segment.persisted((len(segment.index.entries), len(segment.times.timestamps)))
        retention.unlink_later(log, paths)

    log.chores.add(promote, replace)


def _exchange(sources: list[Segment], segment: Segment) -> list[str]:
    """The sources' files are renamed away, the new ones get their names."""
    renamed = [path for source in sources[1:] for path in source.rename_deleted()]
    renamed += sources[0].rename_deleted(names.SEGMENT_SUFFIXES)
    swaps.install(segment.disk, segment.directory, segment.base_offset)
    return renamed


def _ignore(_: object) -> None:
    pass
