"""Inconsistent offsets, duplicates, unsent values, torn batches, backward sends."""

from kbroker.simulation.checker import check
from tests.unit.simulation.checker.history_notation import cases, found, history


@cases("""
    Two values were acknowledged or read at one offset.
        send 1 @0 by a; send 2 @0 by b => inconsistent offsets
        sends 1 2; assign 0; poll 0=1 1=9 => unsent value, inconsistent offsets
    A record is read at another offset than the acknowledged one.
        send 1 @5; assign 0; poll 3=1 => inconsistent offsets

    Offsets are assigned again after a loss of the former records.
        sends 1 2; loss 1; send 3 @1 by another; assign 0; poll 0=1 1=3 => nothing
        sends 1 2; loss 0; send 3 @1 by another; assign 0; poll 0=1 1=3 => nothing
        sends 1 2; loss 2; send 3 @1 by another; assign 0; poll 0=1 1=3 => inconsistent offsets
    The former value was read after the loss.
        sends 1 2; loss 1; assign 0 by early; poll 0=1 1=2 by early; send 3 @1 by another; assign 0; poll 0=1 1=3
            => inconsistent offsets
    The former value is read again after another loss.
        sends 1 2; loss 1; send 3 @1 by another; assign 0; poll 0=1 1=3; loss 1; assign 0; poll 0=1 1=2
            => inconsistent offsets
    A lost batch is written again by its retry, after another one that was lost too.
        x: send 1 by patient; assign 0; poll 0=1; loss 0; send 2 @0 by another; loss 0; end x @0; final 1 => nothing
    A poll during the loss may return either value.
        send 1 @0 by a; x: poll; loss 0; send 2 @0 by b; end x 0=1 => nothing
        send 1 @0 by a; x: poll; loss 0; send 2 @0 by b; end x 0=2 => nothing
    Three values at one offset need two losses, even if only polls during the losses return them.
        send 1 unknown by p1; send 2 unknown by p2; send 3 unknown by p3; x: poll by c1; y: poll by c2; z: poll by c3;
        loss 0; loss 0; end x 0=1; end y 0=2; end z 0=3 => nothing
        send 1 unknown by p1; send 2 unknown by p2; send 3 unknown by p3; x: poll by c1; y: poll by c2; z: poll by c3;
        loss 0; end x 0=1; end y 0=2; end z 0=3 => inconsistent offsets
    A lost batch is written again at another offset.
        send 1 @0 by a; x: send 2; assign 0; poll 0=1 1=2; loss 1; send 3 @1 by a; end x @2; final 1 3 2 => nothing
    A loss after the acknowledgement does not explain another offset.
        send 1 @0 by a; x: send 2; assign 0; poll 0=1 1=2; end x @1; loss 1; send 3 @1 by a; final 1 3 2
            => inconsistent offsets
""")
def test_offsets(steps: str, expected: str) -> None:
    assert found(steps) == expected


def test_a_batch_that_was_not_lost_is_written_again() -> None:
    steps = "send 1 @0 by a; x: send 2; assign 0; poll 0=1 1=2; loss 2; send 3 @1 by a; end x @2; final 1 3 2"
    assert [anomaly.text for anomaly in check(history(steps), durable=False)] == [
        "t-0 has had the values 2, 3 at offset 1, and no power loss explains it.",
        "The value 2 of t-0 was acknowledged at offset 2 and read at 1.",
    ]


@cases("""
    An idempotent batch is in the log twice.
        send 1 unknown; final 1 1 => duplicate
        send 1 unknown; send 2 @1; assign 0; poll 0=1 1=2; poll 2=1 => duplicate
    A retry may duplicate a batch that is not idempotent.
        send 1 2 @2 plain; final 1 2 1 2 => nothing

    A value was never sent, was rejected, or was sent to another partition.
        assign 0; poll 0=7 => unsent value
        send 7 failed; assign 0; poll 0=7 => unsent value
        send 7 @0; assign q=0; poll q 0=7 => unsent value
    Values without a response may be read.
        send 7 unknown; x: send 8; assign 0; poll 0=7 1=8 => nothing
""")
def test_values(steps: str, expected: str) -> None:
    assert found(steps) == expected


@cases("""
    A batch is present completely or not at all.
        send 1 2 3 unknown; send 4 @3; final 1 2 3 4 => nothing
        send 1 2 3 unknown; send 4 @3; final - - - 4 => nothing
        send 1 2 3 unknown; send 4 @3; final 1 - 3 4 => torn batch
        send 1 2 3 unknown; send 4 @3; final 1 2 - 4 => torn batch
        send 1 2 3 unknown; send 4 @3; final 2 1 3 4 => torn batch
    Another record lies within a batch.
        send 1 2 unknown; send 3 @1 by another; final 1 3 2 => torn batch
    A deletion removes a part of a batch; a loss does not.
        send 1 2 unknown; delete 1; final 2 from 1 => nothing
        send 1 2 unknown; loss 1; send 3 @1 by another; final 1 3 => torn batch

    A producer's batches are in order.
        send 1 @1; send 2 @0 => backward sends
        send 1 2 @0; send 3 @1 => inconsistent offsets, backward sends
    The order is that of one producer in one partition; a new producer of the same process begins at order 0.
        send 1 @0 by a; send 2 @3 by a; send 3 @2 by b; send q 4 @0 by a; send 5 @1 by a order 0 => nothing
    A later batch has a lower offset only after a loss.
        send 1 @1; loss 1; send 2 @0 => nothing
        send 1 @1; loss 2; send 2 @0 => backward sends
    Without idempotence, retries change the order.
        send 1 @1 plain; send 2 @0 plain => nothing
""")
def test_batches(steps: str, expected: str) -> None:
    assert found(steps) == expected
