"""Opening a log: what the files say, what an unclean stop has left, what must be repaired.

After a clean stop indexes and snapshots are used as they are, and only the last few batches' headers are read.
After an unclean one every batch from the recovery point on is read and its CRC checked; the log is cut at the first
bad one, since what follows was never acknowledged as durable. Lost or damaged indexes, snapshots and epochs are made
anew from the log. Almost nothing is synced here, and no file is written that is right already: opening a thousand
partitions is a matter of reading.
"""

from typing import TYPE_CHECKING

from kbroker.common import KafkaError, TopicPartition
from kbroker.config.topic_config import TopicConfig
from kbroker.runtime.disk import Disk
from kbroker.storage import file_names
from kbroker.storage.cleaner.segment_swap import finish_swaps
from kbroker.storage.log.log import Log
from kbroker.storage.log.reading import search
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.log.task_queue import BackgroundRunner
from kbroker.storage.partition_metadata import encode_topic_id, read_topic_id, write_topic_id
from kbroker.storage.producers.producer_state import ProducerStateManager
from kbroker.storage.recovery.segment_loading import ALL, load_closed_segment, load_trusted_indexes, recover_segment
from kbroker.storage.recovery.state_rebuilder import StateRebuilder
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from random import Random


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
    log_start_offset: int = 0,
    checkpointed: bool = False,
) -> Log:
    """Open a partition's log, or make it if its directory is not there. Runs in a thread.

    `recovery_point` and `log_start_offset` are those of the checkpoints, 0 if there are none; `checkpointed`: they are
    known to be the last ones; `clean`: the last stop was. `Log.repairs` says what was repaired. Raises
    KafkaError(INCONSISTENT_TOPIC_ID) if the directory is another topic's of the same name, OSError.
    """
    log = Log(disk, directory, tp, topic_id, config, background, random)
    if not disk.isdir(directory):
        disk.makedirs(directory)
        write_topic_id(disk, directory, topic_id)
        log.log_start_offset = log.log_end_offset = log.recovery_point = log_start_offset
        _begin_empty(log, now_ms)
    else:
        _check_topic_id(disk, directory, topic_id)
        opening = _Opening(log, now_ms)
        # Only compaction leaves gaps, and a checkpoint is written before it replaces segments.
        opening.gapless = checkpointed and not config.is_compacted
        opening.run(recovery_point, clean, log_start_offset)
    log.start()
    return log


def _check_topic_id(disk: Disk, directory: str, topic_id: bytes) -> None:
    found = read_topic_id(disk, directory)
    if found is None:
        write_topic_id(disk, directory, topic_id)
    elif found != topic_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_TOPIC_ID,
            f"{directory} belongs to topic id {encode_topic_id(found)}, not {encode_topic_id(topic_id)}",
        )


def _begin_empty(log: Log, now_ms: int) -> None:
    segment = LogSegment(log.disk, log.directory, log.log_end_offset, now_ms)
    segment.file = log.disk.open(segment.path(), create=True)
    log.files_created += 1
    log.directory_synced = -1
    log.segments = [segment]


class _Opening:
    """One log being opened: its files and segments. What is learnt of their content is in learning.py."""

    def __init__(self, log: Log, now_ms: int) -> None:
        self.log = log
        self.now_ms = now_ms
        self.repairs = log.repairs
        self.learning = StateRebuilder(log)
        # Whether each segment above the recovery point begins where the one before ends.
        self.gapless = False
        # Base offsets of segments that have an index of aborted transactions.
        self.indexed: set[int] = set()

    def run(self, recovery_point: int, clean: bool, log_start_offset: int) -> None:
        log = self.log
        if not clean:
            # Whether the names that are found are durable only the last process knew.
            log.files_created, log.directory_synced = 1, -1
        bases = self._list_files()
        log.segments = [LogSegment(log.disk, log.directory, base, self.now_ms) for base in bases]
        log.log_start_offset = max([log_start_offset, *bases[:1]])
        learning = self.learning
        learning.load_epochs()
        learning.load_aborted(self.indexed)
        learning.load_producers(ALL if clean else recovery_point)
        self._load_segments(ALL if clean else recovery_point, clean)
        if not log.segments or log.log_end_offset < log.log_start_offset:
            self._start_again()
        learning.settle()
        learning.rebuild_epochs()
        undamaged = clean and not self.repairs
        log.recovery_point = log.log_end_offset if undamaged else min(recovery_point, log.log_end_offset)
        if undamaged:
            log.epochs_synced = log.epochs_written

    def _list_files(self) -> list[int]:
        """Base offsets of the segments, in order; what earlier work left half done is finished or removed."""
        log, disk = self.log, self.log.disk
        listed = disk.listdir(log.directory)
        if any(name.endswith((file_names.CLEANED, file_names.SWAP)) for name in listed):
            self.repairs.extend(finish_swaps(disk, log.directory, listed))
            listed = disk.listdir(log.directory)
        bases: list[int] = []
        others: list[tuple[int, str]] = []
        for name in listed:
            parsed = file_names.parse_segment_file(name)
            if parsed is None:
                if name.endswith((file_names.DELETED, file_names.TEMPORARY)):
                    disk.unlink(f"{log.directory}/{name}")
            elif parsed[1] == file_names.LOG:
                bases.append(parsed[0])
            elif parsed[1] == file_names.SNAPSHOT:
                log.snapshots.add(parsed[0])
            else:
                others.append((parsed[0], name))
        known = set(bases)
        for base, name in others:
            if base not in known:
                disk.unlink(f"{log.directory}/{name}")
            elif name.endswith(file_names.TXN_INDEX):
                self.indexed.add(base)
        return sorted(bases)

    # Segments.

    def _load_segments(self, trusted_to: int, clean: bool) -> None:
        """First those that need no reading, then, in order, those with offsets from `trusted_to` on."""
        log = self.log
        segments = log.segments
        interval = log.config.index_interval_bytes
        ends = [segment.base_offset for segment in segments[1:]]
        # The one that ends at the recovery point is looked at: what an earlier recovery has cut off there comes back if
        # the power is lost before the next sync.
        closed = sum(1 for end in ends if end < trusted_to)
        for segment, end in zip(segments[:closed], ends, strict=False):
            repair = load_closed_segment(segment, end, interval)
            if repair is not None:
                self.repairs.append(repair)
        for segment in segments[closed:]:
            self.repairs.extend(load_trusted_indexes(segment, trusted_to))
            # Perhaps by a process that died before it could sync that.
            segment.cut = not clean
        # Not known yet; a search takes every offset for possible.
        log.log_end_offset = ALL
        if not clean:
            self.learning.replay(trusted_to)
        self.learning.listening = not clean
        for slot in range(closed, len(segments)):
            segment = segments[slot]
            last = slot == len(ends)
            loaded = recover_segment(
                segment,
                interval,
                self.learning,
                check_crc=not clean,
                # Only compaction leaves gaps, and it does not touch the last segment. (A replica of a compacted log
                # has them there.)
                contiguous=last and not log.config.is_compacted,
                following=None if last else ends[slot],
            )
            self.repairs.extend(loaded.repairs)
            log.log_end_offset = max(loaded.next_offset, segment.base_offset)
            if last:
                break
            missing = self.gapless and not clean and ends[slot] > max(log.log_end_offset, trusted_to)
            if loaded.cut or missing or ends[slot] < loaded.next_offset:
                self._drop(segments[slot + 1 :], f"it follows the damage at offset {log.log_end_offset}")
                log.segments = segments[: slot + 1]
                break
            segment.close_indexes(ends[slot])

    def _drop(self, segments: list[LogSegment], reason: str) -> None:
        for segment in segments:
            self.repairs.append(f"{segment.path()}: removed, {reason}")
            self.log.snapshots.discard(segment.base_offset)
            _remove_files(segment)
        # Else a power loss could bring them back, behind what is appended from now on.
        self.log.disk.sync_dir(self.log.directory)

    def _start_again(self) -> None:
        """There is nothing, or it all lies before the log start: begin an empty segment there, as Kafka does."""
        log = self.log
        if log.segments:
            self._drop(log.segments, f"it ends before the log start offset {log.log_start_offset}")
        log.log_end_offset = self.learning.known = log.log_start_offset
        log.producers = ProducerStateManager()
        _begin_empty(log, self.now_ms)


def _remove_files(segment: LogSegment) -> None:
    segment.retired = True
    segment.file = segment.index_file = None
    for path in segment.rename_deleted():
        segment.disk.unlink(path)


def truncate_blocking(log: Log, offset: int) -> None:
    """Remove the batches that reach `offset` and all after them: a follower's tail that its leader does not have.

    In a thread, while nothing else uses the log and it has no chores. The log end offset is afterwards that of the
    last batch that remains.
    """
    if offset >= log.log_end_offset:
        return
    offset = max(offset, log.log_start_offset)
    kept = [segment for segment in log.segments if segment.base_offset < offset] or log.segments[:1]
    old = kept[-1]
    position = search(log, old, offset, True)
    for segment in log.segments[len(kept) :]:
        log.snapshots.discard(segment.base_offset)
        _remove_files(segment)
    # Their names must not come back.
    log.files_created += 1
    old.retired = True
    log.disk.open(old.path()).truncate(position)
    last = LogSegment(log.disk, log.directory, old.base_offset, old.created_ms)
    last.cut = True
    learning = StateRebuilder(log)
    last.aborted, last.aborted_file = old.aborted, None
    load_trusted_indexes(last, ALL)
    interval = log.config.index_interval_bytes
    loaded = recover_segment(last, interval, learning, check_crc=False, contiguous=False, following=None)
    log.segments = [*kept[:-1], last]
    log.log_end_offset = max(loaded.next_offset, last.base_offset)
    log.recovery_point = min(log.recovery_point, log.log_end_offset)
    learning.known = ALL
    learning.last_epoch = log.epochs.latest
    learning.settle()
    log.start()
