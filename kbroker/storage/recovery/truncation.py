"""Truncates a log to an offset: a follower removes the end of its log that the leader does not have."""

from kbroker.storage.log.loaded_log import LoadedLog
from kbroker.storage.log.reading.offset_lookup import search_segment
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.log.segment_deletion import delete_now_blocking
from kbroker.storage.recovery.segment_loading import END_OF_LOG, load_trusted_indexes, recover_segment
from kbroker.storage.recovery.state_rebuilder import StateRebuilder


def truncate_blocking(loaded: LoadedLog, offset: int) -> None:
    """Remove all batches that contain or follow `offset`, in a thread, while nothing else uses the log.

    Afterwards the log end offset follows the last remaining batch.
    """
    kept = [segment for segment in loaded.segments if segment.base_offset < offset] or loaded.segments[:1]
    old = kept[-1]
    position = search_segment(loaded, old, offset, True)
    for segment in loaded.segments[len(kept) :]:
        loaded.snapshots.remove([segment.base_offset])
        delete_now_blocking(segment)
    # The names of removed files must not come back.
    loaded.directory_sync.mark_changed()
    old.retire()
    loaded.disk.open(old.path()).truncate(position)
    last = LogSegment(loaded.disk, loaded.directory, old.base_offset, old.created_ms)
    last.mark_truncated()
    last.indexes.use_transaction_index(old.indexes.transaction)
    load_trusted_indexes(last, END_OF_LOG)
    state = StateRebuilder(loaded)
    recovered = recover_segment(
        last,
        loaded.config.index_interval_bytes,
        state.on_batch,
        check_crc=False,
        contiguous=False,
        next_base_offset=None,
    )
    loaded.segments = [*kept[:-1], last]
    loaded.log_end_offset = max(recovered.next_offset, last.base_offset)
    loaded.recovery_point = min(loaded.recovery_point, loaded.log_end_offset)
    # No producer state beyond the newest snapshot is trusted.
    state.replayed_to = END_OF_LOG
    state.last_epoch = loaded.epochs.latest
    state.finish()
