"""Compacts closed segments of a log into new ones that have only the latest record of each key.

It only uses files, and takes and returns plain data, so that it can run in a separate process
(kbroker/runtime/child_process.py): `run` takes an encoded CompactionPlan and returns an encoded CompactionResult.

There are two passes. The first maps each key in the dirty segments to its latest offset, as far as the memory allows.
The second copies the retained records.
"""

from collections.abc import Callable, Iterable
from errno import ENOSPC
from typing import NamedTuple

from kbroker.runtime.disk import Disk, DiskFile
from kbroker.runtime.environment import Clock
from kbroker.storage import file_names
from kbroker.storage.cleaner.batch_filter import (
    OffsetMap,
    add_keys,
    encoded_records,
    filter_batch,
    filter_marker,
    without_records,
)
from kbroker.storage.cleaner.compaction_plan import (
    CleanedSegment,
    CompactionPlan,
    CompactionResult,
    decode_plan,
    encode_result,
)
from kbroker.storage.cleaner.segment_swap import remove_cleaned
from kbroker.storage.cleaner.source_segments import (
    AbortedTransactions,
    CleanedTransactionMetadata,
    SegmentDamaged,
    SourceReader,
    SourceSegment,
    Throttler,
)
from kbroker.storage.log.batch_scan import MAX_RELATIVE_OFFSET
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.log.transaction_index import encode_entries
from kbroker.storage.producers.producer_table import SnapshotEntry
from protocol.errors import MalformedError
from protocol.records.batch import BatchHeader, parse_header

# The most memory per entry of the map: a key of 31 bytes, an offset, and a slot in a hash table that is being doubled.
# Measured in test_cleaner.py.
ENTRY_BYTES = 64 + 32 + 90


def run(disk: Disk, clock: Clock, sleep: Callable[[float], None], data: bytes) -> bytes:
    """Execute an encoded plan. If it fails, the result contains the reason, and all written files are removed."""
    plan = decode_plan(data)
    try:
        result = clean(disk, plan, Throttler(plan.rate, clock, sleep))
    except (SegmentDamaged, FileNotFoundError, MalformedError) as error:
        # Retention has deleted a segment, so the next plan will not contain it.
        result = CompactionResult(failure=str(error), damaged=not isinstance(error, FileNotFoundError))
    except OSError as error:
        result = CompactionResult(failure=str(error))
    return encode_result(result)


def clean(disk: Disk, plan: CompactionPlan, throttler: Throttler) -> CompactionResult:
    """Write compacted segments. Raises SegmentDamaged, OSError after it has removed all written files."""
    written: list[CleanedSegment] = []
    try:
        offsets, cleaned_to = build_offset_map(disk, plan, throttler)
        transactions = CleanedTransactionMetadata()
        start = plan.sources[0].base_offset
        aborted = AbortedTransactions(disk, plan.directory, plan.sources, start, plan.aborted_later)
        last = last_batches(plan.producers)
        for group in group_by_size(plan, cleaned_to):
            writer = _SegmentWriter(disk, plan, throttler, group, offsets, cleaned_to, transactions, aborted, last)
            cleaned = writer.write()
            if cleaned is not None:
                written.append(cleaned)
    except (SegmentDamaged, OSError):
        for cleaned in written:
            remove_cleaned(disk, plan.directory, cleaned.base_offset)
        raise
    return CompactionResult(tuple(written), cleaned_to)


def build_offset_map(disk: Disk, plan: CompactionPlan, throttler: Throttler) -> tuple[OffsetMap, int]:
    """Return the latest offset of each key in the dirty segments, and the offset up to which they were read.

    That offset is their end, unless the memory is used up before. At least one batch is read.
    """
    offsets: OffsetMap = {}
    max_entries = plan.map_bytes // ENTRY_BYTES
    transactions = CleanedTransactionMetadata()
    aborted = AbortedTransactions(disk, plan.directory, plan.sources, plan.first_dirty_offset, plan.aborted_later)
    for source in plan.sources:
        if source.end_offset <= plan.first_dirty_offset:
            continue
        transactions.add(aborted.begun_before(source.end_offset))
        reader = SourceReader(disk, plan.directory, source, plan.io_bytes, throttler)
        for header, batch in reader:
            if header.last_offset < plan.first_dirty_offset or not _has_valid_keys(transactions, header, batch):
                continue
            try:
                body = encoded_records(batch, header)
                add_keys(body, header.count, header.base_offset, header.last_offset_delta, offsets)
            except MalformedError as error:
                raise reader.damaged(str(error)) from error
            if len(offsets) >= max_entries:
                return offsets, header.next_offset
    return offsets, plan.end_offset


class LastBatches(NamedTuple):
    """The batches that compaction must retain for each producer, so that its state can be rebuilt.

    `offsets`: the last offset of each producer's last batch of records; `markers`: (producer id, epoch) of producers
    without such a batch, which have only a marker.
    """

    offsets: set[int]
    markers: set[tuple[int, int]]


def last_batches(producers: Iterable[SnapshotEntry]) -> LastBatches:
    last = LastBatches(set(), set())
    for producer in producers:
        if producer.last_offset >= 0:
            last.offsets.add(producer.last_offset)
        else:
            last.markers.add((producer.producer_id, producer.producer_epoch))
    return last


def _has_valid_keys(transactions: CleanedTransactionMetadata, header: BatchHeader, batch: bytes) -> bool:
    """Return whether the keys of a batch replace others. Those of markers and aborted transactions do not."""
    if header.is_control:
        transactions.is_spent(header, batch)
        return False
    return not header.is_transactional or not transactions.is_aborted(header)


def group_by_size(plan: CompactionPlan, cleaned_to: int) -> list[tuple[SourceSegment, ...]]:
    """Group neighbours that fit into one segment, of all sources that begin below `cleaned_to`."""
    groups: list[tuple[SourceSegment, ...]] = []
    group: list[SourceSegment] = []
    for source in plan.sources:
        if source.base_offset >= cleaned_to:
            break
        size = sum(member.size for member in group) + source.size
        if group and (size > plan.segment_bytes or source.end_offset - group[0].base_offset > MAX_RELATIVE_OFFSET):
            groups.append(tuple(group))
            group = []
        group.append(source)
    if group:
        groups.append(tuple(group))
    return groups


class _SegmentWriter:
    """Compacts a group of source segments into one.

    A single source whose batches are all retained is not copied. Once a batch changes, the batches before it are
    copied.
    """

    def __init__(
        self,
        disk: Disk,
        plan: CompactionPlan,
        throttler: Throttler,
        sources: tuple[SourceSegment, ...],
        offsets: OffsetMap,
        cleaned_to: int,
        transactions: CleanedTransactionMetadata,
        aborted: AbortedTransactions,
        last: "LastBatches",
    ) -> None:
        self._disk = disk
        self._plan = plan
        self._throttler = throttler
        self._sources = sources
        self._offsets = offsets
        self._cleaned_to = cleaned_to
        self._transactions = transactions
        self._aborted = aborted
        self._last = last
        # Builds the indexes of the new segment.
        self._segment = LogSegment(disk, plan.directory, sources[0].base_offset, plan.now_ms)
        self._file: DiskFile | None = None
        self._buffer = bytearray()
        self._written = 0

    def write(self) -> CleanedSegment | None:
        """Write the new segment. Returns None if the source is unchanged."""
        segment, last = self._segment, self._sources[-1]
        self._transactions.kept.clear()
        try:
            if len(self._sources) > 1:
                self._create_file()
            for source in self._sources:
                self._copy(source)
            if self._file is None:
                return None
            self._flush()
            self._file.fdatasync()
            segment.close(last.end_offset)
            self._write_indexes()
            has_transaction_index = self._write_transaction_index()
        except BaseException:
            remove_cleaned(self._disk, self._plan.directory, segment.base_offset)
            raise
        return CleanedSegment(
            tuple(source.base_offset for source in self._sources),
            segment.base_offset,
            last.end_offset,
            segment.size,
            segment.first_timestamp,
            segment.max_timestamp,
            segment.max_timestamp_offset,
            has_transaction_index,
        )

    def _create_file(self) -> None:
        self._file = _create_new(self._disk, self._segment.path() + file_names.CLEANED)

    def _copy(self, source: SourceSegment) -> None:
        segment, interval = self._segment, self._plan.index_interval_bytes
        self._transactions.add(self._aborted.begun_before(source.end_offset))
        reader = SourceReader(self._disk, self._plan.directory, source, self._plan.io_bytes, self._throttler)
        for header, batch in reader:
            try:
                kept = self._filter(batch, header)
            except MalformedError as error:
                raise reader.damaged(str(error)) from error
            if kept is not batch:
                if self._file is None:
                    self._create_file()
                    for chunk in reader.iter_chunks(segment.size):
                        self._buffer += chunk
                        self._flush()
                if kept is None:
                    continue
                header = parse_header(kept)
            segment.add_batch(segment.size, header.size, header.last_offset, header.max_timestamp, interval)
            if self._file is not None:
                self._buffer += kept
                if len(self._buffer) >= self._plan.io_bytes:
                    self._flush()

    def _filter(self, batch: bytes, header: BatchHeader) -> bytes | bytearray | None:
        """Return the retained part of a batch.

        The last batch of the log is always retained, if necessary without records, since it has the end offset of the
        log. So is the last batch of each producer, from which the producer state is rebuilt.
        """
        plan, transactions = self._plan, self._transactions
        keep_empty = header.next_offset == plan.end_offset or header.last_offset in self._last.offsets
        times = {"now_ms": plan.now_ms, "delete_retention_ms": plan.delete_retention_ms}
        if header.is_control:
            if not transactions.is_spent(header, batch):
                return batch
            keep_empty = keep_empty or (header.producer_id, header.producer_epoch) in self._last.markers
            return filter_marker(batch, header, **times, keep_empty=keep_empty)
        if header.is_transactional and transactions.is_aborted(header):
            return without_records(batch, header) if keep_empty else None
        if header.base_offset >= self._cleaned_to:
            return batch
        return filter_batch(batch, header, self._offsets, **times, keep_empty=keep_empty)

    def _flush(self) -> None:
        """Write the buffer, and make the kernel start writing it to the disk, so that the sync takes less time."""
        file, size = self._file, len(self._buffer)
        if file is None or not size:
            return
        if file.append(self._buffer) != size:
            raise _no_space()
        file.start_writeback(self._written, size)
        self._written += size
        self._buffer = bytearray()
        self._throttler.record(size)

    def _write_indexes(self) -> None:
        offsets, times = self._segment.indexes.offset, self._segment.indexes.time
        assert offsets is not None
        assert times is not None
        self._write_index(file_names.INDEX, offsets.encode(0, len(offsets.entries)))
        self._write_index(file_names.TIME_INDEX, times.encode(0, len(times.timestamps)))

    def _write_transaction_index(self) -> bool:
        """Write the index, even an empty one if a source had one: no crash may leave the old index with the new log."""
        kept = self._transactions.kept
        if not kept and not self._disk.exists(self._segment.path(file_names.TXN_INDEX)):
            return False
        self._write_index(file_names.TXN_INDEX, encode_entries(kept))
        return True

    def _write_index(self, suffix: str, data: bytes) -> None:
        file = _create_new(self._disk, self._segment.path(suffix) + file_names.CLEANED)
        if file.append(data) != len(data):
            raise _no_space()
        file.fdatasync()


def _create_new(disk: Disk, path: str) -> DiskFile:
    """Create a new file, since a compaction whose broker has died may still write to an old file of that name."""
    if disk.exists(path):
        disk.unlink(path)
    return disk.open(path, create=True)


def _no_space() -> OSError:
    return OSError(ENOSPC, "no space left to compact")
