"""Looking at segments and indexes without trusting them."""

from itertools import pairwise
from pathlib import Path
from random import Random
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.runtime.disk import DiskFile, RealDisk
from kbroker.storage.inspect import batches as inspection
from kbroker.storage.inspect.batches import BatchAt, Damage, batches, header_fault, records_of
from kbroker.storage.inspect.index_files import (
    IndexEntry,
    aborted_entries,
    offset_entries,
    producer_entries,
    time_entries,
)
from kbroker.storage.producers.producer_state_manager import ProducerStateManager
from protocol.errors import MalformedError
from protocol.records.batch import assemble_batch, build_batch, parse_header
from protocol.records.compression import GZIP, TooLargeError, compress
from tests.unit.support.log_lab import batch

ZEROS = "entries of zeros, as a power failure leaves them, or an Apache Kafka that runs"


def segment(count: int, base: int = 0, size: int = 20) -> tuple[bytearray, list[int]]:
    """Batches one after another, and where they begin."""
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


def walk(tmp_path: Path, data: bytes, base: int = 0) -> list[BatchAt | Damage]:
    return list(batches(opened(tmp_path, data), len(data), base))


def places(found: list[BatchAt | Damage]) -> list[int]:
    return [one.position for one in found if isinstance(one, BatchAt) and one.fault is None]


@pytest.fixture(params=[1 << 20, 200])
def _chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with chunks so small that batches cross their borders."""
    monkeypatch.setattr(inspection, "_CHUNK", request.param)


pytestmark = pytest.mark.usefixtures("_chunks")


def test_a_sound_segment_has_no_damage(tmp_path: Path) -> None:
    data, positions = segment(30, 1000)
    found = walk(tmp_path, bytes(data), 1000)
    assert places(found) == positions
    assert len(found) == 30


def test_a_batch_with_a_wrong_crc_is_shown_and_the_rest_after_it(tmp_path: Path) -> None:
    data, positions = segment(10)
    data[positions[4] + 70] ^= 1
    found = walk(tmp_path, bytes(data))
    assert [one.position for one in found] == positions
    assert [one for one in found if isinstance(one, BatchAt) and one.fault] == [
        BatchAt(positions[4], parse_header(data, positions[4]), "its CRC is wrong")
    ]


@pytest.mark.parametrize("length", [-1, 0, 48, 1 << 20, 2**31 - 1, 77])
def test_a_damaged_length_costs_one_batch(tmp_path: Path, length: int) -> None:
    data, positions = segment(10)
    data[positions[4] + 8 : positions[4] + 12] = pack(">i", length)
    found = walk(tmp_path, bytes(data))
    assert places(found) == positions[:4] + positions[5:]
    damage = found[4]
    assert isinstance(damage, Damage)
    assert (damage.position, damage.size) == (positions[4], positions[5] - positions[4])
    assert damage.offset == parse_header(data, positions[3]).next_offset


def test_the_end_may_be_torn_or_zeros(tmp_path: Path) -> None:
    data, positions = segment(5)
    *sound, torn = walk(tmp_path, bytes(data[:-10]))
    assert places(sound) == positions[:4]
    assert torn == Damage(positions[4], len(data) - 10 - positions[4], 7, torn.reason)  # type: ignore[union-attr]
    assert "remain" in torn.reason  # type: ignore[union-attr]
    assert walk(tmp_path, bytes(data) + bytes(500))[-1] == Damage(len(data), 500, 9, "500 bytes of zeros")
    assert walk(tmp_path, bytes(data) + b"\1\2\3")[-1] == Damage(
        len(data), 3, 9, "3 bytes are less than a batch header"
    )


def test_what_was_put_between_batches_is_stepped_over(tmp_path: Path) -> None:
    data, positions = segment(6)
    cut = positions[3]
    foreign = Random(1).randbytes(777)
    found = walk(tmp_path, bytes(data[:cut]) + foreign + bytes(data[cut:]))
    assert places(found) == positions[:3] + [position + 777 for position in positions[3:]]
    assert next(one for one in found if isinstance(one, Damage)).size == 777


def test_offsets_that_go_back_are_told_once(tmp_path: Path) -> None:
    first, _ = segment(4, 100)
    second, _ = segment(4, 50)
    found = walk(tmp_path, bytes(first + second), 100)
    assert [one.fault for one in found if isinstance(one, BatchAt) and one.fault] == [
        "offsets 50 to 50 where 107 is due"
    ]
    # A segment under another's name.
    told = [one.fault for one in walk(tmp_path, bytes(first), 1 << 40) if isinstance(one, BatchAt) and one.fault]
    assert told == [f"offsets 100 to 100 where {1 << 40} is due"]


def test_a_name_may_claim_what_no_offset_can_be(tmp_path: Path) -> None:
    data, _ = segment(3)
    assert len(walk(tmp_path, b"junk" * 20 + bytes(data), 10**20 - 1)) == 1


def test_the_search_ends_even_if_everything_looks_like_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "_CHECKED_AT_LEAST", 10_000)
    monkeypatch.setattr(inspection, "_CHECKED_PER_BYTE", 0)
    data = bytearray(bytes(batch(1, 10_000)))
    for position in range(100, 9_000, 70):
        data[position : position + 61] = data[:61]
        data[position + 8 : position + 12] = pack(">i", 900)
    data[8:12] = pack(">i", 9_000_000)
    *_, last = walk(tmp_path, bytes(data))
    assert isinstance(last, Damage)
    assert last.reason == "too much that is no batch"


@given(st.data())
def test_whatever_happens_to_a_segment_its_other_batches_are_found(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content, positions = segment(12)
    ends = [*positions[1:], len(content)]
    start = data.draw(st.integers(0, len(content) - 1))
    junk = data.draw(st.binary(min_size=1, max_size=150))
    content[start : start + len(junk)] = junk
    found = walk(tmp_path_factory.mktemp("s"), bytes(content))
    hit = range(start, start + len(junk))
    untouched = [at for at, end in zip(positions, ends, strict=True) if end <= hit.start or at >= hit.stop]
    assert set(untouched) <= {one.position for one in found if isinstance(one, BatchAt)}
    # What is told covers the file from its beginning on, once.
    covered = [(one.position, one.end if isinstance(one, BatchAt) else one.position + one.size) for one in found]
    assert covered[0][0] == 0
    assert all(before[1] == after[0] for before, after in pairwise(covered))
    assert covered[-1][1] == len(content)


def test_records_are_bounded_and_must_fit_their_batch(tmp_path: Path) -> None:
    data = bytes(build_batch([(5, b"k", b"v", [(b"h", None)]), (6, None, b"w", ())], codec=GZIP))
    file = opened(tmp_path, data)
    header = parse_header(data)
    assert [(one.timestamp, one.key, one.value) for one in records_of(file, 0, header)] == [
        (5, b"k", b"v"),
        (6, None, b"w"),
    ]
    assert [one.timestamp for one in records_of(file, 0, header._replace(attributes=GZIP | 8, max_timestamp=9))] == [
        9,
        9,
    ]
    with pytest.raises(MalformedError, match="offset delta 1 after 0 in a batch of 1 offsets"):
        list(records_of(file, 0, header._replace(last_offset_delta=0)))
    with pytest.raises(MalformedError, match="not looked into"):
        list(records_of(file, 0, header, max_body=50))
    bomb = assemble_batch(
        compress(GZIP, bytes(1 << 20)), count=1, last_offset_delta=0, base_timestamp=0, max_timestamp=0, attributes=GZIP
    )
    with pytest.raises(TooLargeError):
        list(records_of(opened(tmp_path, bytes(bomb)), 0, parse_header(bomb), max_body=100_000))


def test_what_no_writer_writes_in_a_header() -> None:
    header = parse_header(batch(3))
    assert header_fault(header) is None
    assert header_fault(header._replace(count=4)) == "4 records for 3 offsets"
    assert header_fault(header._replace(attributes=5)) == "unknown compression codec 5"
    assert header_fault(header._replace(producer_id=7)) == "producer 7 with epoch -1, sequence -1"


def index(tmp_path: Path, data: bytes) -> list[IndexEntry | Damage]:
    return list(offset_entries(opened(tmp_path, data), len(data)))


def test_offset_index_entries_and_what_is_wrong_with_them(tmp_path: Path) -> None:
    good = pack(">iiii", 3, 200, 9, 700)
    assert index(tmp_path, b"") == []
    assert index(tmp_path, good) == [IndexEntry(0, (3, 200)), IndexEntry(8, (9, 700))]
    assert index(tmp_path, good + bytes(80)) == [
        IndexEntry(0, (3, 200)),
        IndexEntry(8, (9, 700)),
        Damage(16, 80, None, f"10 {ZEROS}"),
    ]
    assert index(tmp_path, good + bytes(80) + b"ab")[-1] == Damage(16, 82, None, f"10 {ZEROS}")
    assert index(tmp_path, good + b"abc")[-1] == Damage(16, 3, None, "3 bytes are less than an entry of 8")
    assert index(tmp_path, good + pack(">iiii", 9, 800, 11, 900))[2:] == [
        IndexEntry(16, (9, 800), "the entries do not ascend"),
        IndexEntry(24, (11, 900)),
    ]
    assert index(tmp_path, pack(">ii", -5, 900)) == [IndexEntry(0, (-5, 900), "an entry is negative")]
    # Zeros in the middle are entries as others.
    assert index(tmp_path, good + bytes(8) + pack(">ii", 10, 900))[2] == IndexEntry(
        16, (0, 0), "the entries do not ascend"
    )


def test_many_entries_are_read_in_pieces(tmp_path: Path) -> None:
    data = b"".join(pack(">ii", n, 100 * n) for n in range(1, 20_001))
    assert [one.values[0] for one in index(tmp_path, data) if isinstance(one, IndexEntry)] == list(range(1, 20_001))
    assert index(tmp_path, data + bytes(1 << 17))[-1] == Damage(160_000, 1 << 17, None, f"16384 {ZEROS}")


def test_time_index_entries(tmp_path: Path) -> None:
    def entries(data: bytes) -> list[IndexEntry | Damage]:
        return list(time_entries(opened(tmp_path, data), len(data)))

    # A first record of 1970 is no padding.
    assert entries(pack(">qi", 0, 0)) == [IndexEntry(0, (0, 0))]
    assert entries(pack(">qiqi", 0, 0, 5, 3)) == [IndexEntry(0, (0, 0)), IndexEntry(12, (5, 3))]
    assert entries(bytes(120)) == [Damage(0, 120, None, f"10 {ZEROS}")]
    assert entries(pack(">qiqi", 5, 3, 5, 4))[1] == IndexEntry(12, (5, 4), "the entries do not ascend")


def test_aborted_transactions(tmp_path: Path) -> None:
    data = pack(">hqqqqhqqqq", 0, 7, 10, 20, 21, 3, 8, 9, 10, 11)
    assert list(aborted_entries(opened(tmp_path, data), len(data))) == [
        IndexEntry(0, (0, 7, 10, 20, 21)),
        IndexEntry(34, (3, 8, 9, 10, 11), "unknown version 3"),
    ]


def test_a_damaged_snapshot_still_shows_its_entries() -> None:
    states = ProducerStateManager()
    states.update(parse_header(batch(3, producer_id=7, producer_epoch=1, base_sequence=5)), 100)
    data = bytearray(states.to_snapshot())
    entries, fault = producer_entries(bytes(data))
    assert fault is None
    assert entries[0][:5] == (7, 1, 7, 102, 2)
    data[2] ^= 1
    assert producer_entries(bytes(data)) == (entries, "producer snapshot with a wrong CRC")
    assert producer_entries(b"\0")[0] == []
