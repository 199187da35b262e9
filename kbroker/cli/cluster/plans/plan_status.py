"""A plan that runs, or that has ended, as text and as JSON."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kbroker.cli.cluster.plan_report import SHOWN_MOVES, estimate_text
from kbroker.cli.cluster.plans.plan_description import (
    COMPLETE,
    DONE,
    MOVING,
    PENDING,
    SKIPPED,
    CopiedBytes,
    MoveDescription,
    PlanDescription,
)
from kbroker.cli.common.errors import print_error
from kbroker.cli.common.formatting import count_text, format_duration, format_size
from kbroker.cli.common.output import Cell, print_note, print_table

MOVE_COLUMNS = ("topic", "partition", "replicas", "target", "state")


def plan_name(plan: PlanDescription) -> str:
    return f"plan {plan.plan_id} ({plan.description})"


def print_status(plan: PlanDescription, copied: CopiedBytes, now_ms: int, awaited: Sequence[int]) -> None:
    """Print a plan that runs, with the moves in progress. `awaited`: brokers that it waits for."""
    rows = move_rows(plan)
    if rows:
        print_table(MOVE_COLUMNS, rows[:SHOWN_MOVES])
    if len(rows) > SHOWN_MOVES:
        print_note(f"and {count_text(len(rows) - SHOWN_MOVES, 'move')}: --json prints all")
    print("\n".join([state_text(plan), copied_text(plan, copied, now_ms), limits_text(plan)]))
    print_awaited(awaited)


def print_awaited(brokers: Iterable[int]) -> None:
    for broker in brokers:
        print_note(f"the plan waits for broker {broker}, which is away")


def print_end(plan: PlanDescription) -> None:
    """Print how a plan has ended. What it skipped is printed as errors."""
    print(state_text(plan))
    for move in plan.in_state(SKIPPED):
        print_error(f"{move.topic}-{move.partition} was skipped: {move.reason}")


def move_rows(plan: PlanDescription) -> list[list[Cell]]:
    """Return the moves that are neither done nor skipped, those in progress first."""
    return [
        [move.topic, move.partition, _ids(move.original), _ids(move.target), move.state]
        for state in (MOVING, PENDING)
        for move in plan.in_state(state)
    ]


def _ids(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers))


def state_text(plan: PlanDescription) -> str:
    """Return the state of a plan in one line."""
    moved = "moved back" if plan.moves_back else "moved"
    parts = [f"{plan.count(DONE)} of {count_text(len(plan.moves), 'partition')} {moved}"]
    parts += [f"{count} {word}" for state, word in _WORDS.items() if (count := plan.count(state))]
    return f"{plan_name(plan)} is {plan.state}{_duration_text(plan)}: {', '.join(parts)}"


_WORDS = {MOVING: "moving", PENDING: "waiting", SKIPPED: "skipped"}


def _duration_text(plan: PlanDescription) -> str:
    if plan.ended_ms is None:
        return ""
    return f" after {format_duration(max(plan.ended_ms - plan.created_ms, 0))}"


def copied_text(plan: PlanDescription, copied: CopiedBytes, now_ms: int) -> str:
    """Return how much is copied, how fast, and how long the rest takes at that rate."""
    if plan.moves_back:
        return "copied: what has moved is copied back"
    if not copied.total:
        return "copied: nothing is copied"
    text = f"copied: {format_size(copied.copied)} of {format_size(copied.total)}"
    rate = _rate(plan, copied, now_ms)
    if rate is None:
        return text
    left = estimate_text((copied.total - copied.copied) / rate)
    return f"{text}, {format_size(rate)}/s; about {left} left, not counting new records"


def _rate(plan: PlanDescription, copied: CopiedBytes, now_ms: int) -> float | None:
    """Return the bytes per second that all brokers together have copied since a plan began."""
    elapsed_ms = now_ms - plan.created_ms
    return copied.copied * 1000 / elapsed_ms if copied.copied and elapsed_ms > 0 else None


def limits_text(plan: PlanDescription) -> str:
    throttle = plan.throttle_bytes_per_second
    rate = "no throttle" if throttle is None else f"throttle {format_size(throttle)}/s"
    return f"limits: {count_text(plan.max_concurrent_moves, 'partition')} at once, {rate}"


def status_json(plan: PlanDescription, copied: CopiedBytes, now_ms: int) -> dict[str, Any]:
    """Return the JSON of a plan. `copied_per_second` and `ended_ms` are null where they are not known."""
    return {
        "plan": plan.plan_id,
        "description": plan.description,
        "origin": plan.origin,
        "state": plan.state,
        "throttle_bytes_per_second": plan.throttle_bytes_per_second,
        "max_concurrent_moves": plan.max_concurrent_moves,
        "created_ms": plan.created_ms,
        "ended_ms": plan.ended_ms,
        **{state: plan.count(state) for state in (DONE, MOVING, PENDING, SKIPPED)},
        "copied_bytes": copied.copied,
        "total_bytes": copied.total,
        "copied_per_second": _rate(plan, copied, plan.ended_ms or now_ms),
        "moves": [_move_json(move) for move in plan.moves],
    }


def _move_json(move: MoveDescription) -> Mapping[str, Any]:
    return {**move._asdict(), "original": list(move.original), "target": list(move.target)}


def is_success(plan: PlanDescription) -> bool:
    """Return whether a plan has moved everything that it was made for."""
    return plan.state == COMPLETE and not plan.count(SKIPPED)
