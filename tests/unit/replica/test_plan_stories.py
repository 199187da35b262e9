"""The controller runs plans of reassignments between whole brokers: through failovers, cancelled, throttled."""

import asyncio
from collections.abc import Sequence

from kbroker.config.config_def import ConfigResourceType
from kbroker.metadata.topics.topic_requests import TopicNameOrId
from protocol.errors import ErrorCode
from protocol.messages.k10000_reassignment_plans import (
    CancelReassignmentPlanRequest,
    CancelReassignmentPlanResponse,
    CreateReassignmentPlanRequest,
    CreateReassignmentPlanResponse,
    DescribedPlan,
    DescribeReassignmentPlanRequest,
    DescribeReassignmentPlanResponse,
    PlannedMove,
)
from tests.unit.support.client import batch
from tests.unit.support.simulated_cluster import SimulatedCluster
from tests.unit.support.simulated_hosts import simulated

# Topic, partition, original and target replicas.
Move = tuple[str, int, list[int], list[int]]
TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER


async def create(
    s: SimulatedCluster, moves: Sequence[Move], *, node_id: int = 1, concurrent: int = 2, throttle: int = -1
) -> CreateReassignmentPlanResponse:
    rows = [
        PlannedMove(topic_name=topic, partition_index=index, original_replicas=old, target_replicas=new)
        for topic, index, old, new in moves
    ]
    request = CreateReassignmentPlanRequest(
        description="drain", throttle_bytes_per_second=throttle, max_concurrent_moves=concurrent, moves=rows
    )
    response: CreateReassignmentPlanResponse = await s.client(
        node_id, lambda client: client.request(request, 0, CreateReassignmentPlanResponse)
    )
    return response


async def describe(s: SimulatedCluster, node_id: int = 1) -> DescribedPlan:
    request = DescribeReassignmentPlanRequest(include_moves=True)
    while True:
        response = await s.client(node_id, lambda client: client.request(request, 0, DescribeReassignmentPlanResponse))
        if response.error_code == 0:
            assert response.plan is not None
            plan: DescribedPlan = response.plan
            return plan
        await asyncio.sleep(0.1)


async def cancel(s: SimulatedCluster, plan_id: int, node_id: int = 1) -> int:
    request = CancelReassignmentPlanRequest(plan_id=plan_id)
    response = await s.client(node_id, lambda client: client.request(request, 0, CancelReassignmentPlanResponse))
    code: int = response.error_code
    return code


async def until_ended(s: SimulatedCluster) -> DescribedPlan:
    for _ in range(600):
        plan = await describe(s)
        if plan.state in ("complete", "cancelled"):
            return plan
        await asyncio.sleep(0.2)
    raise AssertionError(f"the plan did not end: {counts(plan)}")


async def until_done(s: SimulatedCluster, count: int) -> DescribedPlan:
    while (plan := await describe(s)).moves_done < count:
        await asyncio.sleep(0.02)
    return plan


def counts(plan: DescribedPlan) -> tuple[int, int, int, int]:
    return plan.moves_done, plan.moves_running, plan.moves_pending, plan.moves_skipped


def expire_controller(s: SimulatedCluster) -> int:
    controller = s.controller
    (session,) = s.service.sessions(f"b{controller}")
    s.service.expire(session)
    return controller


def replicas(s: SimulatedCluster, topic: str = "t") -> list[list[int]]:
    partitions = s.broker(1).services.metadata.topics[topic].partitions
    assert not any(partition.is_reassigning for partition in partitions)
    return [partition.replicas for partition in partitions]


def leaders(s: SimulatedCluster, topic: str = "t") -> list[int]:
    return [partition.leader for partition in s.broker(1).services.metadata.topics[topic].partitions]


DRAIN: list[Move] = [
    ("t", 0, [3, 1], [2, 1]),
    ("t", 1, [1, 3], [1, 2]),
    ("t", 2, [3, 2], [1, 2]),
    ("t", 3, [2, 3], [2, 1]),
    ("t", 5, [3, 1], [1, 2]),
    ("t", 6, [3, 2], [2, 1]),
]
BEFORE = [[3, 1], [1, 3], [3, 2], [2, 3], [1, 2], [3, 1], [3, 2]]
AFTER = [[2, 1], [1, 2], [1, 2], [2, 1], [1, 2], [1, 2], [2, 1]]


@simulated(SimulatedCluster, range(2))
async def test_a_broker_is_drained_through_two_failovers_of_the_controller(s: SimulatedCluster) -> None:
    await s.create(*BEFORE)
    for index in range(len(BEFORE)):
        await s.produce(s.registration(1, "t", index).leader, batch(b"a"), partition=index)
    response = await create(s, DRAIN, node_id=2, concurrent=1)
    assert (response.error_code, response.plan_id) == (ErrorCode.NONE, 1)
    controllers = []
    for done in (1, 3):
        plan = await until_done(s, done)
        assert (plan.state, plan.moves_skipped) == ("running", 0)
        assert plan.moves_running <= 1
        controllers.append(expire_controller(s))
        await s.until(lambda: s.broker(1).services.metadata.controller_id not in (-1, controllers[-1]), 60)
    plan = await until_ended(s)
    assert (plan.state, counts(plan)) == ("complete", (6, 0, 0, 0))
    assert plan.ended_ms > plan.created_ms
    assert replicas(s) == AFTER
    assert 3 not in leaders(s)
    # A broker whose session has ended may be in sync again only after the plan.
    await s.until(lambda: leaders(s) == [row[0] for row in AFTER], 400)


@simulated(SimulatedCluster, range(2))
async def test_a_plan_that_is_cancelled_moves_everything_back(s: SimulatedCluster) -> None:
    await s.create(*BEFORE)
    response = await create(s, DRAIN, concurrent=1)
    await until_done(s, 2)
    assert await cancel(s, response.plan_id + 1) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert await cancel(s, response.plan_id, 3) == ErrorCode.NONE
    assert await cancel(s, response.plan_id, 2) == ErrorCode.NONE
    expire_controller(s)
    plan = await until_ended(s)
    assert (plan.state, counts(plan)) == ("cancelled", (6, 0, 0, 0))
    assert replicas(s) == BEFORE
    await s.until(lambda: leaders(s) == [row[0] for row in BEFORE], 400)
    assert await cancel(s, response.plan_id) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    # The next plan replaces it.
    response = await create(s, DRAIN[:1])
    assert (response.error_code, response.plan_id) == (ErrorCode.NONE, plan.plan_id + 1)
    assert (await until_ended(s)).moves[0].state == "done"


@simulated(SimulatedCluster, range(1))
async def test_a_second_plan_is_refused(s: SimulatedCluster) -> None:
    await s.create(*BEFORE)
    await s.machines[3].stop()
    await s.until(lambda: 3 not in s.broker(1).services.metadata.brokers, 60)
    assert (await create(s, [("t", 4, [1, 2], [1, 3])])).error_code == ErrorCode.NONE
    refused = await create(s, DRAIN, node_id=2)
    assert refused.error_code == ErrorCode.REASSIGNMENT_IN_PROGRESS
    assert refused.error_message == "Plan 1 is running: wait for its end, or cancel it."
    assert counts(await describe(s, 2)) == (0, 0, 1, 0)


@simulated(SimulatedCluster, range(1))
async def test_a_broker_that_is_away_blocks_only_its_own_moves(s: SimulatedCluster) -> None:
    await s.create([1], [1], [1])
    await s.machines[3].stop()
    await s.until(lambda: 3 not in s.broker(1).services.metadata.brokers, 60)
    await create(s, [("t", 0, [1], [3]), ("t", 1, [1], [2]), ("t", 2, [1], [2])], concurrent=1)
    assert counts(await until_done(s, 2)) == (2, 0, 1, 0)
    await s.machines[3].start()
    assert counts(await until_ended(s)) == (3, 0, 0, 0)
    assert replicas(s) == [[3], [2], [2]]


@simulated(SimulatedCluster, range(1))
async def test_a_topic_that_is_deleted_is_skipped(s: SimulatedCluster) -> None:
    await s.create(*BEFORE)
    await s.create([3, 1], name="u")
    await s.machines[2].stop()
    await s.until(lambda: 2 not in s.broker(1).services.metadata.brokers, 60)
    await create(s, [("u", 0, [3, 1], [2, 1]), ("t", 4, [1, 2], [1])])
    await until_done(s, 1)
    machine = s.machines[s.controller]
    assert machine.services is not None
    await machine.loop.run(machine.services.controller.topics.delete_topics([TopicNameOrId("u")]))
    plan = await until_ended(s)
    assert (plan.state, counts(plan)) == ("complete", (1, 0, 0, 1))
    assert [(row.state, row.reason) for row in plan.moves] == [("skipped", "the topic was deleted"), ("done", None)]


@simulated(SimulatedCluster, range(2))
async def test_a_throttle_is_set_and_removed_by_whichever_controller(s: SimulatedCluster) -> None:
    await s.create(*BEFORE, retention_ms="1000000")
    response = await create(s, [*DRAIN, ("t", 4, [1, 2], [2, 1])], concurrent=1, throttle=1_000_000)
    assert response.error_code == ErrorCode.NONE
    await until_done(s, 2)
    metadata = s.broker(1).services.metadata
    assert metadata.overrides(BROKER, "") == {
        "leader.replication.throttled.rate": "1000000",
        "follower.replication.throttled.rate": "1000000",
    }
    assert metadata.overrides(TOPIC, "t") == {
        "retention.ms": "1000000",
        "leader.replication.throttled.replicas": (
            "0:1,0:2,0:3,1:1,1:2,1:3,2:1,2:2,2:3,3:1,3:2,3:3,5:1,5:2,5:3,6:1,6:2,6:3"
        ),
        "follower.replication.throttled.replicas": "0:2,0:3,1:2,1:3,2:1,2:3,3:1,3:3,5:2,5:3,6:1,6:3",
    }
    expire_controller(s)
    assert counts(await until_ended(s)) == (7, 0, 0, 0)
    await s.until(lambda: not metadata.overrides(BROKER, ""), 10)
    assert metadata.overrides(TOPIC, "t") == {"retention.ms": "1000000"}


@simulated(SimulatedCluster, range(1))
async def test_a_throttle_that_the_plan_has_not_set_stays(s: SimulatedCluster) -> None:
    await s.create(*BEFORE)
    await s.alter_topic("t", {"leader.replication.throttled.replicas": "*"})
    refused = await create(s, DRAIN, throttle=1000)
    assert refused.error_code == ErrorCode.INVALID_CONFIG
    assert refused.error_message == (
        "The topic 't' already has leader.replication.throttled.replicas: remove it, or create the plan without a "
        "throttle."
    )
    assert (await create(s, DRAIN)).error_code == ErrorCode.NONE
    await until_ended(s)
    assert s.broker(1).services.metadata.overrides(TOPIC, "t") == {"leader.replication.throttled.replicas": "*"}
