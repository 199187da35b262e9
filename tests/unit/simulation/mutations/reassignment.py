"""Mistakes in reassignments: when they end, and what they leave."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random

from kbroker.common import KafkaError
from kbroker.metadata.image import PartitionRegistration
from kbroker.metadata.replication import alter_reassignments, partition_change
from kbroker.metadata.replication.alter_reassignments import RequestedReassignment
from kbroker.metadata.replication.reassignment import Assignment, CancelledReassignment, CompletedReassignment
from kbroker.simulation.scenarios.simulation import Simulation
from tests.unit.simulation.mutations.cluster import replicated
from tests.unit.simulation.mutations.mutation import INVARIANT, mutation, replaces
from tests.unit.simulation.mutations.scene import Scene


async def reassignment_is_cancelled(simulation: Simulation, random: Random) -> None:
    """A replica leaves and is added again, cannot fetch meanwhile, and the reassignment is cancelled."""
    scene = Scene(simulation)
    if not await scene.until_in_sync():
        return
    leader, (*_, moved) = scene.leader, scene.followers
    remaining = [scene.id(machine) for machine in (leader, *scene.followers) if machine is not moved]
    await _reassign(scene, remaining)
    await scene.until(lambda: scene.stored.replicas == remaining)
    scene.cut(leader, [moved])
    await _reassign(scene, [*remaining, scene.id(moved)])
    await asyncio.sleep(0.2)
    await _reassign(scene, None)
    await asyncio.sleep(0.1)
    scene.heal(leader, [moved])
    await _reassign(scene, [*remaining, scene.id(moved)])


async def _reassign(scene: Scene, target: Sequence[int] | None) -> None:
    controller = scene.controller
    if controller is not None and controller.services is not None:
        requested = [RequestedReassignment(*scene.tp, target)]
        with suppress(KafkaError):
            await controller.loop.run(controller.services.controller.alter_reassignments(requested))


@mutation("cluster", [INVARIANT], replicated(reassignment_is_cancelled))
@replaces(partition_change, "complete_reassignment")
def reassignment_completes_early(
    original: Callable[[Assignment, Sequence[int]], CompletedReassignment | None],
    assignment: Assignment,
    isr: Sequence[int],
) -> CompletedReassignment | None:
    """A reassignment is complete before the added replicas are in sync."""
    completed = original(assignment, [*isr, *assignment.replicas])
    if completed is None or not set(isr) & set(completed.replicas):
        return None
    return completed._replace(isr=[replica for replica in isr if replica in completed.replicas])


@mutation("cluster", [INVARIANT], replicated(reassignment_is_cancelled))
@replaces(alter_reassignments, "cancel_reassignment")
def cancelled_reassignment_keeps_the_added_replica(
    original: Callable[[PartitionRegistration], CancelledReassignment], partition: PartitionRegistration
) -> CancelledReassignment:
    """A reassignment that is cancelled leaves the replicas that it has added."""
    return original(partition)._replace(replicas=partition.replicas)
