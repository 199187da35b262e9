"""Reads pending records from the log, so that the cost of a record does not depend on how the records came.

Records that are due one after the other may be anywhere in the log: each in a batch of its own, or a few in each of a
thousand large batches. So many are read at once, ahead of their delivery, in the order of their offsets: one read
covers neighbouring batches, and a batch is decoded once for all of its records that are due soon.
"""

from bisect import bisect_left
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from itertools import takewhile

from kbroker.common import Buffer, KafkaError
from kbroker.queues.delay.delay_batches import DELAYED, StoredRecord, pick_records, stored_record
from kbroker.queues.delay.pending_records import ENTRIES_AT_ONCE, Pending
from kbroker.runtime.environment import Environment
from kbroker.runtime.turns import paced, yield_if_due
from kbroker.storage.log.log import Log
from kbroker.storage.log.log_reads import read, read_blocking
from protocol.errors import MalformedError
from protocol.records.batch import HEADER_SIZE, MAX_DECOMPRESSED_BYTES, BatchHeader, body_of, iter_headers
from protocol.records.compression import TooLargeError, decompress
from protocol.records.record import Record

# The limit of the records that were read ahead. A record counts as its size and RECORD_BYTES: together, these are
# about what its Python objects take.
MAX_READY_BYTES = 8 << 20
RECORD_BYTES = 300
# How many records are read ahead: few at first, then as many as fit. In large batches with few due records each window
# reads the whole batches again. A step over a whole window must not delay others.
FIRST_WINDOW, MAX_WINDOW = 100, 10_240
RECORDS_AT_ONCE = 64
# Compressed batches that are larger, before or after, are decompressed in a thread.
MAX_LOOP_BYTES, MAX_LOOP_DECOMPRESSED_BYTES = 1 << 14, 1 << 18
# A read of the log is large if the next NEIGHBOURS records are within NEAR_OFFSETS, or else for one small batch. If the
# next record is further away, another read is faster than walking over the batches between.
READ_BYTES, SMALL_READ_BYTES = 1 << 16, 1 << 10
NEIGHBOURS, NEAR_OFFSETS = 8, 128
# The records of one delivery have at most this many bytes, or segment.bytes, unless there is only one.
MAX_DELIVERY_BYTES = 1 << 18


class StoredRecords:
    """Records of one log that were read ahead, by offset: all of them are pending.

    `window`: how many to read at once.
    """

    def __init__(self, environment: Environment, log: Log) -> None:
        self.window = FIRST_WINDOW
        self._environment = environment
        self._log = log
        self._ready: dict[int, StoredRecord] = {}
        self._ready_bytes = 0
        # What was forgotten since the last read began.
        self._forgotten: set[int] = set()

    @property
    def is_low(self) -> bool:
        """Whether few records are ready, so that it is worth reading a whole window."""
        return 4 * len(self._ready) <= self.window

    def has_all(self, entries: Sequence[Pending]) -> bool:
        return all(offset in self._ready for _, offset in entries)

    def first_ready(self, entries: Sequence[Pending]) -> list[StoredRecord]:
        """Return the first of the entries, as far as they are ready."""
        ready = self._ready
        return [ready[offset] for _, offset in takewhile(lambda entry: entry[1] in ready, entries)]

    async def prepare(self, entries: Sequence[Pending]) -> None:
        """Read those of the entries that are not ready. If they are too large, the window shrinks: call it again.

        `entries`: in the order of delivery. Raises KafkaError, MalformedError if one cannot be read, after all others
        were.
        """
        missing = [entry for entry in paced(entries) if entry[1] not in self._ready]
        if not missing:
            return
        self._forgotten.clear()
        # With many entries, this and each step of `read_stored` takes half a millisecond.
        await self._environment.yield_to_loop()
        async with aclosing(read_stored(self._environment, self._log, missing)) as reading:
            async for records in reading:
                for record in records:
                    # Unless it was cancelled meanwhile.
                    if record.offset not in self._forgotten:
                        self._add(record)
                if self._ready_bytes > MAX_READY_BYTES:
                    # They are read in the order of their offsets, so the first due ones may be missing.
                    self.window = max(min(self.window, len(self._ready)) // 2, 1)
                    self._keep(entries[: self.window])
                    return
        if self._ready:
            # As many as fill three quarters, since sizes differ.
            fitting = MAX_READY_BYTES * 3 // 4 * len(self._ready) // self._ready_bytes
            self.window = max(min(fitting, MAX_WINDOW), 1)

    def _add(self, record: StoredRecord) -> None:
        self._ready[record.offset] = record
        self._ready_bytes += RECORD_BYTES + record.size

    def _keep(self, entries: Sequence[Pending]) -> None:
        """Drop all other records."""
        kept = [self._ready[offset] for _, offset in entries if offset in self._ready]
        self.clear()
        for record in kept:
            self._add(record)

    def take(self, entry: Pending) -> StoredRecord | None:
        """Remove a record, and return it if it is ready."""
        record = self._ready.pop(entry[1], None)
        if record is not None:
            self._ready_bytes -= RECORD_BYTES + record.size
        return record

    def forget(self, entries: Sequence[Pending]) -> None:
        """Remove records that are not pending any more."""
        for entry in entries:
            if self.take(entry) is None:
                self._forgotten.add(entry[1])

    def clear(self) -> None:
        self._ready.clear()
        self._ready_bytes = 0


async def read_stored(
    environment: Environment, log: Log, entries: Sequence[Pending]
) -> AsyncGenerator[list[StoredRecord], None]:
    """Yield the records of these entries, some at a time. Raises as `read_records`."""
    dues: dict[int, int] = {}
    ordered: list[int] = []
    for at in range(0, len(entries), ENTRIES_AT_ONCE):
        chunk = {offset: due_ms for due_ms, offset in entries[at : at + ENTRIES_AT_ONCE]}
        dues.update(chunk)
        ordered += sorted(chunk)
        await environment.yield_to_loop()
    # The ascending runs are merged, in 0.5 ms for a whole window.
    ordered.sort()
    await environment.yield_to_loop()
    async with aclosing(read_records(environment, log, ordered)) as batches:
        async for header, offsets, records in batches:
            for at in range(0, len(offsets), RECORDS_AT_ONCE):
                some = zip(offsets[at : at + RECORDS_AT_ONCE], records[at : at + RECORDS_AT_ONCE], strict=True)
                yield [stored_record((dues[each], each), record, header) for each, record in some if record is not None]
                yield_if_due()
            if None in records:
                raise MalformedError(f"the batch at offset {header.base_offset} lacks a pending record")


async def read_records(
    environment: Environment, log: Log, offsets: Sequence[int]
) -> AsyncGenerator[tuple[BatchHeader, Sequence[int], list[Record | None]], None]:
    """Yield each batch that reaches any of these ascending offsets, with those offsets and its records there.

    The records are None for offsets that the batch lacks, and for batches without delayed records. Deleted records are
    left out. Raises KafkaError, MalformedError at the end, if others could not be read.
    """
    error: KafkaError | MalformedError | None = None
    at = 0
    while (at := max(at, bisect_left(offsets, log.log_start_offset))) < len(offsets):
        first = at
        try:
            view = await read_batches(environment, log, offsets[at], _read_bytes(offsets, at), log.log_end_offset)
            for pos, header in iter_headers(view):
                end = bisect_left(offsets, header.next_offset, at)
                if end > at:
                    some, at = offsets[at:end], end
                    records: list[Record | None] = [None] * len(some)
                    if header.attributes & DELAYED:
                        body = await read_body(environment, view[pos : pos + header.size], header)
                        records = pick_records(body, header, some)
                    yield header, some, records
                yield_if_due()
                if at == len(offsets) or offsets[at] - header.next_offset > NEAR_OFFSETS:
                    break
            if at == first:
                at += 1
                raise MalformedError(f"no batch has offset {offsets[first]}")
        except (KafkaError, MalformedError) as failure:
            if offsets[first] >= log.log_start_offset:
                error = error or failure
            at = max(at, first + 1)
    if error is not None:
        raise error


def _read_bytes(offsets: Sequence[int], at: int) -> int:
    neighbour = offsets[min(at + NEIGHBOURS, len(offsets) - 1)]
    return READ_BYTES if 0 < neighbour - offsets[at] <= NEAR_OFFSETS else SMALL_READ_BYTES


async def read_batches(environment: Environment, log: Log, offset: int, max_bytes: int, end: int) -> memoryview:
    """Read batches below the offset `end`, from the one that contains `offset` on, and at least one.

    Raises KafkaError.
    """
    data: Buffer | None = read(log, offset, max_bytes, end)
    if data is None:
        data = await environment.offload(read_blocking, log, offset, max_bytes, end)
    return memoryview(data)


async def read_body(environment: Environment, batch: memoryview, header: BatchHeader) -> bytes:
    """Return the decompressed records of a batch. Raises MalformedError."""
    body = body_of(batch, 0, header.size)
    if header.codec and header.size <= MAX_LOOP_BYTES:
        try:
            return bytes(decompress(header.codec, body, MAX_LOOP_DECOMPRESSED_BYTES))
        except TooLargeError:
            pass
    if header.codec:
        return bytes(await environment.offload(decompress, header.codec, body, MAX_DECOMPRESSED_BYTES))
    return bytes(body)


def first_batch(records: Sequence[StoredRecord], segment_bytes: int) -> list[StoredRecord]:
    """Return the first records that fit into one batch of the log; at least one, unless there are none."""
    found: list[StoredRecord] = []
    total, max_size = HEADER_SIZE, min(MAX_DELIVERY_BYTES, segment_bytes)
    for record in records:
        total += record.size
        if found and total > max_size:
            break
        found.append(record)
    return found
