"""Checks one partition's directory: its batches, and whether indexes, snapshots and leader epochs agree with them.

Everything is read once, in order. Memory is bounded, except for the state of producers, which a broker has in memory,
too. Nothing is written. While a broker appends to the log, problems at its moving end are not reported.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from typing import NamedTuple

from kbroker.runtime.disk import Disk, DiskFile
from kbroker.storage import checkpoint_files, file_names
from kbroker.storage.inspect.batches import BatchAt, Damage, iter_batches
from kbroker.storage.inspect.index_checks import (
    IndexEntry,
    IndexFinding,
    OffsetIndexCheck,
    OpenTransactionCheck,
    ProducerCheck,
    TimeIndexCheck,
    TransactionIndexCheck,
    iter_offset_entries,
    iter_time_entries,
    iter_transaction_entries,
)
from kbroker.storage.log.leader_epoch_cache import LeaderEpochCache
from kbroker.storage.metadata_files import read_topic_id
from protocol.records.batch import BatchHeader
from protocol.records.control import find_end_marker

_END_OF_LOG = 1 << 62


class LogFinding(NamedTuple):
    """A finding in a file. `is_problem`: something is wrong; otherwise the finding says what the next start will do.

    `position` is a byte of the file, `offset` one of the log; None where there is none.
    """

    path: str
    what: str
    position: int | None = None
    offset: int | None = None
    is_problem: bool = True


class CheckpointedState(NamedTuple):
    """The state of a partition in the data directory: its checkpoints, and whether the last shutdown was clean.

    `is_running`: a broker uses the directory.
    """

    recovery_point: int = 0
    log_start_offset: int = 0
    cleaned_to: int = 0
    is_clean: bool = True
    is_running: bool = False


class LogTotals(NamedTuple):
    """The extent of a check: offsets, batches, bytes; and the bytes that the next start would read."""

    first_offset: int
    end_offset: int
    batches: int
    bytes: int
    bytes_to_recover: int


class PartitionCheck:
    """Checks one directory. When `findings` is exhausted, `totals` has the extent of the check."""

    def __init__(
        self, disk: Disk, directory: str, state: CheckpointedState, on_read: Callable[[int], None] = lambda size: None
    ) -> None:
        """`on_read` is called with the number of bytes that were read since its last call."""
        self._disk = disk
        self._directory = directory
        self._state = state
        self._on_read = on_read
        self._trusted_to = _END_OF_LOG if state.is_clean else state.recovery_point
        self._first_offset = self._end_offset = 0
        self._epochs: LeaderEpochCache | None = None
        # The last mismatch of epochs, so that many batches result in one finding.
        self._epoch_mismatch: tuple[int, int] | None = None
        self._producers = ProducerCheck()
        self._open_transactions = OpenTransactionCheck(has_gaps=state.cleaned_to > 0)
        self._snapshots: list[int] = []
        self._batches = self._bytes = self._bytes_to_recover = 0

    @property
    def totals(self) -> LogTotals:
        return LogTotals(self._first_offset, self._end_offset, self._batches, self._bytes, self._bytes_to_recover)

    def findings(self) -> Iterator[LogFinding]:
        listed = sorted(self._disk.listdir(self._directory))
        files = [parsed for name in listed if (parsed := file_names.parse_segment_file(name)) is not None]
        base_offsets = [offset for offset, suffix in files if suffix == file_names.LOG]
        self._snapshots = sorted(offset for offset, suffix in files if suffix == file_names.SNAPSHOT)
        self._first_offset = self._end_offset = base_offsets[0] if base_offsets else self._state.log_start_offset
        if not self._state.is_running:
            yield from self._check_leftovers(listed, set(base_offsets))
        yield from self._load_epochs()
        yield from self._check_topic_id()
        for base_offset, next_base_offset in zip_longest(base_offsets, base_offsets[1:]):
            try:
                yield from self._check_segment(base_offset, next_base_offset)
            except FileNotFoundError:
                if not self._state.is_running:
                    raise
        yield from self._check_snapshots(self._end_offset)
        if not self._state.is_running:
            yield from self._check_offsets(base_offsets)

    def _check_leftovers(self, listed: list[str], base_offsets: set[int]) -> Iterator[LogFinding]:
        for name in listed:
            path = f"{self._directory}/{name}"
            parsed = file_names.parse_segment_file(name)
            if name.endswith((file_names.DELETED, file_names.TEMPORARY, file_names.CLEANED)):
                yield LogFinding(path, "a leftover; the next start removes it", is_problem=False)
            elif name.endswith(file_names.SWAP):
                yield LogFinding(path, "of an unfinished compaction; the next start finishes it", is_problem=False)
            elif (
                parsed is not None
                and parsed[1] not in (file_names.LOG, file_names.SNAPSHOT)
                and parsed[0] not in base_offsets
            ):
                yield LogFinding(path, "belongs to no segment; the next start removes it", is_problem=False)

    def _load_epochs(self) -> Iterator[LogFinding]:
        path = f"{self._directory}/{file_names.LEADER_EPOCHS}"
        try:
            self._epochs = LeaderEpochCache(checkpoint_files.decode_epochs(self._disk.read(path)))
        except FileNotFoundError:
            pass
        except ValueError as error:
            yield LogFinding(path, str(error))

    def _check_topic_id(self) -> Iterator[LogFinding]:
        path = f"{self._directory}/{file_names.PARTITION_METADATA}"
        if read_topic_id(self._disk, self._directory) is None:
            is_damaged = self._disk.exists(path)
            what = "damaged" if is_damaged else "missing"
            yield LogFinding(path, f"{what}: the topic of this directory is not known", is_problem=is_damaged)

    # Segments.

    def _check_segment(self, base_offset: int, next_base_offset: int | None) -> Iterator[LogFinding]:
        state = self._state
        path = self._path(base_offset, file_names.LOG)
        # The indexes are opened before the log, so that the log has the batches of all index entries.
        offset_index, time_index = self._open_indexes(base_offset)
        if next_base_offset is not None and next_base_offset <= self._trusted_to and not state.is_running:
            yield from self._check_missing_indexes(base_offset, offset_index, time_index)
        transaction_index = self._open_transaction_index(base_offset, next_base_offset)
        file = self._disk.open(path, write=False)
        size = file.size()
        if base_offset < self._end_offset:
            what = f"begins at offset {base_offset}, but the segment before it ends at {self._end_offset}"
            yield LogFinding(path, what, offset=base_offset)
        reported = 0
        for batch in iter_batches(file, size, base_offset):
            self._on_read(batch.position - reported)
            reported = batch.position
            if isinstance(batch, Damage) or batch.fault is not None:
                yield from self._report_damage(path, batch, size, next_base_offset)
            if isinstance(batch, BatchAt):
                if batch.fault is None:
                    found = transaction_index.on_batch(batch.header, _is_abort_marker(file, batch))
                    yield from self._in_index(base_offset, file_names.TXN_INDEX, found)
                yield from self._check_batch(path, batch)
            if offset_index is not None:
                yield from self._in_index(base_offset, file_names.INDEX, offset_index.on_batch(batch))
            if time_index is not None:
                yield from self._in_index(base_offset, file_names.TIME_INDEX, time_index.on_batch(batch))
        self._on_read(size - reported)
        self._bytes += size
        if next_base_offset is None or next_base_offset > self._trusted_to:
            self._bytes_to_recover += size
        if not state.is_running:
            yield from self._in_index(base_offset, file_names.TXN_INDEX, transaction_index.on_end())
        if offset_index is not None and not (state.is_running and next_base_offset is None):
            yield from self._in_index(base_offset, file_names.INDEX, offset_index.on_end(size))
        if time_index is not None and not state.is_running:
            is_closed = next_base_offset is not None and next_base_offset <= self._trusted_to
            yield from self._in_index(base_offset, file_names.TIME_INDEX, time_index.on_end(is_closed))

    def _path(self, base_offset: int, suffix: str) -> str:
        return file_names.segment_file(self._directory, base_offset, suffix)

    def _open_if_exists(self, path: str) -> DiskFile | None:
        return self._disk.open(path, write=False) if self._disk.exists(path) else None

    def _open_indexes(self, base_offset: int) -> tuple[OffsetIndexCheck | None, TimeIndexCheck | None]:
        offset_index = time_index = None
        file = self._open_if_exists(self._path(base_offset, file_names.INDEX))
        if file is not None:
            offset_index = OffsetIndexCheck(base_offset, iter_offset_entries(file, file.size()))
        file = self._open_if_exists(self._path(base_offset, file_names.TIME_INDEX))
        if file is not None:
            time_index = TimeIndexCheck(base_offset, iter_time_entries(file, file.size()))
        return offset_index, time_index

    def _open_transaction_index(self, base_offset: int, next_base_offset: int | None) -> TransactionIndexCheck:
        """Open the index, if any: without aborted transactions there is no file, and entries may be only in memory."""
        state = self._state
        is_written = state.is_clean or (next_base_offset is not None and next_base_offset <= self._trusted_to)
        entries: Iterator[IndexEntry | Damage] = iter(())
        file = self._open_if_exists(self._path(base_offset, file_names.TXN_INDEX))
        if file is not None:
            entries = iter_transaction_entries(file, file.size())
        return TransactionIndexCheck(entries, self._open_transactions, is_written and not state.is_running)

    def _check_missing_indexes(
        self, base_offset: int, offset_index: object, time_index: object
    ) -> Iterator[LogFinding]:
        """Report missing indexes. Until the first checkpoint after a segment was closed, they are only in memory."""
        for suffix, index in ((file_names.INDEX, offset_index), (file_names.TIME_INDEX, time_index)):
            if index is None:
                yield LogFinding(self._path(base_offset, suffix), "missing")

    def _in_index(self, base_offset: int, suffix: str, found: Iterable[IndexFinding]) -> Iterator[LogFinding]:
        for position, offset, what in found:
            yield LogFinding(self._path(base_offset, suffix), what, position, offset)

    def _report_damage(
        self, path: str, damage: BatchAt | Damage, size: int, next_base_offset: int | None
    ) -> Iterator[LogFinding]:
        if self._state.is_running and next_base_offset is None and damage.end >= size:
            return
        if isinstance(damage, BatchAt):
            yield LogFinding(path, f"a batch: {damage.fault}", damage.position, damage.header.base_offset)
        else:
            yield LogFinding(path, damage.reason, damage.position, damage.offset or 0)

    def _check_batch(self, path: str, batch: BatchAt) -> Iterator[LogFinding]:
        header = batch.header
        self._batches += 1
        yield from self._check_snapshots(header.base_offset)
        if batch.fault is None:
            yield from self._check_epoch(path, batch.position, header)
            self._producers.on_batch(header)
            self._open_transactions.on_batch(header)
            self._end_offset = max(self._end_offset, header.next_offset)

    def _check_epoch(self, path: str, position: int, header: BatchHeader) -> Iterator[LogFinding]:
        """Check a batch's leader epoch: it must be that of the checkpoint, or one that is not in the checkpoint yet."""
        state, epoch = self._state, header.leader_epoch
        if self._epochs is None or epoch < 0 or header.base_offset < state.log_start_offset:
            return
        expected = self._epochs.epoch_for(header.base_offset)
        if expected == epoch or (expected, epoch) == self._epoch_mismatch:
            return
        if epoch > self._epochs.latest and (state.is_running or header.next_offset > self._trusted_to):
            return
        self._epoch_mismatch = expected, epoch
        what = f"a batch of leader epoch {epoch} where {file_names.LEADER_EPOCHS} has {expected}"
        yield LogFinding(path, what, position, header.base_offset)

    # The partition.

    def _check_snapshots(self, reached: int) -> Iterator[LogFinding]:
        """Compare the snapshots up to `reached`, below which all batches have been read."""
        while self._snapshots and self._snapshots[0] <= reached:
            offset = self._snapshots.pop(0)
            path = self._path(offset, file_names.SNAPSHOT)
            try:
                data, written_ms = self._disk.read(path), self._disk.mtime_ms(path)
            except FileNotFoundError:
                continue
            for what in (*self._producers.compare(data, written_ms), *self._open_transactions.compare(data)):
                yield LogFinding(path, what, offset=offset)

    def _check_offsets(self, base_offsets: list[int]) -> Iterator[LogFinding]:
        """Check that snapshots and checkpoints are not beyond the log end offset."""
        state, end_offset = self._state, self._end_offset
        for offset in self._snapshots:
            path = self._path(offset, file_names.SNAPSHOT)
            yield LogFinding(path, f"beyond the end of the log, which is {end_offset}", offset=offset)
        active = base_offsets[-1] if base_offsets else end_offset
        for name, offset, limit, limited_by in (
            (file_names.RECOVERY_POINTS, state.recovery_point, end_offset, "the end of the log"),
            (file_names.LOG_START_OFFSETS, state.log_start_offset, end_offset, "the end of the log"),
            (file_names.CLEANER_OFFSETS, state.cleaned_to, active, "the active segment"),
        ):
            if offset > limit:
                what = f"{name} has {offset}, beyond {limited_by} at {limit}"
                yield LogFinding(self._directory, what, offset=offset)


def _is_abort_marker(file: DiskFile, batch: BatchAt) -> bool:
    header = batch.header
    if not header.is_control or header.producer_id < 0:
        return False
    marker = find_end_marker(file.pread(header.size, batch.position))
    return marker is not None and not marker.committed
