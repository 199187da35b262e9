"""A reassignment plan as the controller reports it, and how far it is."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from kbroker.cli.common.partitions.list_offsets import Partition

RUNNING, CANCELLING, COMPLETE, CANCELLED = "running", "cancelling", "complete", "cancelled"
ON_REQUEST = "request"
DONE, MOVING, PENDING, SKIPPED = "done", "running", "pending", "skipped"


class MoveDescription(NamedTuple):
    """The change of one partition's replicas, and how far it is. `reason`: why it is skipped, None otherwise.

    Of a plan that is cancelled, moves are done when their partitions have the original replicas again.
    """

    topic: str
    partition: int
    original: tuple[int, ...]
    target: tuple[int, ...]
    state: str = PENDING
    reason: str | None = None

    @property
    def key(self) -> Partition:
        return self.topic, self.partition

    @property
    def added(self) -> list[int]:
        """The brokers that copy the partition."""
        return [broker for broker in self.target if broker not in self.original]

    @property
    def removed(self) -> list[int]:
        """The brokers that copy the partition if it moves back."""
        return [broker for broker in self.original if broker not in self.target]


class PlanDescription(NamedTuple):
    """The plan that runs, or the last one. The controller's clock sets the times, in milliseconds since the epoch.

    `throttle_bytes_per_second` is None without a throttle, `ended_ms` until the plan has ended. `origin` is ON_REQUEST
    unless the controller has made the plan itself.
    """

    plan_id: int
    description: str
    state: str
    throttle_bytes_per_second: int | None
    max_concurrent_moves: int
    created_ms: int
    ended_ms: int | None
    moves: tuple[MoveDescription, ...]
    origin: str = ON_REQUEST

    @property
    def moves_back(self) -> bool:
        """Whether it is or was cancelled, and restores the original replicas. A plan of the controller only stops."""
        return self.state in (CANCELLING, CANCELLED) and self.origin == ON_REQUEST

    @property
    def is_running(self) -> bool:
        return self.state in (RUNNING, CANCELLING)

    @property
    def is_cancelling(self) -> bool:
        return self.state == CANCELLING

    def awaited(self, away: Collection[int]) -> list[int]:
        """Return the brokers of those that are away which the plan waits for, as they have to copy partitions."""
        if self.is_cancelling and not self.moves_back:
            return []
        moves = self.in_state(MOVING) + self.in_state(PENDING)
        copying = {broker for move in moves for broker in (move.removed if self.moves_back else move.added)}
        return sorted(copying.intersection(away))

    def count(self, state: str) -> int:
        """Return the number of moves in a state."""
        return sum(move.state == state for move in self.moves)

    def in_state(self, state: str) -> list[MoveDescription]:
        return [move for move in self.moves if move.state == state]


class CopiedBytes(NamedTuple):
    """The bytes that a plan has copied, of those that it copies in total."""

    copied: int
    total: int


# The bytes that brokers have of partitions that move to them.
ReplicaSizes = Mapping[int, Mapping[Partition, int]]


def copied_bytes(plan: PlanDescription, sizes: Mapping[Partition, int], replicas: ReplicaSizes) -> CopiedBytes:
    """Return how far a plan is. `sizes`: of one replica, by partition. `replicas`: of the moves that are running.

    Of a plan that is cancelled it is not known which partitions have to be copied back: nothing is counted.
    """
    if plan.moves_back:
        return CopiedBytes(0, 0)
    copied = total = 0
    for move in plan.moves:
        size_bytes = sizes.get(move.key, 0)
        if move.state != SKIPPED:
            total += size_bytes * len(move.added)
        if move.state == DONE:
            copied += size_bytes * len(move.added)
        elif move.state == MOVING:
            copied += sum(min(replicas.get(broker, {}).get(move.key, 0), size_bytes) for broker in move.added)
    return CopiedBytes(copied, total)


def copy_rate(plan: PlanDescription, sizes: Mapping[Partition, int]) -> float | None:
    """Return the bytes per second that the busiest broker of a complete plan received or sent.

    None if that says nothing about another plan: the plan had a throttle, or was too short to measure. It is assumed
    that the partitions had their current sizes then.
    """
    if plan.state != COMPLETE or plan.ended_ms is None or plan.throttle_bytes_per_second is not None:
        return None
    duration_ms = plan.ended_ms - plan.created_ms
    busiest = max(_loads(plan.in_state(DONE), sizes), default=0)
    return busiest * 1000 / duration_ms if duration_ms >= MEASURABLE_MS and busiest >= MEASURABLE_BYTES else None


# What passes before and after the copies of a shorter or smaller plan is no small part of its time.
MEASURABLE_MS, MEASURABLE_BYTES = 2000, 1 << 20


def _loads(moves: Iterable[MoveDescription], sizes: Mapping[Partition, int]) -> Iterable[int]:
    received: dict[int, int] = {}
    sent: dict[int, int] = {}
    for move in moves:
        size_bytes = sizes.get(move.key, 0)
        for broker in move.added:
            received[broker] = received.get(broker, 0) + size_bytes
            # The preferred leader was probably the leader.
            sent[move.original[0]] = sent.get(move.original[0], 0) + size_bytes
    return [*received.values(), *sent.values()]
