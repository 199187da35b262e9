"""Aborted and pre-committed reads, torn transactions, write-read cycles."""

import pytest

from kbroker.simulation.checker import check
from tests.unit.simulation.checker.history_notation import cases, found, history

# A transaction that has written 1 to p and 2 to q.
WRITTEN = "send 1 @0 t0; send q 2 @0 t0;"


@cases(f"""
    With read_committed the records of an aborted transaction are not returned, also not before the abort.
        {WRITTEN} abort t0; assign 0; poll 0=1 committed => aborted read
        {WRITTEN} abort t0; assign 0; poll 0=1 => nothing
        {WRITTEN} assign 0; poll 0=1 committed; abort t0 => aborted read
    With read_committed records are not returned before the commit.
        {WRITTEN} assign 0; poll 0=1 committed; commit t0 => pre-committed read
        {WRITTEN} assign 0; poll 0=1; commit t0 => nothing
        {WRITTEN} assign 0; x: poll committed; commit t0 unknown; end x 0=1 => nothing
    Nobody ends the transaction, or its commit is rejected.
        {WRITTEN} assign 0; poll 0=1 committed => pre-committed read
        {WRITTEN} commit t0 failed; assign 0; poll 0=1 committed => pre-committed read
    A transaction reads its own records.
        {WRITTEN} assign 0; poll 0=1 committed t0; commit t0 => pre-committed read
""")
def test_uncommitted_reads(steps: str, expected: str) -> None:
    assert found(steps) == expected


@cases(f"""
    A committed transaction is present completely.
        {WRITTEN} commit t0; final 1 - committed; final q 2 - committed => nothing
        {WRITTEN} commit t0; final 1 - committed; final q - - committed => lost write, skipped records
    An aborted transaction is absent.
        {WRITTEN} abort t0; final - - committed; final q - - committed => nothing
        {WRITTEN} abort t0; final 1 - committed; final q - - committed => aborted read
    A transaction whose end has no response is one or the other.
        {WRITTEN} commit t0 unknown; final - - committed; final q - - committed => nothing
        {WRITTEN} commit t0 unknown; final 1 - committed; final q 2 - committed => nothing
        {WRITTEN} commit t0 unknown; final 1 - committed; final q - - committed => torn transaction
    A read with read_uncommitted does not show whether it is committed.
        {WRITTEN} commit t0 unknown; final 1 - committed; final q 2 - => nothing
    A loss may have removed one of its batches.
        {WRITTEN} commit t0 unknown; loss q 0; final 1 - committed; final q - - committed => nothing
        {WRITTEN} commit t0 unknown; loss q 1; final 1 - committed; final q - - committed => torn transaction
    A batch without a response may not be part of it.
        send 1 @0 t0 unknown; send q 2 @0 t0; commit t0 unknown; final - committed; final q 2 committed => nothing
    Writes of two transactions may interleave: Kafka does not isolate writes (G0).
        send 10 @0 by a t1; send 20 @1 by b t2; send q 21 @0 by b t2; send q 11 @1 by a t1; commit t1; commit t2;
        final 10 20 - - committed; final q 21 11 - - committed => nothing
""")
def test_whole_transactions(steps: str, expected: str) -> None:
    assert found(steps) == expected


def test_a_torn_transaction_is_described() -> None:
    (anomaly,) = check(
        history(WRITTEN + "commit t0 unknown; final 1 - committed; final q - - committed"), durable=False
    )
    assert anomaly.text == "Of transaction 0 1 batches are present at the end and 1 are not: 2 of t-1."


def read_each_other(count: int, *, committed: str = "committed", cycle: bool = True) -> str:
    """Return steps in which each transaction's consumer reads what the transaction before it wrote."""
    sends = [f"send {number} @{number} by p{number} t{number}" for number in range(count)]
    commits = [f"commit t{number}" for number in range(count)]
    polls = [
        f"assign {number} by c{number}; poll {number}={number} by c{number} {committed} t{(number + 1) % count}"
        for number in range(count if cycle else count - 1)
    ]
    return ";".join(sends + commits + polls)


@pytest.mark.parametrize("count", [2, 3, 7])
def test_write_read_cycles(count: int) -> None:
    (anomaly,) = check(history(read_each_other(count)), durable=False)
    assert anomaly.kind == "write-read cycle"
    assert f"transactions {', '.join(map(str, range(count)))} was" in anomaly.text
    assert found(read_each_other(count, cycle=False)) == "nothing"
    assert found(read_each_other(count, committed="")) == "nothing"


def test_a_cycle_after_a_fork() -> None:
    fork = "; send 100 @100 by another t100; commit t100; assign 100 by reader; poll 100=100 by reader committed t1"
    assert found(read_each_other(3) + fork) == "write-read cycle"
