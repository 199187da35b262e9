"""Batches and damage in a segment file."""

from itertools import pairwise
from pathlib import Path
from random import Random
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.runtime.disk import DiskFile
from kbroker.runtime.real_disk import RealDisk
from kbroker.storage.inspect import batches as batches_module
from kbroker.storage.inspect.batches import BatchAt, Damage, find_header_fault, iter_batches, read_records
from protocol.errors import MalformedError
from protocol.records.batch import assemble_batch, build_batch, parse_header
from protocol.records.compression import GZIP, TooLargeError, compress
from tests.unit.support.log_lab import batch


def segment(count: int, base: int = 0, size: int = 20) -> tuple[bytearray, list[int]]:
    """Return batches one after another, and their positions."""
    data, positions, offset = bytearray(), [], base
    for n in range(count):
        positions.append(len(data))
        data += batch(1 + n % 3, size, base_offset=offset)
        offset += 1 + n % 3
    return data, positions


def opened(tmp_path: Path, data: bytes) -> DiskFile:
    path = tmp_path / "file"
    path.write_bytes(data)
    return RealDisk().open(str(path), write=False)


def inspect(tmp_path: Path, data: bytes, base: int = 0) -> list[BatchAt | Damage]:
    return list(iter_batches(opened(tmp_path, data), len(data), base))


def sound_positions(items: list[BatchAt | Damage]) -> list[int]:
    return [item.position for item in items if isinstance(item, BatchAt) and item.fault is None]


@pytest.fixture(params=[1 << 20, 200])
def _chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test also with chunks so small that batches cross their boundaries."""
    monkeypatch.setattr(batches_module, "_CHUNK", request.param)


pytestmark = pytest.mark.usefixtures("_chunks")


def test_a_sound_segment_has_no_damage(tmp_path: Path) -> None:
    data, positions = segment(30, 1000)
    items = inspect(tmp_path, bytes(data), 1000)
    assert sound_positions(items) == positions
    assert len(items) == 30


def test_a_batch_with_a_wrong_crc_is_reported_and_so_are_those_after_it(tmp_path: Path) -> None:
    data, positions = segment(10)
    data[positions[4] + 70] ^= 1
    items = inspect(tmp_path, bytes(data))
    assert [item.position for item in items] == positions
    assert [item for item in items if isinstance(item, BatchAt) and item.fault] == [
        BatchAt(positions[4], parse_header(data, positions[4]), "its CRC is wrong")
    ]


@pytest.mark.parametrize("length", [-1, 0, 48, 1 << 20, 2**31 - 1, 77])
def test_a_damaged_length_costs_one_batch(tmp_path: Path, length: int) -> None:
    data, positions = segment(10)
    data[positions[4] + 8 : positions[4] + 12] = pack(">i", length)
    items = inspect(tmp_path, bytes(data))
    assert sound_positions(items) == positions[:4] + positions[5:]
    damage = items[4]
    assert isinstance(damage, Damage)
    assert (damage.position, damage.size) == (positions[4], positions[5] - positions[4])
    assert damage.offset == parse_header(data, positions[3]).next_offset


def test_a_length_that_was_damaged_to_that_of_two_batches_hides_no_batch(tmp_path: Path) -> None:
    data, positions = segment(6)
    data[positions[2] + 8 : positions[2] + 12] = pack(">i", positions[4] - positions[2] - 12)
    items = inspect(tmp_path, bytes(data))
    assert sound_positions(items) == positions[:2] + positions[3:]
    assert (items[2].position, type(items[2])) == (positions[2], Damage)


def test_the_end_may_be_torn_or_zeros(tmp_path: Path) -> None:
    data, positions = segment(5)
    *sound, torn = inspect(tmp_path, bytes(data[:-10]))
    assert sound_positions(sound) == positions[:4]
    assert torn == Damage(positions[4], len(data) - 10 - positions[4], 7, torn.reason)  # type: ignore[union-attr]
    assert "remain" in torn.reason  # type: ignore[union-attr]
    assert inspect(tmp_path, bytes(data) + bytes(500))[-1] == Damage(len(data), 500, 9, "500 bytes of zeros")
    assert inspect(tmp_path, bytes(data) + b"\1\2\3")[-1] == Damage(
        len(data), 3, 9, "3 bytes are less than a batch header"
    )


def test_foreign_bytes_between_batches_are_skipped(tmp_path: Path) -> None:
    data, positions = segment(6)
    cut = positions[3]
    foreign = Random(1).randbytes(777)
    items = inspect(tmp_path, bytes(data[:cut]) + foreign + bytes(data[cut:]))
    assert sound_positions(items) == positions[:3] + [position + 777 for position in positions[3:]]
    assert next(item for item in items if isinstance(item, Damage)).size == 777


def test_offsets_that_go_back_are_reported_once(tmp_path: Path) -> None:
    first, _ = segment(4, 100)
    second, _ = segment(4, 50)
    items = inspect(tmp_path, bytes(first + second), 100)
    assert [item.fault for item in items if isinstance(item, BatchAt) and item.fault] == [
        "offsets 50 to 50 where 107 is expected"
    ]
    # A segment under the name of another one.
    faults = [
        item.fault for item in inspect(tmp_path, bytes(first), 1 << 40) if isinstance(item, BatchAt) and item.fault
    ]
    assert faults == [f"offsets 100 to 100 where {1 << 40} is expected"]


def test_a_file_name_may_claim_an_impossible_offset(tmp_path: Path) -> None:
    data, _ = segment(3)
    assert len(inspect(tmp_path, b"junk" * 20 + bytes(data), 10**20 - 1)) == 1


def test_the_search_ends_even_if_everything_looks_like_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "_MIN_CRC_BYTES", 10_000)
    monkeypatch.setattr(batches_module, "_CRC_BYTES_PER_BYTE", 0)
    data = bytearray(bytes(batch(1, 10_000)))
    for position in range(100, 9_000, 70):
        data[position : position + 61] = data[:61]
        data[position + 8 : position + 12] = pack(">i", 900)
    data[8:12] = pack(">i", 9_000_000)
    *_, last = inspect(tmp_path, bytes(data))
    assert isinstance(last, Damage)
    assert last.reason == "too many bytes that only look like batches"


@given(st.data())
def test_batches_outside_of_damaged_bytes_are_found(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content, positions = segment(12)
    ends = [*positions[1:], len(content)]
    start = data.draw(st.integers(0, len(content) - 1))
    junk = data.draw(st.binary(min_size=1, max_size=150))
    content[start : start + len(junk)] = junk
    items = inspect(tmp_path_factory.mktemp("s"), bytes(content))
    hit = range(start, start + len(junk))
    untouched = [at for at, end in zip(positions, ends, strict=True) if end <= hit.start or at >= hit.stop]
    assert set(untouched) <= {item.position for item in items if isinstance(item, BatchAt)}
    # Together they cover the file exactly once.
    covered = [(item.position, item.end if isinstance(item, BatchAt) else item.position + item.size) for item in items]
    assert covered[0][0] == 0
    assert all(before[1] == after[0] for before, after in pairwise(covered))
    assert covered[-1][1] == len(content)


def test_records_are_bounded_and_must_fit_their_batch(tmp_path: Path) -> None:
    data = bytes(build_batch([(5, b"k", b"v", [(b"h", None)]), (6, None, b"w", ())], codec=GZIP))
    file = opened(tmp_path, data)
    header = parse_header(data)
    assert [(item.timestamp, item.key, item.value) for item in read_records(file, 0, header)] == [
        (5, b"k", b"v"),
        (6, None, b"w"),
    ]
    assert [
        item.timestamp for item in read_records(file, 0, header._replace(attributes=GZIP | 8, max_timestamp=9))
    ] == [9, 9]
    with pytest.raises(MalformedError, match="offset delta 1 after 0 in a batch of 1 offsets"):
        list(read_records(file, 0, header._replace(last_offset_delta=0)))
    with pytest.raises(MalformedError, match="too large to be decoded"):
        list(read_records(file, 0, header, max_body=50))
    bomb = assemble_batch(
        compress(GZIP, bytes(1 << 20)), count=1, last_offset_delta=0, base_timestamp=0, max_timestamp=0, attributes=GZIP
    )
    with pytest.raises(TooLargeError):
        list(read_records(opened(tmp_path, bytes(bomb)), 0, parse_header(bomb), max_body=100_000))


def test_headers_that_no_writer_writes() -> None:
    header = parse_header(batch(3))
    assert find_header_fault(header) is None
    assert find_header_fault(header._replace(count=4)) == "4 records for 3 offsets"
    assert find_header_fault(header._replace(attributes=5)) == "unknown compression codec 5"
    assert find_header_fault(header._replace(producer_id=7)) == "producer 7 with epoch -1, sequence -1"
