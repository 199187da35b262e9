"""Changes that are too large for one multi, whose controller fails after any number of their multis.

Each operation of a change is a multi here. What is written is legal, and the next controller ends or can repeat it.
"""

from collections.abc import Awaitable, Callable, Sequence

import pytest

from kbroker.common import KafkaError
from kbroker.config.config_def import ConfigResourceType
from kbroker.coordination.embedded import EmbeddedSession
from kbroker.coordination.interface import Op, Unavailable
from kbroker.metadata.reassignments import reassignment_control_manager
from kbroker.metadata.reassignments import stored_plan as stored_plan_module
from kbroker.metadata.reassignments.placement.reassignment_plan import PartitionMove
from kbroker.metadata.reassignments.plan_decisions import RequestedPlan
from kbroker.metadata.reassignments.stored_plan import PlanState, StoredPlan
from kbroker.metadata.replication.partition_requests import RequestedReassignment
from kbroker.metadata.store import znodes
from kbroker.metadata.topics.topic_requests import NewTopic, TopicNameOrId
from tests.unit.support.async_test import async_test
from tests.unit.support.memory_disk import settle
from tests.unit.support.metadata_cluster import Cluster, cluster_of_three

# More than one chunk.
PARTITIONS = 300
THROTTLED = 1000


@pytest.fixture(autouse=True)
def _multis_of_one_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.coordination.interface.MULTI_BYTES", 0)
    monkeypatch.setattr("kbroker.metadata.topics.topic_control_manager.TOPICS_BYTES", 20_000)
    monkeypatch.setattr(stored_plan_module, "MOVES_PER_NODE", 2)
    for interval in ("STEP_INTERVAL_S", "STEP_INTERVAL_PER_MOVE_S", "RETRY_BACKOFF_S"):
        monkeypatch.setattr(reassignment_control_manager, interval, 0)
    monkeypatch.setattr("kbroker.metadata.replication.replication_control_manager.RETRY_BACKOFF_S", 0)
    monkeypatch.setattr("kbroker.metadata.control_manager.RETRY_BACKOFF_S", 0)


class Outage:
    """Lets the writes of a session fail after some have succeeded."""

    def __init__(self, session: EmbeddedSession, writes: int, failures: int | None = None) -> None:
        """`failures`: how many fail; None: all further ones."""
        self._multi = session.multi
        self._writes_left = writes
        self._failures_left = failures
        self.has_failed = False
        session.multi = self.multi  # type: ignore[method-assign]

    async def multi(self, ops: Sequence[Op]) -> list[object]:
        if self._writes_left > 0:
            self._writes_left -= 1
        elif self._failures_left != 0:
            self.has_failed = True
            if self._failures_left is not None:
                self._failures_left -= 1
            raise Unavailable("", "the service cannot be reached")
        return await self._multi(ops)  # type: ignore[return-value]


async def kill_if_failed(cluster: Cluster, outage: Outage) -> None:
    if outage.has_failed and 1 in cluster.brokers:
        await cluster.vanish(1)


async def after_each_write(story: Callable[[int], Awaitable[Outage]]) -> int:
    """Run a story whose controller fails after 0, 1, 2, ... writes, until it does not fail. Returns the last number."""
    writes = 0
    while (await story(writes)).has_failed:
        writes += 1
    return writes


# Reassignments.


@async_test
async def test_reassignments_are_written_partition_by_partition_and_can_be_requested_again():
    async def story(writes: int) -> Outage:
        cluster = await cluster_of_three()
        await cluster.create("t", *[[2]] * PARTITIONS)
        requested = [RequestedReassignment("t", index, [3]) for index in range(PARTITIONS)]
        outage = Outage(cluster.sessions[1], writes)
        try:
            await cluster.elected.reassignments.alter_reassignments(requested)
        except KafkaError:
            assert outage.has_failed
        await kill_if_failed(cluster, outage)
        begun = [cluster.partition("t", index).adding_replicas == [3] for index in range(PARTITIONS)]
        assert begun.count(True) == min(PARTITIONS, writes * 128)
        assert all(cluster.partition("t", index).replicas == [2] for index in range(PARTITIONS) if not begun[index])
        outcomes = await cluster.elected.reassignments.alter_reassignments(requested)
        assert all(outcome.error is None for outcome in outcomes)
        await settle()
        assert all(cluster.partition("t", index).adding_replicas == [3] for index in range(PARTITIONS))
        return outage

    assert await after_each_write(story) == 3


# Plans.


def stored_plan(cluster: Cluster) -> StoredPlan | None:
    return cluster.controller.loader.reassignment_plan.plan


async def until_ended(cluster: Cluster, outage: Outage) -> StoredPlan | None:
    """Let leaders add replicas, and the controller die when it cannot write. Returns None if no plan was stored."""
    for _ in range(100):
        await settle()
        await kill_if_failed(cluster, outage)
        plan = stored_plan(cluster)
        if plan is None or not plan.is_active:
            return plan
        try:
            await cluster.complete_reassignments("t")
        except KafkaError:
            assert outage.has_failed
    raise AssertionError("the plan did not end")


async def check_nothing_is_left(cluster: Cluster, replicas: list[int]) -> None:
    for index in range(3):
        partition = cluster.partition("t", index)
        assert (partition.replicas, partition.is_reassigning) == (replicas, False)
    image = cluster.controller.image
    assert image.resources_with_overrides(ConfigResourceType.TOPIC) == []
    assert image.resources_with_overrides(ConfigResourceType.BROKER) == []


PLAN = RequestedPlan("p", THROTTLED, 10, [PartitionMove("t", index, (2,), (3,)) for index in range(3)])


@async_test
async def test_a_plan_ends_whichever_write_of_it_was_the_last_one_of_its_controller():
    async def story(writes: int) -> Outage:
        cluster = await cluster_of_three()
        await cluster.create("t", *[[2]] * 3)
        outage = Outage(cluster.sessions[1], writes)
        try:
            await cluster.elected.plans.create_plan(PLAN)
        except KafkaError:
            assert outage.has_failed
        plan = await until_ended(cluster, outage)
        if plan is None:
            # It was never stored. What is left of it does not prevent another one.
            await check_nothing_is_left(cluster, [2])
            await cluster.elected.plans.create_plan(PLAN)
            plan = await until_ended(cluster, outage)
        assert plan is not None
        assert (plan.plan_id, plan.state, plan.skipped) == (1, PlanState.COMPLETE, {})
        await check_nothing_is_left(cluster, [3])
        session = next(cluster.sessions[broker] for broker in cluster.brokers)
        assert await session.children(znodes.REASSIGNMENT_PLAN) == ["1-0", "1-1"]
        assert cluster.failures == []
        return outage

    assert await after_each_write(story) > 10


@async_test
async def test_a_plan_is_cancelled_whichever_write_was_the_last_one_of_its_controller():
    async def story(writes: int) -> Outage:
        cluster = await cluster_of_three()
        await cluster.create("t", *[[2]] * 3)
        controller = cluster.elected
        plan_id = await controller.plans.create_plan(PLAN)
        await settle()
        outage = Outage(cluster.sessions[1], writes)
        try:
            await controller.plans.cancel_plan(plan_id)
        except KafkaError:
            assert outage.has_failed
        plan = await until_ended(cluster, outage)
        assert plan is not None
        is_cancelled = writes > 0
        assert plan.state is (PlanState.CANCELLED if is_cancelled else PlanState.COMPLETE)
        await check_nothing_is_left(cluster, [2] if is_cancelled else [3])
        return outage

    assert await after_each_write(story) > 3


# Failovers.


@async_test
async def test_another_controller_ends_a_failover():
    async def story(writes: int) -> Outage:
        cluster = await cluster_of_three()
        await cluster.create("t", *[[3, 2]] * PARTITIONS)
        outage = Outage(cluster.sessions[1], writes)
        await cluster.vanish(3)
        await settle()
        await kill_if_failed(cluster, outage)
        await settle()
        assert all(cluster.state("t", index) == (2, 1, [2]) for index in range(PARTITIONS))
        return outage

    assert await after_each_write(story) == 4


@pytest.mark.parametrize("writes", range(4))
@async_test
async def test_a_controller_that_cannot_write_for_a_moment_ends_the_failover_itself(writes: int):
    cluster = await cluster_of_three()
    await cluster.create("t", *[[3, 2]] * PARTITIONS)
    outage = Outage(cluster.sessions[1], writes, failures=1)
    await cluster.vanish(3)
    await settle()
    assert outage.has_failed
    assert cluster.elected.node_id == 1
    assert all(cluster.state("t", index) == (2, 1, [2]) for index in range(PARTITIONS))


# Topics.


@async_test
async def test_topics_are_created_and_deleted_as_a_whole():
    names = [f"t{number}" for number in range(5)]
    topics = [NewTopic(name, PARTITIONS // 3, 3) for name in names]

    async def creation(writes: int) -> Outage:
        cluster = await cluster_of_three()
        outage = Outage(cluster.sessions[1], writes)
        await cluster.elected.topics.create_topics(topics, False)
        await kill_if_failed(cluster, outage)
        created = dict(cluster.controller.image.topics)
        assert all(len(topic.partitions) == PARTITIONS // 3 for topic in created.values())
        if outage.has_failed:
            results = await cluster.elected.topics.create_topics(topics, False)
            assert all((result.error is None) != (result.name in names[: len(created)]) for result in results)
        return outage

    async def deletion(writes: int) -> Outage:
        cluster = await cluster_of_three()
        await cluster.elected.topics.create_topics(topics, False)
        outage = Outage(cluster.sessions[1], writes)
        await cluster.elected.topics.delete_topics(list(map(TopicNameOrId, names)))
        await kill_if_failed(cluster, outage)
        remaining = cluster.controller.image.topics
        assert all(len(topic.partitions) == PARTITIONS // 3 for topic in remaining.values())
        assert outage.has_failed or not remaining
        return outage

    assert await after_each_write(creation) > 1
    assert await after_each_write(deletion) > 1
