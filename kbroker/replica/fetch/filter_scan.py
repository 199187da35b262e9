"""Reads a partition through its read filter.

The filter may keep little of what it reads, so a read is limited not only by the bytes that it returns, but also by the
bytes and the time that it scans. If it drops the last batches, another batch moves the consumer's position past them.

A batch that cannot be filtered, because its records are malformed or too large when decompressed, is never sent: the
fetch that begins with it fails, with the code that Produce has for such records. All clients report these two codes,
while some repeat a fetch silently after CORRUPT_MESSAGE.
"""

from __future__ import annotations

from typing import NamedTuple

from kbroker.common import Buffer, KafkaError
from kbroker.replica.fetch.read_filter import Filtered, PositionForm, ReadFilter, position_batch
from kbroker.replica.produce.slow_validation import MAX_DECOMPRESSED, MEDIUM_DECOMPRESSED
from kbroker.runtime.environment import Clock
from kbroker.storage.log.log import Log
from kbroker.storage.log.log_reads import find_aborted_transactions, read, read_blocking
from protocol.errors import ErrorCode, MalformedError
from protocol.records.batch import CODEC_MASK, LENGTH_OVERHEAD, BatchHeader, body_of, iter_headers, parse_header
from protocol.records.compression import GZIP, SNAPPY, TooLargeError, decompress
from protocol.records.record import last_offset_delta

# A fetch scans at most this many bytes of the log, and uses at most this time of the event loop.
MAX_LOOK_BYTES = 8 << 20
MAX_LOOP_NS = 5_000_000
# In a thread the time is limited because the thread competes with the event loop for the interpreter.
MAX_THREAD_NS = 50_000_000
# The bytes of one read of the log.
CHUNK_BYTES = 1 << 18
# Larger compressed batches, and those with more decompressed bytes, are filtered in a thread. The limit for gzip and
# snappy is lower: empty members of gzip (20 bytes) take 5 us each, and empty blocks of snappy (5 bytes) 1 to 2 us.
MAX_LOOP_COMPRESSED_BYTES = 1 << 17
MAX_LOOP_MEMBERS_BYTES = 1 << 14
MAX_LOOP_DECOMPRESSED_BYTES = 1 << 18


class LookBudget:
    """The budget of one response: the bytes of the log that it may still scan, until a monotonic deadline.

    `decompressed_bytes`: the most of one batch; None for as many as the topic allows.
    """

    __slots__ = ("bytes_left", "deadline_ns", "decompressed_bytes")

    def __init__(self, deadline_ns: int, decompressed_bytes: int | None) -> None:
        self.bytes_left = MAX_LOOK_BYTES
        self.deadline_ns = deadline_ns
        self.decompressed_bytes = decompressed_bytes

    @classmethod
    def for_loop(cls, clock: Clock) -> LookBudget:
        return cls(clock.mono_ns() + MAX_LOOP_NS, MAX_LOOP_DECOMPRESSED_BYTES)

    @classmethod
    def for_thread(cls, clock: Clock, is_large: bool) -> LookBudget:
        """`is_large`: batches of any size are allowed. Only one thread at a time may have such a budget."""
        return cls(clock.mono_ns() + MAX_THREAD_NS, None if is_large else MEDIUM_DECOMPRESSED)

    def is_used_up(self, clock: Clock) -> bool:
        return self.bytes_left <= 0 or clock.mono_ns() >= self.deadline_ns


class FilteredRead(NamedTuple):
    """Complete batches; `next_offset` is where the next read continues.

    `is_limited`: the budget was used up before the end offset. `aborted`: the aborted transactions, (producer id, first
    offset), in the scanned range.
    """

    records: Buffer
    next_offset: int
    is_limited: bool
    aborted: list[tuple[int, int]]


class _Output:
    """Collects the batches that the filter keeps. Adjacent unchanged batches are one slice of their chunk."""

    __slots__ = ("_pieces", "_slice_end", "_slice_start", "_view", "dropped", "size")

    def __init__(self) -> None:
        self.size = 0
        # The header of the last batch, if it was dropped.
        self.dropped: BatchHeader | None = None
        self._pieces: list[Buffer] = []
        self._view = memoryview(b"")
        self._slice_start = self._slice_end = 0

    def begin_chunk(self, view: memoryview) -> None:
        self._end_slice()
        self._view = view
        self._slice_start = self._slice_end = 0

    def keep(self, pos: int, size: int) -> None:
        if pos != self._slice_end:
            self._end_slice()
            self._slice_start = pos
        self._slice_end = pos + size
        self.size += size
        self.dropped = None

    def add(self, batch: Buffer) -> None:
        self._end_slice()
        self._pieces.append(batch)
        self.size += len(batch)
        self.dropped = None

    def _end_slice(self) -> None:
        if self._slice_end > self._slice_start:
            self._pieces.append(self._view[self._slice_start : self._slice_end])
        self._slice_start = self._slice_end

    def records(self, form: PositionForm) -> Buffer:
        self._end_slice()
        if self._pieces and self.dropped is not None:
            # Otherwise the position would move only after another fetch.
            if form is not PositionForm.CONTROL:
                form = PositionForm.EMPTY
            self._pieces.append(position_batch(form, self.dropped.last_offset, self.dropped.leader_epoch))
        if len(self._pieces) == 1:
            return self._pieces[0]
        return b"".join(self._pieces)


def read_filtered(
    log: Log,
    filtered: Filtered,
    offset: int,
    max_bytes: int,
    end_offset: int,
    read_committed: bool,
    budget: LookBudget,
    clock: Clock,
    wait: bool,
) -> FilteredRead | None:
    """Read from `offset` on, below `end_offset`, until `max_bytes` or the budget are used up.

    Scans at least one batch, if there is one. Returns None if that would wait for the disk, take long or exceed the
    budget: then call it with `wait` in a thread. Raises KafkaError as Log.read does, and for a batch at `offset` that
    cannot be filtered.
    """
    output, read_filter = _Output(), filtered.read_filter
    now_ms = clock.now_ms()
    max_decompressed = max(MAX_DECOMPRESSED, log.config.max_message_bytes)
    if budget.decompressed_bytes is not None:
        max_decompressed = min(max_decompressed, budget.decompressed_bytes)
    aborted: dict[tuple[int, int], None] = {}
    position, is_limited = offset, False
    while position < end_offset and not is_limited:
        wanted = max(min(CHUNK_BYTES, budget.bytes_left), 1)
        chunk = read_blocking(log, position, wanted, end_offset) if wait else read(log, position, wanted, end_offset)
        transactions = None
        if chunk is not None and read_committed:
            transactions = find_aborted_transactions(log, position, len(chunk), wait)
        if chunk is None or (read_committed and transactions is None):
            if position == offset:
                return None
            is_limited = True
            break
        if not chunk:
            break
        for transaction in transactions or ():
            aborted[transaction.producer_id, transaction.first_offset] = None
        view = memoryview(chunk)
        output.begin_chunk(view)
        for pos, header in iter_headers(view):
            size = header.batch_length + LENGTH_OVERHEAD
            batch = view[pos : pos + size]
            try:
                kept = _filter(read_filter, batch, header, now_ms, max_decompressed, wait)
                if kept is not None and header.base_offset < offset:
                    is_final = budget.decompressed_bytes is None
                    if not _reaches(kept, offset, max_decompressed, is_final):
                        # rskafka and others would fetch from the same offset again and again.
                        kept = None
            except TooLargeError as error:
                if position == offset:
                    if budget.decompressed_bytes is not None:
                        return None
                    raise _refusal(ErrorCode.MESSAGE_TOO_LARGE, header, error) from None
                is_limited = True
                break
            except MalformedError as error:
                if position == offset:
                    raise _refusal(ErrorCode.INVALID_RECORD, header, error) from None
                is_limited = True
                break
            if kept is not None and output.size and output.size + len(kept) > max_bytes:
                is_limited = True
                break
            if kept is None:
                output.dropped = header
            elif kept is batch:
                output.keep(pos, size)
            else:
                output.add(kept)
            position = header.next_offset
            budget.bytes_left -= size
            if output.size >= max_bytes or budget.is_used_up(clock):
                is_limited = True
                break
    records = output.records(filtered.form)
    is_limited = is_limited and position < end_offset
    return FilteredRead(records, position, is_limited, list(aborted))


def _filter(
    read_filter: ReadFilter, batch: memoryview, header: BatchHeader, now_ms: int, max_bytes: int, wait: bool
) -> Buffer | None:
    """Filter a batch. Raises MalformedError, and TooLargeError also if that may take too long for the event loop."""
    codec = header.attributes & CODEC_MASK
    if codec and not wait:
        most = MAX_LOOP_MEMBERS_BYTES if codec in (GZIP, SNAPPY) else MAX_LOOP_COMPRESSED_BYTES
        if len(batch) > most:
            raise TooLargeError(f"{len(batch)} compressed bytes")
    return read_filter.filter_batch(batch, header, now_ms, max_bytes)


def _refusal(code: ErrorCode, header: BatchHeader, error: MalformedError) -> KafkaError:
    return KafkaError(
        code, f"The batch of the offsets {header.base_offset} to {header.last_offset} cannot be filtered: {error}."
    )


def _reaches(batch: Buffer, offset: int, max_bytes: int, is_final: bool) -> bool:
    """Return whether a batch has a record at an offset or after it. Raises TooLargeError unless the limit is final."""
    header = parse_header(batch)
    if header.count > header.last_offset_delta:
        # No record was removed.
        return True
    try:
        body = decompress(header.codec, body_of(batch, 0, header.size), max_bytes)
        return header.base_offset + last_offset_delta(body, header.count) >= offset
    except TooLargeError:
        if not is_final:
            raise
    except (MalformedError, IndexError):
        pass
    # A filter that does not decode it sends it, and the client reports the damage.
    return True
