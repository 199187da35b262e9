"""Aborted and pre-committed reads, torn transactions, write-read cycles."""

import pytest

from tests.unit.simulation.checker.history_builder import FAILED, OK, UNKNOWN, HistoryBuilder, Q


def wrote(transaction: int = 0, *, outcome=OK) -> HistoryBuilder:
    """A transaction has written 1 to P and 2 to Q."""
    builder = HistoryBuilder()
    builder.send(1, at=0, transaction=transaction, outcome=outcome)
    builder.send(2, at=0, transaction=transaction, tp=Q)
    return builder


def test_a_committed_transaction_is_read():
    builder = wrote()
    builder.end(0, commit=True)
    builder.ends_with(1, None, committed_only=True)
    builder.ends_with(2, None, committed_only=True, tp=Q)
    assert builder.kinds() == []


@pytest.mark.parametrize("committed_only", [True, False])
def test_an_aborted_read(committed_only):
    builder = wrote()
    builder.end(0, commit=False)
    builder.assign(0)
    builder.poll((0, 1), committed_only=committed_only)
    assert builder.kinds() == (["aborted read"] if committed_only else [])


def test_an_aborted_read_before_the_abort():
    builder = wrote()
    builder.assign(0)
    builder.poll((0, 1), committed_only=True)
    builder.end(0, commit=False)
    assert builder.kinds() == ["aborted read"]


@pytest.mark.parametrize("committed_only", [True, False])
def test_a_pre_committed_read(committed_only):
    builder = wrote()
    builder.assign(0)
    builder.poll((0, 1), committed_only=committed_only)
    builder.end(0, commit=True)
    assert builder.kinds() == (["pre-committed read"] if committed_only else [])


def test_a_read_while_it_is_committed():
    builder = wrote()
    builder.assign(0)
    poll = builder.polling(committed_only=True)
    builder.end(0, commit=True, outcome=UNKNOWN)
    builder.polled(poll, (0, 1))
    assert builder.kinds() == []


def test_a_transaction_that_nobody_ends():
    builder = wrote()
    builder.assign(0)
    builder.poll((0, 1), committed_only=True)
    assert builder.kinds() == ["pre-committed read"]


def test_a_commit_that_was_refused_is_none():
    builder = wrote()
    builder.end(0, commit=True, outcome=FAILED)
    builder.assign(0)
    builder.poll((0, 1), committed_only=True)
    assert builder.kinds() == ["pre-committed read"]


def test_a_transaction_reads_its_own_writes():
    builder = wrote()
    builder.assign(0)
    builder.poll((0, 1), committed_only=True, transaction=0)
    builder.end(0, commit=True)
    assert builder.kinds() == ["pre-committed read"]


def ended(commit: bool, outcome, *, first: int | None, second: int | None) -> HistoryBuilder:
    """And what is there at the end."""
    builder = wrote()
    builder.end(0, commit, outcome=outcome)
    builder.ends_with(first, None, committed_only=True)
    builder.ends_with(second, None, committed_only=True, tp=Q)
    return builder


def test_a_committed_transaction_is_whole():
    assert ended(True, OK, first=1, second=2).kinds() == []
    assert ended(True, OK, first=1, second=None).kinds() == ["lost write", "skipped records"]


def test_an_aborted_transaction_is_gone():
    assert ended(False, OK, first=None, second=None).kinds() == []
    assert ended(False, OK, first=1, second=None).kinds() == ["aborted read"]


def test_a_transaction_whose_end_is_unknown_is_either():
    assert ended(True, UNKNOWN, first=None, second=None).kinds() == []
    assert ended(True, UNKNOWN, first=1, second=2).kinds() == []
    assert ended(True, UNKNOWN, first=1, second=None).kinds() == ["torn transaction"]


def test_with_read_uncommitted_nothing_is_known_of_its_end():
    builder = wrote()
    builder.end(0, commit=True, outcome=UNKNOWN)
    builder.ends_with(1, None, committed_only=True)
    builder.ends_with(2, None, committed_only=False, tp=Q)
    assert builder.kinds() == []


def test_what_a_loss_took_of_a_transaction():
    for floor, kinds in ((0, []), (1, ["torn transaction"])):
        builder = wrote()
        builder.end(0, commit=True, outcome=UNKNOWN)
        builder.loss(floor, tp=Q)
        builder.ends_with(1, None, committed_only=True)
        builder.ends_with(None, None, committed_only=True, tp=Q)
        assert builder.kinds() == kinds


def test_a_batch_that_was_never_acknowledged_may_not_be_part_of_it():
    builder = wrote(outcome=UNKNOWN)
    builder.end(0, commit=True, outcome=UNKNOWN)
    builder.ends_with(None, committed_only=True)
    builder.ends_with(2, committed_only=True, tp=Q)
    assert builder.kinds() == []


def test_writes_of_transactions_interleave():
    """Kafka does not isolate writes: in P the one is first, in Q the other (G0)."""
    builder = HistoryBuilder()
    builder.send(10, at=0, by="a", transaction=1)
    builder.send(20, at=1, by="b", transaction=2)
    builder.send(21, at=0, by="b", transaction=2, tp=Q)
    builder.send(11, at=1, by="a", transaction=1, tp=Q)
    builder.end(1, commit=True)
    builder.end(2, commit=True)
    builder.ends_with(10, 20, None, None, committed_only=True)
    builder.ends_with(21, 11, None, None, committed_only=True, tp=Q)
    assert builder.kinds() == []


def read_each_other(count: int, *, committed_only: bool = True, in_a_circle: bool = True) -> HistoryBuilder:
    builder = HistoryBuilder()
    for number in range(count):
        builder.send(number, at=number, by=f"p{number}", transaction=number)
    for number in range(count):
        builder.end(number, commit=True)
    for number in range(count if in_a_circle else count - 1):
        builder.assign(number, by=f"c{number}")
        reader = (number + 1) % count
        builder.poll((number, number), by=f"c{number}", committed_only=committed_only, transaction=reader)
    return builder


@pytest.mark.parametrize("count", [2, 3, 7])
def test_write_read_cycles(count):
    found = read_each_other(count).anomalies()
    assert [one.kind for one in found] == ["write-read cycle"]
    assert f"transactions {', '.join(map(str, range(count)))} was" in found[0].text
    assert read_each_other(count, in_a_circle=False).kinds() == []


def test_uncommitted_reads_may_go_in_a_circle():
    assert read_each_other(2, committed_only=False).kinds() == []


def test_a_cycle_behind_a_fork():
    builder = read_each_other(3)
    builder.send(100, at=100, by="another", transaction=100)
    builder.end(100, commit=True)
    builder.assign(100, by="reader")
    builder.poll((100, 100), by="reader", committed_only=True, transaction=1)
    assert builder.kinds() == ["write-read cycle"]


def test_transaction_zero():
    assert ended(True, UNKNOWN, first=1, second=None).anomalies()[0].text == (
        "Of transaction 0 1 batches are present at the end and 1 are not: 2 of t-1."
    )
