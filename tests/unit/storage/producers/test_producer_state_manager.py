"""Sequences of idempotent producers, with the results of Kafka: duplicates, gaps, epochs, expiry, snapshots."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.common import KafkaError
from kbroker.storage.producers.producer_state_manager import ProducerStateManager
from kbroker.storage.producers.producer_table import MAX_SEQUENCE, ActiveProducer
from kbroker.storage.producers.transactions import NO_UNSTABLE_OFFSET, CompletedTransaction
from protocol.errors import ErrorCode
from protocol.records.batch import CONTROL, TRANSACTIONAL, BatchHeader, build_batch, parse_header
from tests.unit.storage.producers.kafka_responses import RESPONSES, SNAPSHOT

DAY = 86_400_000


def batch(
    sequence: int, count: int = 1, *, epoch: int = 0, pid: int = 7, timestamp: int = 1000, attributes: int = 0
) -> BatchHeader:
    records = [(timestamp, b"k", b"v", ())] * count
    header = {"producer_id": pid, "producer_epoch": epoch, "base_sequence": sequence}
    return parse_header(build_batch(records, attributes=attributes, **header))


def marker(*, epoch: int = 0, pid: int = 7, timestamp: int = 1000) -> BatchHeader:
    return batch(-1, epoch=epoch, pid=pid, timestamp=timestamp, attributes=TRANSACTIONAL | CONTROL)


def test_a_hold_stays_below_a_truncation() -> None:
    before, after = ProducerStateManager(), ProducerStateManager()
    before.hold_transactions(10, 99)
    after.keep_completed_transactions(before, 50)
    assert after.transactions.first_unstable_offset == 10
    after.on_high_watermark_updated(49)
    assert after.transactions.first_unstable_offset == 10
    after.on_high_watermark_updated(50)
    assert after.transactions.first_unstable_offset == NO_UNSTABLE_OFFSET
    # A second truncation, and one after the hold has ended.
    once, twice, ended = ProducerStateManager(), ProducerStateManager(), ProducerStateManager()
    once.keep_completed_transactions(before, 50)
    twice.keep_completed_transactions(once, 20)
    twice.on_high_watermark_updated(20)
    assert twice.transactions.first_unstable_offset == NO_UNSTABLE_OFFSET
    before.on_high_watermark_updated(100)
    ended.keep_completed_transactions(before, 50)
    assert ended.transactions.first_unstable_offset == NO_UNSTABLE_OFFSET


class Partition:
    """A partition with its producer state and log end offset, without a log."""

    def __init__(self) -> None:
        self.states = ProducerStateManager()
        self.end = 0

    def produce(self, header: BatchHeader) -> tuple[int, int, int]:
        """Produce a batch. Returns (error code, base offset, timestamp), as in Kafka's response."""
        try:
            duplicate = self.states.check(header)
        except KafkaError as error:
            return int(error.code), -1, -1
        if duplicate is not None:
            return 0, duplicate[0], duplicate[2]
        base, self.end = self.end, self.end + header.count
        self.states.update(header, base)
        return 0, base, -1

    def error(self, header: BatchHeader) -> ErrorCode:
        return ErrorCode(self.produce(header)[0])


@pytest.fixture
def partition() -> Partition:
    return Partition()


def after_kafkas_steps() -> Partition:
    partition = Partition()
    for pid, steps in RESPONSES.items():
        for i, (epoch, sequence, count, *response) in enumerate(steps):
            header = batch(sequence, count, epoch=epoch, pid=pid, timestamp=1000 * pid + i)
            assert list(partition.produce(header)) == response, (pid, i)
    return partition


def test_responses_are_those_of_kafka():
    after_kafkas_steps()


def test_the_snapshot_is_kafkas_byte_for_byte():
    states = after_kafkas_steps().states
    assert states.to_snapshot()() == SNAPSHOT
    assert list(ProducerStateManager.from_snapshot(SNAPSHOT).active()) == list(states.active())


def test_a_retry_of_any_of_the_last_five_batches_is_recognized(partition):
    for i in range(6):
        assert partition.produce(batch(2 * i, 2, timestamp=i)) == (0, 2 * i, -1)
    for i in range(1, 6):
        assert partition.produce(batch(2 * i, 2, timestamp=99)) == (0, 2 * i, i)
    assert partition.error(batch(0, 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.end == 12


def test_a_retry_with_another_count_is_no_duplicate(partition):
    partition.produce(batch(0, 2))
    assert partition.error(batch(0, 3)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_is_out_of_order(partition):
    partition.produce(batch(0, 2))
    assert partition.error(batch(3)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.error(batch(2)) == ErrorCode.NONE


def test_an_unknown_producer_may_begin_anywhere(partition):
    # KIP-360: its state may have expired.
    assert partition.error(batch(41)) == ErrorCode.NONE
    assert partition.error(batch(43)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_newer_epoch_begins_at_zero(partition):
    partition.produce(batch(0, 5))
    assert partition.error(batch(5, epoch=1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.error(batch(0, epoch=1)) == ErrorCode.NONE
    assert partition.error(batch(5)) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_sequences_wrap(partition):
    assert partition.produce(batch(MAX_SEQUENCE - 1, 4)) == (0, 0, -1)
    assert partition.produce(batch(MAX_SEQUENCE - 1, 4)) == (0, 0, 1000)
    assert partition.error(batch(3)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.error(batch(2)) == ErrorCode.NONE
    other = Partition()
    other.produce(batch(MAX_SEQUENCE))
    assert other.error(batch(0)) == ErrorCode.NONE


def test_producers_do_not_disturb_each_other(partition):
    partition.produce(batch(0, 3, pid=1))
    assert partition.error(batch(0, 2, pid=2)) == ErrorCode.NONE
    assert partition.error(batch(3, pid=1)) == ErrorCode.NONE


def test_expiry_goes_by_the_timestamp_of_the_last_batch(partition):
    partition.produce(batch(0, pid=1, timestamp=1000))
    partition.produce(batch(0, pid=2, timestamp=1000))
    partition.produce(batch(1, pid=2, timestamp=1001))
    assert partition.states.remove_expired(1000 + DAY - 1, DAY) == 0
    assert partition.states.remove_expired(1000 + DAY, DAY) == 1
    assert [producer.producer_id for producer in partition.states.active()] == [2]
    assert partition.error(batch(17, pid=1)) == ErrorCode.NONE


def test_an_open_transaction_keeps_a_producer(partition):
    partition.produce(batch(0))
    partition.produce(batch(1, 2, attributes=TRANSACTIONAL))
    partition.produce(batch(3, attributes=TRANSACTIONAL))
    assert list(partition.states.active()) == [ActiveProducer(7, 0, 3, 1000, -1, 1)]
    assert partition.states.remove_expired(10 * DAY, DAY) == 0
    assert partition.states.end_transaction(marker(timestamp=2000), 4, True, 12) == CompletedTransaction(
        7, 1, 4, True, 5
    )
    assert list(partition.states.active()) == [ActiveProducer(7, 0, 3, 2000, 12, -1)]
    assert partition.error(batch(4)) == ErrorCode.NONE
    assert partition.states.remove_expired(10 * DAY, DAY) == 1


def test_a_marker_of_a_newer_epoch_fences_the_older(partition):
    partition.produce(batch(0))
    assert partition.states.end_transaction(marker(epoch=1, timestamp=2000), 1, True, 3) is None
    assert partition.error(batch(1)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert partition.error(batch(1, epoch=1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert list(ProducerStateManager.from_snapshot(partition.states.to_snapshot()()).active()) == [
        ActiveProducer(7, 1, -1, 2000, 3, -1)
    ]
    assert partition.error(batch(0, epoch=1)) == ErrorCode.NONE


def test_a_snapshot_keeps_the_last_batch_and_the_sequence_continues(partition):
    partition.produce(batch(MAX_SEQUENCE - 9, 8))
    partition.produce(batch(MAX_SEQUENCE - 1, 3, timestamp=5))
    partition.states = ProducerStateManager.from_snapshot(partition.states.to_snapshot()())
    assert partition.produce(batch(MAX_SEQUENCE - 1, 3)) == (0, 8, 5)
    assert partition.error(batch(MAX_SEQUENCE - 9, 8)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.produce(batch(1)) == (0, 11, -1)


def test_a_snapshot_without_producers():
    data = ProducerStateManager().to_snapshot()()
    assert len(data) == 10
    assert len(ProducerStateManager.from_snapshot(data)) == 0


def test_damaged_snapshots_are_rejected():
    for cut in (0, 5, 9, 10, len(SNAPSHOT) - 1):
        with pytest.raises(ValueError, match="producer snapshot"):
            ProducerStateManager.from_snapshot(SNAPSHOT[:cut])
    with pytest.raises(ValueError, match="version 2"):
        ProducerStateManager.from_snapshot(b"\0\2" + SNAPSHOT[2:])
    with pytest.raises(ValueError, match="producer snapshot"):
        ProducerStateManager.from_snapshot(SNAPSHOT + b"\0")


@given(st.integers(min_value=0, max_value=len(SNAPSHOT) - 1), st.integers(min_value=1, max_value=255))
def test_any_damaged_byte_is_detected(position, change):
    data = bytearray(SNAPSHOT)
    data[position] ^= change
    with pytest.raises(ValueError, match="producer snapshot"):
        ProducerStateManager.from_snapshot(bytes(data))
