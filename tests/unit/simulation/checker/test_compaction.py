"""Compaction removes a record only if a later one has its key, which was durable then."""

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
    A record at an offset that a loss made free supersedes.
        sends 1 2; assign 0; poll 0=1 1=2; loss 1; send 3 @1; assign 0 by late; poll 1=3 by late; final - 3 => nothing
    A record that was lost does not supersede.
        sends 1 3; assign 0; poll 0=1 1=3; loss 1; send 4 @1; assign 0 by late; poll 1=4 by late; send 5 @2;
        final - 4 5 => skipped records
    A record that a loss left supersedes after it, and not before: the loss shows that it was not durable then.
        sends 1 3; loss 1; assign 0; poll 1=3; final - 3 => nothing
        sends 1 3; assign 0; poll 1=3; loss 1; final - 3 => skipped records
        sends 1 3; assign 0; poll 1=3; loss 2; final - 3 => nothing
    A record that is sent later does not supersede.
        sends 1 2; assign 0; poll 1=2; send 3 @2; final - 2 3 => skipped records
    A record whose key has no record in the end did not supersede.
        sends 1 3 2; assign 0; poll 1=3 2=2; final - - 2 => lost write, skipped records
    A record that no consumer has read may supersede: its response is lost, and a later record supersedes it.
        send 1 @0; send 3 unknown; send 2 @2; assign 0; poll 2=2; send 5 @3; final - - 2 5 => nothing
""")
def test_compaction(steps: str, expected: str) -> None:
    assert found(steps, compacted={"t": 2}) == expected


def test_without_compaction_the_batch_is_torn() -> None:
    assert "torn batch" in found("send 1 2 @0; send 3 @2; final - 2 3")
