"""Mistakes in replication throttles (KIP-73): a throttle starves the ISR."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from kbroker.replica.fetch import leader_throttle
from kbroker.replica.fetcher import follower_throttle
from kbroker.replica.quota.replication_quota import ReplicationQuota
from kbroker.simulation.invariants.broker import BrokenInvariant
from kbroker.simulation.scenarios.simulation import Simulation
from tests.unit.simulation.mutations.cluster import replicated
from tests.unit.simulation.mutations.mutation import INVARIANT, mutation
from tests.unit.simulation.mutations.scene import Scene
from tests.unit.simulation.mutations.shapes import Shape, broker, topics

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


@mutation("cluster", [INVARIANT], throttled())
def leaders_throttle_in_sync_replicas(patch: pytest.MonkeyPatch) -> None:
    """A leader withholds records from followers that are in the ISR, too."""
    patch.setattr(leader_throttle, "should_leader_throttle", whenever_exceeded("is_leader_throttled"))


@mutation("cluster", [INVARIANT], throttled())
def in_sync_replicas_throttle_themselves(patch: pytest.MonkeyPatch) -> None:
    """A follower in the ISR leaves its partitions out of its requests."""
    patch.setattr(follower_throttle, "should_follower_throttle", whenever_exceeded("is_follower_throttled"))
