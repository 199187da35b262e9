"""The log of a follower: runs of the leader's batches are appended as they are."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.common import KafkaError
from kbroker.storage.log.log_reads import read, read_blocking
from protocol.errors import ErrorCode
from protocol.records.batch import iter_headers
from tests.unit.support.damaged_log import memory_lab
from tests.unit.support.log_lab import NOW, Lab, append, append_run, batch, content, fill
from tests.unit.support.replicated_log import WRITES, Write, feed, segments_of, stamp, state_of, store

SMALL = {"segment_bytes": 1000, "index_interval_bytes": 200}
CUTS = st.lists(st.integers(0, 25), max_size=8)


@given(WRITES, CUTS)
def test_a_follower_equals_its_leader_whatever_the_runs(writes: list[Write], cuts: list[int]) -> None:
    leader = memory_lab(**SMALL).open()
    stored = store(writes, leader)
    follower = memory_lab(**SMALL).open()
    feed(follower, stored, cuts)
    assert state_of(follower) == state_of(leader)
    assert segments_of(follower) == segments_of(leader)


@given(WRITES, CUTS, st.booleans())
def test_a_reopened_follower_of_a_compacted_log_has_the_same_state(
    writes: list[Write], cuts: list[int], clean: bool
) -> None:
    lab = memory_lab(**SMALL)
    log = lab.open()
    stored = store(writes)
    feed(log, stored, cuts)
    assert content(log) == stored.data
    before = state_of(log)
    log.update_high_watermark(log.log_end_offset)
    stable = log.producers.transactions.first_unstable_offset
    assert lab.close(log)
    reopened = lab.open(log.log_end_offset, clean=clean)
    reopened.update_high_watermark(log.log_end_offset)
    assert state_of(reopened) == {**before, "unstable": stable}


def test_a_read_from_a_gap_begins_with_the_next_batch(tmp_path: Path) -> None:
    log = Lab(tmp_path).open()
    data = bytearray()
    for offset in (3, 10, 20):
        new = batch(2)
        stamp(new, offset, 0)
        data += new
    assert append_run(log, data) == 22
    for offset, expected in ((0, 3), (4, 3), (5, 10), (9, 10), (12, 20), (21, 20)):
        found = read(log, offset, 1, log.log_end_offset)
        assert found is not None
        assert [header.base_offset for _, header in iter_headers(found)] == [expected], offset


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("first", [0, 3_000_000_000])
def test_a_gap_larger_than_a_segment(tmp_path: Path, first: int, clean: bool) -> None:
    lab = Lab(tmp_path)
    log = lab.open()
    offsets = [first, first + 3_000_000_000, first + 3_000_000_002]
    data = bytearray()
    for offset in offsets:
        new = batch(2)
        stamp(new, offset, 0)
        data += new
    assert append_run(log, data) == offsets[-1] + 2
    if clean:
        assert lab.close(log)
    reopened = lab.open(log.log_end_offset if clean else 0, clean=clean, checkpointed=True)
    for opened in (log, reopened) if not clean else (reopened,):
        assert (opened.log_end_offset, opened.repairs) == (offsets[-1] + 2, [])
        for offset, expected in ((0, first), (first + 5, offsets[1]), (offsets[1] + 2, offsets[2])):
            found = read_blocking(opened, offset, 1, opened.log_end_offset)
            assert [header.base_offset for _, header in iter_headers(bytes(found))] == [expected], offset


def test_a_batch_larger_than_a_segment_has_a_segment_of_its_own(tmp_path: Path) -> None:
    """The leader may have stored it before segment.bytes was changed."""
    leader = Lab(tmp_path / "leader").open()
    for size in (20, 2000, 20):
        append(leader, batch(1, size))
    log = Lab(tmp_path / "follower", **SMALL).open()
    assert append_run(log, content(leader)) == 3
    assert [segment.base_offset for segment in log.segments] == [0, 1, 2]


@pytest.mark.parametrize("change", ["before the end", "not ascending", "rest"])
def test_batches_out_of_order_are_not_appended(tmp_path: Path, change: str) -> None:
    leader = Lab(tmp_path / "leader").open()
    fill(leader, 5)
    data = content(leader)
    log = Lab(tmp_path / "follower").open()
    append_run(log, data)
    before = state_of(log)
    new, next_one = batch(1), batch(1)
    stamp(new, log.log_end_offset - (change == "before the end"), 0)
    stamp(next_one, log.log_end_offset + (change != "not ascending"), 0)
    headers = [header for _, header in iter_headers(new + next_one)]
    with pytest.raises(KafkaError) as raised:
        log.append_as_follower(new + next_one + b"x" * (change == "rest"), headers, NOW)
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
    assert state_of(log) == before
