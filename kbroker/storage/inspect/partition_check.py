"""Checking one partition's directory: batches, and whether indexes, snapshots and epochs say the same as they do.

Everything is read once, in order, in bounded memory but for what a broker would keep of the producers. Nothing is
written. While a broker appends to the log its end is moving, and what is amiss there is nobody's fault: `moving`.
"""

from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import NamedTuple

from kbroker.runtime.disk import Disk, DiskFile
from kbroker.storage import checkpoint_files, file_names
from kbroker.storage.inspect.batches import BatchAt, Damage, batches
from kbroker.storage.inspect.consistency_checks import (
    AbortedCheck,
    OffsetIndexCheck,
    OpenTransactionCheck,
    ProducersCheck,
    TimeIndexCheck,
)
from kbroker.storage.inspect.index_files import IndexEntry, aborted_entries, offset_entries, time_entries
from kbroker.storage.log.leader_epoch_cache import LeaderEpochCache
from kbroker.storage.partition_metadata import read_topic_id
from protocol.records.batch import BatchHeader
from protocol.records.control import find_end_marker


class LogFinding(NamedTuple):
    """Something about a file. `is_problem`: the data, or what is kept about it, is not as it should be; else it is only
    said what will happen to it. `position` is a byte of the file, `offset` one of the log; None where there is none."""

    path: str
    what: str
    position: int | None = None
    offset: int | None = None
    is_problem: bool = True


class CheckpointedState(NamedTuple):
    """What the data directory says of a partition: its checkpoints, and whether the last stop was clean."""

    recovery_point: int = 0
    log_start_offset: int = 0
    cleaned_to: int = 0
    clean: bool = True
    moving: bool = False


class LogTotals(NamedTuple):
    """What a partition's log is: offsets, batches, bytes; and how many of those the next start would read."""

    first_offset: int
    end_offset: int
    batches: int
    bytes: int
    unchecked: int


class PartitionCheck:
    """Checks one directory. `findings` gives what is wrong, after which `seen` says what was looked at."""

    def __init__(
        self, disk: Disk, directory: str, known: CheckpointedState, read: Callable[[int], None] = lambda size: None
    ) -> None:
        """`read` is told how many bytes have been read, from time to time."""
        self._disk = disk
        self._directory = directory
        self._known = known
        self._read = read
        self._trusted = 1 << 62 if known.clean else known.recovery_point
        self._first = self._due = 0
        self._epochs: LeaderEpochCache | None = None
        self._epoch_told: tuple[int, int] | None = None
        self._producers = ProducersCheck()
        self._open = OpenTransactionCheck(gaps=known.cleaned_to > 0)
        self._snapshots: list[int] = []
        self._batches = self._bytes = self._unchecked = 0

    @property
    def seen(self) -> LogTotals:
        return LogTotals(self._first, self._due, self._batches, self._bytes, self._unchecked)

    def findings(self) -> Iterator[LogFinding]:
        listed = sorted(self._disk.listdir(self._directory))
        files = [parsed for name in listed if (parsed := file_names.parse_segment_file(name)) is not None]
        bases = [base for base, suffix in files if suffix == file_names.LOG]
        self._snapshots = sorted(base for base, suffix in files if suffix == file_names.SNAPSHOT)
        self._first = self._due = bases[0] if bases else self._known.log_start_offset
        if not self._known.moving:
            yield from self._leftovers(listed, set(bases))
        yield from self._load_epochs()
        yield from self._topic_id()
        for base, following in zip_longest(bases, bases[1:]):
            try:
                yield from self._segment(base, following)
            except FileNotFoundError:
                if not self._known.moving:
                    raise
        yield from self._compare_snapshots(self._due)
        yield from self._end(bases)

    def _leftovers(self, listed: list[str], bases: set[int]) -> Iterator[LogFinding]:
        for name in listed:
            path = f"{self._directory}/{name}"
            parsed = file_names.parse_segment_file(name)
            if name.endswith((file_names.DELETED, file_names.TEMPORARY, file_names.CLEANED)):
                yield LogFinding(path, "left over; the next start removes it", is_problem=False)
            elif name.endswith(file_names.SWAP):
                yield LogFinding(path, "of a compaction that was not finished; the next start does", is_problem=False)
            elif (
                parsed is not None and parsed[1] not in (file_names.LOG, file_names.SNAPSHOT) and parsed[0] not in bases
            ):
                yield LogFinding(path, "belongs to no segment; the next start removes it", is_problem=False)

    def _load_epochs(self) -> Iterator[LogFinding]:
        path = f"{self._directory}/{file_names.LEADER_EPOCHS}"
        try:
            self._epochs = LeaderEpochCache(checkpoint_files.decode_epochs(self._disk.read(path)))
        except FileNotFoundError:
            pass
        except (ValueError, IndexError) as error:
            yield LogFinding(path, str(error))

    def _topic_id(self) -> Iterator[LogFinding]:
        path = f"{self._directory}/{file_names.PARTITION_METADATA}"
        if read_topic_id(self._disk, self._directory) is None:
            what = "damaged" if self._disk.exists(path) else "missing"
            yield LogFinding(path, f"{what}: nobody can tell whose directory this is", is_problem=what == "damaged")

    # Segments.

    def _segment(self, base: int, following: int | None) -> Iterator[LogFinding]:
        path = file_names.segment_file(self._directory, base, file_names.LOG)
        # Before the log: what an index has when it is looked at, the log has.
        index, times = self._indexes(base)
        yield from self._missing_indexes(base, following, index, times)
        aborted = self._aborted(base, following)
        file = self._disk.open(path, write=False)
        size = file.size()
        if base < self._due:
            yield LogFinding(
                path, f"begins at offset {base}, but the segment before it ends at {self._due}", offset=base
            )
        done = 0
        for found in batches(file, size, base):
            self._read(found.position - done)
            done = found.position
            if isinstance(found, Damage) or found.fault is not None:
                yield from self._bad(path, found, size, following)
            if isinstance(found, BatchAt):
                if found.fault is None:
                    yield from self._told(base, file_names.TXN_INDEX, aborted.see(found.header, _aborts(file, found)))
                yield from self._batch(path, found)
            if index is not None:
                yield from self._told(base, file_names.INDEX, index.see(found))
            if times is not None:
                yield from self._told(base, file_names.TIME_INDEX, times.see(found))
        if not self._known.moving:
            yield from self._told(base, file_names.TXN_INDEX, aborted.end())
        self._read(size - done)
        self._bytes += size
        if following is None or following > self._trusted:
            self._unchecked += size
        if index is not None and not (self._known.moving and following is None):
            yield from self._told(base, file_names.INDEX, index.end(size))
        if times is not None and not self._known.moving:
            closed = following is not None and following <= self._trusted
            yield from self._told(base, file_names.TIME_INDEX, times.end(closed))

    def _indexes(self, base: int) -> tuple[OffsetIndexCheck | None, TimeIndexCheck | None]:
        index = times = None
        path = file_names.segment_file(self._directory, base, file_names.INDEX)
        if self._disk.exists(path):
            file = self._disk.open(path, write=False)
            index = OffsetIndexCheck(base, offset_entries(file, file.size()))
        path = file_names.segment_file(self._directory, base, file_names.TIME_INDEX)
        if self._disk.exists(path):
            file = self._disk.open(path, write=False)
            times = TimeIndexCheck(base, time_entries(file, file.size()))
        return index, times

    def _aborted(self, base: int, following: int | None) -> AbortedCheck:
        """There is no file where nothing was aborted, and what is not synced yet may be in memory only."""
        written = self._known.clean or (following is not None and following <= self._trusted)
        path = file_names.segment_file(self._directory, base, file_names.TXN_INDEX)
        entries: Iterator[IndexEntry | Damage] = iter(())
        if self._disk.exists(path):
            file = self._disk.open(path, write=False)
            entries = aborted_entries(file, file.size())
        return AbortedCheck(entries, self._open, written and not self._known.moving)

    def _missing_indexes(self, base: int, following: int | None, index: object, times: object) -> Iterator[LogFinding]:
        """A segment has its indexes in memory until the first checkpoint after it was closed."""
        if self._known.moving or following is None or following > self._trusted:
            return
        for suffix, found in ((file_names.INDEX, index), (file_names.TIME_INDEX, times)):
            if found is None:
                yield LogFinding(file_names.segment_file(self._directory, base, suffix), "missing")

    def _told(self, base: int, suffix: str, told: Iterator[tuple[int, int | None, str]]) -> Iterator[LogFinding]:
        for position, offset, what in told:
            yield LogFinding(file_names.segment_file(self._directory, base, suffix), what, position, offset)

    def _bad(self, path: str, found: BatchAt | Damage, size: int, following: int | None) -> Iterator[LogFinding]:
        if isinstance(found, BatchAt):
            end, offset, what = found.end, found.header.base_offset, f"a batch: {found.fault}"
        else:
            end, offset, what = found.position + found.size, found.offset or 0, found.reason
        if self._known.moving and following is None and end >= size:
            return
        yield LogFinding(path, what, found.position, offset)

    def _batch(self, path: str, found: BatchAt) -> Iterator[LogFinding]:
        header = found.header
        self._batches += 1
        yield from self._compare_snapshots(header.base_offset)
        if found.fault is None:
            yield from self._epoch(path, found.position, header)
            self._producers.see(header)
            self._open.see(header)
            self._due = max(self._due, header.next_offset)

    def _epoch(self, path: str, position: int, header: BatchHeader) -> Iterator[LogFinding]:
        """The epoch of a batch is the one that the checkpoint has for its offset, or one that it cannot know yet."""
        if self._epochs is None or header.leader_epoch < 0 or header.base_offset < self._known.log_start_offset:
            return
        expected = self._epochs.epoch_for(header.base_offset)
        told = expected, header.leader_epoch
        if told[0] == told[1] or told == self._epoch_told:
            return
        newer = header.leader_epoch > self._epochs.latest
        if newer and (self._known.moving or header.next_offset > self._trusted):
            return
        self._epoch_told = told
        what = f"a batch of leader epoch {header.leader_epoch} where {file_names.LEADER_EPOCHS} has {expected}"
        yield LogFinding(path, what, position, header.base_offset)

    # The whole.

    def _compare_snapshots(self, reached: int) -> Iterator[LogFinding]:
        """All batches below `reached` have been seen: the snapshots up to there can be compared."""
        while self._snapshots and self._snapshots[0] <= reached:
            offset = self._snapshots.pop(0)
            path = file_names.segment_file(self._directory, offset, file_names.SNAPSHOT)
            try:
                data = self._disk.read(path)
            except FileNotFoundError:
                continue
            for what in (*self._producers.compare(data, self._disk.mtime_ms(path)), *self._open.compare(data)):
                yield LogFinding(path, what, offset=offset)

    def _end(self, bases: list[int]) -> Iterator[LogFinding]:
        known = self._known
        if known.moving:
            return
        for offset in self._snapshots:
            path = file_names.segment_file(self._directory, offset, file_names.SNAPSHOT)
            yield LogFinding(path, f"beyond the end of the log, which is {self._due}", offset=offset)
        starts = (
            (file_names.RECOVERY_POINTS, known.recovery_point, self._due, "the end of the log"),
            (file_names.LOG_START_OFFSETS, known.log_start_offset, self._due, "the end of the log"),
            (file_names.CLEANER_OFFSETS, known.cleaned_to, bases[-1] if bases else self._due, "the active segment"),
        )
        for name, offset, limit, of in starts:
            if offset > limit:
                yield LogFinding(self._directory, f"{name} has {offset}, beyond {of} at {limit}", offset=offset)


def _aborts(file: DiskFile, found: BatchAt) -> bool:
    """Whether a batch is the marker of an aborted transaction."""
    header = found.header
    if not header.is_control or header.producer_id < 0:
        return False
    marker = find_end_marker(file.pread(header.size, found.position))
    return marker is not None and not marker.committed
