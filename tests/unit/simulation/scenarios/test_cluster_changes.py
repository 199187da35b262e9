"""Clusters whose brokers and topics come and go: brokers join under load, operators move what is on others."""

import re

from kbroker.simulation.checker.history import Note
from kbroker.simulation.scenarios.plan import Plan
from kbroker.simulation.scenarios.run import Result, simulate

# The number of seeds of which at least one must have a plan.
SEEDS_WITH_A_PLAN = 5


def a_growing_cluster(plan: Plan) -> None:
    """Two of five brokers join; an operator makes plans, and a topic is recreated."""
    plan.brokers, plan.joining, plan.administration, plan.recreation = 5, 2, True, True
    plan.faults, plan.concurrent_faults, plan.seconds = {}, 0, 6.0


def notes(result: Result, pattern: str) -> list[str]:
    texts = [operation.action.text for operation in result.history.operations if isinstance(operation.action, Note)]
    return [text for text in texts if re.search(pattern, text)]


def test_brokers_join_and_plans_run_under_load():
    has_plan = False
    for seed in range(SEEDS_WITH_A_PLAN):
        result = simulate(seed, "cluster-everything", shape=a_growing_cluster)
        assert not result.report(), result.report()
        assert len(notes(result, "joins the cluster$")) == 2
        assert notes(result, "^topic recreated with the id .* deleted$")
        has_plan = has_plan or bool(notes(result, r"^plan with \d+ moves created$"))
        if has_plan:
            break
    assert has_plan
