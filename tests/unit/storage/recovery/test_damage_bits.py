"""Each bit of batch headers, and some bits of bodies, flipped.

Above the recovery point the log is truncated before the damaged batch. Below it, and after a clean shutdown, batches
are not checked, as in Kafka: a read still begins at a batch, and the batches after the damage can be read.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest

from kbroker.common import KafkaError
from kbroker.storage.log.batch_scan import MAX_RELATIVE_OFFSET
from kbroker.storage.log.log import Log
from kbroker.storage.log.log_reads import read_blocking
from kbroker.storage.log.offset_lookup import find_offset_for_timestamp
from protocol.errors import ErrorCode
from protocol.records.batch import HEADER, HEADER_SIZE, MAGIC, build_batch, parse_header
from tests.unit.support.damaged_log import (
    RECORDS,
    LogCopy,
    Written,
    flip_bit,
    is_out_of_order,
    log_data,
    memory_lab,
    send_again,
    write,
)
from tests.unit.support.log_lab import NOW, append, batch, content, forget_positions

BATCHES = 12
FIRST, MIDDLE, LAST = 0, 8, BATCHES - 1
BITS = 8 * HEADER_SIZE
# Not covered by the CRC, and contradicted by nothing: Kafka accepts the batch too.
LEADER_EPOCH = range(8 * 12, 8 * 16)
TIMESTAMPS = range(8 * 27, 8 * 43)


@contextmanager
def corrupt_if(possible: bool) -> Iterator[None]:
    """Suppress CORRUPT_MESSAGE if damage makes it `possible`; any other error is raised."""
    try:
        yield
    except KafkaError as error:
        if error.code is not ErrorCode.CORRUPT_MESSAGE or not possible:
            raise


def write_log(clean: bool, point: int = 0) -> tuple[LogCopy, Written]:
    lab = memory_lab(index_interval_bytes=200)
    log = lab.open()
    written = write(log, BATCHES, checkpoint_at=point - 1)
    if clean:
        assert lab.close(log)
    copy = LogCopy(lab)
    if not clean and not point:
        copy.remove_checkpoint()
    return copy, written


@pytest.mark.parametrize("number", [FIRST, MIDDLE, LAST], ids=["first", "middle", "last"])
def test_each_bit_of_a_header_above_the_recovery_point(number: int) -> None:
    copy, written = write_log(False)
    position, header = written.at[number]
    for bit in range(BITS):
        damaged = flip_bit(written.data, 8 * position + bit)
        lab = copy.make(log=damaged)
        log = lab.open()
        if bit in LEADER_EPOCH:
            assert (log.log_end_offset, log.repairs) == (RECORDS * BATCHES, []), bit
            continue
        base_offset = parse_header(damaged, position).base_offset
        if number == LAST and header.base_offset < base_offset <= MAX_RELATIVE_OFFSET - RECORDS:
            # No later batch contradicts the gap, and the log of a follower may have one.
            assert (log.log_end_offset, log.repairs) == (base_offset + RECORDS, []), bit
            continue
        assert (log.log_end_offset, content(log)) == (header.base_offset, written.data[:position]), bit
        assert log_data(lab) == written.data[:position]
        assert [line for line in log.repairs if "cut from" in line], bit
        if bit % 16 == 0 and number:
            assert is_out_of_order(log, number + 1)
            send_again(log, written, max(0, number - 2))
            # The leader epochs are those of the log.
            assert (content(log), log.epochs.entries) == (written.data, [(0, 0), (1, 12), (2, 24)])


def test_bits_of_bodies_above_the_recovery_point() -> None:
    copy, written = write_log(False, 4)
    random = Random(1)
    for _ in range(200):
        number = random.randrange(4, BATCHES)
        position, header = written.at[number]
        bit = 8 * position + random.randrange(8 * HEADER_SIZE, 8 * header.size)
        lab = copy.make(log=flip_bit(written.data, bit))
        log = lab.open(RECORDS * 4)
        assert content(log) == written.data[:position], bit
        assert "CRC" in log.repairs[-1]


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("number", [FIRST, MIDDLE], ids=["first", "middle"])
def test_unchecked_damage_does_not_affect_the_batches_around_it(number: int, clean: bool) -> None:
    copy, written = write_log(clean, BATCHES)
    starts = [position for position, _ in written.at]
    hole_at, hole = written.at[number]
    for bit in range(BITS):
        damaged = bytes(flip_bit(written.data, 8 * hole_at + bit))
        lab = copy.make(log=damaged)
        log = lab.open(RECORDS * BATCHES, clean)
        assert log.log_end_offset == RECORDS * BATCHES
        # The producer state is that of the snapshot, not of a damaged header.
        assert log.producers.check(written.at[-1][1]) is not None, bit
        assert is_out_of_order(log, BATCHES + 1)
        for offset in range(max(0, hole.base_offset - 2 * RECORDS), hole.next_offset + 3 * RECORDS):
            forget_positions(log)
            in_hole = hole.base_offset <= offset < hole.next_offset
            with corrupt_if(in_hole):
                data = bytes(read_blocking(log, offset, 1 << 20, log.log_end_offset))
            at = len(damaged) - len(data)
            assert data == damaged[at:]
            assert at in starts, "a read must begin at a batch"
            # With a base offset that is too low the batch seems to be before the offset, and the next one is returned.
            # Kafka does the same: after a compaction this is right.
            assert at <= starts[offset // RECORDS + in_hole], "a read must not begin after the batch of its offset"
        check_times(log, written, number, bit)
        assert log_data(lab) == damaged


def check_times(log: Log, written: Written, number: int, bit: int) -> None:
    """Check that the batches around the damaged one are found by their timestamps."""
    for other, (_, header) in enumerate(written.at):
        if other in (number - 1, number, number + 1):
            continue
        # With a damaged max timestamp the batch seems to have the timestamp of the lookup.
        misleading = bit in TIMESTAMPS
        with corrupt_if(misleading):
            position = find_offset_for_timestamp(log, header.base_timestamp, log.log_end_offset)
            assert position is not None, (bit, other)
            assert position[0] == header.base_offset or misleading, (bit, other)


@pytest.mark.parametrize("damage", [b"\x7f", b"\xff" * HEADER_SIZE], ids=["its length", "its header"])
def test_a_rebuilt_index_leads_past_the_damage(damage: bytes) -> None:
    """The index leads past the damage after the next start, too."""
    lab = memory_lab(index_interval_bytes=200)
    log = lab.open()
    written = write(log, 2 * BATCHES, roll_at=(BATCHES - 1,))
    assert lab.close(log)
    position, header = written.at[MIDDLE]
    damaged = bytearray(log_data(lab))
    damaged[position + 8 : position + 8 + len(damage)] = damage
    lab = LogCopy(lab).make(log=bytes(damaged), **{f"{0:020d}.index": None})
    for start in range(3):
        log = lab.open(log.log_end_offset, True)
        assert any("rebuilt from the log" in line for line in log.repairs) == (start == 0)
        for offset in range(log.log_end_offset):
            forget_positions(log)
            at, expected = written.at[offset // RECORDS]
            with corrupt_if(expected == header):
                assert read_blocking(log, offset, 1, log.log_end_offset) == written.data[at : at + expected.size]
        assert find_offset_for_timestamp(log, NOW + 10 * (MIDDLE + 1), log.log_end_offset) is not None
        assert lab.close(log)


@pytest.mark.parametrize("what", ["index", "log"])
def test_damage_noticed_by_a_read_is_logged_once(what: str, caplog: pytest.LogCaptureFixture) -> None:
    lab = memory_lab(index_interval_bytes=200)
    log = lab.open()
    written = write(log, 2 * BATCHES, roll_at=(BATCHES - 1,))
    assert lab.close(log)
    copy = LogCopy(lab)
    data = log_data(lab)
    index = f"{0:020d}.index"
    if what == "log":
        position = written.at[MIDDLE][0]
        lab = copy.make(log=data[: position + 8] + b"\x7f" + data[position + 9 :])
    else:
        # Its middle entries lead to positions at which no batch begins.
        good = copy.files[index]
        lab = copy.make(
            **{index: good[:16] + b"".join(good[n : n + 7] + b"\x01" for n in range(16, 40, 8)) + good[40:]}
        )
    log = lab.open(log.log_end_offset, True)
    assert log.repairs == []
    for _ in range(2):
        for offset in range(RECORDS * BATCHES):
            forget_positions(log)
            with corrupt_if(what == "log" and offset // RECORDS == MIDDLE):
                read_blocking(log, offset, 1, log.log_end_offset)
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("log damaged" if what == "log" else "index did not match the log, rebuilt")


def test_the_search_among_bytes_that_look_like_batches_ends() -> None:
    """The damaged batch is followed by 25,000 headers of batches of 1.4 MB, whose CRCs would take minutes."""
    lab = memory_lab(index_interval_bytes=200)
    log = lab.open()
    append(log, batch(1, 40))
    size = log.size_bytes
    likely = bytes(HEADER.pack(1, 1_400_000, 0, MAGIC, 7, 0, 0, NOW, NOW, -1, -1, -1, 1))
    records = [(NOW, b"k", likely * 25_000, ())]
    append(log, build_batch(records))
    append(log, batch(1, 1_500_000))
    log.roll(NOW)
    append(log, batch(1))
    assert lab.close(log)
    data = log_data(lab)
    lab = LogCopy(lab).make(log=data[: size + 8] + b"\x7f" + data[size + 9 :], **{f"{0:020d}.index": None})
    begun = time.process_time()
    log = lab.open(log.log_end_offset, True)
    with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
        read_blocking(log, 1, 1, log.log_end_offset)
    assert time.process_time() - begun < 5
    assert bytes(read_blocking(log, 3, 1, log.log_end_offset))
