"""Plans in a cluster of three brokers, as far as the metadata: what is stored, and what survives crashes."""

import asyncio
from collections.abc import Sequence

import pytest

from kbroker.common import KafkaError
from kbroker.config.config_def import ConfigResourceType
from kbroker.coordination.interface import Create
from kbroker.metadata.reassignments import reassignment_control_manager, stored_plan
from kbroker.metadata.reassignments.placement.reassignment_plan import PartitionMove
from kbroker.metadata.reassignments.plan_decisions import RequestedPlan
from kbroker.metadata.reassignments.stored_plan import PlanState, StoredPlan
from kbroker.metadata.store import znodes
from protocol.errors import ErrorCode
from tests.unit.support.async_test import async_test
from tests.unit.support.memory_disk import settle
from tests.unit.support.metadata_cluster import Cluster, cluster_of_three


@pytest.fixture(autouse=True)
def _steps_without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reassignment_control_manager, "STEP_INTERVAL_S", 0)
    monkeypatch.setattr(reassignment_control_manager, "STEP_INTERVAL_PER_MOVE_S", 0)


async def create(cluster: Cluster, moves: Sequence[tuple[int, list[int], list[int]]], concurrent: int = 10) -> int:
    rows = [PartitionMove("t", index, tuple(original), tuple(target)) for index, original, target in moves]
    plan_id = await cluster.elected.plans.create_plan(RequestedPlan("p", -1, concurrent, rows))
    await settle()
    return plan_id


def stored_plans(cluster: Cluster) -> list[StoredPlan | None]:
    return [broker.loader.reassignment_plan.plan for broker in cluster.brokers.values()]


async def until_ended(cluster: Cluster) -> StoredPlan:
    """Let the leaders add the replicas that are added, until the plan has ended."""
    for _ in range(100):
        await settle()
        plan = stored_plans(cluster)[0]
        if plan is not None and not plan.is_active:
            assert all(other == plan for other in stored_plans(cluster))
            return plan
        await cluster.complete_reassignments("t")
    raise AssertionError("the plan did not end")


@async_test
async def test_a_plan_of_many_moves_is_stored_in_several_nodes_and_the_next_one_replaces_them():
    cluster = await cluster_of_three()
    count = stored_plan.MOVES_PER_NODE * 2 + 1
    await cluster.create("t", *[[1, 2]] * count)
    assert await create(cluster, [(index, [1, 2], [2, 1]) for index in range(count)], count) == 1
    session = cluster.sessions[1]
    assert await session.children(znodes.REASSIGNMENT_PLAN) == ["1-0", "1-1", "1-2"]
    plan = await until_ended(cluster)
    assert (plan.state, len(plan.moves), plan.skipped) == (PlanState.COMPLETE, count, {})
    assert await create(cluster, [(0, [2, 1], [1, 2])]) == 2
    assert await session.children(znodes.REASSIGNMENT_PLAN) == ["2-0"]
    # A broker that starts later reads the plan, too.
    await cluster.stop(3)
    await cluster.start(3)
    assert stored_plans(cluster)[2] == await until_ended(cluster)
    assert cluster.failures == []


@async_test
async def test_what_a_crash_has_left_of_a_new_plan_does_not_count():
    cluster = await cluster_of_three()
    await cluster.create("t", [1, 2])
    session = cluster.sessions[1]
    await session.multi([Create(znodes.REASSIGNMENT_PLAN, b""), Create(stored_plan.moves_path(1, 0), b"[]")])
    await session.create(stored_plan.moves_path(1, 1), b"[]")
    await cluster.stop(3)
    await cluster.start(3)
    assert stored_plans(cluster) == [None] * 3
    assert await cluster.elected.plans.describe_plan() is None
    assert await create(cluster, [(0, [1, 2], [3, 2])]) == 1
    assert await session.children(znodes.REASSIGNMENT_PLAN) == ["1-0"]
    await until_ended(cluster)
    assert cluster.state("t") == (3, 1, [2, 3])


@async_test
async def test_the_next_plan_removes_what_a_plan_that_was_never_written_has_left():
    """A new controller leaves it: nothing reads it, and an election must not wait for it."""
    cluster = await cluster_of_three()
    await cluster.create("t", [2, 3])
    assert await create(cluster, [(0, [2, 3], [2, 1])]) == 1
    await until_ended(cluster)
    session = cluster.sessions[2]
    for part in range(3):
        await session.create(stored_plan.moves_path(2, part), b"[]")
    await cluster.vanish(1)
    assert await session.children(znodes.REASSIGNMENT_PLAN) == ["1-0", "2-0", "2-1", "2-2"]
    assert await create(cluster, [(0, [2, 1], [2, 3])]) == 2
    assert await session.children(znodes.REASSIGNMENT_PLAN) == ["2-0"]


@async_test
async def test_the_next_controller_continues_and_the_former_one_cannot():
    cluster = await cluster_of_three()
    await cluster.create("t", [1, 2], [1, 2], [1, 2])
    await create(cluster, [(index, [1, 2], [3, 2]) for index in range(3)], 1)
    former = cluster.controller
    assert former.controller.node_id == 1
    await cluster.vanish(1)
    with pytest.raises(KafkaError) as refused:
        await former.controller.plans.cancel_plan(1)
    assert refused.value.code == ErrorCode.NOT_CONTROLLER
    with pytest.raises(KafkaError):
        await former.controller.plans.describe_plan()
    plan = await until_ended(cluster)
    assert plan.state == PlanState.COMPLETE
    assert [cluster.partition("t", index).replicas for index in range(3)] == [[3, 2]] * 3
    assert cluster.failures == []


@async_test
async def test_leaders_are_elected_when_a_move_is_done_and_not_only_at_the_end():
    cluster = await cluster_of_three()
    await cluster.create("t", [1, 2], [1, 2])
    await create(cluster, [(0, [1, 2], [3, 1]), (1, [1, 2], [3, 1])], 1)
    await cluster.complete_reassignments("t")
    await settle()
    assert (cluster.partition("t", 0).leader, cluster.partition("t", 0).is_reassigning) == (3, False)
    assert cluster.partition("t", 1).is_reassigning
    await until_ended(cluster)
    assert cluster.partition("t", 1).leader == 3


@async_test
async def test_a_broker_that_is_unregistered_ends_the_wait_for_it():
    cluster = await cluster_of_three()
    await cluster.create("t", [1], [1])
    await cluster.vanish(3)
    await create(cluster, [(0, [1], [3]), (1, [1], [2])])
    await cluster.complete_reassignments("t")
    await asyncio.sleep(0.01)
    (plan, *_) = stored_plans(cluster)
    assert plan is not None
    assert plan.is_active
    await cluster.elected.replication.unregister_broker(3)
    plan = await until_ended(cluster)
    assert (plan.state, dict(plan.skipped)) == (PlanState.COMPLETE, {"unregistered": (0,)})


@async_test
async def test_a_move_that_has_begun_ends_when_its_broker_is_unregistered():
    cluster = await cluster_of_three()
    await cluster.create("t", [1, 2])
    before = cluster.partition("t")
    await create(cluster, [(0, [1, 2], [1, 3])])
    await cluster.vanish(3)
    await cluster.elected.replication.unregister_broker(3)
    await settle()
    plan = await until_ended(cluster)
    assert (plan.state, dict(plan.skipped)) == (PlanState.COMPLETE, {"unregistered": (0,)})
    assert cluster.partition("t").replicas == before.replicas
    assert not cluster.partition("t").is_reassigning


@async_test
async def test_a_plan_that_is_cancelled_before_its_throttle_is_set_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    cluster = await cluster_of_three()
    await cluster.create("t", [1, 2])
    before, controller = cluster.partition("t"), cluster.elected
    with monkeypatch.context() as patch:
        patch.setattr(reassignment_control_manager.ReassignmentPlanManager, "_start_steps", lambda _: None)
        requested = RequestedPlan("p", 1000, 1, [PartitionMove("t", 0, (1, 2), (3, 2))])
        plan_id = await controller.plans.create_plan(requested)
        await controller.plans.cancel_plan(plan_id)
    # The next change of the image leads to the step.
    await cluster.create("u", [1])
    plan = await until_ended(cluster)
    assert (plan.state, plan.is_throttled, dict(plan.skipped)) == (PlanState.CANCELLED, False, {})
    assert cluster.partition("t") == before
    assert cluster.controller.image.resources_with_overrides(ConfigResourceType.TOPIC) == []
