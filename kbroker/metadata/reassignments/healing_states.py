"""The states of brokers in self-healing: whose replicas are due to be rebuilt or given back, and who must wait why.

- The replicas of a broker are rebuilt elsewhere when it has been away for kbroker.replica.rebuild.after.ms, and given
  back when it has then been unfenced for as long. So a flapping broker causes at most one copy of its replicas in each
  such period.
- While more brokers are away than live, nothing is rebuilt: that is an outage of the cluster, which copies cannot end.
  Brokers without replicas do not count, such as drained ones that were stopped for good.
- No plan begins while another one runs, whether a user or the controller has created it.

*How long* brokers have been fenced or unfenced. The controller stores the wall-clock time when it fences or unfences a
broker, so that the next controller knows it. The clock may jump, or differ from the next controller's; and after an
outage of the whole cluster, brokers that are about to start have old times. So a controller must also have observed the
broker in its state for OBSERVED_MS by its own monotonic clock, or for the whole required time if that is shorter. Each
controller begins its own observation.

*Obstacles* are the reasons why replicas are not rebuilt although their broker has been away long enough.

*The layout* for which their plans are made follows from the metadata and the brokers' reports of their disks.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from kbroker.common import NO_LEADER
from kbroker.metadata.image import BrokerHistory, KnownBroker, PartitionRegistration, TopicImage
from kbroker.metadata.reassignments.placement.cluster_layout import (
    ClusterBroker,
    ClusterLayout,
    PlacedPartition,
    cluster_layout,
)
from kbroker.metadata.reassignments.placement.drain import Rebuild
from kbroker.metadata.reassignments.stored_plan import PlanOrigin, StoredMove, StoredPlan
from kbroker.metadata.replication.broker_changes import acceptable_leaders
from kbroker.metadata.replication.partition_change import target_replicas

OBSERVED_MS = 60_000
OUTAGE = "more brokers are away than live"
HOMELESS = "no live broker may hold the replica, or has room for it"
LEADERLESS = "no replica leads that could be copied"


class HealingState(StrEnum):
    """The state of a broker that is away, or that is to get replicas back.

    WAITING: it has not been away (or back) long enough. OUTAGE: too many brokers are away. BLOCKED: another plan runs,
    or its own was refused. RUNNING: a plan of the controller moves its replicas. GIVEN_UP: a user has cancelled the
    rebuild. IMPOSSIBLE: no replica can be rebuilt now. DUE: its plan is about to begin.
    """

    WAITING = "waiting"
    OUTAGE = "outage"
    BLOCKED = "blocked"
    RUNNING = "running"
    GIVEN_UP = "given up"
    IMPOSSIBLE = "impossible"
    DUE = "due"


class HealedBroker(NamedTuple):
    """A broker with replicas to rebuild or to give back.

    `replicas`: how many it has if it `is_away`, else how many it is to get back. `since_ms`: see BrokerHistory.
    `remaining_ms`: how long it must stay away, or back, until it is due.
    """

    broker_id: int
    is_away: bool
    state: HealingState
    replicas: int
    since_ms: int
    remaining_ms: int


class HealingInputs(NamedTuple):
    """What the decisions need, by broker id.

    `replicas` includes unregistered brokers. `remaining_ms`: see ObservedBrokers.
    """

    known: Mapping[int, KnownBroker]
    replicas: Mapping[int, int]
    remaining_ms: Mapping[int, int]
    plan: StoredPlan | None


def healed_brokers(inputs: HealingInputs) -> list[HealedBroker]:
    """Return the brokers that are away with replicas, and those that are to get replicas back, with their states."""
    known, replicas = inputs.known, inputs.replicas
    away = away_with_replicas(known, replicas)
    is_outage = is_cluster_outage(known, away)
    healed = []
    for broker_id in sorted(known.keys() | replicas.keys()):
        history = known[broker_id].history if broker_id in known else BrokerHistory()
        is_away = broker_id in away
        count = replicas.get(broker_id, 0) if is_away else history.rebuilt
        if is_away or (count and not known[broker_id].fenced):
            remaining_ms = inputs.remaining_ms[broker_id]
            state = _state(broker_id, is_away, is_outage, history, remaining_ms, inputs.plan)
            healed.append(HealedBroker(broker_id, is_away, state, count, history.since_ms, remaining_ms))
    return healed


def away_with_replicas(known: Mapping[int, KnownBroker], replicas: Mapping[int, int]) -> frozenset[int]:
    """Return the brokers with replicas that are fenced or not registered."""
    return frozenset(
        broker_id
        for broker_id, count in replicas.items()
        if count and (broker_id not in known or known[broker_id].fenced)
    )


def long_away(inputs: HealingInputs) -> frozenset[int]:
    """Return the brokers that have been away long enough to be rebuilt, with replicas or without."""
    return frozenset(
        broker_id
        for broker_id, remaining_ms in inputs.remaining_ms.items()
        if not remaining_ms and (broker_id not in inputs.known or inputs.known[broker_id].fenced)
    )


def is_cluster_outage(known: Mapping[int, KnownBroker], away: Collection[int]) -> bool:
    """Return whether more brokers are away than live."""
    return len(away) > sum(not broker.fenced for broker in known.values())


def _state(
    broker_id: int, is_away: bool, is_outage: bool, history: BrokerHistory, remaining_ms: int, plan: StoredPlan | None
) -> HealingState:
    if plan is not None and plan.is_active and plan.origin is not PlanOrigin.REQUEST and broker_id in plan.brokers:
        return HealingState.RUNNING
    if is_away and history.is_given_up:
        return HealingState.GIVEN_UP
    if is_outage:
        return HealingState.OUTAGE
    if remaining_ms:
        return HealingState.WAITING
    return HealingState.BLOCKED if plan is not None and plan.is_active else HealingState.DUE


class BrokerState(NamedTuple):
    """`epoch`: the broker epoch, 0 for a broker that is not registered. Each registration has a new one."""

    is_away: bool
    epoch: int


class ObservedBrokers:
    """The states of brokers as one controller has seen them."""

    def __init__(self) -> None:
        self._controller_epoch = 0
        # Each broker's state, and the monotonic time since which it is in it.
        self._since: dict[int, tuple[BrokerState, int]] = {}

    def update(self, controller_epoch: int, states: Mapping[int, BrokerState], mono_ms: int) -> None:
        """Record the states that brokers have now."""
        if controller_epoch != self._controller_epoch:
            self._controller_epoch, self._since = controller_epoch, {}
        self._since = {
            broker_id: before
            if (before := self._since.get(broker_id)) is not None and before[0] == state
            else (state, mono_ms)
            for broker_id, state in states.items()
        }

    def remaining_ms(self, broker_id: int, history: BrokerHistory, after_ms: int, *, now_ms: int, mono_ms: int) -> int:
        """Return the ms until a broker has been in its state for `after_ms`; 0 if it has been."""
        observed_ms = mono_ms - self._since[broker_id][1]
        stored_ms = now_ms - history.since_ms if history.since_ms >= 0 else 0
        unobserved_ms = min(after_ms, OBSERVED_MS) - observed_ms
        return max(unobserved_ms, after_ms - max(observed_ms, stored_ms), 0)


def broker_states(known: Mapping[int, KnownBroker], replicas: Mapping[int, int]) -> dict[int, BrokerState]:
    """Return the states of the registered brokers, and of unregistered brokers that have replicas."""
    states = {broker_id: BrokerState(True, 0) for broker_id in replicas}
    for broker_id, broker in known.items():
        states[broker_id] = BrokerState(broker.fenced, broker.registration.epoch)
    return states


class Obstacle(NamedTuple):
    """`replicas`: how many are not rebuilt for this reason, 0 if they were not counted."""

    brokers: tuple[int, ...]
    reason: str
    replicas: int = 0


class Obstacles(NamedTuple):
    """The obstacles that a check has found.

    `impossible`: the brokers of which no replica can be rebuilt now. `blocked`: those whose plan was refused.
    """

    found: tuple[Obstacle, ...] = ()
    impossible: frozenset[int] = frozenset()
    blocked: frozenset[int] = frozenset()

    @classmethod
    def waiting(cls, healed: Sequence[HealedBroker]) -> "Obstacles":
        """Return the cluster outage as the obstacle of the brokers that are due otherwise; empty if none are."""
        kept = [broker for broker in healed if broker.state is HealingState.OUTAGE and not broker.remaining_ms]
        if not kept:
            return cls()
        ids, replicas = tuple(broker.broker_id for broker in kept), sum(broker.replicas for broker in kept)
        return cls((Obstacle(ids, OUTAGE, replicas),))

    def with_refusal(self, refused: Obstacle | None) -> "Obstacles":
        """Return these obstacles and the refusal of a plan; None: it was not refused."""
        if refused is None:
            return self
        return self._replace(found=(*self.found, refused), blocked=frozenset(refused.brokers))

    def added_since(self, before: "Obstacles") -> list[Obstacle]:
        """Return the obstacles that were not there before."""
        return [obstacle for obstacle in self.found if obstacle not in before.found]

    @property
    def replicas(self) -> int:
        """How many replicas are not rebuilt although their broker has been away long enough."""
        return sum(obstacle.replicas for obstacle in self.found)

    def applied_to(self, healed: Sequence[HealedBroker]) -> list[HealedBroker]:
        """Return the brokers with the states that follow from the last attempt."""
        states = dict.fromkeys(self.blocked, HealingState.BLOCKED)
        states |= dict.fromkeys(self.impossible, HealingState.IMPOSSIBLE)
        return [
            broker._replace(state=states.get(broker.broker_id, broker.state))
            if broker.state is HealingState.DUE
            else broker
            for broker in healed
        ]


def obstacles_of(result: Rebuild, away: Collection[int]) -> Obstacles:
    """Return the obstacles of the replicas that a plan leaves out."""
    found = []
    for partitions, reason in ((result.homeless, HOMELESS), (result.leaderless, LEADERLESS)):
        if partitions:
            brokers = {broker for partition in partitions for broker in partition.replicas if broker in away}
            found.append(Obstacle(tuple(sorted(brokers)), reason, len(partitions)))
    moved = {broker for move in result.plan.moves for broker in move.removed}
    kept = {broker for obstacle in found for broker in obstacle.brokers}
    return Obstacles(tuple(found), frozenset(kept - moved))


def histories_at_cancellation(plan: StoredPlan, known: Mapping[int, KnownBroker]) -> dict[int, BrokerHistory]:
    """Return the changed histories when a user cancels a plan: the controller must not begin the same plan again."""
    changed = {}
    for broker_id in plan.brokers:
        if broker_id in known and plan.origin is PlanOrigin.REBUILD and known[broker_id].fenced:
            changed[broker_id] = known[broker_id].history._replace(is_given_up=True)
        elif broker_id in known and plan.origin is PlanOrigin.RETURN:
            changed[broker_id] = known[broker_id].history._replace(rebuilt=0)
    return changed


def histories_at_end(
    plan: StoredPlan, done: Sequence[StoredMove], known: Mapping[int, KnownBroker], replicas: Mapping[int, int]
) -> dict[int, BrokerHistory]:
    """Return the changed histories when a plan has ended. `replicas`: their number by broker, after the plan.

    `done`: the moves that were not skipped. If a plan on request was cancelled, these were moved back.
    """
    added, removed = _counts(plan, done)
    changed: dict[int, BrokerHistory] = {}
    for broker_id, broker in known.items():
        history = broker.history
        if plan.origin is PlanOrigin.REBUILD and broker_id in plan.brokers:
            history = history._replace(rebuilt=history.rebuilt + removed.get(broker_id, 0))
        elif plan.origin is PlanOrigin.RETURN and broker_id in plan.brokers:
            history = history._replace(rebuilt=max(history.rebuilt - added.get(broker_id, 0), 0))
        elif plan.origin is PlanOrigin.REQUEST and removed.get(broker_id) and not replicas.get(broker_id):
            # Also if the broker has stopped: no replicas are to be given back to it.
            history = history._replace(rebuilt=0, is_drained=True)
        if added.get(broker_id):
            history = history._replace(is_drained=False)
        if history != broker.history:
            changed[broker_id] = history
    return changed


def _counts(plan: StoredPlan, done: Sequence[StoredMove]) -> tuple[dict[int, int], dict[int, int]]:
    """Return how many replicas were added and removed, by broker."""
    added: dict[int, int] = {}
    removed: dict[int, int] = {}
    for move in done:
        start, goal = plan.direction(move)
        for broker_id in set(goal) - set(start):
            added[broker_id] = added.get(broker_id, 0) + 1
        for broker_id in set(start) - set(goal):
            removed[broker_id] = removed.get(broker_id, 0) + 1
    return added, removed


# No user watches a plan of the controller, so it leaves this fraction of each disk free.
RESERVED = 0.1


class BrokerDisk(NamedTuple):
    """A broker's report: the bytes of its replicas by topic and partition, and of its file system, if known.

    `is_cordoned`: its log directory is in cordoned.log.dirs.
    """

    sizes: Mapping[tuple[str, int], int]
    total_bytes: int | None = None
    free_bytes: int | None = None
    is_cordoned: bool = False

    @property
    def room_bytes(self) -> int | None:
        """The bytes that the broker may receive; None if that is unknown."""
        if self.free_bytes is None or self.total_bytes is None:
            return None
        return max(self.free_bytes - round(self.total_bytes * RESERVED), 0)


def healing_layout(
    topics: Mapping[str, TopicImage], known: Mapping[int, KnownBroker], disks: Mapping[int, BrokerDisk]
) -> ClusterLayout:
    """Return the layout of all partitions.

    A broker accepts replicas if it is alive, has reported its disk, can write to it, is not cordoned, and was not
    drained.
    """
    alive = acceptable_leaders(known)
    brokers = [
        ClusterBroker(
            broker_id,
            broker.registration.rack,
            broker_id in alive
            and broker_id in disks
            and not broker.registration.write_health
            and not disks[broker_id].is_cordoned
            and not is_drained(broker_id, broker, topics),
            disks[broker_id].room_bytes if broker_id in disks else None,
        )
        for broker_id, broker in known.items()
    ]
    return cluster_layout(brokers, _partitions(topics, disks))


def is_drained(broker_id: int, broker: KnownBroker, topics: Mapping[str, TopicImage]) -> bool:
    """Return whether a broker was drained, and has received no replica since."""
    if not broker.history.is_drained:
        return False
    return all(broker_id not in partition.replicas for topic in topics.values() for partition in topic.partitions)


def _partitions(topics: Mapping[str, TopicImage], disks: Mapping[int, BrokerDisk]) -> Iterator[PlacedPartition]:
    for topic in topics.values():
        for index, partition in enumerate(topic.partitions):
            replicas = tuple(target_replicas(partition))
            yield PlacedPartition(
                topic.name,
                index,
                replicas,
                None if partition.leader == NO_LEADER else partition.leader,
                _size(partition, (topic.name, index), disks),
                frozenset(replicas).difference(partition.isr),
                partition.is_reassigning,
            )


def _size(partition: PartitionRegistration, key: tuple[str, int], disks: Mapping[int, BrokerDisk]) -> int:
    """Return the bytes of the leader's replica, or those of the largest if the leader has not reported it."""
    if partition.leader in disks and key in disks[partition.leader].sizes:
        return disks[partition.leader].sizes[key]
    return max((disks[broker].sizes.get(key, 0) for broker in partition.replicas if broker in disks), default=0)
