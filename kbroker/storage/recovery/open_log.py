"""Opens a log: loads its files, repairs what an unclean shutdown has left, rebuilds lost state.

After a clean shutdown indexes and snapshots are used as they are, and only the headers of the last few batches are
read. After an unclean one every batch from the recovery point on is read and its CRC checked; the log is truncated at
the first bad one, since nothing after it was acknowledged as durable. Lost or damaged indexes, snapshots and leader
epochs are rebuilt from the log. Almost nothing is synced here, and files that are correct are not rewritten, so that
opening thousands of partitions takes little more time than reading them.
"""

from collections.abc import Mapping
from random import Random
from types import MappingProxyType

from kbroker.common import KafkaError, TopicPartition, uuid_text
from kbroker.config.topic_config import TopicConfig
from kbroker.runtime.disk import Disk
from kbroker.storage import file_names
from kbroker.storage.checkpoint_files import IndexEntries
from kbroker.storage.cleaner.segment_swap import finish_swaps
from kbroker.storage.log.durability import BackgroundRunner
from kbroker.storage.log.log import Log
from kbroker.storage.log.log_state import LogOwner, LogState
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.metadata_files import read_topic_id, write_topic_id
from kbroker.storage.producers.producer_state_manager import ProducerStateManager
from kbroker.storage.recovery.segment_loading import (
    END_OF_LOG,
    load_closed_segment,
    load_trusted_indexes,
    recover_segment,
)
from kbroker.storage.recovery.state_rebuilder import StateRebuilder
from protocol.errors import ErrorCode

# A torn segment has lost fewer offsets. The follower of a compacted log leaves a larger gap between segments, if one
# segment cannot have it.
_MAX_LOST_OFFSETS = 1 << 30


def open_log(
    disk: Disk,
    directory: str,
    tp: TopicPartition,
    topic_id: bytes,
    config: TopicConfig,
    recovery_point: int,
    clean: bool,
    now_ms: int,
    *,
    background: BackgroundRunner,
    random: "Random",
    owner: LogOwner | None,
    log_start_offset: int | None = 0,
    cleaned_to: int = 0,
    checkpointed: bool = False,
    high_watermark: int | None = None,
    transaction_indexes: IndexEntries | None = MappingProxyType({}),
) -> Log:
    """Open a partition's log in a thread, or create it if its directory does not exist.

    `recovery_point`, `log_start_offset`, `cleaned_to` and `high_watermark` are those of the checkpoint files, 0 or None
    if these have none; `log_start_offset` is None if its file was lost. `checkpointed`: the checkpoint files are the
    ones that were written last; `clean`: the last shutdown was clean; `transaction_indexes`: how many entries the
    transaction indexes have at least, None if that is unknown. `owner`: None if the log is never truncated.
    `Log.repairs` lists the repairs. Raises OSError, and KafkaError(INCONSISTENT_TOPIC_ID) if the directory belongs to
    another topic of the same name.
    """
    loaded = LogState(disk, directory, tp, config, owner)
    if not disk.isdir(directory):
        disk.makedirs(directory)
        write_topic_id(disk, directory, topic_id)
        loaded.log_start_offset = loaded.log_end_offset = loaded.recovery_point = log_start_offset or 0
        _begin_empty(loaded, now_ms)
    else:
        _check_topic_id(disk, directory, topic_id)
        # Only compaction leaves gaps between segments, below the recovery point, and the checkpoint files are written
        # before it replaces any.
        loader = LogLoader(loaded, now_ms, clean, high_watermark, gapless=checkpointed)
        loader.load(recovery_point, log_start_offset, transaction_indexes)
    loaded.cleaned_to = min(cleaned_to, loaded.segments[-1].base_offset)
    return Log(loaded, topic_id, high_watermark or 0, background, random, owner)


def _check_topic_id(disk: Disk, directory: str, topic_id: bytes) -> None:
    found = read_topic_id(disk, directory)
    if found is None:
        write_topic_id(disk, directory, topic_id)
    elif found != topic_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_TOPIC_ID,
            f"{directory} belongs to topic id {uuid_text(found)}, not {uuid_text(topic_id)}",
        )


def _begin_empty(loaded: LogState, now_ms: int) -> None:
    segment = LogSegment(loaded.disk, loaded.directory, loaded.log_end_offset, now_ms)
    segment.create_file()
    loaded.directory_sync.mark_unsynced()
    loaded.segments = [segment]


class LogLoader:
    """Loads the segments of one log. StateRebuilder restores the state that is derived from their content.

    `gapless`: above the recovery point each segment begins where the one before it ends.
    """

    def __init__(
        self, loaded: LogState, now_ms: int, clean: bool, high_watermark: int | None, *, gapless: bool
    ) -> None:
        self._loaded = loaded
        self._now_ms = now_ms
        self._clean = clean
        self._high_watermark = high_watermark
        self._gapless = gapless
        self._state = StateRebuilder(loaded)

    def load(self, recovery_point: int, log_start_offset: int | None, index_entries: IndexEntries | None) -> None:
        loaded, state = self._loaded, self._state
        if not self._clean:
            # Only the previous process knew whether the names of the files are durable.
            loaded.directory_sync.mark_unsynced()
        trusted_to = END_OF_LOG if self._clean else recovery_point
        base_offsets, indexes = self._list_files()
        loaded.segments = [
            LogSegment(loaded.disk, loaded.directory, base_offset, self._now_ms) for base_offset in base_offsets
        ]
        state.load_epochs(trusted_to)
        if log_start_offset is None:
            # Otherwise deleted records would return whose segments still exist.
            log_start_offset = state.first_epoch_start
        loaded.log_start_offset = max([log_start_offset, *base_offsets[:1]])
        # Whoever has removed the offset indexes has often removed these too. The last segment may not have any yet.
        unindexed = {offset for offset in base_offsets[:-1] if offset not in indexes[file_names.INDEX]}
        state.load_transaction_indexes(indexes[file_names.TXN_INDEX], index_entries or {}, unindexed)
        # A snapshot lacks the transactions that ended before it with a marker above the high watermark, which are not
        # stable yet.
        state.load_producers(trusted_to if self._high_watermark is None else min(trusted_to, self._high_watermark))
        if index_entries is None:
            state.suspect_transaction_indexes()
        self._load_segments(trusted_to)
        if not loaded.segments or loaded.log_end_offset < loaded.log_start_offset:
            self._start_empty()
        state.finish()
        state.rebuild_lost_epochs()
        if self._high_watermark is None:
            state.hold_transactions()
        is_undamaged = self._clean and not loaded.repairs
        loaded.recovery_point = loaded.log_end_offset if is_undamaged else min(recovery_point, loaded.log_end_offset)
        if is_undamaged:
            loaded.epoch_file.mark_synced()

    def _list_files(self) -> tuple[list[int], Mapping[str, set[int]]]:
        """Return the base offsets of the segments in order, and by suffix of those with an index file.

        Finishes replacements of segments that were begun, and removes leftover files.
        """
        loaded, disk = self._loaded, self._loaded.disk
        listed = disk.listdir(loaded.directory)
        if any(name.endswith((file_names.CLEANED, file_names.SWAP)) for name in listed):
            loaded.repairs.extend(finish_swaps(disk, loaded.directory, listed))
            listed = disk.listdir(loaded.directory)
        base_offsets: set[int] = set()
        indexes: dict[str, set[int]] = {
            file_names.INDEX: set(),
            file_names.TIME_INDEX: set(),
            file_names.TXN_INDEX: set(),
        }
        for name in listed:
            parsed = file_names.parse_segment_file(name)
            if parsed is None:
                if name.endswith((file_names.DELETED, file_names.TEMPORARY)):
                    disk.unlink(f"{loaded.directory}/{name}")
            elif parsed[1] == file_names.LOG:
                base_offsets.add(parsed[0])
            elif parsed[1] == file_names.SNAPSHOT:
                loaded.snapshots.offsets |= {parsed[0]}
            else:
                indexes.setdefault(parsed[1], set()).add(parsed[0])
        for suffix, offsets in indexes.items():
            for base_offset in offsets - base_offsets:
                disk.unlink(file_names.segment_file(loaded.directory, base_offset, suffix))
        return sorted(base_offsets), indexes

    def _load_segments(self, trusted_to: int) -> None:
        """Load the segments that need not be read, then recover, in order, those with offsets from `trusted_to` on."""
        loaded = self._loaded
        segments = loaded.segments
        ends = [segment.base_offset for segment in segments[1:]]
        # A segment that ends at the recovery point is recovered as well: bytes that an earlier recovery truncated there
        # come back if the power is lost before the next sync.
        closed = sum(1 for end in ends if end < trusted_to)
        for segment, end in zip(segments[:closed], ends, strict=False):
            repair = load_closed_segment(segment, end, loaded.config.index_interval_bytes)
            if repair is not None:
                loaded.repairs.append(repair)
        lost_timestamps = set()
        for segment in segments[closed:]:
            trusted = load_trusted_indexes(segment, trusted_to)
            if trusted.repair is not None:
                loaded.repairs.append(trusted.repair)
            if trusted.lost_timestamps:
                lost_timestamps.add(segment)
            if not self._clean:
                # It may have been truncated by a process that died before it could sync.
                segment.mark_truncated()
        # It is final when the last segment is recovered. Until then a search may find any offset.
        loaded.log_end_offset = END_OF_LOG
        if not self._clean:
            self._state.replay(trusted_to)
        self._state.is_listening = not self._clean
        for slot in range(closed, len(segments)):
            next_base_offset = ends[slot] if slot < len(ends) else None
            if not self._recover(slot, next_base_offset, trusted_to, segments[slot] in lost_timestamps):
                break

    def _recover(self, slot: int, next_base_offset: int | None, trusted_to: int, lost_timestamps: bool) -> bool:
        """Recover a segment. Returns False if the log ends with it."""
        loaded = self._loaded
        segment = loaded.segments[slot]
        recovered = recover_segment(
            segment,
            loaded.config.index_interval_bytes,
            self._state.on_batch,
            check_crc=not self._clean,
            next_base_offset=next_base_offset,
            lost_timestamps=lost_timestamps,
        )
        loaded.repairs.extend(recovered.repairs)
        loaded.log_end_offset = max(recovered.next_offset, segment.base_offset)
        if next_base_offset is None:
            return False
        is_gap = loaded.log_end_offset < next_base_offset <= loaded.log_end_offset + _MAX_LOST_OFFSETS
        has_gap = self._gapless and not self._clean and next_base_offset > trusted_to and is_gap
        if recovered.was_cut or has_gap or next_base_offset < recovered.next_offset:
            self._remove(loaded.segments[slot + 1 :], f"it follows the damage at offset {loaded.log_end_offset}")
            loaded.segments = loaded.segments[: slot + 1]
            return False
        segment.close(next_base_offset)
        return True

    def _remove(self, segments: list[LogSegment], reason: str) -> None:
        for segment in segments:
            self._loaded.repairs.append(f"{segment.path()}: removed, {reason}")
            self._loaded.snapshots.remove([segment.base_offset])
            segment.delete_blocking()
        # Otherwise a power loss could bring them back, after the batches that are appended from now on.
        self._loaded.disk.sync_dir(self._loaded.directory)

    def _start_empty(self) -> None:
        """Begin an empty segment at the log start, as Kafka does if there are no segments or all are before it."""
        loaded = self._loaded
        if loaded.segments:
            self._remove(loaded.segments, f"it ends before the log start offset {loaded.log_start_offset}")
        loaded.log_end_offset = self._state.replayed_to = loaded.log_start_offset
        loaded.producers = ProducerStateManager()
        _begin_empty(loaded, self._now_ms)
