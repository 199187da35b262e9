"""A partition's log: its segments, offsets, producer state and leader epochs.

The methods run on the event loop, except those named *_blocking: these run in a thread, perhaps while the event loop
appends (segment.py explains why that is safe). log_reads.py reads, durability.py makes a log durable, and
recovery/truncation.py removes its end. Only this module and log_state.py change a Log.
"""

from collections.abc import Sequence
from errno import ENOSPC
from random import Random

from kbroker.common import Buffer, KafkaError
from kbroker.config.topic_config import TopicConfig
from kbroker.storage.log.batch_scan import MAX_RELATIVE_OFFSET
from kbroker.storage.log.durability import BackgroundRunner, LogDurability, ignore
from kbroker.storage.log.log_state import LogOwner, LogState
from kbroker.storage.log.offset_lookup import PositionCache
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.log.segment_lifetime import CHECK_ALL, choose_jitter_ms, compute_limits, count_expired_segments
from kbroker.storage.log.transaction_index import PreparedBatch, apply_control_batch
from protocol.errors import ErrorCode
from protocol.records.batch import CONTROL, LENGTH_OVERHEAD, PREFIX, BatchHeader
from protocol.records.control import EndTransactionMarker, find_end_marker

# Most logs share it. Nothing is added.
_NO_REPAIRS: list[str] = []


class Log(LogState):
    """Created by recovery.open_log. `owner`: None if it is never truncated.

    No transaction with a marker beyond `last_aborted_offset` was aborted. `contents` is replaced by another object
    when records change or disappear: by retention, compaction and truncation. `checkpointed_high_watermark`: that
    of the last checkpoint; the log start offset if it had none.
    """

    __slots__ = (
        "_append_epoch", "_jitter_ms", "_limits", "_random", "active", "checkpointed_high_watermark",
        "contents", "durability", "last_aborted_offset", "owner", "positions", "topic_id",
    )  # fmt: skip

    def __init__(
        self,
        loaded: LogState,
        topic_id: bytes,
        high_watermark: int,
        background: BackgroundRunner,
        random: "Random",
        owner: LogOwner | None,
    ) -> None:
        self.topic_id = topic_id
        self.owner = owner
        self._random = random
        self._start(loaded)
        self.durability = LogDurability(self, background)
        self.repairs = loaded.repairs or _NO_REPAIRS
        self.checkpointed_high_watermark = max(min(high_watermark, self.log_end_offset), self.log_start_offset)

    def _start(self, loaded: LogState) -> None:
        """Use the state of a log that was loaded or truncated."""
        self.use(loaded)
        self.contents = object()
        self.last_aborted_offset = max([segment.indexes.transaction.last_offset for segment in self.segments])
        # The leader epoch of the last append.
        self._append_epoch = -1
        self._activate(self.segments[-1])
        self.positions = PositionCache(self.active)

    def set_config(self, config: TopicConfig) -> None:
        """Apply new configs."""
        self.config = config
        self._update_limits()

    def close_segment_files(self, *, idle_only: bool) -> None:
        """Close the files of closed segments; with `idle_only` of those that were not read since the last call.

        Reads in progress keep theirs open.
        """
        for segment in self.segments:
            if segment.end_offset is not None and segment.end_offset <= self.recovery_point:
                segment.close_unneeded_files(idle_only)

    # Appends.

    def append(
        self, batch: Buffer, header: BatchHeader, leader_epoch: int, now_ms: int, *, any_size: bool = False
    ) -> int:
        """Append a validated batch in a writable buffer, and return its base offset.

        The offset and the epoch are written into the buffer. Raises KafkaError: KAFKA_STORAGE_ERROR if the batch could
        not be written, in which case the file is unchanged; RECORD_LIST_TOO_LARGE if it exceeds segment.bytes, unless
        `any_size`.
        """
        _, length, _, _, _, attributes, delta, _, timestamp, producer_id, _, _, _ = header
        size = length + LENGTH_OVERHEAD
        base = self.log_end_offset
        last = base + delta
        segment = self.active
        max_size, max_timestamp, max_offset, max_now_ms = self._limits
        if (
            segment.size + size > max_size
            or timestamp > max_timestamp
            or last > max_offset
            or now_ms > max_now_ms
            or not self.health.is_ok
        ):
            segment = self._prepare_append(size, timestamp, last, now_ms, any_size=any_size)
        PREFIX.pack_into(batch, 0, base, length, leader_epoch)
        self._write(segment, batch, size)
        # Reading threads rely on the order of these steps, up to the log end offset (segment.py).
        position = segment.size
        self.positions.add_append(base, position)
        if segment.add_batch(position, size, last, timestamp, self.config.index_interval_bytes):
            self._on_index_entry(segment, position)
        if producer_id >= 0:
            if attributes & CONTROL:
                self._apply_control_batch(segment, header, base, find_end_marker(batch))
            else:
                self.producers.update(header, base)
        if leader_epoch != self._append_epoch:
            self._start_epoch(leader_epoch, base)
        self.log_end_offset = last + 1
        return base

    def append_batches(self, batches: Sequence[PreparedBatch], leader_epoch: int, now_ms: int) -> int:
        """Append batches with one write, all or none. Returns the first one's base offset.

        They are transaction markers, or validated batches in writable buffers, as in `append`. Raises the errors of
        `append`; for segment.bytes they count as one batch.
        """
        data = [batch for batch, _, _ in batches]
        size = sum(map(len, data))
        first = base = self.log_end_offset
        timestamp = max([header.max_timestamp for _, header, _ in batches])
        next_offset = base + sum([header.last_offset_delta + 1 for _, header, _ in batches])
        segment = self._prepare_append(size, timestamp, next_offset - 1, now_ms)
        for batch, header, _ in batches:
            PREFIX.pack_into(batch, 0, base, header.batch_length, leader_epoch)
            base += header.last_offset_delta + 1
        self._write(segment, b"".join(data), size)
        if leader_epoch != self._append_epoch:
            self._start_epoch(leader_epoch, first)
        base = first
        for _, header, marker in batches:
            position, last = segment.size, base + header.last_offset_delta
            self.positions.add_append(base, position)
            if segment.add_batch(position, header.size, last, header.max_timestamp, self.config.index_interval_bytes):
                self._on_index_entry(segment, position)
            if marker is not None:
                self._apply_control_batch(segment, header, base, marker)
            elif header.producer_id >= 0:
                self.producers.update(header, base)
            base = last + 1
        self.log_end_offset = next_offset
        return first

    def append_as_follower(self, records: Buffer, headers: Sequence[BatchHeader], now_ms: int) -> int:
        """Append whole batches of the leader as they are, and return the new log end offset.

        `headers` are those of `records`, whose CRCs were checked. Offsets, gaps between them (of a compacted log) and
        leader epochs are kept. All batches of a segment share one write. A batch may be larger than segment.bytes,
        which the leader may have changed. Raises KafkaError: CORRUPT_MESSAGE, before anything is written, if the
        batches are not in order above the log end offset; KAFKA_STORAGE_ERROR if a batch could not be written: that
        one and those after it are not in the log.
        """
        self._check_run(headers, len(records))
        view = memoryview(records)
        first = start = end = 0
        size = self.active.size
        for number, header in enumerate(headers):
            batch_size, timestamp, last = header.size, header.max_timestamp, header.last_offset
            max_size, max_timestamp, max_offset, max_now_ms = self._limits
            if (
                size + batch_size > max_size
                or timestamp > max_timestamp
                or last > max_offset
                or now_ms > max_now_ms
                or not self.health.is_ok
            ):
                self._append_run(view[start:end], headers[first:number])
                first, start = number, end
                size = self._prepare_append(batch_size, timestamp, last, now_ms, any_size=True).size
                if last > self.active.base_offset + MAX_RELATIVE_OFFSET:
                    # Compaction has left a gap that is larger than a segment may be.
                    self._roll(now_ms, header.base_offset)
                    self.active.begin(timestamp)
                    self._update_limits()
                    size = 0
            size += batch_size
            end += batch_size
        self._append_run(view[start:end], headers[first:])
        return self.log_end_offset

    def _check_run(self, headers: Sequence[BatchHeader], size: int) -> None:
        """Check that the batches of a leader's run fill `size` bytes, with ascending offsets from the log end on."""
        next_offset = self.log_end_offset
        for header in headers:
            if header.base_offset < next_offset or header.last_offset_delta < 0:
                raise KafkaError(
                    ErrorCode.CORRUPT_MESSAGE,
                    f"offsets {header.base_offset} to {header.last_offset} from the leader, expected {next_offset}",
                )
            next_offset = header.next_offset
            size -= header.size
        if size:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{size} bytes from the leader follow the last batch")

    def _append_run(self, records: memoryview, headers: Sequence[BatchHeader]) -> None:
        """Append batches of a leader to the active segment, with one write."""
        if not headers:
            return
        segment = self.active
        self._write(segment, records, len(records))
        start = 0
        for header in headers:
            size, offset, position = header.size, header.base_offset, segment.size
            # A read from an offset in the gap before the batch begins with the batch.
            self.positions.add_append(self.log_end_offset, position)
            last, timestamp = header.last_offset, header.max_timestamp
            if segment.add_batch(position, size, last, timestamp, self.config.index_interval_bytes):
                self._on_index_entry(segment, position)
            if header.producer_id >= 0:
                if header.attributes & CONTROL:
                    marker = find_end_marker(records[start : start + size])
                    self._apply_control_batch(segment, header, offset, marker)
                else:
                    self.producers.update(header, offset)
            if header.leader_epoch != self._append_epoch:
                self._start_epoch(header.leader_epoch, offset)
            start += size
            self.log_end_offset = last + 1

    def _prepare_append(
        self, size: int, timestamp: int, last_offset: int, now_ms: int, *, any_size: bool = False
    ) -> LogSegment:
        """Check an append that may exceed a limit: reject it, or roll. Returns the segment for it."""
        if self.health.append_error is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.health.append_error)
        if self.is_truncating:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the log is being truncated")
        segment_bytes = self.config.segment_bytes
        if size > segment_bytes and not any_size:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE, f"a batch of {size} bytes exceeds segment.bytes, {segment_bytes}"
            )
        if self.active.size and (
            self.active.size + size > segment_bytes
            or self._is_index_full
            or self._limits.is_reached(timestamp, last_offset, now_ms)
        ):
            self._roll(now_ms)
        if not self.active.size:
            self.active.begin(timestamp)
            self._update_limits()
        return self.active

    def _write(self, segment: LogSegment, data: Buffer, size: int) -> None:
        try:
            written = segment.file.append(data)  # type: ignore[union-attr]
        except OSError as error:
            raise self._cut_back(error) from error
        if written != size:
            raise self._cut_back(OSError(ENOSPC, f"{written} of {size} bytes written"))

    def _on_index_entry(self, segment: LogSegment, position: int) -> None:
        """Do what is not necessary after every batch. Called when the batch at `position` got index entries."""
        if self._is_index_full:
            self._update_limits()
        start_writeback = segment.take_writeback(position)
        if start_writeback is not None:
            self.durability.background(start_writeback, ignore)

    def _apply_control_batch(
        self, segment: LogSegment, header: BatchHeader, offset: int, marker: EndTransactionMarker | None
    ) -> None:
        index = segment.indexes.transaction
        apply_control_batch(self.producers, index, header, offset, marker)
        self.last_aborted_offset = max(self.last_aborted_offset, index.last_offset)

    # Rolling.

    def roll(self, now_ms: int) -> None:
        """Close the active segment, unless it is empty, and begin another one. Raises KafkaError."""
        if self.active.size and not self.is_truncating:
            self._roll(now_ms)

    def maybe_roll(self, now_ms: int) -> None:
        """Roll if the time limit of the active segment (segment.ms) has passed. Raises KafkaError."""
        if self.active.size and self._limits.is_time_over(now_ms) and not self.is_truncating:
            self._roll(now_ms)

    def _roll(self, now_ms: int, base_offset: int | None = None) -> None:
        """Begin a segment at `base_offset`, which follows a gap, or at the log end offset. Raises KafkaError."""
        closed, base = self.active, self.log_end_offset if base_offset is None else base_offset
        segment = LogSegment(self.disk, self.directory, base, now_ms)
        try:
            segment.create_file()
        except OSError as error:
            raise self._cut_back(error) from error
        closed.close(base)
        self.directory_sync.mark_changed()
        self.segments = [*self.segments, segment]
        self.positions.start_segment(segment)
        self._activate(segment)
        # Transactions aborted before the snapshot must be in the indexes: recovery reads the log only from there on.
        unwritten = [earlier for earlier in self.segments[:-2] if earlier.indexes.transaction.has_unwritten]
        self.durability.add_checkpoint(base, [*unwritten, closed], sync=True)

    def _activate(self, segment: LogSegment) -> None:
        self.active = segment
        self._jitter_ms = choose_jitter_ms(self.config, self._random)
        self._update_limits()

    @property
    def _is_index_full(self) -> bool:
        return self.active.indexes.is_full(self.config.segment_index_bytes)

    def _update_limits(self) -> None:
        limits = compute_limits(self.config, self.active, self._jitter_ms)
        self._limits = limits._replace(size=CHECK_ALL) if self.is_truncating or self._is_index_full else limits

    def _cut_back(self, error: OSError) -> KafkaError:
        """Truncate the file after a failed write so that it ends with a complete batch. Returns the error to raise."""
        try:
            self.active.cut_torn_append()
        except OSError as worse:
            error = worse
        self.health.append_failed(error)
        self._update_limits()
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))

    def resume(self) -> bool:
        """Accept appends again, after a successful probe; truncate the rest of a failed write.

        Returns False if that is not possible now. During a truncation the size of the active segment is already the
        later one, but its file must not shrink before a lower recovery point is durable and the later segments are
        deleted: a crash would leave a gap that recovery does not read.
        """
        if self.health.offline is not None or self.is_truncating:
            return False
        try:
            self.active.cut_torn_append()
        except OSError:
            return False
        self.health.resume()
        self._update_limits()
        return True

    # Leader epochs.

    def _start_epoch(self, epoch: int, offset: int) -> None:
        self._append_epoch = epoch
        if epoch >= 0:
            self.epochs.assign(epoch, offset)
            self.durability.write_epochs()

    # Removal and replacement of records and segments.

    async def store_log_start(self) -> None:
        """Write the log start offset, so that it does not go back after a crash. Raises OSError."""
        assert self.owner is not None
        await self.owner.write_checkpoints()

    def delete_records(self, offset: int) -> None:
        """Advance the log start offset. The next `enforce_retention` frees the space."""
        offset = min(offset, self.log_end_offset)
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.epochs.truncate_from_start(offset)
            self.durability.write_epochs()

    def enforce_retention(self, now_ms: int, high_watermark: int) -> int:
        """Delete expired segments that are synced; returns their number. If all have expired, the log first rolls to an
        empty one."""
        if self.health.offline is not None or self.is_truncating:
            return 0
        count = count_expired_segments(
            self.segments, self.config, now_ms, self.log_start_offset, self.log_end_offset, high_watermark
        )
        if count and count == len(self.segments):
            try:
                self.roll(now_ms)
            except KafkaError:
                # The disk is full. Deleting the closed segments frees space.
                count -= 1
        # Until its file is renamed, a power loss would leave an unsynced segment torn, and recovery would remove the
        # synced segments that follow it.
        synced = sum(1 for segment in self.segments[1:] if segment.base_offset <= self.recovery_point)
        count = min(count, synced)
        if count:
            self._remove_oldest_segments(count)
        return count

    def _remove_oldest_segments(self, count: int) -> None:
        removed, kept = self.segments[:count], self.segments[count:]
        for segment in removed:
            segment.retire()
        self.segments = kept
        self.contents = object()
        self.delete_records(kept[0].base_offset)
        self.snapshots.remove([segment.base_offset for segment in removed])
        self.durability.delete_segments(removed)

    def replace_segments(self, base_offsets: Sequence[int], replacement: LogSegment) -> list[LogSegment] | None:
        """Replace the segments with these base offsets by a compacted one. Returns the replaced segments.

        Returns None, and changes nothing, if retention has removed one of them, a truncation is in progress or the log
        is offline. The snapshot at the first base offset is kept; those of the other segments are deleted with them.
        """
        replaced = [segment for segment in self.segments if segment.base_offset in base_offsets]
        is_changed = [segment.base_offset for segment in replaced] != list(base_offsets) or self.is_truncating
        if is_changed or self.health.offline is not None:
            return None
        at = self.segments.index(replaced[0])
        self.segments = [*self.segments[:at], replacement, *self.segments[at + len(replaced) :]]
        self.contents = object()
        for segment in replaced:
            segment.retire()
        self.snapshots.remove(base_offsets[1:])
        return replaced

    # Truncation.

    def begin_truncation(self) -> None:
        """Reject everything else that would change the log."""
        self.is_truncating = True
        self._update_limits()

    def end_truncation(self) -> None:
        self.is_truncating = False
        self._update_limits()
        waiting, self.after_truncation = self.after_truncation, ()
        for callback in waiting:
            callback()

    def remove_epochs_without_batches(self) -> None:
        """Remove the leader epochs that begin at the log end offset."""
        self.epochs.truncate_from_end(self.log_end_offset)
        self._append_epoch = -1
        self.durability.write_epochs()

    def use_truncated(self, after: LogState) -> None:
        """Use the state after a truncation. The files are changed afterwards."""
        after.config, after.repairs, after.is_truncating = self.config, self.repairs, True
        after.after_truncation = self.after_truncation
        after.truncations = self.truncations + 1
        self._start(after)
