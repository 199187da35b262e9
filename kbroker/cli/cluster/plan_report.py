"""What a plan of moves does, as text and as JSON: moves, bytes, brokers before and after, rack safety, time."""

from collections.abc import Mapping
from typing import Any

from kbroker.cli.common.formatting import count_text, format_duration, format_size
from kbroker.cli.common.output import Cell, print_note, print_table
from kbroker.metadata.reassignments.placement.cluster_layout import BrokerLoad, PlacementState
from kbroker.metadata.reassignments.placement.reassignment_plan import (
    CopyEstimate,
    PartitionMove,
    ReassignmentPlan,
    received_bytes,
)

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
        "moves": [_move_json(move) for move in plan.moves],
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
                "before": _load_json(plan.before.loads[broker.id]),
                "after": _load_json(plan.after.loads[broker.id]),
            }
            for broker in plan.layout.brokers.values()
        ],
        "before": _state_json(plan.before),
        "after": _state_json(plan.after),
    }


def _move_json(move: PartitionMove) -> dict[str, Any]:
    return {
        "topic": move.topic,
        "partition": move.partition,
        "original": list(move.original),
        "target": list(move.target),
        "copied_bytes": move.copied_bytes,
    }


def _load_json(load: BrokerLoad) -> Mapping[str, int]:
    return {"replicas": load.replicas, "leaders": load.leaders, "size_bytes": load.size_bytes}


def _state_json(state: PlacementState) -> Mapping[str, int]:
    return {
        "rack_violations": state.rack_violations,
        "replica_spread": state.replica_spread,
        "leader_spread": state.leader_spread,
        "bytes_spread": state.bytes_spread,
    }
