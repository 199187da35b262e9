"""Lost, unseen and unreadable writes; losses under flush.before.ack."""

from kbroker.simulation.checker import check, render
from kbroker.simulation.checker.history import Corrupt
from tests.unit.simulation.checker.history_notation import PARTITIONS, cases, found, history


@cases("""
    All records are present.
        send 1 2 @0; send 3 @2; final 1 2 3 => nothing
    An acknowledged record is missing. The final reader also skipped an offset that is known to have a record.
        sends 1 2 3; final 1 - 3 => lost write, skipped records
    Without final reads nothing is known to be lost.
        send 1 @0 => nothing
    A record without a response may be missing, unless it was read.
        send 1 @0; send 2 unknown; x: send 3; final 1 => nothing
        send 1 @0; send 2 unknown; send 3 @2; assign 0; poll 0=1 1=2 2=3; final 1 - 3 => lost write, skipped records
    A record that was sent with acks=0 may be missing.
        send 1 acks 0; send 2 @0; final 2 => nothing

    A loss removes records from its floor on, in the partitions that it names.
        sends 1 2 3; loss 1; send 4 @1 by another; final 1 4 => nothing
        sends 1 2 3; loss 2; send 4 @1 by another; final 1 4 => lost write, inconsistent offsets
        sends 1 2 3; loss q 1; send 4 @1 by another; final 1 4
            => lost write, unreadable at the end, inconsistent offsets
    A loss removes a suffix, not records in the middle.
        sends 1 2 3; loss 1; final 1 - 3 => lost write
    A loss does not remove what is acknowledged after it.
        loss 0; sends 1 2; final - 2 => lost write, skipped records
    A response after the loss may have been sent before it.
        x: send 1; loss 0; end x @0; send 2 @1 by another; final - 2 => nothing
    The response to a retry after the loss was not: the broker knows the producer's sequence and not its records.
        x: send 1; loss 0; retry x; end x @0; send 2 @1 by another; final - 2 => lost write, skipped records
    What was read after a loss must stay; what was read before it may be lost.
        sends 1 2; loss 1; assign 0; poll 0=1 1=2; send 3 @2; final 1 - 3 => lost write, skipped records
        send 1 @0; send 2 unknown; assign 0; poll 0=1 1=2; loss 1; final 1 => nothing

    A deletion removes the records before its offset (-1: all).
        send 1 2 @0; send 3 @2; delete 2; final 3 from 2 => nothing
        send 1 2 @0; send 3 @2; delete -1; final 3 from 2 => nothing
        send 1 2 @0; send 3 @2; delete 1; final 3 from 2 => lost write
    A deletion does not remove what is sent after it.
        send 1 @0; delete 1; loss 0; sends 2 3; final 3 from 1 => lost write

    A duplicate may be acknowledged without an offset. Any later loss may remove it.
        send 1; send 2 @1; final 1 2 => nothing
        send 1; send 2 @1; final - 2 => unseen at the end
        send 1; loss 0; send 2 @1; final - 2 => nothing

    The final reads reach the end.
        sends 1 2; final 1 => unreadable at the end
        send 1 @0; send q 2 @0; final 1 => unreadable at the end
        sends 1 2; loss 1; final 1 => nothing
        sends 1 2; delete 2; final from 2 => nothing
""")
def test_acknowledged_records_stay(steps: str, expected: str) -> None:
    assert found(steps) == expected


@cases("""
    A loss may remove a record that was not acknowledged.
        send 1 @0; x: send 2; loss 1; end x unknown; final 1 => nothing
    The response arrives during the loss.
        x: send 1; loss 0; end x @0; final 1 => nothing
    A loss removes a record that had been read, acknowledged or not.
        send 1 @0; x: send 2; assign 0; poll 0=1 1=2; loss 1; end x @1; final 1 => unflushed read
        send 1 @0; x: send 2; assign 0; poll 0=1 1=2; loss 1; end x unknown; final 1 => unflushed read
    The record had been deleted before.
        send 1 @0; assign 0; poll 0=1; delete 1; loss 0; final from 1 => nothing
""")
def test_flush_before_ack(steps: str, expected: str) -> None:
    assert found(steps, durable=True) == expected
    assert found(steps) == "nothing"


def test_flush_before_ack_and_the_loss_of_an_acknowledged_record() -> None:
    steps = "sends 1 2; loss 1; loss 1; final 1"
    assert found(steps) == "nothing"
    (anomaly,) = check(history(steps), durable=True)
    assert (anomaly.kind, [each.number for each in anomaly.operations]) == ("unflushed acknowledgement", [1, 2])


def test_corrupt_reads() -> None:
    recorded = history("")
    recorded.record("consumer", Corrupt(PARTITIONS["p"], 3, "wrong CRC"))
    (anomaly,) = check(recorded, durable=False)
    assert (anomaly.kind, anomaly.text) == (
        "corrupt read",
        "consumer read corrupt data at offset 3 of t-0: wrong CRC.",
    )
    assert "CORRUPT t-0@3: wrong CRC" in render(recorded, [anomaly])
