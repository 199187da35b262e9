"""A plan of moves, with the state of the layout before and after it; its checks, and how long its copies take."""

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from kbroker.metadata.reassignments.placement.cluster_layout import (
    ClusterLayout,
    PlacedPartition,
    PlacementState,
    evaluate,
    has_fewer_racks,
    with_replicas,
)

# By topic and partition.
Replicas = Mapping[tuple[str, int], tuple[int, ...]]
# Bytes per second that producers write, by topic and partition.
WriteRates = Mapping[tuple[str, int], float]


class PlanRefused(Exception):
    """A plan is impossible, or would violate a goal. The message has the reason, and a workaround if there is one."""


class PartitionMove(NamedTuple):
    """The change of one partition's replicas. `target[0]` is its preferred leader afterwards.

    `original`: the replicas that the partition must have now. `source` is the leader, which the records are copied
    from, and `size_bytes` the size of one replica; both are known in plans that were made for a layout.
    """

    topic: str
    partition: int
    original: tuple[int, ...]
    target: tuple[int, ...]
    source: int | None = None
    size_bytes: int = 0

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def added(self) -> list[int]:
        """The brokers that copy the partition."""
        return [broker for broker in self.target if broker not in self.original]

    @property
    def removed(self) -> list[int]:
        """The brokers that delete their replica."""
        return [broker for broker in self.original if broker not in self.target]

    @property
    def copied_bytes(self) -> int:
        """The bytes that brokers copy. A move that only changes the order of replicas copies none."""
        return len(self.added) * self.size_bytes


class ReassignmentPlan(NamedTuple):
    """Moves in the order of topic and partition, and the state of the layout before and after all of them."""

    layout: ClusterLayout
    moves: tuple[PartitionMove, ...]
    before: PlacementState
    after: PlacementState

    @property
    def copied_bytes(self) -> int:
        return sum(move.copied_bytes for move in self.moves)


def plan_of(layout: ClusterLayout, replicas: Replicas) -> ReassignmentPlan:
    """Return the plan that gives partitions these replicas.

    Raises PlanRefused if copies do not fit, or if a partition cannot move now.

    Partitions that are missing in `replicas`, or have the same there, do not move.
    """
    moving = [
        (part, target)
        for part in layout.partitions
        if (target := replicas.get((part.topic, part.partition), part.replicas)) != part.replicas
    ]
    _require_movable(moving)
    moves = tuple(
        PartitionMove(part.topic, part.partition, part.replicas, target, part.leader, part.size_bytes)
        for part, target in moving
    )
    _require_space(layout, moves)
    after = with_replicas(layout, {(move.topic, move.partition): move.target for move in moves})
    return ReassignmentPlan(layout, moves, evaluate(layout), evaluate(after))


def _require_movable(moving: list[tuple[PlacedPartition, tuple[int, ...]]]) -> None:
    reassigning = [part for part, _ in moving if part.is_reassigning]
    if reassigning:
        raise PlanRefused(f"{partitions_are(reassigning)} being reassigned: wait until that is done, or cancel it")
    leaderless = [part for part, target in moving if part.leader is None and not set(target) <= set(part.replicas)]
    if leaderless:
        raise PlanRefused(
            f"{partitions_are(leaderless)} without a leader, so there is nothing to copy from: wait for a replica to "
            "return"
        )


def _require_space(layout: ClusterLayout, moves: tuple[PartitionMove, ...]) -> None:
    for broker, size_bytes in sorted(received_bytes(moves).items()):
        free_bytes = layout.brokers[broker].free_bytes
        if free_bytes is not None and size_bytes > free_bytes:
            raise PlanRefused(f"broker {broker} would receive {size_bytes} bytes and has space for {free_bytes}")


def received_bytes(moves: tuple[PartitionMove, ...]) -> dict[int, int]:
    """Return the bytes that brokers copy from others, by broker."""
    received: dict[int, int] = {}
    for move in moves:
        for broker in move.added:
            received[broker] = received.get(broker, 0) + move.size_bytes
    return received


def partitions_are(partitions: Sequence[PlacedPartition]) -> str:
    """Return `orders-0 is`, or `3 partitions, such as orders-0, are`."""
    if len(partitions) == 1:
        return f"{partitions[0]} is"
    return f"{len(partitions)} partitions, such as {partitions[0]}, are"


def given_moves(
    layout: ClusterLayout,
    moves: Iterable[PartitionMove],
    drained: Iterable[int] = (),
    *,
    allow_fewer_racks: bool = False,
) -> ReassignmentPlan:
    """Return the plan with exactly these moves. Raises PlanRefused if one is no longer possible, or violates a goal.

    `drained`: the brokers that the plan is to drain, which must be known. Without `allow_fewer_racks`, no partition may
    be spread worse over racks.
    """
    unknown = [broker for broker in drained if broker not in layout.brokers]
    if unknown:
        raise PlanRefused(f"there is no broker {unknown[0]}")
    current = {(part.topic, part.partition): part.replicas for part in layout.partitions}
    targets: dict[tuple[str, int], tuple[int, ...]] = {}
    for move in moves:
        key = (move.topic, move.partition)
        if key not in current:
            raise PlanRefused(f"the partition {move} does not exist")
        if key in targets:
            raise PlanRefused(f"the plan has more than one move of {move}")
        if current[key] != move.original:
            raise PlanRefused(
                f"{move} has the replicas {_ids(current[key])}, and not {_ids(move.original)} as in the plan: make a "
                "new plan"
            )
        if not move.target or len(set(move.target)) < len(move.target):
            raise PlanRefused(f"{move} would have the replicas {_ids(move.target) or 'none'}")
        for broker in set(move.target).difference(move.original):
            if broker not in layout.brokers or not layout.brokers[broker].accepts_replicas:
                raise PlanRefused(f"broker {broker} accepts no replicas: it is fenced, cordoned or unknown")
        racks = [[layout.brokers[broker].rack for broker in replicas] for replicas in (move.original, move.target)]
        if not allow_fewer_racks and has_fewer_racks(*racks):
            raise PlanRefused(f"{move} would be in fewer racks: --allow-fewer-racks accepts that")
        targets[key] = move.target
    return plan_of(layout, targets)


def _ids(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers))


class CopyEstimate(NamedTuple):
    """The time of all copies, which is that of the busiest broker, `broker`.

    `new_bytes_per_second`: the write rate of the partitions that it copies at the same time. If that is not less than
    `bytes_per_second`, the copies never catch up, and `seconds` is infinite.
    """

    bytes_per_second: float
    seconds: float
    broker: int | None = None
    new_bytes_per_second: float = 0.0

    @property
    def is_endless(self) -> bool:
        return self.seconds == inf


class _Copy(NamedTuple):
    size_bytes: int
    new_bytes_per_second: float


def estimate_copies(
    plan: ReassignmentPlan, bytes_per_second: float, write_rates: WriteRates, max_concurrent_moves: int
) -> CopyEstimate:
    """Return how long the copies take if each broker receives, and sends, at most `bytes_per_second`.

    All brokers copy at the same time, so the busiest one determines the result. The worst case is assumed: that its
    partitions with the highest write rates move at the same time, as many as the plan allows.
    """
    busiest = CopyEstimate(bytes_per_second, 0.0)
    for (broker, _), copies in sorted(_copies(plan, write_rates).items()):
        written = sorted((copy.new_bytes_per_second for copy in copies), reverse=True)
        new_bytes = sum(written[:max_concurrent_moves])
        left = bytes_per_second - new_bytes
        size_bytes = sum(copy.size_bytes for copy in copies)
        seconds = size_bytes / left if left > 0 else inf
        if seconds > busiest.seconds:
            busiest = CopyEstimate(bytes_per_second, seconds, broker, new_bytes)
    return busiest


def _copies(plan: ReassignmentPlan, write_rates: WriteRates) -> dict[tuple[int, bool], list[_Copy]]:
    """Return the copies by (broker, whether it sends): those that it receives, and those that it sends as a leader."""
    copies: dict[tuple[int, bool], list[_Copy]] = {}
    for move in plan.moves:
        new_bytes = write_rates.get((move.topic, move.partition), 0.0)
        for broker in move.added:
            copies.setdefault((broker, False), []).append(_Copy(move.size_bytes, new_bytes))
        if move.source is not None and move.added:
            copy = _Copy(move.copied_bytes, new_bytes * len(move.added))
            copies.setdefault((move.source, True), []).append(copy)
    return copies
