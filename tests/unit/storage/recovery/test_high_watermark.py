"""The high watermark of the last checkpoint, when a log is opened."""

from pathlib import Path

import pytest

from kbroker.storage.producers.transactions import NO_UNSTABLE_OFFSET
from tests.unit.support.log_lab import NOW, Lab, append, batch
from tests.unit.support.replicated_log import Write, feed, state_of, store

# A committed transaction and an aborted one, each with a record between, then records without a transaction.
PLAIN = Write(-1, 1, 20, False, None, False, 0)
WRITES = [
    write
    for committed in (True, False)
    for write in (Write(0, 1, 20, True, None, False, 0), PLAIN, Write(0, 1, 20, True, committed, False, 0))
] + [PLAIN] * 3


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("high_watermark", "unstable"),
    [(None, NO_UNSTABLE_OFFSET), (9, NO_UNSTABLE_OFFSET), (6, NO_UNSTABLE_OFFSET), (5, 3), (3, 3), (2, 0), (1, 0)],
)
def test_transactions_that_ended_above_it_are_not_stable(
    tmp_path: Path, high_watermark: int | None, unstable: int, clean: bool
) -> None:
    """The snapshot at the log end says nothing about them."""
    lab = Lab(tmp_path)
    log = lab.open()
    feed(log, store(WRITES), [])
    before = state_of(log)
    assert lab.close(log)
    for _ in range(2):
        log = lab.open(9, clean=clean, high_watermark=high_watermark)
        log.update_high_watermark(high_watermark if high_watermark is not None else 9)
        assert state_of(log) == {**before, "unstable": unstable}
        assert log.repairs == []


def test_it_is_within_the_log(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    log = lab.open()
    for n in range(5):
        append(log, batch(1, timestamp=NOW + n))
    assert lab.close(log)
    for stored, expected in ((None, 2), (1, 2), (4, 4), (9, 5)):
        assert lab.open(5, log_start=2, high_watermark=stored).checkpointed_high_watermark == expected


@pytest.mark.parametrize("clean", [True, False])
def test_without_one_nothing_is_stable_until_it_reaches_the_end(tmp_path: Path, clean: bool) -> None:
    """The checkpoint file was lost: the marker of a transaction before the snapshot may not be replicated yet."""
    lab = Lab(tmp_path)
    log = lab.open()
    feed(log, store(WRITES), [])
    assert lab.close(log)
    log = lab.open(9, clean=clean)
    assert log.producers.transactions.first_unstable_offset == 0
    log.update_high_watermark(8)
    assert log.producers.transactions.first_unstable_offset == 0
    log.update_high_watermark(9)
    assert log.producers.transactions.first_unstable_offset == NO_UNSTABLE_OFFSET
