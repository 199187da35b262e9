"""Opening a log: what the files say, what an unclean stop has left, what must be repaired.

After a clean stop indexes and snapshots are used as they are, and only the last few batches' headers are read.
After an unclean one every batch from the recovery point on is read and its CRC checked; the log is cut at the first
bad one, since what follows was never acknowledged as durable. Lost or damaged indexes, snapshots and epochs are made
anew from the log. Almost nothing is synced here, and no file is written that is right already: opening a thousand
partitions is a matter of reading.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kbroker.config.topic import TopicConfig
from kbroker.model import KafkaError, TopicPartition
from kbroker.state.epochs import EpochCache
from kbroker.state.producers import ProducerStates
from kbroker.storage import checkpoints, names
from kbroker.storage.aborted import ABORTED_ENTRY, AbortedIndex, encode_aborted, iter_aborted, load_aborted
from kbroker.storage.backend import Disk
from kbroker.storage.chores import Background
from kbroker.storage.indexes import INDEX_ENTRY
from kbroker.storage.loading import ALL, load_closed, load_trusted, read_on
from kbroker.storage.log import Log
from kbroker.storage.reading import end_of, search
from kbroker.storage.scan import sound_headers
from kbroker.storage.segment import Segment
from kbroker.storage.swaps import finish_swaps
from kbroker.storage.transactions import note_control
from protocol.errors import ErrorCode
from protocol.records.batch import CONTROL, BatchHeader
from protocol.records.control import find_end_marker

if TYPE_CHECKING:
    from random import Random

# Index entries before a producer snapshot whose batches are looked at again: at least as many batches, or 128 KiB.
WINDOW_ENTRIES = 32
# Bytes of a control batch that are looked at.
_LARGEST_MARKER = 1 << 16


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
    background: Background,
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
        checkpoints.write_topic_id(disk, directory, topic_id)
        log.log_start_offset = log.log_end_offset = log.recovery_point = log_start_offset
        _begin_empty(log, now_ms)
    else:
        _check_topic_id(disk, directory, topic_id)
        opening = _Opening(log, now_ms)
        # Only compaction leaves gaps, and a checkpoint is written before it replaces segments.
        opening.gapless = checkpointed and not config.compact
        opening.run(recovery_point, clean, log_start_offset)
    log.start()
    return log


def _check_topic_id(disk: Disk, directory: str, topic_id: bytes) -> None:
    found = checkpoints.read_topic_id(disk, directory)
    if found is None:
        checkpoints.write_topic_id(disk, directory, topic_id)
    elif found != topic_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_TOPIC_ID,
            f"{directory} belongs to topic id {checkpoints.encode_topic_id(found)}, "
            f"not {checkpoints.encode_topic_id(topic_id)}",
        )


def _begin_empty(log: Log, now_ms: int) -> None:
    segment = Segment(log.disk, log.directory, log.log_end_offset, now_ms)
    segment.file = log.disk.open(segment.path(), create=True)
    log.files_created += 1
    log.directory_synced = -1
    log.segments = [segment]


class _Opening:
    """One log being opened. As an observer of batches it brings producers and epochs up to date."""

    def __init__(self, log: Log, now_ms: int) -> None:
        self.log = log
        self.now_ms = now_ms
        self.repairs = log.repairs
        # What lies below is in the producers' state already.
        self.known = 0
        self.last_epoch = -1
        self.epochs_lost = False
        self.listening = False
        # Whether each segment above the recovery point begins where the one before ends.
        self.gapless = False
        # Segments that have an index of aborted transactions, those of which it is damaged, and those of which not all
        # of the file is believed.
        self.indexed: set[int] = set()
        self.damaged: list[Segment] = []
        self.doubtful: set[Segment] = set()

    def run(self, recovery_point: int, clean: bool, log_start_offset: int) -> None:
        log = self.log
        if not clean:
            # Whether the names that are found are durable only the last process knew.
            log.files_created, log.directory_synced = 1, -1
        bases = self._list_files()
        log.segments = [Segment(log.disk, log.directory, base, self.now_ms) for base in bases]
        log.log_start_offset = max([log_start_offset, *bases[:1]])
        self._load_epochs()
        self._load_aborted(log.segments)
        self._load_producers(ALL if clean else recovery_point)
        self._load_segments(ALL if clean else recovery_point, clean)
        if not log.segments or log.log_end_offset < log.log_start_offset:
            self._start_again()
        self.settle()
        if self.epochs_lost:
            self._rebuild_epochs()
        undamaged = clean and not self.repairs
        log.recovery_point = log.log_end_offset if undamaged else min(recovery_point, log.log_end_offset)
        if undamaged:
            log.epochs_synced = log.epochs_written

    def _list_files(self) -> list[int]:
        """Base offsets of the segments, in order; what earlier work left half done is finished or removed."""
        log, disk = self.log, self.log.disk
        listed = disk.listdir(log.directory)
        if any(name.endswith((names.CLEANED, names.SWAP)) for name in listed):
            self.repairs.extend(finish_swaps(disk, log.directory, listed))
            listed = disk.listdir(log.directory)
        bases: list[int] = []
        others: list[tuple[int, str]] = []
        for name in listed:
            parsed = names.parse_segment_file(name)
            if parsed is None:
                if name.endswith((names.DELETED, names.TEMPORARY)):
                    disk.unlink(f"{log.directory}/{name}")
            elif parsed[1] == names.LOG:
                bases.append(parsed[0])
            elif parsed[1] == names.SNAPSHOT:
                log.snapshots.add(parsed[0])
            else:
                others.append((parsed[0], name))
        known = set(bases)
        for base, name in others:
            if base not in known:
                disk.unlink(f"{log.directory}/{name}")
            elif name.endswith(names.TXN_INDEX):
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
            repair = load_closed(segment, end, interval)
            if repair is not None:
                self.repairs.append(repair)
        for segment in segments[closed:]:
            self.repairs.extend(load_trusted(segment, trusted_to))
            # Perhaps by a process that died before it could sync that.
            segment.cut = not clean
        # Not known yet; a search takes every offset for possible.
        log.log_end_offset = ALL
        if not clean:
            self._replay(trusted_to)
        self.listening = not clean
        for slot in range(closed, len(segments)):
            segment = segments[slot]
            last = slot == len(ends)
            loaded = read_on(
                segment,
                interval,
                self,
                check_crc=not clean,
                # Only compaction leaves gaps, and it does not touch the last segment. (A replica of a compacted log
                # has them there.)
                contiguous=last and not log.config.compact,
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

    def _drop(self, segments: list[Segment], reason: str) -> None:
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
        log.log_end_offset = self.known = log.log_start_offset
        log.producers = ProducerStates()
        _begin_empty(log, self.now_ms)

    def settle(self) -> None:
        """The log end offset is known: let go of what lies beyond, and know the producers up to there."""
        log = self.log
        if self.known > log.log_end_offset:
            self._load_producers(log.log_end_offset)
        self._replay(log.log_end_offset)
        self._rebuild_aborted()
        for offset in [offset for offset in log.snapshots if offset > log.log_end_offset]:
            log.disk.unlink(names.segment_file(log.directory, offset, names.SNAPSHOT))
            log.snapshots.discard(offset)
        for segment in log.segments:
            self._settle_aborted(segment)
        log.epochs.truncate_from_end(log.log_end_offset)
        log.epochs.truncate_from_start(log.log_start_offset)

    # Producers and epochs.

    def batch(self, segment: Segment, position: int, header: BatchHeader) -> None:
        if self.listening:
            self._learn(segment, position, header)

    def _learn(self, segment: Segment, position: int, header: BatchHeader) -> None:
        base_offset = header[0]
        if base_offset >= self.known:
            self.known = base_offset + header[6] + 1
            if header[9] >= 0:
                _note(self.log.producers, segment, position, header)
        if header[2] > self.last_epoch:
            self.last_epoch = header[2]
            self.log.epochs.assign(self.last_epoch, base_offset)

    def _replay(self, to: int) -> None:
        """Learn from the headers of what lies between the producers' snapshot and `to`."""
        snapshot = self.known
        before = ProducerStates()
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

    def _load_producers(self, limit: int) -> None:
        """The newest good snapshot of an offset up to `limit`; else the state at the log's start, which is empty.

        What was aborted from there on is learnt anew: only up to a snapshot are the indexes of it known to be whole.
        """
        log = self.log
        log.producers, self.known = self._newest_snapshot(limit)
        for segment in log.segments:
            self._keep_aborted(segment, self.known)

    def _newest_snapshot(self, limit: int) -> tuple[ProducerStates, int]:
        """The producers and the offset at which they were so."""
        log = self.log
        for offset in sorted([offset for offset in log.snapshots if offset <= limit], reverse=True):
            path = names.segment_file(log.directory, offset, names.SNAPSHOT)
            try:
                return ProducerStates.from_snapshot(log.disk.read(path), offset), offset
            except ValueError as error:
                self.repairs.append(f"{path}: {error}; removed")
                log.disk.unlink(path)
                log.snapshots.discard(offset)
        return ProducerStates(), log.segments[0].base_offset if log.segments else 0

    # Aborted transactions.

    def _load_aborted(self, segments: list[Segment]) -> None:
        for segment, following in zip(segments, [*segments[1:], None], strict=False):
            if segment.base_offset in self.indexed:
                end = following.base_offset if following is not None else ALL
                path = segment.path(names.TXN_INDEX)
                try:
                    segment.aborted = load_aborted(segment.disk, path, segment.base_offset, end)
                except ValueError as error:
                    self.repairs.append(f"{path}: {error}; rebuilt from the log")
                    self.damaged.append(segment)

    def _keep_aborted(self, segment: Segment, offset: int) -> None:
        """Forget what was aborted by markers from `offset` on. The file stays as it is until all is known again: if the
        machine stops meanwhile, another snapshot may be the newest the next time, which relies on it."""
        aborted = segment.aborted
        if segment in self.damaged or (aborted.last_offset < offset and segment not in self.doubtful):
            return
        if aborted.persisted or segment in self.doubtful:
            self.doubtful.add(segment)
            path = segment.path(names.TXN_INDEX)
            kept = [entry for entry in iter_aborted(segment.disk, path) if entry.last_offset < offset]
            segment.aborted = AbortedIndex(len(kept), kept[-1].last_offset if kept else -1)
        else:
            segment.aborted = AbortedIndex()

    def _settle_aborted(self, segment: Segment) -> None:
        """Its file has what is known, as far as snapshots rely on it, and nothing else."""
        aborted, path = segment.aborted, segment.path(names.TXN_INDEX)
        if segment in self.doubtful and segment not in self.damaged:
            in_file = encode_aborted(iter_aborted(segment.disk, path))
            known = in_file[: aborted.persisted * ABORTED_ENTRY] + aborted.encode_tail()
            if known.startswith(in_file):
                aborted.written(len(in_file) // ABORTED_ENTRY)
            else:
                segment.disk.write_atomic(path, known)
                aborted.written(len(aborted))
        self.doubtful.discard(segment)
        # Snapshots that were not asked now may be the next time.
        if aborted.unwritten and any(offset > segment.base_offset for offset in self.log.snapshots):
            segment.persist_aborted_blocking()

    def _rebuild_aborted(self) -> None:
        """Of segments whose index is damaged, from the log, beginning at a snapshot before them."""
        log = self.log
        damaged, self.damaged = [one for one in self.damaged if one in log.segments], []
        if not damaged:
            return
        producers, start = self._newest_snapshot(damaged[0].base_offset)
        for segment in damaged:
            segment.aborted = AbortedIndex()
        # The other segments have theirs already.
        spare = Segment(log.disk, log.directory, 0, 0)
        for segment, position, header in _batches(log, start, log.log_end_offset):
            if header[9] >= 0 and header[0] >= start:
                _note(producers, segment, position, header, None if segment in damaged else spare)
        for segment in damaged:
            log.disk.write_atomic(segment.path(names.TXN_INDEX), segment.aborted.encode_tail())
            segment.aborted.written(len(segment.aborted))

    def _load_epochs(self) -> None:
        log = self.log
        path = f"{log.directory}/{names.LEADER_EPOCHS}"
        try:
            data = log.disk.read(path)
            if not data:
                raise ValueError("empty")
            for epoch, start in checkpoints.decode_epochs(data):
                log.epochs.assign(epoch, start)
                self.last_epoch = epoch
        except FileNotFoundError:
            self.epochs_lost = True
        except (ValueError, IndexError) as error:
            self.epochs_lost = True
            self.repairs.append(f"{path}: {error}; rebuilt from the log")
        else:
            log.epochs_written = data

    def _rebuild_epochs(self) -> None:
        self.log.epochs = EpochCache()
        epoch = -1
        for _, _, header in _batches(self.log, self.log.log_start_offset, self.log.log_end_offset):
            if header[2] > epoch:
                epoch = header[2]
                self.log.epochs.assign(epoch, header[0])


def _entry_on_disk(segment: Segment, slot: int) -> int:
    """An index entry of a closed segment; 0, which leads to the segment's start, if it is not there."""
    try:
        data = segment.disk.open(segment.path(names.INDEX), write=False).pread(INDEX_ENTRY, slot * INDEX_ENTRY)
    except FileNotFoundError:
        return 0
    return int.from_bytes(data, "big") if len(data) == INDEX_ENTRY else 0


def _note(
    producers: ProducerStates, segment: Segment, position: int, header: BatchHeader, index: Segment | None = None
) -> None:
    """Learn from a batch that has a producer id. `index`: whose index gets what it has aborted, if not `segment`'s."""
    if header[5] & CONTROL:
        batch = segment.open_blocking().pread(min(header.size, _LARGEST_MARKER), position)
        note_control(producers, index or segment, header, header[0], find_end_marker(batch))
    else:
        producers.update(header, header[0])


def _batches(log: Log, start: int, end: int) -> Iterator[tuple[Segment, int, BatchHeader]]:
    """Where the batches are that reach `start` and begin before `end`, and their headers."""
    for segment in log.segments:
        done = segment.end_offset is not None and segment.end_offset <= start
        if done or segment.base_offset >= end or start >= end:
            continue
        try:
            position = search(log, segment, start, True)
        except KafkaError:
            position = 0
        headers = sound_headers(
            segment.open_blocking(), position, segment.size, segment.base_offset, end_of(log, segment)
        )
        for position, header, _ in headers:
            if header[0] >= end:
                return
            yield segment, position, header


def _remove_files(segment: Segment) -> None:
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
    last = Segment(log.disk, log.directory, old.base_offset, old.created_ms)
    last.cut = True
    opening = _Opening(log, old.created_ms)
    last.aborted, last.aborted_file = old.aborted, None
    load_trusted(last, ALL)
    interval = log.config.index_interval_bytes
    loaded = read_on(last, interval, opening, check_crc=False, contiguous=False, following=None)
    log.segments = [*kept[:-1], last]
    log.log_end_offset = max(loaded.next_offset, last.base_offset)
    log.recovery_point = min(log.recovery_point, log.log_end_offset)
    opening.known = ALL
    opening.last_epoch = log.epochs.latest
    opening.settle()
    log.start()
