"""Reads whose positions are known from earlier reads and appends: the same results, with fewer reads of the disk."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from kbroker.common import Buffer
from kbroker.runtime.real_disk import RealFile
from kbroker.storage.log.log import Log
from kbroker.storage.log.log_reads import read_blocking, read_or_slice
from kbroker.storage.log.segment import FileSlice
from protocol.records.batch import BatchHeader, iter_headers
from tests.sampling import third_of
from tests.unit.support.compaction import COMPACT, compact, write
from tests.unit.support.log_lab import NOW, Lab, append, batch, fill, truncate

LIMITS = (0, 60, 100, 300, 1000, 3000, 100_000)


def batches_of(log: Log) -> list[tuple[int, BatchHeader, bytes]]:
    """Return (base offset of the segment, header, bytes) of each batch, from the segment files."""
    found = []
    for segment in log.segments:
        data = segment.open_blocking().pread(segment.size, 0)
        found += [
            (segment.base_offset, header, data[position : position + header.size])
            for position, header in iter_headers(data)
        ]
    return found


def expected_read(
    batches: list[tuple[int, BatchHeader, bytes]], offset: int, max_bytes: int, max_offset: int, min_one: bool
) -> bytes:
    out = b""
    segment = None
    for base, header, data in batches if offset < max_offset else []:
        if header.last_offset < offset:
            continue
        is_too_large = len(out) + len(data) > max_bytes and (out or not min_one)
        if header.last_offset >= max_offset or is_too_large or segment not in (None, base):
            break
        out += data
        segment = base
    return out


def bytes_of(data: Buffer | FileSlice) -> bytes:
    if not isinstance(data, FileSlice):
        return bytes(data)
    parts = []
    while data:
        parts.append(bytes(data.read_blocking(1 << 20)))
    return b"".join(parts)


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.storage.log.log_reads.BULK_BYTES", 400)


@pytest.mark.parametrize("seed", third_of(range(8)))
def test_reads_stay_right_while_the_log_changes(tmp_path: Path, seed: int) -> None:
    """A read with a known position sees all appends, rolls, truncations, retention and deleted records."""
    random = Random(seed)
    lab = Lab(tmp_path, segment_bytes=2000, index_interval_bytes=200, retention_bytes=12_000)
    log = lab.open()
    fill(log, 40)
    offsets = [0]
    for _ in range(120):
        change = random.random()
        if change < 0.5:
            fill(log, random.randrange(4))
        elif change < 0.6:
            log.roll(NOW)
        elif change < 0.7:
            truncate(log, max(log.log_end_offset - random.randrange(20), log.log_start_offset))
        elif change < 0.8:
            log.delete_records(min(log.log_start_offset + random.randrange(5), log.log_end_offset))
        elif change < 0.9:
            log.enforce_retention(NOW, log.log_end_offset)
        else:
            log.durability.checkpoint()
        batches, end = batches_of(log), log.log_end_offset
        for _ in range(20):
            # Readers repeat each other's offsets, and read on from where others have stopped.
            offset = random.choice(offsets) if random.random() < 0.7 else random.randrange(end + 1)
            if not log.log_start_offset <= offset <= end:
                continue
            arguments = offset, random.choice(LIMITS), random.choice([end, end, random.choice(offsets)]), True
            if random.random() < 0.2:
                arguments = *arguments[:3], False
            data = read_or_slice(log, *arguments)
            read = bytes_of(read_blocking(log, *arguments) if data is None else data)
            assert read == expected_read(batches, *arguments), arguments
            next_offset = max((header.next_offset for _, header in iter_headers(read)), default=offset)
            offsets = [offset, next_offset, *offsets[:20]]


@pytest.mark.parametrize("seed", third_of(range(4)))
def test_reads_stay_right_while_the_log_is_compacted(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    log = Lab(tmp_path, **COMPACT, index_interval_bytes=200).open()
    for _ in range(6):
        write(log, random, 60)
        end = log.log_end_offset
        for _ in range(2):
            batches = batches_of(log)
            for offset in range(0, end, 7):
                for max_bytes in LIMITS:
                    data = read_or_slice(log, offset, max_bytes, end)
                    read = bytes_of(read_blocking(log, offset, max_bytes, end) if data is None else data)
                    assert read == expected_read(batches, offset, max_bytes, end, True)
            compact(log)


class DiskReads:
    """Counts the reads of a test."""

    count = 0


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[DiskReads]:
    counted = DiskReads()
    pread_nowait = RealFile.pread_nowait

    def count(self: RealFile, size: int, offset: int) -> memoryview | None:
        counted.count += 1
        return pread_nowait(self, size, offset)

    monkeypatch.setattr(RealFile, "pread_nowait", count)
    return counted


def read_slice(log: Log, offset: int, max_bytes: int) -> int:
    """Read a slice, and return the offset that follows it."""
    data = read_or_slice(log, offset, max_bytes, log.log_end_offset)
    assert isinstance(data, FileSlice)
    return max(header.next_offset for _, header in iter_headers(bytes_of(data)))


def test_a_slice_of_recent_appends_needs_no_read_of_the_disk(tmp_path: Path, reads: DiskReads) -> None:
    log = Lab(tmp_path).open()
    for _ in range(50):
        append(log, batch(3, 100))
    assert read_slice(log, 0, 2000) < read_slice(log, 30, 2000)
    assert reads.count == 0


def test_a_read_that_was_made_before_needs_no_read_of_the_disk(tmp_path: Path, reads: DiskReads) -> None:
    log = Lab(tmp_path).open()
    for _ in range(1000):
        append(log, batch(3, 100))
    following = read_slice(log, 30, 2000)
    before = reads.count
    assert before > 0
    assert read_slice(log, 30, 2000) == following
    assert reads.count == before


def test_the_size_of_a_first_batch_that_exceeds_the_limit_is_known_afterwards(tmp_path: Path, reads: DiskReads) -> None:
    log = Lab(tmp_path).open()
    for _ in range(1000):
        append(log, batch(10, 100))
    assert read_slice(log, 0, 100) == 10
    assert reads.count == 1
    assert read_slice(log, 0, 100) == 10
    assert read_or_slice(log, 0, 100, log.log_end_offset, False) == b""
    assert reads.count == 1
    assert read_slice(log, 0, 2000) == 10


def test_a_consumer_that_reads_a_closed_segment_needs_one_read_for_the_end_of_each_slice(
    tmp_path: Path, reads: DiskReads
) -> None:
    lab = Lab(tmp_path, index_interval_bytes=1)
    log = lab.open()
    for _ in range(3000):
        append(log, batch(1, 500))
    log.roll(NOW)
    assert lab.close(log)
    log = lab.open(log.log_end_offset, clean=True)
    segment = log.segments[0]
    assert segment.indexes.offset is None
    segment.open_blocking()
    assert read_or_slice(log, 0, 5000, log.log_end_offset) is None, "the index file is not open"
    read_blocking(log, 1, 5000, log.log_end_offset)
    offset = read_slice(log, 0, 5000)
    before, slices = reads.count, 0
    while offset < 2900:
        offset = read_slice(log, offset, 5000)
        slices += 1
    # And now and then a block of the index.
    assert slices > 300
    assert reads.count - before <= slices + 20
