"""Elections of controllers in which a session ends, or the winner vanishes, at the worst moment."""

import asyncio

import pytest

from kbroker.coordination.embedded import EmbeddedStore
from kbroker.coordination.interface import SessionExpired
from kbroker.metadata.cluster_member import ClusterMember
from kbroker.metadata.image import BrokerRegistration
from kbroker.metadata.store import znodes
from tests.unit.support.async_test import async_test
from tests.unit.support.memory_disk import MemoryDisk, make_environment, settle
from tests.unit.support.metadata_cluster import CONFIG, Cluster, cluster_of_three


def lose_once_to_a_broker_that_vanishes(cluster: Cluster, member: ClusterMember) -> None:
    """The member's next campaign loses, and its image never has the winner."""
    campaign = member.controller.campaign

    async def lose(last_epoch: int) -> bool:
        member.controller.campaign = campaign  # type: ignore[method-assign]
        async with member.loader._lock:
            winner = cluster.store.session()
            await winner.create(znodes.CONTROLLER, znodes.encode({"broker": 9}), ephemeral=True)
            assert not await campaign()
            await winner.close()
        return False

    member.controller.campaign = lose  # type: ignore[method-assign]


@async_test
async def test_a_winner_that_vanishes_before_others_see_it_is_replaced():
    cluster = await cluster_of_three()
    await cluster.create("t", [1, 2])
    await cluster.vanish(3)
    lose_once_to_a_broker_that_vanishes(cluster, cluster.brokers[2])
    await cluster.vanish(1)
    assert cluster.controller is cluster.brokers[2]
    assert cluster.state("t") == (2, 1, [2])
    assert cluster.failures == []


@async_test
async def test_a_broker_that_registers_replaces_a_winner_that_vanishes():
    store = await EmbeddedStore.open(make_environment(MemoryDisk()), "/data")
    cluster = Cluster(store)
    member = ClusterMember(make_environment(), store.session(), 1, lambda: CONFIG, cluster.failures.append)
    await member.load()
    lose_once_to_a_broker_that_vanishes(cluster, member)
    async with asyncio.timeout(30):
        await member.register(BrokerRegistration(1, "h", 1))
    await settle()
    assert member.controller.is_elected
    assert member.image.controller_id == 1


@pytest.mark.parametrize("is_elected", [True, False])
@async_test
async def test_a_broker_whose_session_ends_during_its_campaign_does_not_wait_for_the_controller(is_elected: bool):
    """It would wait a minute: no controller unfences a registration that has ended."""
    store = await EmbeddedStore.open(make_environment(MemoryDisk()), "/data")
    session = store.session()
    member = ClusterMember(make_environment(), session, 1, lambda: CONFIG, pytest.fail)
    session.on_expired(member.on_session_lost)
    await member.load()

    async def campaign(last_epoch: int) -> bool:
        await session.expire()
        return is_elected

    member.controller.campaign = campaign  # type: ignore[method-assign]
    async with asyncio.timeout(30):
        with pytest.raises(SessionExpired):
            await member.register(BrokerRegistration(1, "h", 1))
