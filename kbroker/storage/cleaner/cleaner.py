"""The work of a compaction: from a log's closed segments, new ones in which of each key only the latest record is.

It has nothing of the log at hand but files, and what it is told and tells is plain data, so that it runs in a process
of its own (kbroker/runtime/processes.py): `run` takes a `CompactionPlan` and returns a `CompactionResult`, as JSON.
Two passes: the first notes the latest offset of each key in what is dirty, as far as the memory reaches; the second
copies what stays.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from errno import ENOSPC
from typing import Any

from kbroker.runtime.disk import Disk, DiskFile
from kbroker.runtime.environment import Clock
from kbroker.storage import file_names
from kbroker.storage.cleaner import segment_swap as swaps
from kbroker.storage.cleaner.batch_filter import emptied, encoded_records, filter_batch, filter_marker
from kbroker.storage.cleaner.cleaned_transactions import AbortedAhead, CleanedTransactionMetadata
from kbroker.storage.cleaner.offset_map import OffsetMap, add_keys
from kbroker.storage.cleaner.source_segments import SegmentDamaged, SourceReader, SourceSegment, Throttler
from kbroker.storage.indexes.transaction_index import AbortedTransaction, encode_aborted
from kbroker.storage.log.batch_scan import MAX_RELATIVE_OFFSET
from kbroker.storage.log.segment import LogSegment
from protocol.errors import MalformedError
from protocol.records.batch import CONTROL, TRANSACTIONAL, BatchHeader, parse_header

# What an entry of the map takes at most: a key of 31 bytes, an offset, and its place in a table that is being made
# twice as large. Measured: test_compactor.py.
ENTRY_BYTES = 64 + 32 + 90


@dataclass(slots=True, frozen=True)
class CompactionPlan:
    """`sources`: all segments up to the last that may be compacted, `first_dirty` the offset from which keys are
    looked at. `map_bytes` bounds the memory for keys, `io_bytes` that of reading and of writing, `rate` the bytes of
    both in a second (None: no limit). `last_offsets`: of each producer's last batch of data; `last_markers`: (producer
    id, epoch) of those of which a marker is the last word. `aborted_later`: transactions of which something is in the
    sources and the marker is not."""

    directory: str
    sources: tuple[SourceSegment, ...]
    first_dirty: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_interval_bytes: int
    map_bytes: int
    io_bytes: int
    rate: float | None
    last_offsets: frozenset[int] = frozenset()
    last_markers: frozenset[tuple[int, int]] = frozenset()
    aborted_later: tuple[AbortedTransaction, ...] = ()


@dataclass(slots=True, frozen=True)
class CleanedSegment:
    """A segment [base_offset, end_offset) whose files are complete and synced under their `.cleaned` names. It is to
    replace the segments with the base offsets `bases`. `aborted`: it has an index of aborted transactions."""

    bases: tuple[int, ...]
    base_offset: int
    end_offset: int
    size: int
    first_timestamp: int | None
    max_timestamp: int
    max_timestamp_offset: int
    aborted: bool = False


@dataclass(slots=True, frozen=True)
class CompactionResult:
    """`cleaned_to`: below this offset each key is there once. `failure` says why there is nothing, and `damaged`
    whether it will be so the next time."""

    cleaned: tuple[CleanedSegment, ...] = ()
    cleaned_to: int = -1
    failure: str | None = None
    damaged: bool = False


def encode_plan(plan: CompactionPlan) -> bytes:
    lists = {"last_offsets": sorted(plan.last_offsets), "last_markers": sorted(plan.last_markers)}
    return _encode({**_flat(plan), **lists})


def decode_plan(data: bytes) -> CompactionPlan:
    values = json.loads(data)
    values["sources"] = tuple(SourceSegment(*one) for one in values["sources"])
    values["last_offsets"] = frozenset(values["last_offsets"])
    values["last_markers"] = frozenset(tuple(one) for one in values["last_markers"])
    values["aborted_later"] = tuple(AbortedTransaction(*one) for one in values["aborted_later"])
    return CompactionPlan(**values)


def encode_result(result: CompactionResult) -> bytes:
    return _encode({**_flat(result), "cleaned": [asdict(one) for one in result.cleaned]})


def decode_result(data: bytes) -> CompactionResult:
    values = json.loads(data)
    values["cleaned"] = tuple(CleanedSegment(**{**one, "bases": tuple(one["bases"])}) for one in values["cleaned"])
    return CompactionResult(**values)


def _flat(value: CompactionPlan | CompactionResult) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _encode(values: dict[str, Any]) -> bytes:
    return json.dumps(values).encode()


def run(disk: Disk, clock: Clock, sleep: Callable[[float], None], data: bytes) -> bytes:
    """Do what a plan says, or say why it cannot be done; then what was written has been removed again."""
    plan = decode_plan(data)
    try:
        result = compact(disk, plan, Throttler(plan.rate, clock, sleep))
    except (SegmentDamaged, FileNotFoundError, MalformedError) as error:
        # A segment that has gone was taken by retention: the next plan is without it.
        result = CompactionResult(failure=str(error), damaged=not isinstance(error, FileNotFoundError))
    except OSError as error:
        result = CompactionResult(failure=str(error))
    return encode_result(result)


def compact(disk: Disk, plan: CompactionPlan, throttle: Throttler) -> CompactionResult:
    """Write compacted segments. Raises Damaged, OSError; then what was written is removed again."""
    done: list[CleanedSegment] = []
    try:
        offsets, cleaned_to = latest_offsets(disk, plan, throttle)
        decided = CleanedTransactionMetadata()
        ahead = AbortedAhead(disk, plan.directory, plan.sources, plan.sources[0].base_offset, plan.aborted_later)
        for group in groups(plan, cleaned_to):
            cleaned = _Writer(disk, plan, throttle, group, offsets, cleaned_to, decided, ahead).run()
            if cleaned is not None:
                done.append(cleaned)
    except (SegmentDamaged, OSError):
        for cleaned in done:
            _remove_files(disk, plan.directory, cleaned.base_offset)
        raise
    return CompactionResult(tuple(done), cleaned_to)


def latest_offsets(disk: Disk, plan: CompactionPlan, throttle: Throttler) -> tuple[OffsetMap, int]:
    """Each key's latest offset in what is dirty, and up to where: all of it, or as far as the memory reached, but for
    at least one batch."""
    offsets: OffsetMap = {}
    most = plan.map_bytes // ENTRY_BYTES
    decided = CleanedTransactionMetadata()
    ahead = AbortedAhead(disk, plan.directory, plan.sources, plan.first_dirty, plan.aborted_later)
    for source in plan.sources:
        if source.end_offset <= plan.first_dirty:
            continue
        decided.add(ahead.up_to(source.end_offset))
        reader = SourceReader(disk, plan.directory, source, plan.io_bytes, throttle)
        for header, batch in reader:
            if header.last_offset < plan.first_dirty or _is_no_news(decided, header, batch):
                continue
            try:
                body = encoded_records(batch, header)
                add_keys(body, header.count, header.base_offset, header.last_offset_delta, offsets)
            except MalformedError as error:
                raise reader.damage(str(error)) from error
            if len(offsets) >= most:
                return offsets, header.next_offset
    return offsets, plan.sources[-1].end_offset


def groups(plan: CompactionPlan, cleaned_to: int) -> list[tuple[SourceSegment, ...]]:
    """Neighbours that fit one segment together, of all that begins below `cleaned_to`."""
    found: list[tuple[SourceSegment, ...]] = []
    group: list[SourceSegment] = []
    for source in plan.sources:
        if source.base_offset >= cleaned_to:
            break
        size = sum(one.size for one in group) + source.size
        if group and (size > plan.segment_bytes or source.end_offset - group[0].base_offset > MAX_RELATIVE_OFFSET):
            found.append(tuple(group))
            group = []
        group.append(source)
    if group:
        found.append(tuple(group))
    return found


def _is_no_news(decided: CleanedTransactionMetadata, header: BatchHeader, batch: bytes) -> bool:
    """A marker, or a batch of an aborted transaction: what it has of a key does not count."""
    if header.attributes & CONTROL:
        decided.is_spent(header, batch)
        return True
    return bool(header.attributes & TRANSACTIONAL) and decided.is_aborted(header)


class _Writer:
    """Makes one segment of a group of sources. A source that is alone, and of which everything stays, is not copied;
    what stays at its beginning is copied when the first batch has changed."""

    def __init__(
        self,
        disk: Disk,
        plan: CompactionPlan,
        throttle: Throttler,
        sources: tuple[SourceSegment, ...],
        offsets: OffsetMap,
        cleaned_to: int,
        decided: CleanedTransactionMetadata,
        ahead: AbortedAhead,
    ) -> None:
        self._disk = disk
        self._plan = plan
        self._throttle = throttle
        self._sources = sources
        self._offsets = offsets
        self._cleaned_to = cleaned_to
        self._decided = decided
        self._ahead = ahead
        self._segment = LogSegment(disk, plan.directory, sources[0].base_offset, plan.now_ms)
        self._file: DiskFile | None = None
        self._buffer = bytearray()
        self._written = 0

    def run(self) -> CleanedSegment | None:
        """None: the source stays as it is."""
        segment, last = self._segment, self._sources[-1]
        self._decided.kept.clear()
        try:
            if len(self._sources) > 1:
                self._begin()
            for source in self._sources:
                self._copy(source)
            if self._file is None:
                return None
            self._flush()
            self._file.fdatasync()
            segment.close_indexes(last.end_offset)
            self._write_indexes()
            aborted = self._write_aborted()
        except BaseException:
            _remove_files(self._disk, self._plan.directory, segment.base_offset)
            raise
        return CleanedSegment(
            tuple(source.base_offset for source in self._sources),
            segment.base_offset,
            last.end_offset,
            segment.size,
            segment.first_timestamp,
            segment.max_timestamp,
            segment.max_timestamp_offset,
            aborted,
        )

    def _begin(self) -> None:
        self._file = _new_file(self._disk, self._segment.path() + file_names.CLEANED)

    def _copy(self, source: SourceSegment) -> None:
        segment, interval = self._segment, self._plan.index_interval_bytes
        self._decided.add(self._ahead.up_to(source.end_offset))
        reader = SourceReader(self._disk, self._plan.directory, source, self._plan.io_bytes, self._throttle)
        for header, batch in reader:
            try:
                kept = self._filtered(batch, header)
            except MalformedError as error:
                raise reader.damage(str(error)) from error
            if kept is not batch:
                if self._file is None:
                    self._begin()
                    for piece in reader.pieces(segment.size):
                        self._buffer += piece
                        self._flush()
                if kept is None:
                    continue
                header = parse_header(kept)
            segment.note_batch(segment.size, header, interval)
            if self._file is not None:
                self._buffer += kept
                if len(self._buffer) >= self._plan.io_bytes:
                    self._flush()

    def _filtered(self, batch: bytes, header: BatchHeader) -> bytes | bytearray | None:
        """What stays of a batch. The last one of all stays at least empty, so that nothing is forgotten of how far the
        log has come, and so does the last one of each producer."""
        plan = self._plan
        keep_empty = header.next_offset == plan.sources[-1].end_offset or header.last_offset in plan.last_offsets
        times = {"now_ms": plan.now_ms, "delete_retention_ms": plan.delete_retention_ms}
        if header.attributes & CONTROL:
            if not self._decided.is_spent(header, batch):
                return batch
            keep_empty = keep_empty or (header.producer_id, header.producer_epoch) in plan.last_markers
            return filter_marker(batch, header, **times, keep_empty=keep_empty)
        if header.attributes & TRANSACTIONAL and self._decided.is_aborted(header):
            return emptied(batch, header) if keep_empty else None
        if header.base_offset >= self._cleaned_to:
            return batch
        return filter_batch(batch, header, self._offsets, **times, keep_empty=keep_empty)

    def _flush(self) -> None:
        """Write what is gathered, and let the kernel begin to bring it to the disk, so that the sync is short."""
        file, size = self._file, len(self._buffer)
        if file is None or not size:
            return
        if file.append(self._buffer) != size:
            raise OSError(ENOSPC, "no space left to compact")
        file.start_writeback(self._written, size)
        self._written += size
        self._buffer = bytearray()
        self._throttle.note(size)

    def _write_indexes(self) -> None:
        segment = self._segment
        assert segment.index is not None
        assert segment.times is not None
        for suffix, data in (
            (file_names.INDEX, segment.index.encode(0, len(segment.index.entries))),
            (file_names.TIME_INDEX, segment.times.encode(0, len(segment.times.timestamps))),
        ):
            file = _new_file(self._disk, segment.path(suffix) + file_names.CLEANED)
            if file.append(data) != len(data):
                raise OSError(ENOSPC, "no space left to compact")
            file.fdatasync()

    def _write_aborted(self) -> bool:
        """Also one without entries where the segment had one before: no crash may leave that beside the new log."""
        path = self._segment.path(file_names.TXN_INDEX)
        kept = self._decided.kept
        if not kept and not self._disk.exists(path):
            return False
        file, data = _new_file(self._disk, path + file_names.CLEANED), encode_aborted(kept)
        if file.append(data) != len(data):
            raise OSError(ENOSPC, "no space left to compact")
        file.fdatasync()
        return True


def _new_file(disk: Disk, path: str) -> DiskFile:
    """Of this compaction alone: what an earlier one has left, or still writes before it notices that its broker has
    died, is another file."""
    if disk.exists(path):
        disk.unlink(path)
    return disk.open(path, create=True)


def _remove_files(disk: Disk, directory: str, base_offset: int) -> None:
    for suffix in swaps.NEW_SUFFIXES:
        try:
            disk.unlink(file_names.segment_file(directory, base_offset, suffix) + file_names.CLEANED)
        except OSError:
            # Not written yet; or the next start removes it.
            continue
