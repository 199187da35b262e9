"""How far a plan is, and how fast it has copied."""

import pytest

from kbroker.cli.cluster.plans.plan_description import (
    CopiedBytes,
    MoveDescription,
    PlanDescription,
    copied_bytes,
    copy_rate,
)
from kbroker.cli.cluster.plans.plan_status import copied_text, limits_text, state_text

MIB = 1 << 20
SIZES = {("t", 0): 8 * MIB, ("t", 1): 4 * MIB, ("t", 2): 2 * MIB, ("t", 3): MIB}
MOVES = (
    MoveDescription("t", 0, (1, 2), (3, 4), "done"),
    MoveDescription("t", 1, (1, 2), (2, 3), "running"),
    MoveDescription("t", 2, (1,), (3, 1), "pending"),
    MoveDescription("t", 3, (1,), (3,), "skipped", "deleted"),
)
PLAN = PlanDescription(7, "balance", "running", None, 5, 10_000, None, MOVES)
COMPLETE = PLAN._replace(state="complete", ended_ms=14_000)


def test_done_moves_and_what_targets_have_are_copied() -> None:
    assert copied_bytes(PLAN, SIZES, {}) == CopiedBytes(16 * MIB, 22 * MIB)
    # Records that arrive while a partition moves are not counted.
    for size_bytes, counted in ((MIB, MIB), (9 * MIB, 4 * MIB)):
        assert copied_bytes(PLAN, SIZES, {3: {("t", 1): size_bytes}}).copied == 16 * MIB + counted
    assert copied_bytes(PLAN._replace(state="cancelling"), SIZES, {}) == CopiedBytes(0, 0)


def test_the_rate_is_that_of_the_busiest_broker() -> None:
    # Broker 1 has sent partition 0 twice, in 4 s.
    assert copy_rate(COMPLETE, SIZES) == 4 * MIB


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        COMPLETE._replace(state="cancelled"),
        COMPLETE._replace(throttle_bytes_per_second=MIB),
        COMPLETE._replace(ended_ms=11_000),
        COMPLETE._replace(moves=MOVES[1:]),
    ],
)
def test_plans_that_say_nothing_about_the_rate(plan: PlanDescription) -> None:
    assert copy_rate(plan, SIZES) is None


def test_texts() -> None:
    assert state_text(PLAN) == "plan 7 (balance) is running: 1 of 4 partitions moved, 1 moving, 1 waiting, 1 skipped"
    cancelled = PLAN._replace(state="cancelled", ended_ms=11_500)
    assert state_text(cancelled).startswith("plan 7 (balance) is cancelled after 1s500ms: 1 of 4 partitions moved back")
    half = CopiedBytes(2 * MIB, 4 * MIB)
    assert (
        copied_text(PLAN, half, 11_000)
        == "copied: 2.0 MiB of 4.0 MiB, 2.0 MiB/s; about 1s left, not counting new records"
    )
    # The clock of the controller may be ahead of ours.
    assert copied_text(PLAN, half, 9_000) == "copied: 2.0 MiB of 4.0 MiB"
    assert copied_text(PLAN, CopiedBytes(0, 0), 11_000) == "copied: nothing is copied"
    assert copied_text(PLAN._replace(state="cancelling"), half, 11_000) == "copied: what has moved is copied back"
    assert limits_text(PLAN) == "limits: 5 partitions at once, no throttle"
