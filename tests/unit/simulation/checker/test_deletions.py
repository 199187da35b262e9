"""Deleted records are not returned again."""

from tests.unit.simulation.checker.history_notation import cases, found


@cases("""
    A poll after the deletion returns only the remaining records, also after a deletion of less.
        sends 1 2 3; assign 0; delete 2; poll 0=1 1=2 2=3; final 3 from 2 => deleted record
        sends 1 2 3; assign 0; delete 2; reset 2; poll 2=3; final 3 from 2 => nothing
        sends 1 2 3; assign 0; delete 2; delete 1; poll 1=2 2=3; final 3 from 2 => deleted record
    A deletion without a response may have no effect.
        sends 1 2 3; assign 0; delete 2 unknown; poll 0=1 1=2 2=3; final 1 2 3 => nothing
    The poll began before the deletion.
        sends 1 2; assign 0; x: poll; delete 1; end x 0=1 1=2; final 2 from 1 => nothing
    A loss makes the offsets free for other records.
        sends 1 2 3; assign 0; delete 2; loss 0; send 4 @0; assign 0; poll 0=4; final 4 => nothing
""")
def test_deleted_records(steps: str, expected: str) -> None:
    assert found(steps) == expected
