"""Compaction removes a record only if a later one has its key."""

from tests.unit.simulation.checker.history_notation import cases, found


@cases("""
    The last record of each key stays. The values 1, 3 and 5 have one key, 2 and 4 the other one.
        sends 1 2 3 4; final 1 2 3 4 => nothing
        sends 1 2 3 4; final - 2 3 4 => nothing
        sends 1 2 3 4; final - - 3 4 => nothing
        sends 1 2 3 4; final 1 2 - 4 => lost write, skipped records
        sends 1 2 3 4; final - - - 4 => lost write, skipped records
    Compaction may remove a part of a batch.
        send 1 2 @0; send 3 @2; final - 2 3 => nothing
    A consumer passes offsets that have no record any more.
        sends 1 3 5; assign 0; poll next 2 => nothing
""")
def test_compaction(steps: str, expected: str) -> None:
    assert found(steps, compacted={"t": 2}) == expected


def test_without_compaction_the_batch_is_torn() -> None:
    assert "torn batch" in found("send 1 2 @0; send 3 @2; final - 2 3")
