"""Mistakes in plans of reassignments (when they end, and who runs them), and in the placement of new partitions."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from types import MethodType

import pytest

from kbroker.common import KafkaError
from kbroker.config.config_def import ConfigResourceType
from kbroker.coordination.interface import Op
from kbroker.metadata.control_manager import MetadataWriter
from kbroker.metadata.image import PartitionRegistration
from kbroker.metadata.reassignments import plan_decisions, reassignment_control_manager
from kbroker.metadata.reassignments.placement.reassignment_plan import PartitionMove
from kbroker.metadata.reassignments.plan_decisions import MoveState, MoveStatus, RequestedPlan
from kbroker.metadata.reassignments.reassignment_control_manager import ReassignmentPlanManager
from kbroker.metadata.reassignments.stored_plan import NO_THROTTLE, StoredPlan
from kbroker.metadata.replication.partition_requests import RequestedReassignment
from kbroker.metadata.store.change_log import change_ops
from kbroker.metadata.topics.topic_control_manager import TopicControlManager
from kbroker.metadata.topics.topic_requests import NewPartitions
from kbroker.simulation.runtime.machine import Machine
from kbroker.simulation.scenarios.simulation import Simulation
from tests.unit.simulation.mutations.cluster import replicated
from tests.unit.simulation.mutations.mutation import INVARIANT, mutation, replaces, wrap
from tests.unit.simulation.mutations.scene import Scene
from tests.unit.simulation.mutations.shapes import broker

PARTITIONS = 3


class Drain:
    """A plan that moves the partitions from the first two brokers to the third and the second."""

    def __init__(self, simulation: Simulation) -> None:
        self.scenes = [Scene(simulation, ("topic0", index)) for index in range(PARTITIONS)]
        self.drained, self.kept, self.spare = 1, 2, 3
        self.target = [self.spare, self.kept]

    async def prepare(self) -> bool:
        """Leave two replicas of each partition. Returns whether that has succeeded."""
        for scene in self.scenes:
            if not await scene.until_in_sync():
                return False
        replicas = [self.drained, self.kept]
        await self.at_controller(
            lambda controller: controller.reassignments.alter_reassignments(
                [RequestedReassignment(*scene.tp, replicas) for scene in self.scenes]
            )
        )
        return await self.scenes[0].until(lambda: all(scene.stored.replicas == replicas for scene in self.scenes))

    async def create_plan(self) -> None:
        moves = [PartitionMove(*scene.tp, tuple(scene.stored.replicas), tuple(self.target)) for scene in self.scenes]
        plan = RequestedPlan("drain", NO_THROTTLE, 1, moves, allow_fewer_racks=True)
        await self.at_controller(lambda controller: controller.plans.create_plan(plan))

    async def at_controller(self, operation: Callable[..., Awaitable[object]]) -> None:
        controller = self.scenes[0].controller
        if controller is not None and controller.services is not None:
            with suppress(KafkaError):
                await controller.loop.run(operation(controller.services.controller))  # type: ignore[arg-type]


async def a_broker_is_drained(simulation: Simulation, random: Random) -> None:
    """The broker that copies the partitions cannot fetch at first."""
    drain = Drain(simulation)
    if await drain.prepare():
        scene = drain.scenes[0]
        spare, others = scene.machine(drain.spare), [scene.machine(drain.drained), scene.machine(drain.kept)]
        scene.cut(spare, others)
        await drain.create_plan()
        await scene.until(lambda: False, 1.0)
        scene.heal(spare, others)
        await scene.until(lambda: all(each.stored.replicas == drain.target for each in drain.scenes))


async def a_controller_is_replaced_while_it_runs_a_plan(simulation: Simulation, random: Random) -> None:
    """It is paused after the first move, and another controller begins the second."""
    drain = Drain(simulation)
    if not await drain.prepare():
        return
    first, second, _ = drain.scenes
    controller = first.controller
    assert controller is not None
    await drain.create_plan()
    if not await first.until(lambda: _known_replicas(controller, first) == drain.target):
        return
    controller.pause()
    first.delete_controller()
    await first.until(lambda: second.stored.is_reassigning or second.stored.replicas == drain.target)
    controller.resume()
    await first.until(lambda: all(each.stored.replicas == drain.target for each in drain.scenes))


async def a_broker_stays_away(simulation: Simulation, random: Random) -> None:
    """Its replicas are rebuilt on the spare broker, and then it returns."""
    drain = Drain(simulation)
    if await drain.prepare():
        scene = drain.scenes[0]
        away = scene.machine(drain.drained)
        with simulation.down(away):
            scene.kill(away)
            await scene.until(lambda: all(drain.drained not in each.stored.replicas for each in drain.scenes), 6.0)


async def a_broker_is_cordoned(simulation: Simulation, random: Random) -> None:
    """The topic, which has replicas on the two other brokers, gets more partitions."""
    drain = Drain(simulation)
    if await drain.prepare():
        broker, cordoned = str(drain.spare), {"cordoned.log.dirs": "*"}
        await drain.at_controller(lambda at: at.alter_configs(ConfigResourceType.BROKER, broker, cordoned))
        new = NewPartitions(drain.scenes[0].tp[0], 2 * PARTITIONS)
        await drain.at_controller(lambda at: at.topics.create_partitions([new], validate_only=False))


def _known_replicas(machine: Machine, scene: Scene) -> Sequence[int]:
    partition = None if machine.services is None else machine.services.metadata.partition(*scene.tp)
    return [] if partition is None else partition.replicas


@mutation("cluster", [INVARIANT], replicated(a_broker_is_drained, partitions=PARTITIONS))
@replaces(plan_decisions, "move_status")
def a_drained_broker_keeps_a_leadership(original: Callable[..., MoveStatus], *args: object) -> MoveStatus:
    """A plan takes moves for done that have only begun, so that the drained broker still has replicas and leads."""
    progress = original(*args)
    return MoveStatus(MoveState.DONE) if progress.state is MoveState.RUNNING else progress


@mutation("cluster", [INVARIANT], replicated(a_broker_is_cordoned, partitions=PARTITIONS))
@replaces(TopicControlManager, "_is_cordoned")
def a_cordoned_broker_gets_replicas_of_new_partitions(original: Callable[..., bool], *args: object) -> bool:
    """The controller places new partitions on all brokers."""
    return False


@mutation("cluster", [INVARIANT], replicated(a_controller_is_replaced_while_it_runs_a_plan, partitions=PARTITIONS))
def a_plan_goes_on_after_another_controller_has_replaced_it(patch: pytest.MonkeyPatch) -> None:
    """The steps of a plan are not fenced: they check neither the controller epoch nor the last change."""

    async def write(writer: MetadataWriter, ops: Sequence[Op], deleted_topics: Sequence[bytes] = ()) -> None:
        await writer.coordination.multi([*change_ops(writer._loader.change_log.number + 1, ops), *ops])
        await writer._loader.catch_up()

    async def move(
        original: Callable[..., Awaitable[None]], manager: ReassignmentPlanManager, plan: StoredPlan
    ) -> None:
        # The lock is held, so nothing else is written meanwhile.
        fenced, manager._writer.write = manager._writer.write, MethodType(write, manager._writer)  # type: ignore[method-assign]
        try:
            await original(manager, plan)
        finally:
            manager._writer.write = fenced  # type: ignore[method-assign]

    wrap(patch, ReassignmentPlanManager, "_move", move)


@mutation(
    "cluster",
    [INVARIANT],
    broker(replicated(a_broker_stays_away, seconds=5.0, partitions=PARTITIONS), kbroker_replica_rebuild_after_ms="200"),
)
@replaces(reassignment_control_manager, "alter_reassignment")
def a_rebuild_removes_the_dead_replica_before_the_new_one_is_in_sync(
    original: Callable[..., PartitionRegistration | None], *args: object, **named: object
) -> PartitionRegistration | None:
    """A replica on a broker that is away protects nothing, so self-healing does not wait for the one that is added."""
    altered = original(*args, **named)
    if altered is not None and altered.is_reassigning:
        altered.replicas = [replica for replica in altered.replicas if replica not in altered.removing_replicas]
        altered.isr = [replica for replica in altered.isr if replica in altered.replicas]
        altered.adding_replicas, altered.removing_replicas = [], []
    return altered
