"""Committed offsets behave as a register."""

from tests.unit.simulation.checker.history_notation import cases, found


@cases("""
    A read returns the last commit.
        fetch -1; offset 5; offset 8; fetch 8; offset 3; fetch 3 => nothing
        offset 5; offset 8; fetch 5 => lost commit
        offset 5; offset 8; fetch -1 => lost commit
        offset 5; offset 8; fetch 7 => unknown commit
    A rejected commit has no effect.
        offset 5; offset 8 failed; fetch 5 => nothing
        offset 5; offset 8 failed; fetch 5; fetch 8 => unknown commit
    A commit without a response may have an effect, even late, unless it was read before.
        offset 5; offset 8 unknown; fetch 5 => nothing
        offset 5; offset 8 unknown; fetch 8 => nothing
        offset 8 unknown; offset 5; fetch 5; fetch 8 => nothing
        offset 5; offset 8 unknown; fetch 8; fetch 5 => lost commit
    The same offset is committed again.
        offset 5; offset 8 unknown; fetch 8; offset 5; fetch 5 => nothing
    Concurrent commits and reads have no order.
        x: offset 5 by a; y: offset 8 by b; end x; end y; fetch 5 => nothing
        x: offset 5 by a; y: offset 8 by b; end x; end y; fetch 8 => nothing
        offset 5; x: fetch 5; offset 8; end x => nothing
    A read without a response does not count.
        offset 5; fetch 3 unknown => nothing

    A transaction's commit has its effect with the transaction.
        offset 5; offset 8 t1; commit t1; fetch 8 => nothing
        offset 5; offset 8 t1; commit t1; fetch 5 => lost commit
        offset 5; offset 8 t1; abort t1; fetch 5 => nothing
        offset 5; offset 8 t1; abort t1; fetch 8 => unknown commit
        offset 5; offset 8 t1; commit t1 unknown; fetch 8 => nothing
        offset 5; offset 8 t1; commit t1 unknown; fetch 5 => nothing
        offset 5; offset 8 t1; fetch 5 => nothing
        offset 5; offset 8 t1; fetch 8 => unknown commit
        offset 8 t1; fetch 8; commit t1 => unknown commit
""")
def test_commits(steps: str, expected: str) -> None:
    assert found(steps) == expected


@cases("""
    A loss removes commits that are newer than the durable one, if it names the group's partition.
        offset 5; offset 8; offset 9; loss commits 8; fetch 9 => nothing
        offset 5; offset 8; offset 9; loss commits 8; fetch 8 => nothing
        offset 5; offset 8; offset 9; loss commits 8; fetch 5 => lost commit
        offset 5; offset 8; offset 9; loss commits 8; fetch -1 => lost commit
        offset 5; offset 8; offset 9; loss commits 9; fetch 8 => lost commit
        offset 5; offset 8; offset 9; loss commits -1; fetch -1 => nothing
        offset 5; offset 8; offset 9; loss commits -1; fetch 5 => nothing
        offset 5; offset 8; offset 9; loss; fetch 8 => lost commit
    What is committed or read after the loss stays.
        offset 5; offset 8; offset 9; loss commits 5; fetch 5; offset 6; fetch 6 => nothing
        offset 5; offset 8; offset 9; loss commits 5; fetch 5; offset 6; fetch 6; fetch 9 => lost commit
        offset 5; offset 8; offset 9; loss commits 5; fetch 9; fetch 8 => lost commit
    A commit or a read during the loss may come before or after it.
        offset 5; x: offset 8; loss commits 5; end x; fetch 5 => nothing
        offset 5; offset 9; x: fetch 9; loss commits 5; end x => nothing
        offset 5; offset 9; x: fetch 5; loss commits 5; end x => nothing
        offset 5; offset 9; x: fetch -1; loss commits 5; end x => lost commit
    What was durable at the first loss is durable at the second one.
        offset 5; offset 6; offset 5; offset 7; loss commits 7; offset 8; loss commits 7; fetch 6 => lost commit
    Bit rot removes a commit that was durable at the first loss; later it is committed once more.
        offset 5; offset 6; offset 7; loss commits 6; offset 8; loss commits 5; fetch 5; offset 5 => nothing
""")
def test_losses(steps: str, expected: str) -> None:
    assert found(steps) == expected


@cases("""
    With flush.before.ack a loss removes no acknowledged commit.
        offset 5; offset 8; offset 9; loss commits 8 => unflushed acknowledgement
        offset 5; offset 8; offset 9; loss commits 9 => nothing
    A commit without a response may be durable or not.
        offset 5; offset 8 unknown; loss commits 5; fetch 5 => nothing
        offset 5; offset 8 unknown; loss commits 8; fetch 8 => nothing
""")
def test_flush_before_ack(steps: str, expected: str) -> None:
    assert found(steps, durable=True) == expected
    assert found(steps) == "nothing"


def test_an_idle_member_commits_one_offset_many_times() -> None:
    assert found("offset 5; fetch 5;" * 5_000) == "nothing"
