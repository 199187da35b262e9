"""Skipped records, backward polls and offset resets of one consumer."""

import pytest

from kbroker.simulation.checker import check
from tests.unit.simulation.checker.history_notation import cases, found, history


@cases("""
    Polls return all records in order.
        sends 10 11 12 13; assign 0; poll 0=10 1=11; poll 2=12; poll 3=13; poll next 4 => nothing
    A consumer skips a record: in a poll, at the beginning, or by its position alone.
        sends 10 11 12; assign 0; poll 0=10 2=12 => skipped records
        sends 10 11; assign 0; poll 1=11 => skipped records
        sends 10 11; assign 0; poll 0=10 next 2 => skipped records
    The skipped record is acknowledged later, or only another consumer reads it.
        send 10 @0; x: send 11 by slow; send 12 @2; assign 0; poll 0=10 2=12; end x @1 => skipped records
        send 10 @0; assign 0; send 11 unknown; send 12 @2; poll 0=10 2=12 => nothing
        send 10 @0; assign 0; send 11 unknown; send 12 @2; poll 0=10 2=12;
        assign 0 by another; poll 0=10 1=11 2=12 by another => skipped records
    Offsets without records are no skip: control batches, aborted transactions, what compaction has removed.
        send 10 @0; send 12 @5; assign 0; poll 0=10 next 3; poll 5=12 => nothing
    A deleted record is not skipped. What is deleted later is.
        sends 10 11 12; assign 0; delete 2; poll 2=12 => nothing
        sends 10 11 12; assign 0; delete 1; poll 2=12 => skipped records
        sends 10 11 12; assign 0; poll 2=12; delete 2 => skipped records
    A record that may be lost is not skipped. Records that are sent after the loss are.
        sends 10 11 12; assign 0; poll 0=10; loss 1; send 20 @2 by another; poll 2=20 => nothing
        sends 10 11 12; assign 0; poll 0=10; loss 2; send 20 @2 by another; poll 2=20 => skipped records
        sends 10 11; assign 0; poll 0=10; loss 1; send 20 @1 by another; send 21 @2 by another; poll 2=21
            => skipped records
    With read_committed, records of a transaction are skipped unless it is committed.
        send 10 @0; send 11 @1 by x t0; commit t0; send 12 @3; assign 0; poll 0=10 3=12 committed => skipped records
        send 10 @0; send 11 @1 by x t0; abort t0; send 12 @3; assign 0; poll 0=10 3=12 committed => nothing
        send 10 @0; send 11 @1 by x t0; commit t0 unknown; send 12 @3; assign 0; poll 0=10 3=12 committed => nothing
        send 10 @0; send 11 @1 by x t0; abort t0; send 12 @3; assign 0; poll 0=10 3=12 => skipped records
    Another consumer saw that the transaction is committed.
        send 11 @0 by x t0; commit t0 unknown; send 12 @2; assign 0 by a; assign 0 by b;
        poll 0=11 2=12 by a committed; poll 2=12 by b committed => skipped records
""")
def test_skipped_records(steps: str, expected: str) -> None:
    assert found(steps) == expected


def test_skipped_records_are_named() -> None:
    (anomaly,) = check(history("sends 10 11 12; assign 0; poll 0=10; poll 2=12"), durable=False)
    assert anomaly.kind == "skipped records"
    assert anomaly.text == "consumer moved from offset 1 of t-0 to 2 and skipped 11 at 1."


@cases("""
    A poll returns what an earlier poll, or the same one, has returned.
        sends 10 11; assign 0; poll 0=10 1=11; poll 1=11 => backward poll
        sends 10 11; assign 0; poll 0=10 1=11; poll 0=10 1=11 => backward poll
        sends 10 11; assign 0; poll 1=11 0=10 => backward poll, skipped records
        sends 10; assign 0; poll 0=10 0=10 => backward poll
    The position alone goes back.
        sends 10 11; assign 0; poll 0=10 1=11; poll next 1 => backward poll, stale poll
    Each partition has its own position.
        sends 10; assign 0; send q 20 @0; assign p=0 q=0; poll 0=10; poll q 0=20; poll next 1 => nothing

    After an assignment all records are returned from its positions on.
        sends 10 11 12; assign 0; poll 0=10; assign 0; poll 0=10 => nothing
        sends 10 11 12; assign 0; poll 0=10; seek 2; poll 2=12 => nothing
        sends 10 11 12; assign 0; poll 0=10; rebalance 2; poll 2=12 => nothing
        sends 10 11 12; assign 0; rebalance 1; poll 2=12 => skipped records
    The position of a partition that is no longer assigned is forgotten.
        sends 10 11 12; assign 0; poll 0=10; rebalance q=0; rebalance 2; poll 2=12 => nothing
    After a poll without an outcome the position is unknown. A failed poll does not move it.
        sends 10 11 12; assign 0; poll 0=10 unknown; poll 2=12 => nothing
        sends 10 11 12; assign 0; poll 0=10; poll next 1 failed; poll 2=12 => skipped records
""")
def test_positions(steps: str, expected: str) -> None:
    assert found(steps) == expected


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("reset 3", "reset over records"),
        ("delete 3; reset 3", "nothing"),
        ("loss 2; reset 3", "nothing"),
        ("loss 3; reset 3", "reset over records"),
        ("reset 0", "unfounded reset"),
        ("loss 1; reset 0", "nothing"),
        ("loss 2; reset 0", "unfounded reset"),
        # A crash may undo the deletion.
        ("delete 3 unknown; reset 0", "nothing"),
        ("delete 2 unknown; reset 0", "unfounded reset"),
        ("delete 3; reset 0", "unfounded reset"),
    ],
)
def test_resets(steps: str, expected: str) -> None:
    assert found(f"sends 10 11 12; assign 0; poll 0=10 1=11; {steps}") == expected


@cases("""
    A failed poll moves nothing, so it does not explain a reset.
        sends 10 11 12; assign 0; poll 0=10; poll next 1 failed; reset 0 => unfounded reset
    The program itself has set the position out of range.
        sends 10; assign 0; seek 100; reset 0; poll 0=10 => nothing
    The reset of one partition does not change the position of the other one.
        sends 10 11; assign 0; send q 20 @0; assign p=0 q=9; poll 0=10; reset p=1 q=0; poll q 0=20 => nothing
        sends 10 11; assign 0; send q 20 @0; assign p=0 q=9; poll 0=10; reset p=1 q=0; poll q 0=20; poll 2=12
            => unsent value, skipped records
""")
def test_positions_before_and_after_a_reset(steps: str, expected: str) -> None:
    assert found(steps) == expected
