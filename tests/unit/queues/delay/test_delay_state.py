"""Which records are pending follows from the log: stories of batches."""

import pytest

from kbroker.config.queue_configs import DEFAULT_LEVELS, levels_ms
from kbroker.queues.delay.delay_batches import (
    DELAYED,
    DELIVERED,
    DUE,
    FROM,
    TIMESTAMP,
    StoredRecord,
    build_cancellation,
    build_delivery,
    build_move,
    effects_of,
    store_delayed,
    stored_record,
    visible_batch,
)
from kbroker.queues.delay.delay_state import DelayState
from protocol.records.batch import (
    HIDDEN,
    TRANSACTIONAL,
    BatchHeader,
    body_of,
    build_batch,
    crc_of,
    iter_batch_records,
    parse_header,
)
from protocol.records.compression import decompress
from protocol.records.control import EndTransactionMarker, build_end_marker
from protocol.records.record import Record
from tests.unit.support.batch_fields import patch_base_offset

T = 1_700_000_000_000
SENT = T - 5_000
LEVELS_MS = levels_ms(DEFAULT_LEVELS)


def decode(batch: bytearray, header: BatchHeader) -> list[Record]:
    return list(iter_batch_records(batch, header))


class Log:
    """The batches of a partition, replayed as they are appended."""

    def __init__(self) -> None:
        self.state = DelayState()
        self.end = 0
        self.batches: list[bytearray] = []

    def append(self, batch: bytearray) -> int:
        patch_base_offset(batch, 0, self.end)
        header = parse_header(batch)
        assert header.crc == crc_of(batch, 0, len(batch))
        self.batches.append(batch)
        body = bytes(decompress(header.codec, body_of(batch, 0, header.size), 1 << 20))
        self.state.replay(header, effects_of(batch, body, header, LEVELS_MS))
        base, self.end = self.end, header.next_offset
        return base

    def produce(
        self, *delays: int | None, now: int = T, pid: int = -1, codec: int = 0, create_time: bool = True
    ) -> int:
        records = [
            (SENT, b"k", b"v%d" % n, [] if delay is None else [(b"TIMER_DELAY_MS", b"%d" % delay)])
            for n, delay in enumerate(delays)
        ]
        attributes = TRANSACTIONAL if pid >= 0 else 0
        if not create_time:
            attributes |= 0x08
        batch = build_batch(records, attributes=attributes, producer_id=pid, producer_epoch=0, codec=codec)
        if any(delays):
            store_delayed(batch, parse_header(batch), all(delays), now)
        return self.append(batch)

    def end_transaction(self, pid: int, committed: bool) -> None:
        self.append(build_end_marker(EndTransactionMarker(committed, 0), pid, 0, T))

    def stored(self, due: int, offset: int) -> StoredRecord:
        for batch in self.batches:
            header = parse_header(batch)
            if header.base_offset <= offset < header.next_offset:
                return stored_record((due, offset), decode(batch, header)[offset - header.base_offset], header)
        raise AssertionError(offset)

    @property
    def pending(self) -> list[tuple[int, int]]:
        return self.state.pending.after(None, 100)


def test_records_are_pending_until_they_are_delivered_or_cancelled():
    log = Log()
    log.produce(None, None)
    log.produce(50, 30, 40)
    assert log.pending == [(T + 30, 3), (T + 40, 4), (T + 50, 2)]
    log.append(build_delivery([log.stored(T + 30, 3)], T + 30, log_append_time=False))
    log.append(build_cancellation([(T + 50, 2)], T + 31))
    assert log.pending == [(T + 40, 4)]


def test_a_mixed_batch_is_visible_without_its_delayed_records():
    log = Log()
    log.produce(None, 30, None, codec=1)
    batch = log.batches[0]
    header = parse_header(batch)
    assert header.attributes & (DELAYED | HIDDEN) == DELAYED
    seen = visible_batch(memoryview(batch), header, 1 << 20, LEVELS_MS)
    assert seen is not None
    shown = parse_header(seen)
    assert shown.crc == crc_of(seen, 0, len(seen))
    assert [(r.offset_delta, r.value, r.timestamp) for r in decode(seen, shown)] == [(0, b"v0", SENT), (2, b"v2", SENT)]
    assert (shown.last_offset_delta, shown.attributes, shown.max_timestamp) == (2, 0, SENT)


def test_a_batch_of_delayed_records_is_hidden_and_others_are_untouched():
    log = Log()
    log.produce(10)
    log.produce(None)
    hidden, plain = log.batches
    assert visible_batch(memoryview(hidden), parse_header(hidden), 1 << 20, LEVELS_MS) is None
    view = memoryview(plain)
    assert visible_batch(view, parse_header(plain), 1 << 20, LEVELS_MS) is view


def test_a_delay_of_zero_is_no_delay():
    log = Log()
    log.produce(0, 30)
    assert log.pending == [(T + 30, 1)]
    seen = visible_batch(memoryview(log.batches[0]), parse_header(log.batches[0]), 1 << 20, LEVELS_MS)
    assert seen is not None
    assert parse_header(seen).count == 1


def test_a_delivered_record_says_where_it_comes_from():
    log = Log()
    log.produce(30)
    batch = build_delivery([log.stored(T + 30, 0)], T + 33, log_append_time=False)
    header = parse_header(batch)
    (record,) = decode(batch, header)
    assert (record.key, record.value, record.timestamp) == (b"k", b"v0", T + 33)
    assert record.headers == ((FROM, b"0"), (DUE, b"%d" % (T + 30)), (TIMESTAMP, b"%d" % SENT))
    assert header.attributes == DELIVERED


def test_a_consumer_that_forwards_a_delivered_record_delivers_nothing():
    log = Log()
    log.produce(30)
    log.append(build_batch([(T, None, b"v", [(FROM, b"0"), (DUE, b"%d" % (T + 30))])]))
    assert log.pending == [(T + 30, 0)]


def test_records_of_a_transaction_are_pending_after_its_commit():
    log = Log()
    log.produce(30, pid=7)
    log.produce(20, pid=8)
    assert log.pending == []
    assert log.state.count == 2
    log.end_transaction(8, committed=False)
    log.end_transaction(7, committed=True)
    assert log.pending == [(T + 30, 0)]
    assert log.state.open == {}


def test_a_record_that_is_moved_keeps_its_due_time_and_its_timestamp():
    log = Log()
    log.produce(30)
    base = log.append(build_move([log.stored(T + 30, 0)], T + 1))
    assert log.pending == [(T + 30, base)]
    again = log.append(build_move([log.stored(T + 30, base)], T + 2))
    record = log.stored(T + 30, again)
    assert (record.timestamp, record.value) == (SENT, b"v0")
    log.append(build_delivery([record], T + 30, log_append_time=False))
    assert log.pending == []
    names = [name for name, _ in decode(log.batches[-1], parse_header(log.batches[-1]))[0].headers]
    assert sorted(names) == sorted([FROM, DUE, TIMESTAMP])


def test_with_log_append_time_the_timestamp_is_the_arrival():
    log = Log()
    log.produce(30, create_time=False)
    assert log.stored(T + 30, 0).timestamp == T


def test_delete_records_deletes_pending_ones_too():
    log = Log()
    log.produce(30, 20)
    log.produce(10, pid=7)
    log.state.drop_below(1)
    assert log.pending == [(T + 20, 1)]
    log.state.drop_below(3)
    log.end_transaction(7, committed=True)
    assert log.pending == []


def test_a_snapshot_continues_where_it_was_taken():
    log = Log()
    log.produce(*range(1, 3000))
    log.produce(30, pid=7)
    state = DelayState.from_snapshot(bytes(log.state.to_snapshot(b"prefix")), 6)
    assert (state.next_offset, state.leader_epoch, state.count) == (3000, -1, 3000)
    assert state.pending.after(None, 5000) == log.state.pending.after(None, 5000)
    assert state.open == {7: [(T + 30, 2999)]}
    assert state.lowest_offset() == 0


@pytest.mark.parametrize("size", [0, 3, 20, 100])
def test_a_damaged_snapshot_is_refused(size):
    log = Log()
    log.produce(1, 2, 3)
    data = bytes(log.state.to_snapshot(b""))
    with pytest.raises(ValueError, match="snapshot"):
        DelayState.from_snapshot(data[:size] if size < len(data) else data[:-1])
    with pytest.raises(ValueError, match="CRC"):
        DelayState.from_snapshot(data[:-1] + bytes([data[-1] ^ 1]))
