"""What opening a log learns from what lies in it: producers, leader epochs, aborted transactions.

Producers begin with the newest good snapshot, and the headers of what follows are read. Their transactions go along,
so the indexes of aborted ones are known to be whole only up to that snapshot, and are learnt anew from there on.
"""

from bisect import bisect_left
from collections.abc import Iterator

from kbroker.common import KafkaError
from kbroker.storage import checkpoint_files, file_names
from kbroker.storage.indexes.segment_indexes import INDEX_ENTRY
from kbroker.storage.indexes.transaction_index import (
    ABORTED_ENTRY,
    TransactionIndex,
    encode_aborted,
    iter_aborted,
    load_aborted,
)
from kbroker.storage.log.batch_scan import iter_valid_headers
from kbroker.storage.log.control_batches import note_control
from kbroker.storage.log.leader_epoch_cache import LeaderEpochCache
from kbroker.storage.log.log import Log
from kbroker.storage.log.reading import end_of, search
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.producers.producer_state import ProducerStateManager
from kbroker.storage.recovery.segment_loading import ALL
from protocol.records.batch import CONTROL, BatchHeader
from protocol.records.control import find_end_marker

# Index entries before a producer snapshot whose batches are looked at again: at least as many batches, or 128 KiB.
WINDOW_ENTRIES = 32
# Bytes of a control batch that are looked at.
_LARGEST_MARKER = 1 << 16


class StateRebuilder:
    """Of one log that is being opened. As an observer of batches it brings producers and epochs up to date while it is
    `listening`. What lies below `known` is in the producers' state; `last_epoch` is the latest leader epoch."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.known = 0
        self.last_epoch = -1
        self.listening = False
        self._epochs_lost = False
        # Segments whose index of aborted transactions is damaged, and those of which not all of the file is believed.
        self._damaged: list[LogSegment] = []
        self._doubtful: set[LogSegment] = set()

    def settle(self) -> None:
        """The log end offset is known: let go of what lies beyond, and know the producers up to there."""
        log = self.log
        if self.known > log.log_end_offset:
            self.load_producers(log.log_end_offset)
        self.replay(log.log_end_offset)
        self._rebuild_aborted()
        for offset in [offset for offset in log.snapshots if offset > log.log_end_offset]:
            log.disk.unlink(file_names.segment_file(log.directory, offset, file_names.SNAPSHOT))
            log.snapshots.discard(offset)
        for segment in log.segments:
            self._settle_aborted(segment)
        log.epochs.truncate_from_end(log.log_end_offset)
        log.epochs.truncate_from_start(log.log_start_offset)

    # Producers and epochs.

    def batch(self, segment: LogSegment, position: int, header: BatchHeader) -> None:
        if self.listening:
            self._learn(segment, position, header)

    def _learn(self, segment: LogSegment, position: int, header: BatchHeader) -> None:
        base_offset = header[0]
        if base_offset >= self.known:
            self.known = base_offset + header[6] + 1
            if header[9] >= 0:
                _note(self.log.producers, segment, position, header)
        if header[2] > self.last_epoch:
            self.last_epoch = header[2]
            self.log.epochs.assign(self.last_epoch, base_offset)

    def replay(self, to: int) -> None:
        """Learn from the headers of what lies between the producers' snapshot and `to`."""
        snapshot = self.known
        before = ProducerStateManager()
        for _, _, header in _batches(self.log, self._window_start(), min(snapshot, to)):
            if header[9] >= 0 and not header[5] & CONTROL:
                before.update(header, header[0])
        self.log.producers.recall(before)
        for segment, position, header in _batches(self.log, snapshot, to):
            if header[0] >= snapshot:
                self._learn(segment, position, header)

    def _window_start(self) -> int:
        """Some way before the snapshot, which has only the last batch of each producer.

        A producer that was not answered before the stop repeats up to five batches. They must be known again as
        duplicates, so the batches shortly before the snapshot are looked at once more, in earlier segments if need be.
        """
        start = snapshot = self.known
        wanted = WINDOW_ENTRIES if len(self.log.producers) else 0
        for segment in reversed(self.log.segments):
            if wanted <= 0:
                break
            if segment.base_offset >= snapshot:
                continue
            start = segment.base_offset
            if segment.index is not None:
                entries = segment.index.entries
                count = bisect_left(entries, (snapshot - segment.base_offset) << 32)
                entry = entries[count - wanted] if count >= wanted else 0
            else:
                count = segment.index_count
                entry = _entry_on_disk(segment, count - wanted) if count >= wanted else 0
            # Its first batch has no entry.
            wanted -= count + 1
            start += entry >> 32
        return start

    def load_producers(self, limit: int) -> None:
        """The newest good snapshot of an offset up to `limit`; else the state at the log's start, which is empty.

        What was aborted from there on is learnt anew: only up to a snapshot are the indexes of it known to be whole.
        """
        log = self.log
        log.producers, self.known = self._newest_snapshot(limit)
        for segment in log.segments:
            self._keep_aborted(segment, self.known)

    def _newest_snapshot(self, limit: int) -> tuple[ProducerStateManager, int]:
        """The producers and the offset at which they were so."""
        log = self.log
        for offset in sorted([offset for offset in log.snapshots if offset <= limit], reverse=True):
            path = file_names.segment_file(log.directory, offset, file_names.SNAPSHOT)
            try:
                return ProducerStateManager.from_snapshot(log.disk.read(path), offset), offset
            except ValueError as error:
                self.log.repairs.append(f"{path}: {error}; removed")
                log.disk.unlink(path)
                log.snapshots.discard(offset)
        return ProducerStateManager(), log.segments[0].base_offset if log.segments else 0

    # Aborted transactions.

    def load_aborted(self, indexed: set[int]) -> None:
        """`indexed`: base offsets of the segments that have an index."""
        segments = self.log.segments
        for segment, following in zip(segments, [*segments[1:], None], strict=False):
            if segment.base_offset in indexed:
                end = following.base_offset if following is not None else ALL
                path = segment.path(file_names.TXN_INDEX)
                try:
                    segment.aborted = load_aborted(segment.disk, path, segment.base_offset, end)
                except ValueError as error:
                    self.log.repairs.append(f"{path}: {error}; rebuilt from the log")
                    self._damaged.append(segment)

    def _keep_aborted(self, segment: LogSegment, offset: int) -> None:
        """Forget what was aborted by markers from `offset` on. The file stays as it is until all is known again: if the
        machine stops meanwhile, another snapshot may be the newest the next time, which relies on it."""
        aborted = segment.aborted
        if segment in self._damaged or (aborted.last_offset < offset and segment not in self._doubtful):
            return
        if aborted.persisted or segment in self._doubtful:
            self._doubtful.add(segment)
            path = segment.path(file_names.TXN_INDEX)
            kept = [entry for entry in iter_aborted(segment.disk, path) if entry.last_offset < offset]
            segment.aborted = TransactionIndex(len(kept), kept[-1].last_offset if kept else -1)
        else:
            segment.aborted = TransactionIndex()

    def _settle_aborted(self, segment: LogSegment) -> None:
        """Its file has what is known, as far as snapshots rely on it, and nothing else."""
        aborted, path = segment.aborted, segment.path(file_names.TXN_INDEX)
        if segment in self._doubtful and segment not in self._damaged:
            in_file = encode_aborted(iter_aborted(segment.disk, path))
            known = in_file[: aborted.persisted * ABORTED_ENTRY] + aborted.encode_tail()
            if known.startswith(in_file):
                aborted.written(len(in_file) // ABORTED_ENTRY)
            else:
                segment.disk.write_atomic(path, known)
                aborted.written(len(aborted))
        self._doubtful.discard(segment)
        # Snapshots that were not asked now may be the next time.
        if aborted.unwritten and any(offset > segment.base_offset for offset in self.log.snapshots):
            segment.persist_aborted_blocking()

    def _rebuild_aborted(self) -> None:
        """Of segments whose index is damaged, from the log, beginning at a snapshot before them."""
        log = self.log
        damaged, self._damaged = [one for one in self._damaged if one in log.segments], []
        if not damaged:
            return
        producers, start = self._newest_snapshot(damaged[0].base_offset)
        for segment in damaged:
            segment.aborted = TransactionIndex()
        # The other segments have theirs already.
        spare = LogSegment(log.disk, log.directory, 0, 0)
        for segment, position, header in _batches(log, start, log.log_end_offset):
            if header[9] >= 0 and header[0] >= start:
                _note(producers, segment, position, header, None if segment in damaged else spare)
        for segment in damaged:
            log.disk.write_atomic(segment.path(file_names.TXN_INDEX), segment.aborted.encode_tail())
            segment.aborted.written(len(segment.aborted))

    def load_epochs(self) -> None:
        log = self.log
        path = f"{log.directory}/{file_names.LEADER_EPOCHS}"
        try:
            data = log.disk.read(path)
            if not data:
                raise ValueError("empty")
            for epoch, start in checkpoint_files.decode_epochs(data):
                log.epochs.assign(epoch, start)
                self.last_epoch = epoch
        except FileNotFoundError:
            self._epochs_lost = True
        except (ValueError, IndexError) as error:
            self._epochs_lost = True
            self.log.repairs.append(f"{path}: {error}; rebuilt from the log")
        else:
            log.epochs_written = data

    def rebuild_epochs(self) -> None:
        """If they were not there, or could not be read."""
        if not self._epochs_lost:
            return
        self.log.epochs = LeaderEpochCache()
        epoch = -1
        for _, _, header in _batches(self.log, self.log.log_start_offset, self.log.log_end_offset):
            if header[2] > epoch:
                epoch = header[2]
                self.log.epochs.assign(epoch, header[0])


def _entry_on_disk(segment: LogSegment, slot: int) -> int:
    """An index entry of a closed segment; 0, which leads to the segment's start, if it is not there."""
    try:
        data = segment.disk.open(segment.path(file_names.INDEX), write=False).pread(INDEX_ENTRY, slot * INDEX_ENTRY)
    except FileNotFoundError:
        return 0
    return int.from_bytes(data, "big") if len(data) == INDEX_ENTRY else 0


def _note(
    producers: ProducerStateManager,
    segment: LogSegment,
    position: int,
    header: BatchHeader,
    index: LogSegment | None = None,
) -> None:
    """Learn from a batch that has a producer id. `index`: whose index gets what it has aborted, if not `segment`'s."""
    if header[5] & CONTROL:
        batch = segment.open_blocking().pread(min(header.size, _LARGEST_MARKER), position)
        note_control(producers, index or segment, header, header[0], find_end_marker(batch))
    else:
        producers.update(header, header[0])


def _batches(log: Log, start: int, end: int) -> Iterator[tuple[LogSegment, int, BatchHeader]]:
    """Where the batches are that reach `start` and begin before `end`, and their headers."""
    for segment in log.segments:
        done = segment.end_offset is not None and segment.end_offset <= start
        if done or segment.base_offset >= end or start >= end:
            continue
        try:
            position = search(log, segment, start, True)
        except KafkaError:
            position = 0
        headers = iter_valid_headers(
            segment.open_blocking(), position, segment.size, segment.base_offset, end_of(log, segment)
        )
        for position, header, _ in headers:
            if header[0] >= end:
                return
            yield segment, position, header
