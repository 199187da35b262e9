"""Mistakes in reassignments: when they end, what they leave, and throttles (KIP-73) that starve the ISR."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from kbroker.common import KafkaError
from kbroker.metadata.image import PartitionRegistration
from kbroker.metadata.replication import partition_change, partition_requests
from kbroker.metadata.replication.partition_change import Assignment, CancelledReassignment, CompletedReassignment
from kbroker.metadata.replication.partition_requests import RequestedReassignment
from kbroker.replica import replication_throttle
from kbroker.replica.fetcher import replica_fetcher
from kbroker.replica.replication_throttle import ReplicationQuota
from kbroker.simulation.invariants.broker import BrokenInvariant
from kbroker.simulation.scenarios.simulation import Simulation
from tests.unit.simulation.mutations.cluster import replicated
from tests.unit.simulation.mutations.mutation import INVARIANT, mutation, replaces
from tests.unit.simulation.mutations.scene import Scene
from tests.unit.simulation.mutations.shapes import Shape, broker, topics


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
            await controller.loop.run(controller.services.controller.reassignments.alter_reassignments(requested))


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
@replaces(partition_requests, "cancel_reassignment")
def cancelled_reassignment_keeps_the_added_replica(
    original: Callable[[PartitionRegistration], CancelledReassignment], partition: PartitionRegistration
) -> CancelledReassignment:
    """A reassignment that is cancelled leaves the replicas that it has added."""
    return original(partition)._replace(replicas=partition.replicas)


# Throttles.

RATES = {"leader_replication_throttled_rate": "1", "follower_replication_throttled_rate": "1"}
SIDES = ("leader", "follower")


async def busy_brokers(simulation: Simulation, random: Random) -> None:
    """No fault: all brokers serve while producers append more than the rate. The ISR must not shrink."""
    scene = Scene(simulation)
    if await scene.until_in_sync() and await scene.until(lambda: len(scene.stored.isr) < 3):
        raise BrokenInvariant(f"a throttle has removed replicas from the ISR {scene.stored.isr}")


def throttled() -> Shape:
    """All replicas of the topic are throttled at 1 byte per second."""
    shape = replicated(busy_brokers, seconds=4.0)
    return broker(topics(shape, **{f"{side}_replication_throttled_replicas": "*" for side in SIDES}), **RATES)


def whenever_exceeded(flag: str) -> Callable[..., bool]:
    """Return a decision that throttles every listed replica, in sync or not."""

    def decide(partition: Any, _: int, quota: ReplicationQuota, now_ms: int) -> bool:
        return getattr(partition, flag) and quota.is_exceeded(now_ms)

    return decide


@mutation("cluster", [INVARIANT], throttled(), slow=True)
def leaders_throttle_in_sync_replicas(patch: pytest.MonkeyPatch) -> None:
    """A leader withholds records from followers that are in the ISR, too."""
    patch.setattr(replication_throttle, "should_leader_throttle", whenever_exceeded("is_leader_throttled"))


@mutation("cluster", [INVARIANT], throttled())
def in_sync_replicas_throttle_themselves(patch: pytest.MonkeyPatch) -> None:
    """A follower in the ISR leaves its partitions out of its requests."""
    patch.setattr(replica_fetcher, "should_follower_throttle", whenever_exceeded("is_follower_throttled"))
