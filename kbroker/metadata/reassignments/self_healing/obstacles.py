"""Obstacles to self-healing: why replicas are not rebuilt although their broker has been away long enough."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from kbroker.metadata.reassignments.self_healing.healing_states import HealedBroker, HealingState
from kbroker.metadata.topics.placement.rebuild import Rebuild

OUTAGE = "more brokers are away than live"
HOMELESS = "no live broker may hold the replica, or has room for it"
LEADERLESS = "no replica leads that could be copied"


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
        return [self._applied(broker) for broker in healed]

    def _applied(self, broker: HealedBroker) -> HealedBroker:
        if broker.state is HealingState.DUE and broker.broker_id in self.impossible:
            return broker._replace(state=HealingState.IMPOSSIBLE)
        if broker.state is HealingState.DUE and broker.broker_id in self.blocked:
            return broker._replace(state=HealingState.BLOCKED)
        return broker


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
