"""The transaction index: lookups in file and memory, damage, recovery."""

from pathlib import Path
from random import Random

import pytest

from kbroker.storage import file_names
from kbroker.storage.log.indexes import WouldBlock
from kbroker.storage.log.log import Log
from kbroker.storage.log.log_reads import find_aborted_transactions, read_blocking
from kbroker.storage.log.transaction_index import AbortedTransaction, TransactionIndex, decode_entries, encode_entries
from protocol.records.batch import TRANSACTIONAL, build_batch
from protocol.records.control import EndTransactionMarker, build_end_marker
from tests.unit.support.log_lab import NOW, Lab, append


def entries(count: int, random: Random) -> list[AbortedTransaction]:
    transactions, offset = [], 0
    for n in range(count):
        offset += random.randrange(2, 30)
        first = random.randrange(max(offset - 100, 0), offset)
        transactions.append(AbortedTransaction(n, first, offset, max(first - 5, 0) if n % 3 else offset + 1))
    return transactions


@pytest.mark.parametrize("in_file", [0, 1, 63, 64, 65, 200])
def test_overlapping_transactions_are_found_in_file_and_memory(in_file: int) -> None:
    random = Random(in_file)
    known = entries(200, random)
    data = encode_entries(known[:in_file])
    index = TransactionIndex(in_file, known[in_file - 1].last_offset if in_file else -1)
    for entry in known[in_file:]:
        index.add(entry)
    assert len(index) == 200
    for _ in range(300):
        start = random.randrange(known[-1].last_offset + 5)
        end = start + random.randrange(1, 200)
        expected, complete = [], False
        for entry in known:
            if entry.last_offset >= start:
                if entry.first_offset < end:
                    expected.append(entry)
                if entry.last_stable_offset >= end:
                    complete = True
                    break
        transactions: list[AbortedTransaction] = []
        assert index.collect(lambda size, at: data[at : at + size], start, end, transactions) == complete
        assert transactions == expected


def test_entries_move_to_the_file_one_by_one() -> None:
    known = entries(5, Random(1))
    index = TransactionIndex()
    for entry in known:
        index.add(entry)
    assert index.encode_unwritten() == encode_entries(known)
    index.mark_written(2)
    index.mark_written(1)
    assert (len(index), index.persisted, index.encode_unwritten()) == (5, 2, encode_entries(known[2:]))
    with pytest.raises(WouldBlock):
        index.collect(lambda size, at: None, 0, 1 << 60, [])
    with pytest.raises(ValueError, match="ends early"):
        index.collect(lambda size, at: b"", 0, 1 << 60, [])


@pytest.mark.parametrize("damage", [(1, 1), (10, 0x80), (18, 0x80), (26, 0x80), (33, 0xFF)])
def test_damaged_entries_are_rejected(damage: tuple[int, int]) -> None:
    data = bytearray(encode_entries([AbortedTransaction(1, 5, 9, 10)]))
    data[damage[0]] ^= damage[1]
    with pytest.raises(ValueError, match=r"version|ascend|beyond"):
        list(decode_entries(bytes(data)))
    with pytest.raises(ValueError, match="34"):
        list(decode_entries(bytes(data[:-1])))


def transaction(log: Log, pid: int, *, committed: bool = False, records: int = 2) -> tuple[int, int]:
    epoch = log.log_end_offset
    at = {"producer_id": pid, "producer_epoch": epoch, "base_sequence": 0}
    first = append(log, build_batch([(NOW, None, b"v", ())] * records, attributes=TRANSACTIONAL, **at))
    return first, append(log, build_end_marker(EndTransactionMarker(committed, 0), pid, epoch, NOW))


def aborted(log: Log) -> list[tuple[int, int, int]]:
    transactions: list[AbortedTransaction] = []
    for segment in log.segments:
        segment.collect_aborted(0, 1 << 62, True, transactions)
    return [transaction[:3] for transaction in transactions]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path, segment_bytes=600)


def test_no_file_without_an_aborted_transaction(lab: Lab) -> None:
    log = lab.open()
    for _ in range(20):
        transaction(log, 1, committed=True)
    lab.close(log)
    assert lab.files(file_names.TXN_INDEX) == []


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("change", ["none", "cut", "zeros", "swapped"])
def test_a_damaged_index_is_rebuilt(lab: Lab, clean: bool, change: str) -> None:
    log = lab.open()
    expected = [(n % 3, *transaction(log, n % 3)) for n in range(20)]
    assert lab.close(log)
    files = [lab.path / name for name in lab.files(file_names.TXN_INDEX)]
    assert len(files) > 3
    for file in files[1:3]:
        data = file.read_bytes()
        file.write_bytes({
            "none": data, "cut": data[:-3], "zeros": data[:-34] + bytes(34), "swapped": data[34:] + data[:34],
        }[change])  # fmt: skip
    for _ in range(2):
        log = lab.open(recovery_point=log.log_end_offset, clean=clean)
        assert (len(log.repairs) > 0) == (change != "none")
        assert aborted(log) == expected
        change = "none"


def test_a_lost_index_beyond_the_snapshot_is_rebuilt(lab: Lab) -> None:
    log = lab.open()
    expected = [(1, *transaction(log, 1)) for _ in range(3)]
    lab.close(log)
    for name in lab.files(file_names.TXN_INDEX) + lab.files(file_names.SNAPSHOT):
        (lab.path / name).unlink()
    assert aborted(lab.open()) == expected


def test_entries_of_truncated_transactions_are_removed_durably(lab: Lab) -> None:
    """Otherwise the next start after a clean shutdown would use them, and hide records at their offsets."""
    log = lab.open()
    expected = [(1, *transaction(log, 1))]
    transaction(log, 2)
    lab.close(log)
    path = lab.path / lab.files(file_names.LOG)[0]
    path.write_bytes(path.read_bytes()[:-1])
    log = lab.open()
    assert aborted(log) == expected
    append(log, build_batch([(NOW, None, b"v", ())] * 9))
    lab.close(log)
    assert aborted(lab.open(recovery_point=log.log_end_offset, clean=True)) == expected


def test_an_index_is_removed_with_its_segment(lab: Lab) -> None:
    log = lab.open()
    for n in range(20):
        transaction(log, n)
    log.durability.checkpoint()
    before = lab.files(file_names.TXN_INDEX)
    log.delete_records(log.segments[2].base_offset)
    log.enforce_retention(NOW, log.log_end_offset)
    assert lab.files(file_names.TXN_INDEX) == before[2:]


def test_a_read_finds_aborted_transactions_with_markers_in_later_segments(lab: Lab) -> None:
    log = lab.open()
    at = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0}
    append(log, build_batch([(NOW, None, b"v", ())], attributes=TRANSACTIONAL, **at))
    for n in range(20):
        transaction(log, n % 2, committed=True)
    marker = append(log, build_end_marker(EndTransactionMarker(False, 0), 9, 0, NOW))
    assert len(log.segments) > 3
    size = len(read_blocking(log, 0, 100, log.log_end_offset))
    aborted = find_aborted_transactions(log, 0, size, True)
    assert aborted is not None
    assert [transaction[:3] for transaction in aborted] == [(9, 0, marker)]
