"""A plan of moves, with the state of the layout before and after it; and the checks of a plan."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kbroker.metadata.topics.placement.cluster_layout import ClusterLayout, PlacedPartition, with_replicas
from kbroker.metadata.topics.placement.placement_goals import PlacementState, evaluate

# By topic and partition.
Replicas = Mapping[tuple[str, int], tuple[int, ...]]


class PlanRefused(Exception):
    """A plan is impossible, or would violate a goal. The message has the reason, and a workaround if there is one."""


class PartitionMove(NamedTuple):
    """The change of one partition's replicas. `target[0]` is its preferred leader afterwards.

    `source` is the leader, which the records are copied from. `size_bytes` is the size of one replica.
    """

    topic: str
    partition: int
    original: tuple[int, ...]
    target: tuple[int, ...]
    source: int | None
    size_bytes: int

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
