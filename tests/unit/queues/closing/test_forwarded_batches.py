"""The batches of closing partitions, without a broker."""

import pytest

from kbroker.queues.closing.forwarded_batches import (
    AbortedRange,
    ClosingFilter,
    forwarded_copy,
    forwarder_id,
    hide,
    must_forward,
    position_of,
    progress_batch,
    start_of_epoch,
)
from kbroker.storage.log.leader_epoch_cache import LeaderEpochCache
from kbroker.storage.producers.producer_state_manager import FIRST_FORWARDER_ID
from protocol.records.batch import CONTROL, HIDDEN, TRANSACTIONAL, build_batch, crc_of, iter_batch_records, parse_header
from tests.unit.support.batch_fields import patch_base_offset, patch_leader_epoch

RECORDS = [(5, b"k", b"v", [(b"h", b"x")]), (6, None, b"w", [])]


def stored(base_offset: int, leader_epoch: int = 3, attributes: int = TRANSACTIONAL) -> bytearray:
    batch = build_batch(RECORDS, producer_id=9, producer_epoch=1, base_sequence=40, attributes=attributes)
    hide(batch, parse_header(batch))
    patch_base_offset(batch, 0, base_offset)
    patch_leader_epoch(batch, 0, leader_epoch)
    return batch


@pytest.mark.parametrize("position", [1, (1 << 31) + 5])
def test_progress_is_an_empty_hidden_batch(position: int) -> None:
    batch = progress_batch(position, forwarder_id(5, 3), 99)
    header = parse_header(batch)
    assert position_of(header.producer_epoch, header.base_sequence) == position
    assert (header.count, header.last_offset_delta, header.max_timestamp, header.attributes) == (0, 0, 99, HIDDEN)
    assert header.crc == crc_of(batch, 0, len(batch))
    patch_leader_epoch(batch, 0, 3)
    header = parse_header(batch)
    assert not must_forward(header, 3, [])
    assert ClosingFilter(3).filter_batch(memoryview(batch), header, 0, 100) is None


@pytest.mark.parametrize("offset", [0, 1, (1 << 31) - 1, 1 << 31, (1 << 45) + 7])
def test_a_forwarded_batch_names_its_offset(offset: int) -> None:
    batch = stored(offset)
    copy = forwarded_copy(batch, parse_header(batch), forwarder_id(5, 3))
    header = parse_header(copy)
    assert position_of(header.producer_epoch, header.base_sequence) == offset
    assert header.crc == crc_of(copy, 0, len(copy))
    assert not header.attributes & (HIDDEN | TRANSACTIONAL)
    assert list(iter_batch_records(copy, header)) == list(iter_batch_records(batch, parse_header(batch)))


def test_each_closing_has_a_producer_of_its_own() -> None:
    ids = {forwarder_id(index, epoch) for index in (0, 1, 99_999) for epoch in (0, 1, 2**31 - 1)}
    assert len(ids) == 9
    assert all(FIRST_FORWARDER_ID <= id < 1 << 63 for id in ids)


def test_which_batches_are_forwarded() -> None:
    header = parse_header(stored(10))
    assert must_forward(header, 3, [])
    assert not must_forward(header, 4, [])
    assert not must_forward(header, 3, [AbortedRange(9, 10, 12)])
    assert must_forward(header, 3, [AbortedRange(9, 11, 12), AbortedRange(9, 2, 9), AbortedRange(8, 0, 50)])
    plain = parse_header(stored(10, attributes=0))
    assert must_forward(plain, 3, [AbortedRange(9, 10, 12)])
    assert not must_forward(plain._replace(attributes=0), 3, [])
    assert not must_forward(plain._replace(attributes=HIDDEN | CONTROL), 3, [])


def test_consumers_see_what_was_stored_before_the_closing() -> None:
    closing = ClosingFilter(3)
    hidden, earlier = memoryview(stored(10)), memoryview(stored(2, leader_epoch=2))
    assert closing.filter_batch(hidden, parse_header(hidden), 0, 1) is None
    assert closing.filter_batch(earlier, parse_header(earlier), 0, 1) is earlier


def test_where_the_closing_begins() -> None:
    epochs = LeaderEpochCache([(0, 0), (3, 10), (5, 20)])
    assert [start_of_epoch(epochs, epoch, 0, 30) for epoch in (3, 4, 5, 6)] == [10, 20, 20, 30]
    epochs.truncate_from_start(25)
    assert start_of_epoch(epochs, 3, 25, 30) == 25
