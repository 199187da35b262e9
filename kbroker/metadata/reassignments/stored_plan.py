"""A plan of reassignments as it is stored in the coordination service.

The progress of a running plan is not stored: it follows from the partitions. So any controller can continue it. The
nodes are those of the running plan, or of the last one. All data is JSON.

    /kbroker/reassignment-plan        the plan without its moves, and the number of nodes that have them
    /kbroker/reassignment-plan/ID-N   [[topic, topic id in hex, partition, original replicas, target replicas], ...]

The nodes of the moves are written first: a plan exists once /kbroker/reassignment-plan has it.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from kbroker.metadata.store import znodes
from kbroker.metadata.store.znodes import REASSIGNMENT_PLAN, decode, decoding, encode

NO_THROTTLE = -1
# With the longest topic names and a few replicas, about 200 KiB.
MOVES_PER_NODE = 500


class PlanState(StrEnum):
    """CANCELLING: everything moves back. COMPLETE and CANCELLED plans have ended."""

    RUNNING = "running"
    CANCELLING = "cancelling"
    COMPLETE = "complete"
    CANCELLED = "cancelled"


class PlanOrigin(StrEnum):
    """REQUEST: a client has requested the plan. REBUILD and RETURN: plans of the controller, see self_healing."""

    REQUEST = "request"
    REBUILD = "rebuild"
    RETURN = "return"


class SkipReason(StrEnum):
    """The reason why a plan does not move a partition. The last three occur in plans of the controller only."""

    DELETED = "deleted"
    REASSIGNED = "reassigned"
    UNREGISTERED = "unregistered"
    RETURNED = "returned"
    AWAY = "away"
    CANCELLED = "cancelled"


class StoredMove(NamedTuple):
    """The change of one partition's replicas. `target[0]` is its preferred leader afterwards."""

    topic: str
    topic_id: bytes
    partition: int
    original: tuple[int, ...]
    target: tuple[int, ...]


class StoredPlan(NamedTuple):
    """A plan. `throttle`: bytes per second for each broker, or NO_THROTTLE; it is set before the first move begins.

    `is_throttled`: whether the configs of the throttle have been set. `skipped`: the indexes of the moves that an ended
    plan has skipped; all others are done. `created_ms`, `ended_ms`: wall clock; `ended_ms` is -1 for a running plan.
    `brokers`: the brokers whose replicas a plan of the controller rebuilds or gives back.
    """

    plan_id: int
    description: str
    state: PlanState
    throttle: int
    max_concurrent_moves: int
    created_ms: int
    moves: tuple[StoredMove, ...]
    ended_ms: int = -1
    is_throttled: bool = False
    skipped: Mapping[SkipReason, tuple[int, ...]] = {}
    origin: PlanOrigin = PlanOrigin.REQUEST
    brokers: tuple[int, ...] = ()

    @property
    def is_active(self) -> bool:
        return self.state in (PlanState.RUNNING, PlanState.CANCELLING)

    def direction(self, move: StoredMove) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the replicas before a move and after it.

        A cancelled plan of the controller moves nothing back: it might wait for a broker that never returns.
        """
        if self.origin is not PlanOrigin.REQUEST or self.state in (PlanState.RUNNING, PlanState.COMPLETE):
            return move.original, move.target
        return move.target, move.original


class PlanHeader(NamedTuple):
    """`plan` has no moves. They are in `node_count` nodes."""

    plan: StoredPlan
    node_count: int

    def move_paths(self) -> list[str]:
        return [moves_path(self.plan.plan_id, number) for number in range(self.node_count)]


def moves_path(plan_id: int, number: int) -> str:
    return f"{REASSIGNMENT_PLAN}/{plan_id}-{number}"


def moves_paths(plan: StoredPlan) -> list[str]:
    """Return the nodes that have the moves of a plan."""
    return [moves_path(plan.plan_id, number) for number in range(_node_count(plan))]


def _node_count(plan: StoredPlan) -> int:
    return -(-len(plan.moves) // MOVES_PER_NODE)


def encode_header(plan: StoredPlan) -> bytes:
    # A plan on request must be readable by a version without self-healing.
    origin = {} if plan.origin is PlanOrigin.REQUEST else {"origin": plan.origin, "brokers": plan.brokers}
    return encode(
        {
            "id": plan.plan_id,
            "description": plan.description,
            "state": plan.state,
            "throttle": plan.throttle,
            "max_concurrent_moves": plan.max_concurrent_moves,
            "created_ms": plan.created_ms,
            "ended_ms": plan.ended_ms,
            "throttled": plan.is_throttled,
            "skipped": plan.skipped,
            "nodes": _node_count(plan),
            **origin,
        }
    )


def decode_header(data: bytes | None) -> PlanHeader | None:
    """Return the header; None if there has been no plan. The node is empty until the first plan is complete."""
    if not data:
        return None
    with decoding(REASSIGNMENT_PLAN):
        fields = decode(REASSIGNMENT_PLAN, data)
        skipped = {SkipReason(reason): tuple(map(int, moves)) for reason, moves in fields["skipped"].items()}
        plan = StoredPlan(
            int(fields["id"]), fields["description"], PlanState(fields["state"]), int(fields["throttle"]),
            int(fields["max_concurrent_moves"]), int(fields["created_ms"]), (), int(fields["ended_ms"]),
            bool(fields["throttled"]), skipped, PlanOrigin(fields.get("origin", PlanOrigin.REQUEST)),
            tuple(map(int, fields.get("brokers", ()))),
        )  # fmt: skip
        return PlanHeader(plan, int(fields["nodes"]))


def encode_moves(plan_id: int, moves: Sequence[StoredMove]) -> Iterator[tuple[str, bytes]]:
    """Yield the paths and the data of the nodes that have the moves of a plan."""
    for number, first in enumerate(range(0, len(moves), MOVES_PER_NODE)):
        rows = [
            (move.topic, move.topic_id.hex(), move.partition, move.original, move.target)
            for move in moves[first : first + MOVES_PER_NODE]
        ]
        yield moves_path(plan_id, number), encode(rows)


def decode_moves(path: str, data: bytes) -> tuple[StoredMove, ...]:
    with decoding(path):
        return tuple(_move(*row) for row in decode(path, data))


def _move(topic: str, topic_id: str, partition: int, original: list[int], target: list[int]) -> StoredMove:
    return StoredMove(topic, bytes.fromhex(topic_id), int(partition), tuple(original), tuple(target))


class LoadedPlan:
    """The nodes of the plan as last read. Moves are decoded when they are first used: only by the controller."""

    def __init__(self) -> None:
        self._header: PlanHeader | None = None
        self._data: dict[str, bytes] = {}
        self._moves: tuple[StoredMove, ...] | None = None

    @property
    def is_active(self) -> bool:
        return self._header is not None and self._header.plan.is_active

    @property
    def plan(self) -> StoredPlan | None:
        """The plan with its moves; None if there has been none, or if another plan is replacing it."""
        if self._header is None:
            return None
        if self._moves is None:
            paths = self._header.move_paths()
            if not all(path in self._data for path in paths):
                return None
            self._moves = tuple(move for path in paths for move in decode_moves(path, self._data[path]))
        return self._header.plan._replace(moves=self._moves)

    def known_paths(self) -> Iterator[str]:
        yield znodes.REASSIGNMENT_PLAN
        yield from self._data

    def missing_paths(self, nodes: Mapping[str, bytes | None]) -> list[str]:
        """Return the paths of moves of the plan in `nodes` that are neither in `nodes` nor known already."""
        header = decode_header(nodes.get(REASSIGNMENT_PLAN))
        paths = [] if header is None else header.move_paths()
        return [path for path in paths if nodes.get(path) is None and (path in nodes or path not in self._data)]

    def update(self, path: str, data: bytes | None) -> None:
        """Store the current data of a node of the plan."""
        if path == REASSIGNMENT_PLAN:
            header = decode_header(data)
            if header is None or self._header is None or header.plan.plan_id != self._header.plan.plan_id:
                self._moves = None
            self._header = header
        elif data is None:
            self._data.pop(path, None)
        else:
            self._data[path] = data
