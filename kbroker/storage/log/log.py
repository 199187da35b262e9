"""A partition's log: segments, the offsets that bound it, producers and leader epochs.

All methods belong to the loop, except those named *_blocking, which belong in a thread and may run while the loop
appends (segment.py says why that is safe). Everything else that waits for the disk is a chore (chores.py).
"""

from collections.abc import Callable
from errno import EDQUOT, EFBIG, EIO, EMFILE, ENFILE, ENOSPC, EROFS
from typing import TYPE_CHECKING, cast

from kbroker.common import Buffer, KafkaError, TopicPartition
from kbroker.config.topic_config import TopicConfig
from kbroker.runtime.disk import Disk
from kbroker.runtime.event_log import EventLogger
from kbroker.storage import file_names
from kbroker.storage.checkpoint_files import encode_epochs
from kbroker.storage.indexes.segment_indexes import INDEX_ENTRY, TIME_ENTRY, WouldBlock
from kbroker.storage.indexes.transaction_index import AbortedTransaction
from kbroker.storage.log import control_batches as transactions
from kbroker.storage.log import maintenance, retention, rolling
from kbroker.storage.log import timestamp_lookup as lookup
from kbroker.storage.log.file_slice import FileSlice
from kbroker.storage.log.leader_epoch_cache import LeaderEpochCache
from kbroker.storage.log.reading import HINT_SLOTS, Hint, read_slice, retry_gone
from kbroker.storage.log.segment import TAIL, LogSegment
from kbroker.storage.log.task_queue import BackgroundRunner, SerialTaskQueue
from kbroker.storage.producers.producer_state import ProducerStateManager
from protocol.errors import ErrorCode
from protocol.records.batch import CONTROL, LENGTH_OVERHEAD, PREFIX, BatchHeader
from protocol.records.control import EndMarker, find_end_marker

if TYPE_CHECKING:
    from random import Random

# Dirty bytes of a segment after which the kernel is asked to begin writing them.
WRITEBACK_BYTES = 8 << 20
# The file system takes nothing more; later it may.
REFUSED = (ENOSPC, EDQUOT, EFBIG, EROFS)
event_log = EventLogger("kbroker.logs")


class Log:
    """Made by recovery.open_log. Offsets: `log_start_offset` and `log_end_offset` bound what can be read;
    below `recovery_point` everything has been synced.

    `offline`: why the log takes nothing until a restart, None while it does. `full`: appends are refused until
    `resume`, since the disk had no room or, with `read_only`, since its file system has become read-only. `repairs`:
    what opening it had to repair, a line each.
    """

    __slots__ = (
        "_offline",
        "_readable",
        "active",
        "append_epoch",
        "background",
        "chores",
        "cleaned_to",
        "config",
        "directory",
        "directory_synced",
        "disk",
        "epochs",
        "epochs_synced",
        "epochs_written",
        "files_created",
        "full",
        "hints",
        "index_full",
        "index_interval",
        "jitter_ms",
        "last_aborted_offset",
        "log_end_offset",
        "log_start_offset",
        "producers",
        "random",
        "read_only",
        "recovery_point",
        "repairs",
        "roll_now",
        "roll_offset",
        "roll_size",
        "roll_timestamp",
        "segments",
        "snapshots",
        "tail",
        "topic_id",
        "tp",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        tp: TopicPartition,
        topic_id: bytes,
        config: TopicConfig,
        background: BackgroundRunner,
        random: "Random",
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.tp = tp
        self.topic_id = topic_id
        self.config = config
        # No transaction with a marker beyond this offset was aborted.
        self.last_aborted_offset = -1
        self.background = background
        self.chores = SerialTaskQueue(background, self.chore_failed)
        self.producers = ProducerStateManager()
        self.epochs = LeaderEpochCache()
        self.segments: list[LogSegment] = []
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.recovery_point = 0
        # Compaction has been done up to here.
        self.cleaned_to = 0
        # Offsets of the producer snapshots on disk.
        self.snapshots: set[int] = set()
        self.repairs: list[str] = []
        self.full = False
        self.read_only = False
        # Changes of names, and of how many it is known that they are durable; -1: not even of the directory's own.
        self.files_created = 0
        self.directory_synced = 0
        self._offline: str | None = None
        self._readable = True
        self.random = random
        # The leader epoch of the last append; the content of the epochs' file, and as it was when it was synced.
        self.append_epoch = -1
        self.epochs_written = b""
        self.epochs_synced = b""

    # Set by `start`: the segment that is written, and the limits of rolling.py.
    active: LogSegment
    index_full: bool
    index_interval: int
    jitter_ms: int
    roll_now: int
    roll_offset: int
    roll_size: int
    roll_timestamp: int

    def start(self) -> None:
        """Begin to serve, when recovery has filled in segments and offsets."""
        self.clear_position_cache()
        self.last_aborted_offset = max([segment.aborted.last_offset for segment in self.segments])
        rolling.use(self, self.segments[-1])

    def clear_position_cache(self) -> None:
        """After offsets have been taken away or segments replaced: known positions may be wrong."""
        self.hints: list[Hint] = [(-1, self.segments[-1], 0)] * HINT_SLOTS
        self.tail: tuple[LogSegment, list[int], list[int]] = (self.segments[-1], [], [])

    # Appends.

    def append(self, batch: Buffer, header: BatchHeader, leader_epoch: int, now_ms: int) -> int:
        """Append one validated batch in a writable buffer, which gets its offset and epoch; gives the base offset.

        Raises KafkaError: KAFKA_STORAGE_ERROR when it could not be written (the file is as before),
        RECORD_LIST_TOO_LARGE when it exceeds segment.bytes.
        """
        _, length, _, _, _, attributes, delta, _, timestamp, producer_id, _, _, _ = header
        size = length + LENGTH_OVERHEAD
        base = self.log_end_offset
        last = base + delta
        segment = self.active
        if (
            segment.size + size > self.roll_size
            or timestamp > self.roll_timestamp
            or last > self.roll_offset
            or now_ms > self.roll_now
        ):
            segment = rolling.prepare(self, size, timestamp, last, now_ms)
        PREFIX.pack_into(batch, 0, base, length, leader_epoch)
        file = segment.file
        try:
            written = file.append(batch)  # type: ignore[union-attr]
        except OSError as error:
            raise self.cut_back(error) from error
        if written != size:
            raise self.cut_back(OSError(ENOSPC, f"{written} of {size} bytes written"))
        position = segment.size
        # First this, then the size, last the log end offset: see segment.py.
        _, offsets, positions = self.tail
        positions.append(position)
        offsets.append(base)
        if len(offsets) >= 2 * TAIL:
            self.tail = (segment, offsets[TAIL:], positions[TAIL:])
        segment.size = position + size
        if timestamp > segment.max_timestamp:
            segment.max_timestamp = timestamp
            segment.max_timestamp_offset = last
        unindexed = segment.unindexed
        if unindexed > self.index_interval:
            self.add_entry(segment, last, position)
            segment.unindexed = size
        else:
            segment.unindexed = unindexed + size
        if producer_id >= 0:
            if attributes & CONTROL:
                self.note_control(segment, header, base, find_end_marker(batch))
            else:
                self.producers.update(header, base)
        if leader_epoch != self.append_epoch:
            self.start_epoch(leader_epoch, base)
        self.log_end_offset = last + 1
        return base

    def note_control(self, segment: LogSegment, header: BatchHeader, base: int, marker: EndMarker | None) -> None:
        """A control batch was appended to the active segment at offset `base`."""
        transactions.note_control(self.producers, segment, header, base, marker)
        self.last_aborted_offset = max(self.last_aborted_offset, segment.aborted.last_offset)

    def add_entry(self, segment: LogSegment, last: int, position: int) -> None:
        segment.add_entry(last, position)
        assert segment.index is not None
        assert segment.times is not None
        limit = self.config.segment_index_bytes
        if (
            len(segment.index.entries) >= limit // INDEX_ENTRY
            or len(segment.times.timestamps) >= limit // TIME_ENTRY - 1
        ):
            self.index_full = True
            self.roll_size = -1
        if position - segment.written_back >= WRITEBACK_BYTES:
            start, segment.written_back = segment.written_back, position
            file = segment.file
            if file is not None:
                self.background(lambda: file.start_writeback(start, position - start), _ignore)

    def cut_back(self, error: OSError) -> KafkaError:
        """After a failed write: the file is to end with a whole batch again. Gives what to raise."""
        try:
            self._cut_torn()
        except OSError as worse:
            error = worse
        if error.errno in REFUSED:
            self.full = True
            self.read_only = error.errno == EROFS
        elif error.errno not in (EMFILE, ENFILE):
            self.fail(f"append failed: {error}")
        if not self.active.size:
            self.active.first_timestamp = None
        rolling.set_limits(self)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))

    def _cut_torn(self) -> None:
        """Cut what a failed write has left behind the last whole batch. A read-only file system refuses every cut."""
        active = self.active
        assert active.file is not None
        if active.file.size() != active.size:
            active.file.truncate(active.size)
            active.cut = True

    # Segments: see rolling.py.

    def roll(self, now_ms: int) -> None:
        """Close the active segment, unless it is empty, and begin another. Its files are finished by a chore."""
        if self.active.size:
            rolling.roll(self, now_ms)

    def maybe_roll(self, now_ms: int) -> None:
        """Close the active segment if segment.ms has passed since its first batch's timestamp."""
        if self.active.size and max(now_ms - self.roll_timestamp, now_ms - self.roll_now) > 0:
            rolling.roll(self, now_ms)

    def set_config(self, config: TopicConfig) -> None:
        """Use these values from now on."""
        self.config = config
        rolling.set_limits(self)

    # Reads.

    def read(self, offset: int, max_bytes: int, max_offset: int, min_one: bool = True) -> Buffer | None:
        """Whole batches from the one that holds `offset` on, below `max_offset`, of one segment; b"" for none.

        None: it would wait for the disk, so call `read_blocking` in a thread. With `min_one` the first batch may
        exceed `max_bytes`. Raises KafkaError: OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR.
        """
        return cast("Buffer | None", self._read_nowait(offset, max_bytes, max_offset, min_one, False))

    def read_or_slice(
        self, offset: int, max_bytes: int, max_offset: int, min_one: bool = True
    ) -> Buffer | FileSlice | None:
        """As `read`; of much that is to be read only the place may be given, to be read when it is sent."""
        return self._read_nowait(offset, max_bytes, max_offset, min_one, True)

    def _read_nowait(
        self, offset: int, max_bytes: int, max_offset: int, min_one: bool, later: bool
    ) -> Buffer | FileSlice | None:
        try:
            return read_slice(self, offset, max_bytes, max_offset, min_one, False, later)
        except WouldBlock:
            return None
        except OSError as error:
            raise self.read_failed(error) from error

    def read_blocking(self, offset: int, max_bytes: int, max_offset: int, min_one: bool = True) -> Buffer:
        """`read` in a thread."""
        try:
            return retry_gone(self, offset, max_bytes, max_offset, min_one)
        except OSError as error:
            raise self.read_failed(error) from error

    def aborted_transactions(self, offset: int, size: int, wait: bool) -> list[AbortedTransaction] | None:
        """The aborted transactions that who reads `size` bytes from `offset` on needs to know of, in order of their
        markers. None: it would wait for the disk, so call it with `wait` in a thread. Raises KafkaError."""
        if offset > self.last_aborted_offset or not size:
            return []
        try:
            return transactions.aborted_in(self, offset, size, wait)
        except WouldBlock:
            return None
        except OSError as error:
            raise self.read_failed(error) from error

    def offset_for_timestamp_blocking(self, timestamp: int, max_offset: int) -> tuple[int, int, int] | None:
        """(offset, timestamp, leader epoch) of the first record below `max_offset` that is not earlier."""
        try:
            return lookup.offset_for_timestamp(self, timestamp, max_offset)
        except OSError as error:
            raise self.read_failed(error) from error

    def max_timestamp_blocking(self) -> tuple[int, int, int] | None:
        """(offset, timestamp, leader epoch) of the first record that has the largest timestamp (KIP-734)."""
        try:
            return lookup.max_timestamp(self)
        except OSError as error:
            raise self.read_failed(error) from error

    def read_failed(self, error: OSError) -> KafkaError:
        """Note that the disk fails; gives what clients are told."""
        self._readable = False
        self.fail(f"read failed: {error}")
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.offline)

    @property
    def size_bytes(self) -> int:
        """Of all segments' log files."""
        return sum([segment.size for segment in self.segments])

    # Health.

    @property
    def offline(self) -> str | None:
        return self._offline

    @offline.setter
    def offline(self, reason: str | None) -> None:
        """Never unset: what a failing disk holds is only known after a recovery. May be set from a thread."""
        self._offline = self._offline or reason
        self.roll_size = -1

    def fail(self, reason: str) -> None:
        """The disk fails. May be called from a thread."""
        if self._offline is None:
            event_log.error("log offline until a restart", partition=self.tp, reason=reason)
        self.offline = reason

    @property
    def readable_end(self) -> int:
        """Up to where it can be read. Of a log that is offline what was synced before: nobody knows whether the disk
        has the rest. After a failed read, nothing."""
        if self._offline is None:
            return self.log_end_offset
        return self.recovery_point if self._readable else self.log_start_offset

    def chore_failed(self, error: OSError) -> None:
        """Index and snapshot files can wait for room: what they hold is in memory or in the log."""
        if error.errno not in REFUSED:
            self.fail(f"background work failed: {error}")

    def probe_blocking(self) -> bool:
        """Whether a log that is full could take data again. What could not be cut then is cut now."""
        path = f"{self.directory}/probe"
        try:
            self.disk.write_atomic(path, bytes(1 << 16), sync=False)
            self.disk.unlink(path)
            self._cut_torn()
        except OSError:
            return False
        return True

    def resume(self) -> None:
        """Accept appends again after a successful probe."""
        self.full = self.read_only = False
        rolling.set_limits(self)

    # Leader epochs.

    def start_epoch(self, epoch: int, offset: int) -> None:
        """What is appended from here on is of this leader epoch."""
        self.append_epoch = epoch
        if epoch >= 0:
            self.epochs.assign(epoch, offset)
            self.write_epochs()

    def write_epochs(self) -> None:
        """Write leader-epoch-checkpoint if the epochs have changed; it is synced before the recovery point moves."""
        data = encode_epochs(self.epochs.entries)
        if data != self.epochs_written:
            self.epochs_written = data
            path = f"{self.directory}/{file_names.LEADER_EPOCHS}"
            self.chores.add(lambda: self.disk.write_atomic(path, data, sync=False), _ignore)

    # Maintenance: see maintenance.py and retention.py.

    def flush_blocking(self, up_to: int) -> int:
        """Sync what was appended below `up_to`; gives `up_to`. Call `complete_flush` on the loop with it.

        Raises OSError and takes the log offline if the disk fails: a sync is never repeated, whoever asks.
        """
        if self._offline is not None:
            raise OSError(EIO, self._offline)
        try:
            maintenance.sync_segments(self, up_to)
        except OSError as error:
            self.fail(f"sync failed: {error}")
            raise
        return up_to

    def complete_flush(self, offset: int) -> None:
        """Everything below `offset` has been synced."""
        if self._offline is None:
            self.recovery_point = max(self.recovery_point, min(offset, self.log_end_offset))

    def checkpoint(self, done: Callable[[], None] | None = None) -> None:
        """Sync, and write what lets recovery begin at the log end offset of now. For regular calls, one by one."""
        maintenance.checkpoint(self, done)

    def enforce_retention(self, now_ms: int, high_watermark: int) -> int:
        """Remove segments that retention or the log start offset allow to go; gives their number."""
        return retention.enforce(self, now_ms, high_watermark)

    def delete_records(self, offset: int) -> None:
        """Advance the log start offset. Space is freed by the next `enforce_retention`."""
        self.set_log_start(min(offset, self.log_end_offset))

    def set_log_start(self, offset: int) -> None:
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.epochs.truncate_from_start(offset)
            self.write_epochs()

    def close(self, clean: bool, done: Callable[[bool], None]) -> None:
        """Finish all chores and close. `clean`: sync and write everything first; `done(True)` if all of it worked."""
        maintenance.close(self, clean, done)

    def close_idle_files(self) -> None:
        """Close files of closed segments that nobody has read since the last call. For regular calls."""
        for segment in self.segments:
            if segment.end_offset is not None and segment.end_offset <= self.recovery_point:
                segment.release()


def _ignore(_: object) -> None:
    pass
