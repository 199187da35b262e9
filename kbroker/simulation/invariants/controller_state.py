"""The state that the controller has written, read from the coordination service's tree, and the invariants of its plans
and reassignments."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from kbroker.config.config_def import ConfigResource, ConfigResourceType
from kbroker.coordination.interface import NoNode
from kbroker.metadata.reassignments import stored_plan
from kbroker.metadata.reassignments.stored_plan import PlanOrigin, PlanState, StoredPlan
from kbroker.metadata.replication.broker_changes import acceptable_leaders
from kbroker.metadata.replication.partition_change import target_replicas
from kbroker.metadata.replication.partition_requests import write_health_by_broker
from kbroker.metadata.store import znodes
from kbroker.metadata.store.change_log import decode_change_log

if TYPE_CHECKING:
    from kbroker.coordination.data_tree import DataTree
    from kbroker.metadata.image import KnownBroker, PartitionRegistration
    from kbroker.simulation.checker.history import TopicPartition

T = TypeVar("T")
# A partition of a topic id.
Key = tuple[bytes, int]

_BROKER_CONFIGS = znodes.config_path(ConfigResource(ConfigResourceType.BROKER, "1")).rpartition("/")[0]


class StoredPartition(NamedTuple):
    topic_id: bytes
    registration: PartitionRegistration


class ControllerState:
    """Decodes nodes once, as long as their data is the same object."""

    def __init__(self, tree: DataTree) -> None:
        self._tree = tree
        self._decoded: dict[str, tuple[bytes, object]] = {}
        # The nodes that the known partitions were read from, with their data.
        self._sources: list[tuple[str, bytes]] = []
        self._partitions: dict[TopicPartition, StoredPartition] = {}
        self._plan_data = b""
        self._plan: StoredPlan | None = None

    def use(self, tree: DataTree) -> None:
        """Read the nodes of another tree from now on."""
        self._tree = tree

    def partitions(self) -> dict[TopicPartition, StoredPartition]:
        """Return all partitions of the topics that exist. Do not change the result."""
        topics = [(name, self._tree.get(znodes.topic_path(name)).data) for name in self._children(znodes.TOPICS)]
        numbers = self._children(znodes.PARTITIONS)
        sources = topics + [(number, self._tree.get(znodes.chunk_path(int(number))).data) for number in numbers]
        if sources != self._sources:
            names = {znodes.decode_topic(name, data).topic_id: name for name, data in topics}
            self._sources = sources
            self._partitions = {
                (names[topic_id], index): StoredPartition(topic_id, registration)
                for number in numbers
                for topic_id, partitions in self._chunk(int(number)).items()
                if topic_id in names
                for index, registration in partitions.items()
            }
        return self._partitions

    @property
    def last_change(self) -> int:
        """The number of the last metadata change."""
        return decode_change_log(self._tree.get(znodes.CHANGES).data).number

    def brokers(self) -> dict[int, KnownBroker]:
        """Return the registrations that the controller has written, by broker id."""
        ids = map(int, self._children(znodes.REGISTRATIONS))
        return {id: self._decode(znodes.registration_path(id), id, znodes.decode_registration) for id in ids}

    def cordoned_brokers(self) -> frozenset[int]:
        """Return the brokers that get no replicas of new partitions."""
        nodes = {name: f"{_BROKER_CONFIGS}/{name}" for name in self._children(_BROKER_CONFIGS)}
        return frozenset(
            int(name)
            for name, path in nodes.items()
            if name.isdecimal() and self._decode(path, int(name), lambda _, data: data.find(b"cordoned.log.dirs") >= 0)
        )

    def reassignment_plan(self) -> StoredPlan | None:
        """Return the plan of reassignments that runs, or the last one: the same object as long as its node is."""
        try:
            data = self._tree.get(znodes.REASSIGNMENT_PLAN).data
        except NoNode:
            return None
        if self._plan_data is not data:
            self._plan_data, self._plan = data, self._decode_plan(data)
        return self._plan

    def _decode_plan(self, data: bytes) -> StoredPlan | None:
        header = stored_plan.decode_header(data)
        if header is None:
            return None
        moves = (stored_plan.decode_moves(path, self._tree.get(path).data) for path in header.move_paths())
        return header.plan._replace(moves=tuple(chain.from_iterable(moves)))

    def _chunk(self, number: int) -> znodes.Chunk:
        return self._decode(znodes.chunk_path(number), number, znodes.decode_chunk)

    def _decode(self, path: str, number: int, decode: Callable[[int, bytes], T]) -> T:
        data = self._tree.get(path).data
        known = self._decoded.get(path)
        if known is None or known[0] is not data:
            known = self._decoded[path] = data, decode(number, data)
        return known[1]  # type: ignore[return-value]

    def _children(self, path: str) -> list[str]:
        try:
            return self._tree.children(path)
        except NoNode:
            return []


# Invariants of plans of reassignments, checked on each state of the plan that the controller writes.
#
# - A plan runs, is perhaps cancelled, and ends. Only then another one begins, with a higher id.
# - When self-healing begins to rebuild, the brokers are away, and not more brokers with replicas are away than live.
#   Each move adds one replica elsewhere, and removes one of them.
# - When it ends, each move that it has not skipped is done: the partition has the replicas of the plan, and the first
#   of them leads if it can.

RUNNING, CANCELLING = PlanState.RUNNING, PlanState.CANCELLING
_NEXT_STATES = {
    RUNNING: {RUNNING, CANCELLING, PlanState.COMPLETE},
    CANCELLING: {CANCELLING, PlanState.CANCELLED},
}


class Plans:
    """Remembers the last plan. `plan`: the one that was stored before."""

    def __init__(self, state: ControllerState, plan: StoredPlan | None = None) -> None:
        self._state = state
        self._plan = plan

    def fault(self) -> str | None:
        """Record the plan as it is stored now. Returns what is wrong with it."""
        old, new = self._plan, self._state.reassignment_plan()
        if new is None or new is old:
            return None
        self._plan = new
        if old is None or old.plan_id != new.plan_id:
            is_next = old is None or (not old.is_active and new.plan_id > old.plan_id)
            is_valid = is_next and new.state is RUNNING
        else:
            is_valid = new.state in _NEXT_STATES.get(old.state, ())
        if not is_valid:
            before = "none" if old is None else f"{old.plan_id}, {old.state}"
            return f"plan {new.plan_id} is {new.state}, and the plan before was {before}"
        if new.origin is PlanOrigin.REBUILD and (old is None or old.plan_id != new.plan_id):
            return self._fault_of_rebuild(new)
        return None if new.is_active else self._fault_at_end(new)

    def _fault_of_rebuild(self, plan: StoredPlan) -> str | None:
        live = {broker for broker, known in self._state.brokers().items() if not known.fenced}
        holders = {broker for stored in self._state.partitions().values() for broker in stored.registration.replicas}
        away = holders - live
        if not away.issuperset(plan.brokers) or len(away) > len(live):
            return f"plan {plan.plan_id} rebuilds {plan.brokers}, {sorted(away)} are away, and {sorted(live)} live"
        for move in plan.moves:
            added, removed = set(move.target) - set(move.original), set(move.original) - set(move.target)
            if len(added) != 1 or len(removed) != 1 or not removed <= set(plan.brokers) or not added <= live:
                return f"plan {plan.plan_id} rebuilds {plan.brokers} with {move}"
        return None

    def _fault_at_end(self, plan: StoredPlan) -> str | None:
        partitions = {(stored.topic_id, tp[1]): stored.registration for tp, stored in self._state.partitions().items()}
        skipped = {index for indexes in plan.skipped.values() for index in indexes}
        known = self._state.brokers()
        # One that cannot write to its disk, or is on probation, is not elected as the preferred leader.
        alive = acceptable_leaders(known) - write_health_by_broker(known).keys()
        for index, move in enumerate(plan.moves):
            partition = partitions.get((move.topic_id, move.partition))
            # A topic may be deleted once the move of its partition is done.
            if index in skipped or partition is None:
                continue
            goal = list(plan.direction(move)[1])
            if not _is_done(partition, goal, alive):
                name = f"{move.topic}-{move.partition}"
                return f"plan {plan.plan_id} is {plan.state}, and {name} is not at {goal}: {partition}"
        return None


def _is_done(partition: PartitionRegistration, goal: list[int], alive: frozenset[int]) -> bool:
    can_lead = goal[0] in partition.isr and goal[0] in alive
    has_leader = partition.leader == goal[0] if can_lead else partition.leader in (*goal, -1)
    return has_leader and partition.replicas == goal and not partition.is_reassigning


# Invariants of reassignments (KIP-455), checked on each state of a partition that the controller writes.
#
# - While one is in progress, the partition has all the replicas of before.
# - One that ends leaves the replicas of before, or those of a target. Those that it has added are in sync then.


class Reassignments:
    """Remembers the replicas that each partition had when none was in progress, and the last target."""

    def __init__(self) -> None:
        self._before: dict[Key, set[int]] = {}
        self._targets: dict[Key, set[int]] = {}

    def forget(self, key: Key) -> None:
        """Record that a partition was removed."""
        self._before.pop(key, None)
        self._targets.pop(key, None)

    def fault(self, key: Key, new: PartitionRegistration) -> str | None:
        """Record the next state of a partition. Returns what is wrong with it."""
        replicas = set(new.replicas)
        before = self._before.setdefault(key, replicas)
        if new.is_reassigning:
            self._targets[key] = set(target_replicas(new))
            if before <= replicas:
                return None
            return f"the reassignment of {sorted(before)} has lost replicas before its end: {new}"
        self._before[key] = replicas
        target = self._targets.pop(key, replicas)
        added = replicas - before
        if added <= set(new.isr):
            return None
        moves = f"the reassignment of {sorted(before)} to {sorted(target)}"
        return f"{moves} has ended, and {sorted(added)} were added, not in sync: {new}"
