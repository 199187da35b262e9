"""Plans of moves as text and as JSON: what a plan does, how far it is, how it has ended."""

from collections.abc import Iterable, Sequence
from typing import Any

from kbroker.cli.cluster.plan_requests import COMPLETE, DONE, MOVING, PENDING, SKIPPED, CopiedBytes, PlanDescription
from kbroker.cli.common.errors import print_error
from kbroker.cli.common.output import Cell, print_note, print_table
from kbroker.cli.common.values import count_text, format_duration, format_size
from kbroker.metadata.reassignments.placement.cluster_layout import PlacementState
from kbroker.metadata.reassignments.placement.reassignment_plan import CopyEstimate, ReassignmentPlan, received_bytes

BROKER_COLUMNS = ("broker", "rack", "replicas", "leaders", "disk use", "receives")
MOVE_COLUMNS = ("topic", "partition", "replicas", "target", "copied")
# The text has the moves that copy most; the JSON has all.
SHOWN_MOVES = 20


def print_plan(plan: ReassignmentPlan, estimate: CopyEstimate | None) -> None:
    """Print a plan as text. `estimate`: None if the rate of copies is not known."""
    if plan.moves:
        shown = move_rows(plan)
        print_table(MOVE_COLUMNS, shown)
        if len(shown) < len(plan.moves):
            print_note(f"and {count_text(len(plan.moves) - len(shown), 'smaller move')}: --json prints all")
    print_table(BROKER_COLUMNS, broker_rows(plan))
    print("\n".join([moves_text(plan), racks_text(plan.before, plan.after), time_text(plan, estimate)]))


def move_rows(plan: ReassignmentPlan, limit: int = SHOWN_MOVES) -> list[list[Cell]]:
    """Return a row for each of the moves that copy most, in the order of topic and partition."""
    largest = sorted(plan.moves, key=lambda move: (-move.copied_bytes, move.topic, move.partition))[:limit]
    return [
        [move.topic, move.partition, _ids(move.original), _ids(move.target), format_size(move.copied_bytes)]
        for move in sorted(largest, key=lambda move: (move.topic, move.partition))
    ]


def _ids(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers))


def broker_rows(plan: ReassignmentPlan) -> list[list[Cell]]:
    """Return a row for each broker. What changes has its value before and after."""
    received = received_bytes(plan.moves)
    return [
        [
            broker.id,
            broker.rack,
            _change(str(before.replicas), str(after.replicas)),
            _change(str(before.leaders), str(after.leaders)),
            _change(format_size(before.size_bytes), format_size(after.size_bytes)),
            format_size(received[broker.id]) if broker.id in received else None,
        ]
        for broker in plan.layout.brokers.values()
        for before, after in [(plan.before.loads[broker.id], plan.after.loads[broker.id])]
    ]


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


def moves_text(plan: ReassignmentPlan) -> str:
    """Return how many partitions change, and how much is copied."""
    if not plan.moves:
        return "nothing to move"
    copying = sum(bool(move.added) for move in plan.moves)
    others = len(plan.moves) - copying
    parts = [f"{count_text(len(plan.moves), 'partition')}: {format_size(plan.copied_bytes)} to copy"]
    if others:
        parts.append(f"{count_text(others, 'partition')} without copies")
    return ", ".join(parts)


def racks_text(before: PlacementState, after: PlacementState) -> str:
    """Return how many partitions are not spread over the racks as well as possible."""
    if not before.rack_violations and not after.rack_violations:
        return "racks: all partitions are spread over the racks as well as possible"
    change = _change(str(before.rack_violations), str(after.rack_violations))
    return f"racks: partitions that could be spread better over the racks: {change}"


def time_text(plan: ReassignmentPlan, estimate: CopyEstimate | None) -> str:
    """Return the estimated time of the copies. It is not estimated without a rate."""
    if not plan.copied_bytes:
        return "time: nothing is copied"
    if estimate is None:
        return "time: not estimated, since the rate of copies is not known"
    rate, new = format_size(estimate.bytes_per_second), format_size(estimate.new_bytes_per_second)
    if estimate.is_endless:
        return (
            f"time: never if each broker copies {rate}/s, since broker {estimate.broker} copies {new}/s of new records"
        )
    text = f"time: about {estimate_text(estimate.seconds)} if each broker copies {rate}/s"
    return f"{text}, {new}/s of which are new records" if estimate.new_bytes_per_second else text


def estimate_text(seconds: float) -> str:
    """Return an estimated duration in whole seconds, at least one."""
    return format_duration(max(round(seconds), 1) * 1000)


def plan_json(plan: ReassignmentPlan, estimate: CopyEstimate | None) -> dict[str, Any]:
    """Return the JSON of a plan. `estimated_seconds` is null without a rate, and if the copies would never end."""
    received = received_bytes(plan.moves)
    return {
        "moves": [
            {
                "topic": move.topic,
                "partition": move.partition,
                "original": move.original,
                "target": move.target,
                "copied_bytes": move.copied_bytes,
            }
            for move in plan.moves
        ],
        "copied_bytes": plan.copied_bytes,
        "estimated_seconds": None if estimate is None or estimate.is_endless else estimate.seconds,
        "new_bytes_per_second": None if estimate is None else estimate.new_bytes_per_second,
        "is_endless": estimate is not None and estimate.is_endless,
        "brokers": [
            {
                "broker": broker.id,
                "rack": broker.rack,
                "accepts_replicas": broker.accepts_replicas,
                "free_bytes": broker.free_bytes,
                "received_bytes": received.get(broker.id, 0),
                "before": plan.before.loads[broker.id]._asdict(),
                "after": plan.after.loads[broker.id]._asdict(),
            }
            for broker in plan.layout.brokers.values()
        ],
        "before": _state_json(plan.before),
        "after": _state_json(plan.after),
    }


def _state_json(state: PlacementState) -> dict[str, Any]:
    return {
        "rack_violations": state.rack_violations,
        "replica_spread": state.replica_spread,
        "leader_spread": state.leader_spread,
        "bytes_spread": state.bytes_spread,
    }


PROGRESS_COLUMNS = ("topic", "partition", "replicas", "target", "state")


def plan_name(plan: PlanDescription) -> str:
    return f"plan {plan.plan_id} ({plan.description})"


def print_status(plan: PlanDescription, copied: CopiedBytes, now_ms: int, awaited: Sequence[int]) -> None:
    """Print a plan that runs, with the moves in progress. `awaited`: brokers that it waits for."""
    # Neither done nor skipped.
    rows: list[list[Cell]] = [
        [move.topic, move.partition, _ids(move.original), _ids(move.target), move.state]
        for state in (MOVING, PENDING)
        for move in plan.in_state(state)
    ]
    if rows:
        print_table(PROGRESS_COLUMNS, rows[:SHOWN_MOVES])
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


def state_text(plan: PlanDescription) -> str:
    """Return the state of a plan in one line."""
    moved = "moved back" if plan.moves_back else "moved"
    parts = [f"{plan.count(DONE)} of {count_text(len(plan.moves), 'partition')} {moved}"]
    words = {MOVING: "moving", PENDING: "waiting", SKIPPED: "skipped"}
    parts += [f"{count} {word}" for state, word in words.items() if (count := plan.count(state))]
    ended = "" if plan.ended_ms is None else f" after {format_duration(max(plan.ended_ms - plan.created_ms, 0))}"
    return f"{plan_name(plan)} is {plan.state}{ended}: {', '.join(parts)}"


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
        "moves": [move._asdict() for move in plan.moves],
    }


def is_success(plan: PlanDescription) -> bool:
    """Return whether a plan has moved everything that it was made for."""
    return plan.state == COMPLETE and not plan.count(SKIPPED)
