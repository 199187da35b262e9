"""The states of brokers in self-healing: whose replicas are due to be rebuilt or given back, and who must wait why.

- The replicas of a broker are rebuilt elsewhere when it has been away for kbroker.replica.rebuild.after.ms, and given
  back when it has then been unfenced for as long. So a flapping broker causes at most one copy of its replicas in each
  such period.
- While more brokers are away than live, nothing is rebuilt: that is an outage of the cluster, which copies cannot end.
  Brokers without replicas do not count, such as drained ones that were stopped for good.
- No plan begins while another one runs, whether a user or the controller has created it.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import NamedTuple

from kbroker.metadata.image import BrokerHistory, KnownBroker
from kbroker.metadata.reassignments.stored_plan import PlanOrigin, StoredPlan


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
