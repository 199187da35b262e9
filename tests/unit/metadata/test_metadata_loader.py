"""A broker loads the metadata nodes while others write them, and rejects damaged ones."""

import asyncio

import pytest

from kbroker.common import KafkaError
from kbroker.coordination.interface import Create, SessionExpired
from kbroker.metadata.cluster_member import ClusterMember
from kbroker.metadata.features import TRANSACTION_VERSION, UPGRADE, BrokerFeature, FeatureUpdate
from kbroker.metadata.image import BrokerEndpoint, BrokerNode, BrokerRegistration, MetadataDelta
from kbroker.metadata.replication import replication_control_manager
from kbroker.metadata.store import znodes
from kbroker.metadata.topics.topic_requests import NewTopic
from tests.unit.support.async_test import async_test
from tests.unit.support.memory_disk import make_environment, settle
from tests.unit.support.metadata_cluster import CONFIG, cluster_of


@async_test
async def test_a_broker_that_loses_its_session_while_it_waits_to_be_unfenced_stops_waiting():
    cluster = await cluster_of(1)
    cluster.brokers[1].controller.resign()  # by another defect: nobody unfences brokers
    session = cluster.store.session()
    member = ClusterMember(make_environment(seed=2), session, 2, lambda: CONFIG, cluster.failures.append)
    await member.load()
    registering = asyncio.ensure_future(member.register(BrokerRegistration(2, "h", 2)))
    await settle()
    assert not registering.done()
    await session.expire()
    member.on_session_lost()
    with pytest.raises(SessionExpired):
        await asyncio.wait_for(registering, 5)


@async_test
async def test_an_image_has_whole_changes_only():
    """A broker reads the nodes of one change while the controller writes the next one, which needs other nodes, too."""
    cluster = await cluster_of(2)
    session, member = cluster.sessions[2], cluster.brokers[2]
    topics: list[set[str]] = []
    member.add_roles_listener(lambda delta: topics.append(set(member.image.topics)))
    read = session.get_many

    async def read_while_others_write(paths):
        """Read each node in turn, with a change after the first one."""
        session.get_many = read
        nodes = await read(paths[:1])
        await cluster.elected.topics.create_topics([NewTopic("b", assignments=[(0, [1, 2])])], False)
        return nodes + await read(paths[1:])

    session.get_many = read_while_others_write  # type: ignore[method-assign]
    await cluster.create("a", [2, 1])
    await settle()
    assert topics == [{"a", "b"}]
    assert not cluster.failures
    assert member.loader.change_log.number == cluster.controller.loader.change_log.number


@async_test
async def test_a_role_that_cannot_change_stops_the_broker():
    """Otherwise the request that made the change would have an error, and the broker another role than in the image."""
    cluster = await cluster_of(1)

    def fail(delta: MetadataDelta) -> None:
        raise RuntimeError("a defect")

    cluster.brokers[1].add_roles_listener(fail)
    await cluster.create("a", [1])
    assert [str(failure) for failure in cluster.failures] == ["a defect"]


@async_test
async def test_a_controller_tries_again_after_an_unexpected_exception(monkeypatch: pytest.MonkeyPatch):
    cluster = await cluster_of(2)
    await cluster.create("a", [2, 1])
    real, outcomes = replication_control_manager.plan_broker_changes, [RuntimeError("a defect")]

    def fail_once(*args):
        if outcomes:
            raise outcomes.pop()
        return real(*args)

    monkeypatch.setattr(replication_control_manager, "RETRY_BACKOFF_S", 0.01)
    monkeypatch.setattr(replication_control_manager, "plan_broker_changes", fail_once)
    await cluster.vanish(2)
    async with asyncio.timeout(10):
        while cluster.brokers[1].image.partition("a", 0).leader != 1:
            await asyncio.sleep(0.01)


@async_test
async def test_a_node_that_is_not_a_broker_does_not_stop_the_controller():
    cluster = await cluster_of(1)
    await cluster.store.session().create(f"{znodes.BROKERS}/stranger", b"?")
    await cluster.start(2)
    assert set(cluster.brokers[1].image.brokers) == {1, 2}


@async_test
async def test_nodes_of_kinds_of_a_later_version_are_ignored():
    """Brokers are upgraded one by one: the controller of a later version may write other nodes."""
    cluster = await cluster_of(2)
    later = [f"{znodes.ROOT}/rules", f"{znodes.ROOT}/rules/0", f"{znodes.CONFIGS}/ips", f"{znodes.CONFIGS}/ips/x"]
    await cluster.elected._writer.commit([Create(path, b"?") for path in later])
    await cluster.create("t", [1, 2])
    assert [set(broker.image.topics) for broker in cluster.brokers.values()] == [{"t"}, {"t"}]
    await cluster.start(3)  # reads all nodes
    assert set(cluster.brokers[3].image.topics) == {"t"}
    assert not cluster.failures


@async_test
async def test_the_next_controller_adds_what_one_of_the_version_before_has_left_out():
    cluster = await cluster_of(3)
    endpoints = (BrokerEndpoint("OUTSIDE", "h", 3), BrokerEndpoint("INSIDE", "i", 4))
    former = cluster.controller
    node = BrokerNode(former.loader.registrations[3].registration._replace(endpoints=endpoints))
    await cluster.sessions[3].set(znodes.broker_path(3), znodes.encode_broker(node))
    assert former.controller.node_id != 3
    epoch = cluster.brokers[3].broker_epoch
    await cluster.vanish(former.controller.node_id)
    assert cluster.brokers[3].image.endpoints("INSIDE")[3] == endpoints[1]
    assert cluster.brokers[3].broker_epoch == epoch
    assert cluster.brokers[3].is_unfenced


@async_test
async def test_a_feature_level_that_a_registered_broker_does_not_support_is_refused():
    cluster = await cluster_of(2)
    controller = cluster.elected
    for features, reason in ((), "does not support this feature"), (
        (BrokerFeature(TRANSACTION_VERSION, 0, 1),), "only supports versions 0-1"
    ):  # fmt: skip
        known = cluster.controller.loader.registrations[2]
        cluster.controller.loader.registrations[2] = known._replace(
            registration=known.registration._replace(features=features)
        )
        with pytest.raises(KafkaError, match=f"Invalid update version 2 .* Broker 2 {reason}"):
            await controller.update_features([FeatureUpdate(TRANSACTION_VERSION, 2, UPGRADE)], True)
