"""Entries of indexes and producer snapshots, and what is wrong with them."""

from pathlib import Path
from struct import pack

from kbroker.storage.inspect.batches import Damage
from kbroker.storage.inspect.index_checks import (
    IndexEntry,
    decode_producer_entries,
    iter_offset_entries,
    iter_time_entries,
    iter_transaction_entries,
)
from kbroker.storage.producers.producer_state_manager import ProducerStateManager
from protocol.records.batch import parse_header
from tests.unit.storage.inspect.test_batches import opened
from tests.unit.support.log_lab import batch

ZEROS = "entries of zeros, as a power failure leaves them, or an Apache Kafka that runs"


def index(tmp_path: Path, data: bytes) -> list[IndexEntry | Damage]:
    return list(iter_offset_entries(opened(tmp_path, data), len(data)))


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
    # Zeros in the middle are not padding.
    assert index(tmp_path, good + bytes(8) + pack(">ii", 10, 900))[2] == IndexEntry(
        16, (0, 0), "the entries do not ascend"
    )


def test_many_entries_are_read_in_chunks(tmp_path: Path) -> None:
    data = b"".join(pack(">ii", n, 100 * n) for n in range(1, 20_001))
    assert [entry.values[0] for entry in index(tmp_path, data) if isinstance(entry, IndexEntry)] == list(
        range(1, 20_001)
    )
    assert index(tmp_path, data + bytes(1 << 17))[-1] == Damage(160_000, 1 << 17, None, f"16384 {ZEROS}")


def test_time_index_entries(tmp_path: Path) -> None:
    def entries(data: bytes) -> list[IndexEntry | Damage]:
        return list(iter_time_entries(opened(tmp_path, data), len(data)))

    # The first entry of a record of 1970 is not padding.
    assert entries(pack(">qi", 0, 0)) == [IndexEntry(0, (0, 0))]
    assert entries(pack(">qiqi", 0, 0, 5, 3)) == [IndexEntry(0, (0, 0)), IndexEntry(12, (5, 3))]
    assert entries(bytes(120)) == [Damage(0, 120, None, f"10 {ZEROS}")]
    assert entries(pack(">qiqi", 5, 3, 5, 4))[1] == IndexEntry(12, (5, 4), "the entries do not ascend")


def test_transaction_index_entries(tmp_path: Path) -> None:
    data = pack(">hqqqqhqqqq", 0, 7, 10, 20, 21, 3, 8, 9, 10, 11)
    assert list(iter_transaction_entries(opened(tmp_path, data), len(data))) == [
        IndexEntry(0, (0, 7, 10, 20, 21)),
        IndexEntry(34, (3, 8, 9, 10, 11), "unknown version 3"),
    ]


def test_a_damaged_snapshot_still_shows_its_entries() -> None:
    states = ProducerStateManager()
    states.update(parse_header(batch(3, producer_id=7, producer_epoch=1, base_sequence=5)), 100)
    data = states.to_snapshot()()
    entries, fault = decode_producer_entries(bytes(data))
    assert fault is None
    assert entries[0][:5] == (7, 1, 7, 102, 2)
    data[2] ^= 1
    assert decode_producer_entries(bytes(data)) == (entries, "producer snapshot with a wrong CRC")
    assert decode_producer_entries(b"\0")[0] == []
