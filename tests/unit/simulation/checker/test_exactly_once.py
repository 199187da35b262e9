"""Each input record of a consume-transform-produce group has exactly one result."""

import pytest

from tests.unit.simulation.checker.history_notation import cases, found

# The input records 1 and 2 are in p; transaction 0 makes 10 of the first, transaction 1 makes 20 of the second.
INPUT = "send 1 2 @0 by source;"
FIRST = INPUT + "send q 10 @0 by a t0 sources 0; offset 1 by m in 1 t0; commit t0;"
SECOND = "send q 20 @2 by b t1 sources 1; offset 2 by m in 1 t1;"
# Transaction 2 makes 21 of the second record.
AGAIN = "send q 21 @4 by c t2 sources 1; offset 2 by m in 1 t2; commit t2;"


def final(results: str, committed: int) -> str:
    return f"final 1 2 committed; final q {results} committed; fetch {committed}"


@pytest.mark.parametrize(
    ("steps", "results", "committed", "expected"),
    [
        pytest.param(FIRST + SECOND + end, results, committed, expected, id=title)
        for title, end, results, committed, expected in (
            ("both are committed", "commit t1;", "10 - 20 -", 2, "nothing"),
            ("of an unknown end all is there", "commit t1 unknown;", "10 - 20 -", 2, "nothing"),
            ("of an unknown end nothing is there", "commit t1 unknown;", "10 - - -", 1, "nothing"),
            ("only the offset is there", "commit t1 unknown;", "10 - - -", 2, "offset without its result"),
            ("only the result is there", "commit t1 unknown;", "10 - 20 -", 1, "result without its offset"),
            ("an aborted transaction is repeated", "abort t1;" + AGAIN, "10 - - - 21 -", 2, "nothing"),
            ("a record has two results", "commit t1;" + AGAIN, "10 - 20 - 21 -", 2, "transformed twice"),
            ("an aborted offset", "abort t1;", "10 - - -", 2, "unknown commit, offset without its result"),
        )
    ],
)
def test_results_and_offsets(steps: str, results: str, committed: int, expected: str) -> None:
    assert found(steps + final(results, committed)) == expected


def test_each_value_of_a_batch_has_its_own_source() -> None:
    steps = INPUT + "send q 10 20 @0 by a t0 sources 0,1; offset 2 by m in 1 t0; commit t0;"
    assert found(steps + final("10 20 -", 2)) == "nothing"


@pytest.mark.parametrize(("durable", "expected"), [(False, "nothing"), (True, "offset without its result")])
def test_results_that_a_loss_may_have_removed(durable: bool, expected: str) -> None:
    steps = FIRST.replace("commit t0", "commit t0 unknown") + "offset 1 by m in 1; loss 100 commits 1;"
    assert found(steps + final("- -", 1), durable=durable) == expected


@cases(f"""
    Without a final read of the committed offsets only duplicates are found.
        {FIRST} {SECOND} commit t1; final 1 2 committed; final q 10 - - - committed => lost write, skipped records
    With read_committed the final reads reach the end, too.
        send 1 @0 t0; commit t0; send 2 @2 by other; final 1 - 2; final 1 - committed => unreadable at the end
""")
def test_incomplete_final_reads(steps: str, expected: str) -> None:
    assert found(steps) == expected
