"""Encoding values as records, and reading fetched batches."""

from random import Random

import pytest

from kbroker.simulation.clients.records import (
    CorruptRecordError,
    RecordShape,
    build_records,
    read_batches,
    value_of,
)
from protocol.records.batch import TRANSACTIONAL, build_batch
from protocol.records.control import EndTransactionMarker, build_end_marker


def batch(base_offset: int, *values: int, epoch: int = 3, **options: int) -> bytes:
    content = build_records(values, 1_000, RecordShape(max_padding=50), Random(1))
    return bytes(build_batch(content, base_offset=base_offset, leader_epoch=epoch, **options))


def marker(base_offset: int, producer_id: int, *, committed: bool) -> bytes:
    built = build_end_marker(EndTransactionMarker(committed, 0), producer_id, 0, 1_000)
    return base_offset.to_bytes(8, "big") + bytes(built[8:])


@pytest.mark.parametrize("content", [None, b"", b"....", b"12x", b"..12"])
def test_foreign_content_is_rejected(content: bytes | None) -> None:
    with pytest.raises(ValueError, match=r"."):
        value_of(content)


def test_aborted_batches_are_skipped() -> None:
    data = b"".join(
        (
            batch(0, 1, producer_id=7, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL),
            batch(1, 2, producer_id=8, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL),
            batch(2, 3),
            marker(3, 7, committed=False),
            batch(4, 4, producer_id=7, producer_epoch=0, base_sequence=1, attributes=TRANSACTIONAL),
        )
    )
    assert [value for _, value in read_batches(data, 0, [(7, 0)], 100).reads] == [2, 3, 4]
    assert [value for _, value in read_batches(data, 0, [], 100).reads] == [1, 2, 3, 4]


def test_corrupt_batch_raises_only_if_it_is_first() -> None:
    good, bad = batch(0, 1, 2), bytearray(batch(2, 3))
    bad[-1] ^= 1
    fetched = read_batches(good + bad, 0, (), 100)
    assert (fetched.reads, fetched.next_offset) == ([(0, 1), (1, 2)], 2)
    with pytest.raises(CorruptRecordError, match="wrong CRC"):
        read_batches(bytes(bad), 2, (), 100)


def test_foreign_record_is_corrupt() -> None:
    strange = build_batch([(0, None, b"not a number", ())])
    with pytest.raises(CorruptRecordError, match="not a number"):
        read_batches(bytes(strange), 0, (), 100)


def test_impossible_batch_length_is_corrupt() -> None:
    with pytest.raises(CorruptRecordError):
        read_batches(bytes(8) + (5).to_bytes(4, "big") + bytes(100), 0, (), 100)
