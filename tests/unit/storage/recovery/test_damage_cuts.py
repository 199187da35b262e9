"""The last segment cut at every byte of its last batches.

The longest valid prefix remains, offsets continue from there, retries of the producer are stored once, and the log says
what was repaired.
"""

import pytest

from tests.unit.support.damaged_log import (
    LogCopy,
    check_reads,
    idempotent,
    is_out_of_order,
    log_data,
    memory_lab,
    send_again,
    write,
)
from tests.unit.support.log_lab import append, content

BATCHES = 14
# As many as a producer may have in flight, and more than are cut off.
RETRIED = 5
STATES = ["killed", "killed after a checkpoint", "killed after all was synced", "stopped"]


@pytest.mark.parametrize(("state", "codec"), [*((state, 0) for state in STATES), (STATES[0], 4)])
def test_cut_at_every_byte_of_the_last_three_batches(state: str, codec: int) -> None:
    lab = memory_lab(index_interval_bytes=256)
    log = lab.open()
    written = write(log, BATCHES, codec=codec, checkpoint_at=6 if state == STATES[1] else -1)
    if state == STATES[2]:
        log.durability.checkpoint()
    clean = state == "stopped"
    if clean:
        assert lab.close(log)
    point = log.recovery_point
    copy = LogCopy(lab)
    # Every byte where most is read again; elsewhere some, with the last byte of each batch.
    step = 1 if state in ("killed", "stopped") else 3
    for cut in sorted({*range(written.ends[-4], len(written.data) + 1, step), *written.ends[-4:]}):
        lab = copy.make(log=written.data[:cut])
        log = lab.open(point, clean)
        valid = max(end for end in written.ends if end <= cut)
        survive = written.ends.index(valid) + 1
        assert log.log_end_offset == 3 * survive
        assert log_data(lab) == content(log) == written.data[:valid]
        is_reported = any(f".log: cut from {cut} to {valid} bytes: " in line for line in log.repairs)
        assert is_reported == (valid < cut), log.repairs
        if cut in (valid, valid + 1, valid + 61):
            check_reads(log, written)
            assert survive == BATCHES or is_out_of_order(log, survive + 1)
        send_again(log, written, BATCHES - RETRIED)
        assert content(log) == written.data
        # After another kill the new batches are there, and nothing is repaired twice.
        reopened = lab.open(min(point, log.recovery_point), False)
        assert (reopened.repairs, reopened.log_end_offset) == ([], 3 * BATCHES)
        assert append(reopened, idempotent(BATCHES, codec)) == 3 * BATCHES


@pytest.mark.parametrize("in_last", [0, 1, 2, 4])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_batches_in_flight_are_recognized_across_segments(in_last: int, checkpoint: bool) -> None:
    """A snapshot has only the last batch of each producer if it is at the start of a segment, or shortly after that."""
    lab = memory_lab(index_interval_bytes=256)
    log = lab.open()
    written = write(log, BATCHES, roll_at=(3, BATCHES - 1 - in_last))
    if checkpoint:
        log.durability.checkpoint()
    log = lab.open(log.recovery_point)
    send_again(log, written, BATCHES - RETRIED)
    assert (content(log), log.repairs) == (written.data, [])


def test_cut_at_every_byte_of_a_last_segment_of_one_batch() -> None:
    lab = memory_lab(index_interval_bytes=256)
    log = lab.open()
    written = write(log, BATCHES, roll_at=(BATCHES - 2,))
    base = log.active.base_offset
    assert base == 3 * (BATCHES - 1)
    data, last = written.data[: written.ends[-2]], written.data[written.ends[-2] :]
    copy = LogCopy(lab)
    for cut in range(len(last) + 1):
        lab = copy.make(**{f"{base:020d}.log": last[:cut]})
        log = lab.open(base)
        assert log.log_end_offset == base + 3 * (cut == len(last))
        assert bool(log.repairs) == (0 < cut < len(last))
        send_again(log, written, BATCHES - RETRIED)
        assert content(log) == written.data
    # The segment before it, as if it had not been synced: the segment after a gap is removed.
    for cut in range(len(data) - 300, len(data)):
        lab = copy.make(log=data[:cut])
        log = lab.open()
        valid = max(end for end in written.ends if end <= cut)
        assert content(log) == written.data[:valid] + (last if valid == cut else b"")
        assert valid == cut or any("removed, it follows the damage" in line for line in log.repairs)
