"""Changes of BrokerHistory when a plan of reassignments ends or is cancelled."""

from collections.abc import Mapping, Sequence

from kbroker.metadata.image import BrokerHistory, KnownBroker
from kbroker.metadata.reassignments.stored_plan import PlanOrigin, StoredMove, StoredPlan


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
