"""Truncates a log to an offset: a follower removes the end of its log that the leader does not have.

`prepare_truncation_blocking` only reads. The log then uses the state that was prepared, and `Truncation.cut_blocking`
changes the files. A crash before or during the cut leaves the batches up to the offset, and perhaps some after them.
"""

from errno import EIO
from itertools import islice

from kbroker.storage import file_names
from kbroker.storage.indexes.offset_index import OFFSET_ENTRY_BYTES
from kbroker.storage.indexes.time_index import TIME_ENTRY_BYTES
from kbroker.storage.indexes.transaction_index import (
    TransactionIndex,
    decode_entries,
    encode_entries,
    iter_transaction_index,
)
from kbroker.storage.log.loaded_log import LoadedLog
from kbroker.storage.log.reading.offset_lookup import search_segment
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.log.segment_deletion import delete_now_blocking
from kbroker.storage.recovery.segment_loading import load_prefix
from kbroker.storage.recovery.state_rebuilder import StateRebuilder


class Truncation:
    """What a log is after a truncation, and the removal of the rest from its files.

    `after`: the state of the log. `removed`: the segments that are deleted. `replaced`: the segment whose file is
    truncated, and whose successor is the last one of `after`; None if that one is new. `replayed_from`: the producer
    state was rebuilt from a snapshot at this offset.
    """

    def __init__(
        self, after: LoadedLog, removed: list[LogSegment], replaced: LogSegment | None, replayed_from: int
    ) -> None:
        self.after = after
        self.removed = removed
        self.replaced = replaced
        self.replayed_from = replayed_from

    def cut_blocking(self) -> None:
        """Delete and truncate files. Raises OSError; it may then be called again."""
        after = self.after
        if self.replaced is not None:
            # Recovery finds the epochs of batches that a crash leaves, since these are above the recovery point, but it
            # would not miss the batches of epochs in the file.
            after.epoch_file.write_blocking(after.epochs.entries)
        last = after.segments[-1]
        # From the end on, so that a crash leaves no gap.
        for segment in reversed(self.removed):
            delete_now_blocking(segment)
        after.snapshots.remove([segment.base_offset for segment in self.removed])
        after.snapshots.remove_after_blocking(after.log_end_offset if self.replaced is not None else -1)
        # A power loss must not bring these files back when other batches have the offsets: segments would follow them,
        # and a snapshot would pass for their producer state.
        after.disk.sync_dir(after.directory)
        if self.replaced is None:
            last.create_file()
            after.directory_sync.mark_changed()
            after.epoch_file.write_blocking(after.epochs.entries)
            return
        _truncate_indexes(last)
        last.truncate_file_blocking()


def prepare_truncation_blocking(loaded: LoadedLog, offset: int) -> Truncation:
    """Return the truncation of a log to the batches that end before `offset`.

    `loaded` has the state of the log, which must not change meanwhile; it becomes the state after the truncation.
    Raises OSError, KafkaError(CORRUPT_MESSAGE).
    """
    segments = loaded.segments
    count = max(sum(1 for segment in segments if segment.base_offset < offset), 1)
    old = segments[count - 1]
    position = search_segment(loaded, old, offset, True)
    last = LogSegment(loaded.disk, loaded.directory, old.base_offset, old.created_ms)
    log_end_offset = load_prefix(last, position, offset, loaded.config.index_interval_bytes)
    last.indexes.use_transaction_index(_truncated_transaction_index(old, log_end_offset))
    last.mark_truncated()
    loaded.segments = [*segments[: count - 1], last]
    loaded.log_end_offset = log_end_offset
    loaded.log_start_offset = min(loaded.log_start_offset, log_end_offset)
    loaded.recovery_point = min(loaded.recovery_point, log_end_offset)
    loaded.cleaned_to = min(loaded.cleaned_to, last.base_offset)
    loaded.epochs.truncate_from_end(log_end_offset)
    state = StateRebuilder(loaded, indexes_are_complete=True)
    state.last_epoch = loaded.epochs.latest
    state.load_producers(log_end_offset)
    replayed_from = state.replayed_to
    state.replay(log_end_offset)
    return Truncation(loaded, segments[count:], old, replayed_from)


def _truncated_transaction_index(segment: LogSegment, offset: int) -> TransactionIndex:
    """Return the transaction index of `segment` without the transactions whose marker is at `offset` or later."""
    index = segment.indexes.transaction
    if index.last_offset < offset:
        return index
    kept = []
    if index.persisted:
        try:
            entries = iter_transaction_index(segment.disk, segment.path(file_names.TXN_INDEX))
            kept = [entry for entry in islice(entries, index.persisted) if entry.last_offset < offset]
        except ValueError as error:
            raise OSError(EIO, f"{segment.path(file_names.TXN_INDEX)}: {error}") from error
    truncated = TransactionIndex(len(kept), kept[-1].last_offset if kept else -1)
    for entry in decode_entries(index.encode_unwritten()):
        if entry.last_offset < offset:
            truncated.add(entry)
    return truncated


def _truncate_indexes(segment: LogSegment) -> None:
    """Remove the entries that `segment` no longer has from its index files, durably.

    Otherwise they would be trusted again once the recovery point has passed them.
    """
    indexes, disk = segment.indexes, segment.disk
    assert indexes.offset is not None
    assert indexes.time is not None
    sizes = {
        file_names.INDEX: indexes.offset.persisted * OFFSET_ENTRY_BYTES,
        file_names.TIME_INDEX: indexes.time.persisted * TIME_ENTRY_BYTES,
    }
    for suffix, size in sizes.items():
        path = segment.path(suffix)
        if disk.exists(path) and disk.size(path) > size:
            file = disk.open(path)
            file.truncate(size)
            file.fdatasync()
            file.close()
    path, persisted = segment.path(file_names.TXN_INDEX), indexes.transaction.persisted
    if disk.exists(path):
        entries = list(iter_transaction_index(disk, path))
        if len(entries) > persisted:
            disk.write_atomic(path, encode_entries(entries[:persisted]))
