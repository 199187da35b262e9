"""A poll returns the records that were acknowledged before it began."""

from kbroker.simulation.checker import check
from tests.unit.simulation.checker.history_notation import cases, found, history


@cases("""
    The record has no acknowledgement, or gets it during the poll.
        assign 0; send 10 @0 unknown; poll next 0 => nothing
        assign 0; send 10 @0 acks 0; poll next 0 => nothing
        assign 0; x: poll; send 10 @0; end x next 0 => nothing
    The consumer is at the end.
        assign 0; send 10 @0; poll 0=10; poll next 1 => nothing
    The poll failed, or returned records of another partition.
        assign p=0 q=0; send 10 @0; send q 20 @0; poll next 0 failed; x: poll; end x q p 0=20 => nothing
    The record may be lost or deleted.
        assign 0; send 10 @0; loss 0; poll next 0 => nothing
        assign 0; send 10 @0; delete 1; poll next 0 => nothing
    After a start the broker cannot sync the recovered records of the partition yet.
        assign 0; send 10 @0; u: unsynced p; poll next 0; end u => nothing
        assign 0; send 10 @0; u: unsynced p; x: poll; end u; end x next 0 => nothing
        assign 0; send 10 @0; u: unsynced p; end u; poll next 0 => stale poll
        assign 0; send 10 @0; u: unsynced q; poll next 0; end u => stale poll
    Another record was acknowledged after the loss.
        assign 0; send 10 11 12 @0; loss 0; send 13 @0 by another; poll next 0 => stale poll
    With read_committed an open transaction holds back the records after it.
        assign 0; send 9 @0 by x t1; send 10 @1; poll next 0 committed => nothing
        assign 0; send 9 @0 by x t1; send 10 @1; poll next 0 => stale poll
    The poll passed a transaction marker, and the response had no room for more.
        assign p=0 q=0; send 10 @0 t0; commit t0; poll 0=10; send q 20 @0; poll p q next 2 => nothing
        assign p=0 q=0; send 10 @0 t0; commit t0; poll 0=10; send q 20 @0; poll p q next 1 => stale poll
""")
def test_stale_polls(steps: str, expected: str) -> None:
    assert found(steps) == expected


def test_a_stale_poll_is_described() -> None:
    (anomaly,) = check(history("assign 0; send 10 @0; poll next 0"), durable=False)
    assert (anomaly.kind, anomaly.text) == (
        "stale poll",
        "consumer received no records from offset 0 of t-0 on, although offset 0 had been acknowledged before the "
        "poll began.",
    )
