"""Self-healing as far as the metadata: a broker stays away, its replicas are rebuilt, it returns and gets its share."""

import logging
from collections.abc import Collection, Mapping

import pytest

from kbroker.common import KafkaError
from kbroker.config.config_def import ConfigResourceType
from kbroker.metadata.reassignments import reassignment_control_manager
from kbroker.metadata.reassignments.healing_states import HOMELESS, OUTAGE, BrokerDisk, HealingState
from kbroker.metadata.reassignments.placement.reassignment_plan import PartitionMove
from kbroker.metadata.reassignments.plan_decisions import RequestedPlan
from kbroker.metadata.reassignments.stored_plan import PlanOrigin, PlanState, StoredPlan
from protocol.errors import ErrorCode
from tests.unit.support.async_test import async_test
from tests.unit.support.memory_disk import settle
from tests.unit.support.metadata_cluster import Cluster, cluster_of

MINUTE = 60_000
AFTER_MS = 30 * MINUTE
# Three replicas of each partition on the first three brokers.
ON_THREE = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]


@pytest.fixture(autouse=True)
def _steps_without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reassignment_control_manager, "STEP_INTERVAL_S", 0)
    monkeypatch.setattr(reassignment_control_manager, "STEP_INTERVAL_PER_MOVE_S", 0)


class Watch:
    """A clock that tests advance."""

    def __init__(self) -> None:
        self.passed_ms = 0

    def now_ms(self) -> int:
        return 1_700_000_000_000 + self.passed_ms

    def mono_ms(self) -> int:
        return 5_000 + self.passed_ms

    def mono_ns(self) -> int:
        return self.mono_ms() * 1_000_000


class Story:
    """A cluster in which healing is on. `pass_minutes` lets the controller check once a minute."""

    def __init__(self, cluster: Cluster, watch: Watch) -> None:
        self.cluster = cluster
        self.watch = watch

    async def heal(self) -> None:
        await self.cluster.elected.self_healing.heal()
        await settle()

    async def pass_minutes(self, minutes: int) -> None:
        for _ in range(minutes):
            self.watch.passed_ms += MINUTE
            await self.heal()

    async def until_no_plan(self) -> None:
        for _ in range(50):
            await self.cluster.catch_up()
            if self.plan is None or not self.plan.is_active:
                return
        raise AssertionError(f"plan {self.plan} did not end")

    @property
    def plan(self) -> StoredPlan | None:
        return self.cluster.controller.loader.reassignment_plan.plan

    @property
    def is_rebuilding(self) -> bool:
        return self.plan is not None and self.plan.is_active

    def replicas(self, topic: str = "t") -> list[list[int]]:
        return [partition.replicas for partition in self.cluster.controller.image.topics[topic].partitions]

    def counts(self) -> dict[int, int]:
        flat = [node for replicas in self.replicas() for node in replicas]
        return {node: flat.count(node) for node in sorted(set(flat))}

    async def states(self) -> dict[int, HealingState]:
        return {healed.broker_id: healed.state for healed in await self.cluster.elected.self_healing.describe()}


async def story_of(brokers: int, *assignments: list[int]) -> Story:
    watch = Watch()
    cluster = await cluster_of(brokers, watch)
    await cluster.create("t", *assignments)
    await switch(cluster, AFTER_MS)
    return Story(cluster, watch)


async def switch(cluster: Cluster, after_ms: int) -> None:
    configs = {"kbroker.replica.rebuild.after.ms": str(after_ms)}
    await cluster.elected.alter_configs(ConfigResourceType.BROKER, "", configs)
    await settle()


@async_test
async def test_a_broker_that_stays_away_is_rebuilt_and_takes_its_share_when_it_has_come_back():
    story = await story_of(4, *ON_THREE)
    cluster = story.cluster
    await cluster.vanish(3)
    await story.pass_minutes(29)
    assert (story.plan, await story.states()) == (None, {3: HealingState.WAITING})
    await story.pass_minutes(1)
    plan = story.plan
    assert plan is not None
    assert (plan.origin, plan.brokers, plan.description) == (PlanOrigin.REBUILD, (3,), "rebuild broker 3")
    assert plan.throttle == 50 << 20
    assert await story.states() == {3: HealingState.RUNNING}
    # The new replica is added first, and the others stay until it is in sync.
    moving = cluster.partition("t", 0)
    assert (moving.replicas, moving.adding_replicas, moving.removing_replicas) == ([1, 2, 4, 3], [4], [3])
    assert moving.isr == [1, 2]
    await story.until_no_plan()
    assert sorted(map(sorted, story.replicas())) == [[1, 2, 4]] * 3
    assert all(sorted(cluster.partition("t", index).isr) == [1, 2, 4] for index in range(3))
    assert cluster.controller.loader.registrations[3].history.rebuilt == 3
    assert await story.states() == {}
    # It must stay before it gets anything.
    await cluster.start(3)
    await story.pass_minutes(29)
    assert (story.counts(), await story.states()) == ({1: 3, 2: 3, 4: 3}, {3: HealingState.WAITING})
    await story.pass_minutes(1)
    plan = story.plan
    assert plan is not None
    assert (plan.origin, plan.description) == (PlanOrigin.RETURN, "give replicas back to broker 3")
    await story.until_no_plan()
    await story.pass_minutes(1)
    assert sorted(story.counts().values()) == [2, 2, 2, 3]
    assert {partition[0] for partition in story.replicas()} == {1, 2, 3} or len({p[0] for p in story.replicas()}) == 3
    assert cluster.controller.loader.registrations[3].history.rebuilt == 0
    await story.pass_minutes(100)
    assert not story.is_rebuilding
    assert cluster.failures == []


@async_test
async def test_a_broker_that_returns_before_its_replicas_have_moved_keeps_those():
    story = await story_of(4, *ON_THREE)
    cluster = story.cluster
    await cluster.vanish(3)
    await story.pass_minutes(30)
    assert cluster.partition("t", 0).adding_replicas == [4]
    await cluster.start(3)
    plan = story.plan
    assert plan is not None
    assert (plan.state, dict(plan.skipped)) == (PlanState.COMPLETE, {"returned": (0, 1, 2)})
    assert story.replicas() == ON_THREE
    # It comes and goes: nothing begins as long as it returns in time.
    for _ in range(5):
        await cluster.vanish(3)
        await story.pass_minutes(20)
        await cluster.start(3)
        await story.pass_minutes(20)
    assert story.plan == plan


@async_test
async def test_the_time_of_absence_is_known_to_the_next_controller():
    story = await story_of(6, [4, 5, 6], [5, 6, 4])
    cluster = story.cluster
    await cluster.create("u", [2], [2])
    await cluster.vanish(6)
    await story.pass_minutes(29)
    await cluster.vanish(1)
    assert cluster.elected.node_id == 2
    # It waits until it has seen the broker away for a minute itself.
    await story.heal()
    assert story.plan is None
    await story.pass_minutes(2)
    plan = story.plan
    assert plan is not None
    assert plan.brokers == (6,)
    # The third controller continues.
    await cluster.vanish(2)
    await story.until_no_plan()
    assert sorted(map(sorted, story.replicas())) == [[3, 4, 5]] * 2


@async_test
async def test_a_clock_jump_rebuilds_no_broker_earlier_than_a_minute():
    story = await story_of(4, *ON_THREE)
    await story.cluster.vanish(3)
    await story.heal()
    jump_ms = story.watch.passed_ms
    story.watch.now_ms = lambda: 1_700_000_000_000 + 10 * AFTER_MS + jump_ms  # type: ignore[method-assign]
    await story.heal()
    assert story.plan is None
    await story.pass_minutes(1)
    assert story.is_rebuilding


@async_test
async def test_nothing_is_rebuilt_if_no_other_broker_may_hold_the_replicas(caplog: pytest.LogCaptureFixture):
    story = await story_of(3, *ON_THREE)
    before = story.replicas()
    await story.cluster.vanish(3)
    with caplog.at_level(logging.WARNING, "kbroker"):
        await story.pass_minutes(40)
    assert (story.plan, story.replicas()) == (None, before)
    assert await story.states() == {3: HealingState.IMPOSSIBLE}
    assert [record.getMessage() for record in caplog.records if "not rebuilt" in record.getMessage()] == [
        f'replicas are not rebuilt brokers=[3] replicas=3 reason="{HOMELESS}"'
    ]
    # A fourth broker that joins may.
    await story.cluster.start(4)
    await story.pass_minutes(1)
    assert story.is_rebuilding


@async_test
async def test_a_plan_that_is_refused_is_logged_once_and_tried_again_when_the_metadata_changes(
    caplog: pytest.LogCaptureFixture,
):
    story = await story_of(4, *ON_THREE)
    controller = story.cluster.elected
    reads: list[Collection[int]] = []

    async def read_disks(brokers: Collection[int]) -> Mapping[int, BrokerDisk]:
        reads.append(brokers)
        return {broker: BrokerDisk({}) for broker in brokers}

    controller.self_healing.read_disks = read_disks
    # A throttle of a user, which a plan would overwrite.
    await controller.alter_configs(ConfigResourceType.BROKER, "2", {"leader.replication.throttled.rate": "1000"})
    await story.cluster.vanish(3)
    with caplog.at_level(logging.WARNING, "kbroker"):
        await story.pass_minutes(30)
        # Twelve checks in two minutes.
        for _ in range(12):
            story.watch.passed_ms += MINUTE // 6
            await story.heal()
    assert (story.plan, await story.states()) == (None, {3: HealingState.BLOCKED})
    assert [record.getMessage() for record in caplog.records if "not rebuilt" in record.getMessage()] == [
        "replicas are not rebuilt brokers=[3] replicas=3 "
        'reason="Broker 2 already has leader.replication.throttled.rate: remove it, or create the plan without a '
        'throttle."'
    ]
    assert controller.self_healing.replicas_not_rebuilt == 3
    # The first, and one a minute, in case that a disk has room now.
    assert len(reads) == 3
    await controller.alter_configs(ConfigResourceType.BROKER, "2", None)
    await story.heal()
    assert story.is_rebuilding


@async_test
async def test_a_broker_does_not_wait_for_another_whose_replicas_cannot_be_rebuilt():
    story = await story_of(4, [1, 2, 3])
    await story.cluster.create("u", [4, 1])
    await story.cluster.vanish(3)
    # Broker 4 is due 10 s after broker 3, without another change of the metadata.
    story.watch.passed_ms += 10_000
    await story.cluster.vanish(4)
    await story.pass_minutes(29)
    story.watch.passed_ms += MINUTE - 10_000
    await story.heal()
    assert (story.plan, (await story.states())[3]) == (None, HealingState.IMPOSSIBLE)
    story.watch.passed_ms += 10_000
    await story.heal()
    assert story.plan is not None
    assert story.plan.brokers == (4,)


@async_test
async def test_a_broker_gets_its_share_although_another_one_accepts_nothing():
    story = await story_of(6, [1, 2, 3], [1, 2, 3], [1, 2, 4], [1, 2, 4])
    cluster, healing = story.cluster, story.cluster.elected.self_healing
    await cluster.vanish(3, 4)
    await story.pass_minutes(30)
    await story.until_no_plan()
    assert {3, 4}.isdisjoint(story.counts())
    await cluster.start(3, 4)

    async def read_disks(brokers: Collection[int]) -> Mapping[int, BrokerDisk]:
        return {broker: BrokerDisk({}, is_cordoned=broker == 3) for broker in brokers}

    healing.read_disks = read_disks
    await story.pass_minutes(30)
    assert story.plan is not None
    assert (story.plan.origin, story.plan.brokers) == (PlanOrigin.RETURN, (4,))
    await story.until_no_plan()
    assert 3 not in story.counts()
    assert story.counts()[4] > 0


@async_test
async def test_checks_that_fail_for_one_reason_are_logged_once(caplog: pytest.LogCaptureFixture):
    story = await story_of(4, *ON_THREE)

    async def read_disks(brokers: Collection[int]) -> Mapping[int, BrokerDisk]:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the service cannot be reached")

    story.cluster.elected.self_healing.read_disks = read_disks
    await story.cluster.vanish(3)
    with caplog.at_level(logging.WARNING, "kbroker"):
        await story.pass_minutes(40)
    assert sum("self-healing waits" in record.getMessage() for record in caplog.records) == 1


@async_test
async def test_an_outage_of_the_cluster_is_no_reason_to_rebuild(caplog: pytest.LogCaptureFixture):
    story = await story_of(5, *ON_THREE, [4, 5, 1])
    await story.cluster.vanish(2, 3, 5)
    with caplog.at_level(logging.WARNING, "kbroker"):
        await story.pass_minutes(60)
    assert (story.plan, set((await story.states()).values())) == (None, {HealingState.OUTAGE})
    assert sum(OUTAGE in record.getMessage() for record in caplog.records) == 1
    await story.cluster.start(5)
    await story.pass_minutes(1)
    assert story.plan is not None
    assert story.plan.brokers == (2, 3)


@async_test
async def test_drained_brokers_get_nothing_and_do_not_count_as_an_outage():
    story = await story_of(6, *ON_THREE)
    cluster, controller = story.cluster, story.cluster.elected
    await cluster.create("u", [4, 5, 6])
    moves = [PartitionMove("u", 0, (4, 5, 6), (1, 2, 6))]
    await controller.plans.create_plan(RequestedPlan("drain 4, 5", -1, 10, moves))
    await story.until_no_plan()
    assert [cluster.controller.loader.registrations[node].history.is_drained for node in (4, 5, 6)] == [
        True,
        True,
        False,
    ]
    # Both are stopped for good: with broker 3, as many brokers are away as live.
    await cluster.stop(4)
    await cluster.vanish(3)
    await story.pass_minutes(31)
    assert story.plan is not None
    assert story.plan.brokers == (3,)
    await story.until_no_plan()
    # Broker 5 is empty, and would have been the first choice otherwise.
    assert {node for replicas in story.replicas() for node in replicas} == {1, 2, 6}
    await cluster.start(4)
    await story.pass_minutes(100)
    assert 4 not in story.counts()


@async_test
async def test_a_plan_on_request_has_precedence():
    story = await story_of(5, *ON_THREE)
    cluster, controller = story.cluster, story.cluster.elected
    await cluster.vanish(3)
    moves = [PartitionMove("t", 0, (1, 2, 3), (4, 2, 3)), PartitionMove("t", 1, (2, 3, 1), (2, 4, 1))]
    await controller.plans.create_plan(RequestedPlan("p", -1, 1, moves))
    await story.pass_minutes(40)
    assert story.plan is not None
    assert story.plan.origin is PlanOrigin.REQUEST
    assert await story.states() == {3: HealingState.BLOCKED}
    await story.until_no_plan()
    await story.pass_minutes(1)
    assert story.plan.origin is PlanOrigin.REBUILD
    with pytest.raises(KafkaError, match=r"Plan 2 is running"):
        await controller.plans.create_plan(RequestedPlan("p", -1, 1, moves))


@async_test
async def test_a_rebuild_that_a_user_cancels_stops_and_does_not_begin_again_until_the_broker_has_returned():
    story = await story_of(4, *ON_THREE)
    cluster, controller = story.cluster, story.cluster.elected
    await cluster.vanish(3)
    await story.pass_minutes(30)
    assert story.plan is not None
    await controller.plans.cancel_plan(story.plan.plan_id)
    await settle()
    # It does not wait for the broker that is away, to move anything back to it.
    assert (story.plan.state, dict(story.plan.skipped)) == (PlanState.CANCELLED, {"cancelled": (0, 1, 2)})
    await story.pass_minutes(100)
    assert (story.plan.plan_id, await story.states()) == (1, {3: HealingState.GIVEN_UP})
    await cluster.start(3)
    await cluster.catch_up()
    await cluster.vanish(3)
    await story.pass_minutes(31)
    assert story.plan.plan_id == 2


@async_test
async def test_a_broker_that_was_to_receive_replicas_and_stays_away_too_is_replaced():
    story = await story_of(5, [1, 2, 3], [1, 2, 3])
    cluster = story.cluster
    await cluster.vanish(3)
    await story.pass_minutes(30)
    assert sorted({cluster.partition("t", index).adding_replicas[0] for index in range(2)}) == [4, 5]
    await cluster.vanish(5)
    await story.pass_minutes(31)
    await story.until_no_plan()
    assert story.plan is not None
    assert [len(moves) for moves in story.plan.skipped.values()] == [1]
    await story.pass_minutes(1)
    await story.until_no_plan()
    assert sorted(map(sorted, story.replicas())) == [[1, 2, 4], [1, 2, 4]]
    assert cluster.failures == []


@async_test
async def test_a_partition_with_two_replicas_away_gets_one_after_the_other():
    story = await story_of(6, [1, 2, 3], [4, 5, 6])
    await story.cluster.vanish(2, 3)
    await story.pass_minutes(30)
    assert story.cluster.partition("t").adding_replicas != []
    assert len(story.cluster.partition("t").adding_replicas) == 1
    await story.until_no_plan()
    await story.pass_minutes(1)
    await story.until_no_plan()
    assert {2, 3}.isdisjoint(story.replicas()[0])
    assert len(story.cluster.partition("t").isr) == 3


@async_test
async def test_a_partition_without_a_leader_is_left_alone():
    story = await story_of(4, *ON_THREE)
    await story.cluster.create("u", [3])
    await story.cluster.vanish(3)
    await story.pass_minutes(30)
    await story.until_no_plan()
    await story.pass_minutes(1)
    assert story.replicas("u") == [[3]]
    assert all(3 not in replicas for replicas in story.replicas())
    assert await story.states() == {3: HealingState.IMPOSSIBLE}


@async_test
async def test_it_is_off_by_default_and_can_be_switched_on_at_any_time():
    story = await story_of(4, *ON_THREE)
    cluster, healing = story.cluster, story.cluster.elected.self_healing
    await switch(cluster, -1)
    assert not healing.is_needed
    await cluster.vanish(3)
    assert await healing.describe() == []
    await switch(cluster, 10 * MINUTE)
    assert healing.is_needed
    await story.heal()
    await story.pass_minutes(10)
    assert story.is_rebuilding
