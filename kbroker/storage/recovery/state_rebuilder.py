"""Rebuilds the state that is derived from the batches of a log: producer state, leader epochs, transaction indexes.

Producer state starts with the newest valid snapshot and is completed from the headers of the batches after it. It
includes open transactions; therefore the transaction indexes are known to be complete only up to that snapshot, and are
rebuilt from there on.
"""

from bisect import bisect_left
from collections.abc import Iterator

from kbroker.storage import file_names
from kbroker.storage.checkpoint_files import IndexEntries
from kbroker.storage.log.indexes import OFFSET_ENTRY_BYTES, relative_offset_of
from kbroker.storage.log.leader_epoch_cache import LeaderEpochCache
from kbroker.storage.log.log_state import LogState
from kbroker.storage.log.offset_lookup import end_offset_of, iter_batches_from
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.log.transaction_index import (
    TRANSACTION_ENTRY_BYTES,
    TransactionIndex,
    apply_control_batch,
    encode_entries,
    iter_transaction_index,
    load_transaction_index,
)
from kbroker.storage.producers.producer_state_manager import ProducerStateManager
from kbroker.storage.recovery.segment_loading import END_OF_LOG
from protocol.records.batch import CONTROL, BatchHeader
from protocol.records.control import find_end_marker

# Before a producer snapshot, the headers of at least this many batches, or of 128 KiB, are read too.
_WINDOW_ENTRIES = 32
# The number of bytes of a control batch that are read.
_MAX_MARKER_BYTES = 1 << 16


class StateRebuilder:
    """The rebuilder of one log that is being loaded. `on_batch` updates the state while `is_listening`.

    The producer state includes everything below `replayed_to`. `last_epoch` is the latest leader epoch.
    `first_epoch_start`: where the first epoch in leader-epoch-checkpoint begins: not below the log start offset.
    `indexes_are_complete`: the log was open before, so the transaction indexes have all entries.
    """

    def __init__(self, loaded: LogState, *, indexes_are_complete: bool = False) -> None:
        self._loaded = loaded
        self._indexes_are_complete = indexes_are_complete
        self.replayed_to = 0
        self.last_epoch = -1
        self.first_epoch_start = 0
        self.is_listening = False
        self._epochs_lost = False
        # Segments whose transaction index is to be rebuilt, in order, with what is wrong with it, if that is known; and
        # segments whose index file has entries that are not trusted.
        self._damaged: dict[LogSegment, str | None] = {}
        self._untrusted: set[LogSegment] = set()

    def finish(self) -> None:
        """Remove all state beyond the final log end offset, and complete the state up to it."""
        loaded = self._loaded
        if self.replayed_to > loaded.log_end_offset:
            self.load_producers(loaded.log_end_offset)
        self.replay(loaded.log_end_offset)
        self._rebuild_damaged_indexes()
        loaded.snapshots.remove_after_blocking(loaded.log_end_offset)
        for segment in loaded.segments:
            self._write_transaction_index(segment)
        known = len(loaded.epochs.entries)
        loaded.epochs.truncate_from_end(loaded.log_end_offset)
        if len(loaded.epochs.entries) < known:
            # After a gap in the offsets, the next start could not tell that these epochs have no batches.
            loaded.epoch_file.write_blocking(loaded.epochs.entries)
        loaded.epochs.truncate_from_start(loaded.log_start_offset)

    # Producers.

    def on_batch(self, segment: LogSegment, position: int, header: BatchHeader) -> None:
        if self.is_listening:
            self._update(segment, position, header)

    def _update(self, segment: LogSegment, position: int, header: BatchHeader) -> None:
        base, _, leader_epoch, _, _, attributes, delta, _, _, producer_id, _, _, _ = header
        if base >= self.replayed_to:
            self.replayed_to = base + delta + 1
            if producer_id >= 0 and not attributes & CONTROL:
                self._loaded.producers.update(header, base)
            elif producer_id >= 0:
                _apply_marker(self._loaded.producers, segment, position, header, segment.indexes.transaction)
        if leader_epoch > self.last_epoch:
            self.last_epoch = leader_epoch
            self._loaded.epochs.assign(leader_epoch, base)

    def replay(self, to: int) -> None:
        """Update the state from the headers between the producer snapshot and `to`."""
        snapshot_offset = self.replayed_to
        before = ProducerStateManager()
        for _, _, header in _iter_batches(self._loaded, self._window_start(), min(snapshot_offset, to)):
            if header.producer_id >= 0 and not header.is_control:
                before.update(header, header.base_offset)
        self._loaded.producers.prepend_batches(before)
        for segment, position, header in _iter_batches(self._loaded, snapshot_offset, to):
            if header.base_offset >= snapshot_offset:
                self._update(segment, position, header)

    def _window_start(self) -> int:
        """Return an offset some distance before the snapshot, from which headers are read again.

        A producer that had no response before the broker stopped resends up to five batches. These must be recognized
        as duplicates, but a snapshot has only the last batch of each producer.
        """
        start = snapshot_offset = self.replayed_to
        missing = _WINDOW_ENTRIES if len(self._loaded.producers) else 0
        for segment in reversed(self._loaded.segments):
            if missing <= 0:
                break
            if segment.base_offset >= snapshot_offset:
                continue
            count, entry = _count_back(segment, snapshot_offset, missing)
            start = segment.base_offset + relative_offset_of(entry)
            # The first batch of a segment has no index entry.
            missing -= count + 1
        return start

    def load_producers(self, limit: int) -> None:
        """Load the newest valid snapshot at or before `limit`. Without one the state is that of the log start: empty.

        The transaction indexes are known to be complete only up to a snapshot, so later entries are rebuilt.
        """
        loaded = self._loaded
        loaded.producers, self.replayed_to = self._load_snapshot(limit)
        for segment in loaded.segments:
            self._trust_transaction_index_to(segment, self.replayed_to)

    def _load_snapshot(self, limit: int) -> tuple[ProducerStateManager, int]:
        loaded = self._loaded
        found = loaded.snapshots.load_newest_blocking(limit, loaded.repairs)
        if found is not None:
            return found
        return ProducerStateManager(), loaded.segments[0].base_offset if loaded.segments else 0

    def hold_transactions(self) -> None:
        """Hold back what is not known to be stable, since the high watermark is unknown.

        A snapshot does not have the transactions that ended before it. Consumers of committed records wait until the
        high watermark reaches the end of the log, which with a single replica is at once.
        """
        loaded = self._loaded
        if loaded.producers.had_transactions and loaded.log_end_offset > loaded.log_start_offset:
            loaded.producers.hold_transactions(loaded.log_start_offset, loaded.log_end_offset - 1)

    # Transaction indexes.

    def load_transaction_indexes(self, existing: set[int], entries: IndexEntries, unindexed: set[int]) -> None:
        """Load the transaction indexes of the segments with the base offsets `existing`.

        An index with less than `entries` is rebuilt, and that of a segment in `unindexed`, which has lost its offset
        index: the absence of a file, or of its content, does not say that no transaction was aborted.
        """
        segments = self._loaded.segments
        if not (existing or entries or unindexed):
            return
        for segment, following in zip(segments, [*segments[1:], None], strict=False):
            base_offset, fault = segment.base_offset, None
            if base_offset in existing:
                fault = self._load_transaction_index(segment, following)
            expected, found = entries.get(base_offset, 0), len(segment.indexes.transaction)
            if fault is None and found < expected:
                fault = f"{found} entries where {expected} are expected" if base_offset in existing else "missing"
            if fault is not None or base_offset in unindexed:
                self._damaged[segment] = fault

    def _load_transaction_index(self, segment: LogSegment, following: LogSegment | None) -> str | None:
        """Load a transaction index. Returns what is wrong with it, if anything."""
        end = following.base_offset if following is not None else END_OF_LOG
        try:
            path = segment.path(file_names.TXN_INDEX)
            index = load_transaction_index(segment.disk, path, segment.base_offset, end)
        except ValueError as error:
            return str(error)
        segment.indexes.use_transaction_index(index)
        return None

    def suspect_transaction_indexes(self) -> None:
        """Rebuild all transaction indexes if a producer has used transactions, as far as the snapshot knows.

        It is not known how many entries they had. Called once the producers are loaded.
        """
        if self._loaded.producers.had_transactions:
            self._damaged = {segment: self._damaged.get(segment) for segment in self._loaded.segments}

    def _trust_transaction_index_to(self, segment: LogSegment, offset: int) -> None:
        """Discard entries whose marker is at `offset` or later.

        The file is not changed until the index is complete again: if the machine stops before that, the next start may
        use another snapshot, which relies on the file.
        """
        index = segment.indexes.transaction
        if self._indexes_are_complete:
            return
        if segment in self._damaged or (index.last_offset < offset and segment not in self._untrusted):
            return
        kept = []
        if index.persisted or segment in self._untrusted:
            self._untrusted.add(segment)
            entries = iter_transaction_index(segment.disk, segment.path(file_names.TXN_INDEX))
            kept = [entry for entry in entries if entry.last_offset < offset]
        segment.indexes.use_transaction_index(TransactionIndex(len(kept), kept[-1].last_offset if kept else -1))

    def _write_transaction_index(self, segment: LogSegment) -> None:
        """Replace untrusted entries in the file, and write new ones if a snapshot relies on them."""
        index, path = segment.indexes.transaction, segment.path(file_names.TXN_INDEX)
        if segment in self._untrusted and segment not in self._damaged:
            in_file = encode_entries(iter_transaction_index(segment.disk, path))
            rebuilt = in_file[: index.persisted * TRANSACTION_ENTRY_BYTES] + index.encode_unwritten()
            if rebuilt.startswith(in_file):
                index.mark_written(len(in_file) // TRANSACTION_ENTRY_BYTES)
            else:
                segment.disk.write_atomic(path, rebuilt)
                index.mark_written(len(index))
        self._untrusted.discard(segment)
        # The next start may use a snapshot that was not used this time.
        if index.has_unwritten and any(offset > segment.base_offset for offset in self._loaded.snapshots.offsets):
            segment.indexes.write_transaction_index_blocking()

    def _rebuild_damaged_indexes(self) -> None:
        """Rebuild damaged transaction indexes from the log, from a snapshot before them on."""
        loaded = self._loaded
        damaged = {segment: fault for segment, fault in self._damaged.items() if segment in loaded.segments}
        self._damaged = {}
        if not damaged:
            return
        first, last = next(iter(damaged)), next(reversed(damaged))
        producers, start = self._load_snapshot(first.base_offset)
        former = {segment: segment.indexes.transaction for segment in damaged}
        for segment in damaged:
            segment.indexes.use_transaction_index(TransactionIndex())
        # The other segments already have their entries.
        unused = TransactionIndex()
        for segment, position, header in _iter_batches(loaded, start, end_offset_of(loaded, last)):
            if header.producer_id < 0 or header.base_offset < start:
                continue
            if header.is_control:
                index = segment.indexes.transaction if segment in damaged else unused
                _apply_marker(producers, segment, position, header, index)
            else:
                producers.update(header, header.base_offset)
        for segment, fault in damaged.items():
            self._replace_transaction_index(segment, former[segment], fault)

    def _replace_transaction_index(self, segment: LogSegment, former: TransactionIndex, fault: str | None) -> None:
        """Write a rebuilt index, unless the file is the same. `fault`: what was wrong with it, if that is known."""
        index, path = segment.indexes.transaction, segment.path(file_names.TXN_INDEX)
        data, exists = index.encode_unwritten(), segment.disk.exists(path)
        self._untrusted.discard(segment)
        if data != (segment.disk.read(path) if exists else b""):
            segment.disk.write_atomic(path, data)
            if fault is not None or len(index) != len(former):
                self._loaded.repairs.append(f"{path}: {fault or 'not complete'}; rebuilt from the log")
        index.mark_written(len(index))

    # Leader epochs.

    def load_epochs(self, trusted_to: int) -> None:
        """Load the epochs that begin below `trusted_to` from leader-epoch-checkpoint: others may be those of batches
        that a power loss has removed. If the file is missing or damaged, `rebuild_lost_epochs` reads the log."""
        loaded = self._loaded
        try:
            stored = loaded.epoch_file.read_blocking()
            self.first_epoch_start = stored[0][1] if stored else 0
            entries = [entry for entry in stored if entry[1] < trusted_to]
            loaded.epoch_file.mark_durable(entries)
            for epoch, start_offset in entries:
                loaded.epochs.assign(epoch, start_offset)
                self.last_epoch = epoch
        except FileNotFoundError:
            self._epochs_lost = True
        except ValueError as error:
            self._epochs_lost = True
            loaded.repairs.append(f"{loaded.epoch_file.path}: {error}; rebuilt from the log")

    def rebuild_lost_epochs(self) -> None:
        """Read from the log the epochs that the file should have.

        The file begins above the log start if the broker was killed after DeleteRecords: the new log start was not
        stored yet.
        """
        loaded = self._loaded
        known = [] if self._epochs_lost else loaded.epochs.entries
        end = known[0][1] if known else loaded.log_end_offset
        if end <= loaded.log_start_offset or not (known or self._epochs_lost):
            return
        loaded.epochs = LeaderEpochCache()
        epoch = -1
        for _, _, header in _iter_batches(loaded, loaded.log_start_offset, end):
            if header.leader_epoch > epoch:
                epoch = header.leader_epoch
                loaded.epochs.assign(epoch, header.base_offset)
        for epoch, start_offset in known:
            loaded.epochs.assign(epoch, start_offset)
        if loaded.epochs.entries != known:
            # The next start looks for epochs only from the recovery point on.
            loaded.epoch_file.write_blocking(loaded.epochs.entries)


def _count_back(segment: LogSegment, offset: int, back: int) -> tuple[int, int]:
    """Return the number of offset index entries before `offset`, and the entry `back` places before that.

    If there are fewer entries, the returned entry is 0, which leads to the start of the segment.
    """
    index = segment.indexes.offset
    if index is not None:
        count = bisect_left(index.entries, (offset - segment.base_offset) << 32)
        return count, index.entries[count - back] if count >= back else 0
    count = segment.indexes.counts.offset
    return count, _read_offset_entry(segment, count - back) if count >= back else 0


def _read_offset_entry(segment: LogSegment, slot: int) -> int:
    """Return an entry in the offset index file of a closed segment; 0 if it is missing."""
    try:
        file = segment.disk.open(segment.path(file_names.INDEX), write=False)
    except FileNotFoundError:
        return 0
    data = file.pread(OFFSET_ENTRY_BYTES, slot * OFFSET_ENTRY_BYTES)
    return int.from_bytes(data, "big") if len(data) == OFFSET_ENTRY_BYTES else 0


def _apply_marker(
    producers: ProducerStateManager, segment: LogSegment, position: int, header: BatchHeader, index: TransactionIndex
) -> None:
    """Update `producers` and `index` from a control batch."""
    batch = segment.open_blocking().pread(min(header.size, _MAX_MARKER_BYTES), position)
    apply_control_batch(producers, index, header, header.base_offset, find_end_marker(batch))


def _iter_batches(loaded: LogState, start: int, end: int) -> Iterator[tuple[LogSegment, int, BatchHeader]]:
    """Iterate over (segment, position, header) of the batches that reach `start` and begin before `end`."""
    for segment in loaded.segments:
        ends_before = segment.end_offset is not None and segment.end_offset <= start
        if ends_before or segment.base_offset >= end or start >= end:
            continue
        for position, header in iter_batches_from(loaded, segment, start):
            if header.base_offset >= end:
                return
            yield segment, position, header
