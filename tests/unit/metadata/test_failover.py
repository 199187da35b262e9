"""Three brokers of one cluster: they stop, vanish, return and lose their sessions, the controller too."""

import asyncio

import pytest

from kbroker.common import KafkaError
from kbroker.config.config_def import ConfigResourceType
from kbroker.metadata.features import FORMER_FEATURES
from kbroker.metadata.image import BrokerNode, BrokerRegistration, MetadataDelta
from kbroker.metadata.replication.isr_change_queue import IsrRequest
from kbroker.metadata.replication.partition_requests import RequestedIsr
from kbroker.metadata.store import znodes
from kbroker.metadata.topics.topic_requests import NewTopic
from protocol.errors import ErrorCode
from tests.unit.support.async_test import async_test
from tests.unit.support.memory_disk import settle
from tests.unit.support.metadata_cluster import cluster_of_three


@async_test
async def test_leaders_fail_over_and_return():
    cluster = await cluster_of_three()
    await cluster.create("t", [2, 3, 1])
    assert cluster.state("t") == (2, 0, [2, 3, 1])
    # The leader dies: the next replica in sync leads in a new epoch.
    await cluster.vanish(2)
    assert cluster.state("t") == (3, 1, [3, 1])
    assert set(cluster.controller.image.fenced_brokers) == {2}
    # It returns, and is not in sync until the leader says so.
    await cluster.start(2)
    assert cluster.state("t") == (3, 1, [3, 1])
    assert set(cluster.controller.image.brokers) == {1, 2, 3}
    await cluster.expand("t", 2)
    assert cluster.state("t") == (3, 1, [3, 1, 2])
    assert cluster.failures == []


@async_test
async def test_the_last_replica_in_sync_is_waited_for():
    cluster = await cluster_of_three()
    await cluster.create("t", [2, 3])
    await cluster.vanish(3)
    await cluster.vanish(2)
    assert cluster.state("t") == (-1, 1, [])
    await cluster.start(3)
    assert cluster.state("t") == (-1, 1, [])
    # It was killed, so its log may have lost its end. Still it is the best one.
    await cluster.start(2)
    assert cluster.state("t") == (2, 2, [2])


@async_test
async def test_a_replica_that_left_the_isr_below_min_insync_replicas_is_eligible_after_a_clean_stop():
    cluster = await cluster_of_three()
    await cluster.create("t", [2, 3])
    await cluster.alter("t", "min.insync.replicas", "2")
    await cluster.stop(3)
    assert (cluster.state("t"), cluster.partition("t").elr) == ((2, 0, [2]), [3])
    await cluster.vanish(2)
    assert (cluster.state("t"), cluster.partition("t").elr) == ((-1, 1, []), [3, 2])
    await cluster.start(3)
    assert (cluster.state("t"), cluster.partition("t").elr) == ((3, 2, [3]), [2])
    # The other one cannot prove that its log is intact.
    await cluster.start(2)
    assert (cluster.state("t"), cluster.partition("t").elr) == ((3, 2, [3]), [])


@async_test
async def test_a_replica_that_was_killed_is_not_eligible():
    cluster = await cluster_of_three()
    await cluster.create("t", [2, 3])
    await cluster.alter("t", "min.insync.replicas", "2")
    await cluster.vanish(3)
    await cluster.vanish(2)
    await cluster.start(3)
    assert (cluster.state("t"), cluster.partition("t").elr) == ((-1, 1, []), [2])


@async_test
async def test_eligibility_ends_before_min_insync_replicas_is_lower():
    cluster = await cluster_of_three()
    await cluster.create("t", [2, 3])
    await cluster.alter("t", "min.insync.replicas", "2")
    await cluster.vanish(3)
    assert cluster.partition("t").elr == [3]
    await cluster.alter("t", "min.insync.replicas", "1")
    assert cluster.partition("t").elr == []


@async_test
async def test_the_controller_dies_and_another_one_settles_what_it_led():
    cluster = await cluster_of_three()
    assert cluster.controller is cluster.brokers[1]
    await cluster.create("t", [1, 2, 3])
    await cluster.vanish(1)
    assert cluster.elected.epoch == 2
    assert cluster.controller.image.controller_id in (2, 3)
    assert cluster.state("t") == (2, 1, [2, 3])
    await cluster.create("u", [3, 2])
    await cluster.start(1)
    assert cluster.brokers[1].image.topics.keys() == {"t", "u"}
    assert not cluster.brokers[1].controller.is_elected


@async_test
async def test_all_brokers_die_at_once():
    cluster = await cluster_of_three()
    await cluster.create("t", [1, 2, 3])
    await cluster.vanish(1, 2, 3)
    # Nobody was there to write anything. The log of a broker that restarted may have lost its end.
    await cluster.start(1)
    assert cluster.state("t") == (-1, 1, [])
    await cluster.start(2)
    assert cluster.state("t") == (-1, 1, [])
    await cluster.start(3)
    assert cluster.state("t") == (1, 2, [1])


@async_test
async def test_a_broker_that_bounces_while_there_is_no_controller_leaves_its_isrs():
    cluster = await cluster_of_three()
    await cluster.create("t", [2, 3, 1])
    old_epoch = cluster.brokers[2].broker_epoch
    # The controller does not look: its watch is lost with its session.
    cluster.brokers[1].controller.resign()
    await cluster.vanish(2)
    await cluster.sessions[1].delete(znodes.CONTROLLER)
    await cluster.start(2)
    assert cluster.brokers[2].broker_epoch > old_epoch
    assert cluster.state("t") == (3, 1, [3, 1])


@async_test
async def test_a_former_broker_epoch_cannot_join_the_isr():
    cluster = await cluster_of_three()
    await cluster.create("t", [1, 2])
    epoch = cluster.brokers[2].broker_epoch
    await cluster.vanish(2)
    await cluster.start(2)
    partition = cluster.partition("t")
    requested = RequestedIsr(partition.leader_epoch, partition.partition_epoch, [(1, -1), (2, epoch)])
    topic_id = cluster.controller.image.topics["t"].topic_id
    own_epoch = cluster.brokers[1].broker_epoch
    (result,) = await cluster.elected.isr_changes.alter_partitions(1, own_epoch, [IsrRequest(topic_id, 0, requested)])
    assert result is ErrorCode.INELIGIBLE_REPLICA
    with pytest.raises(KafkaError, match="STALE_BROKER_EPOCH"):
        await cluster.elected.isr_changes.alter_partitions(2, epoch, [])


@async_test
async def test_changes_of_isrs_are_written_together():
    cluster = await cluster_of_three()
    await cluster.create("t", *([1, 2, 3] for _ in range(100)))
    image = cluster.controller.image
    number = cluster.elected.last_change_number
    topic_id, epoch = image.topics["t"].topic_id, image.brokers[1].epoch

    async def shrink(index: int) -> None:
        requested = RequestedIsr(0, 0, [(1, epoch)])
        await cluster.elected.isr_changes.alter_partitions(1, epoch, [IsrRequest(topic_id, index, requested)])

    await asyncio.gather(*map(shrink, range(100)))
    assert all(partition.isr == [1] for partition in image.topics["t"].partitions)
    assert cluster.elected.last_change_number <= number + 2


@async_test
async def test_a_broker_leaves_in_order():
    cluster = await cluster_of_three()
    await cluster.create("t", [3, 2])
    await cluster.create("alone", [3])
    assert await cluster.elected.replication.controlled_shutdown(3, cluster.brokers[3].broker_epoch) == 0
    await settle()
    assert cluster.state("t") == (2, 1, [2])
    assert cluster.state("alone") == (-1, 1, [])
    await cluster.stop(3)
    assert cluster.state("t") == (2, 1, [2])
    await cluster.start(3)
    assert cluster.state("alone") == (3, 2, [3])
    assert not cluster.controller.image.brokers[3].in_controlled_shutdown


@async_test
async def test_new_topics_prefer_the_brokers_that_are_there():
    cluster = await cluster_of_three()
    await cluster.vanish(2)
    topics = [NewTopic("two", 4, 2), NewTopic("three", 1, 3)]
    assert [result.error for result in await cluster.elected.topics.create_topics(topics, False)] == [None, None]
    await settle()
    assert {replica for index in range(4) for replica in cluster.partition("two", index).replicas} == {1, 3}
    # The fenced broker follows when it returns.
    partition = cluster.partition("three")
    assert set(partition.replicas) == {1, 2, 3}
    assert set(partition.isr) == {1, 3}
    assert partition.leader == partition.isr[0]


@async_test
async def test_a_failover_does_not_wait_for_a_request_that_creates_many_topics(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kbroker.metadata.topics.topic_control_manager.TOPICS_BYTES", 5_000)
    cluster = await cluster_of_three()
    await cluster.create("t", [2, 3])
    controller = cluster.elected
    creating = asyncio.ensure_future(
        controller.topics.create_topics([NewTopic(f"n{n}", 3, 3) for n in range(100)], False)
    )
    await asyncio.sleep(0)
    await cluster.sessions[2].close()
    while cluster.controller.image.topics["t"].partitions[0].leader != 3:
        await asyncio.sleep(0)
    assert not creating.done()
    assert all(result.error is None for result in await creating)
    # What was planned before is written as it is now.
    assert all(2 not in partition.isr for _, partition in cluster.controller.image.partitions())


@async_test
async def test_a_broker_that_is_cordoned_while_topics_are_created_gets_none_of_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kbroker.metadata.topics.topic_control_manager.TOPICS_BYTES", 5_000)
    cluster = await cluster_of_three()
    controller = cluster.elected
    creating = asyncio.ensure_future(
        controller.topics.create_topics([NewTopic(f"n{n}", 3, 2) for n in range(100)], False)
    )
    await asyncio.sleep(0)
    await controller.alter_configs(ConfigResourceType.BROKER, "2", {"cordoned.log.dirs": "*"})
    before = {topic.name for topic in cluster.controller.image.topics.values()}
    assert not creating.done()
    assert all(result.error is None for result in await creating)
    topics = [topic for topic in cluster.controller.image.topics.values() if topic.name not in before]
    assert len(topics) > 50
    assert all(set(partition.replicas) == {1, 3} for topic in topics for partition in topic.partitions)


@async_test
async def test_a_broker_that_lost_its_session_joins_again():
    cluster = await cluster_of_three()
    await cluster.create("t", [2, 3])
    await cluster.create("u", [3, 2])
    member, epoch = cluster.brokers[2], cluster.brokers[2].broker_epoch
    roles: list[MetadataDelta] = []
    member.add_roles_listener(roles.append)
    await cluster.sessions[2].close()
    member.on_session_lost()
    await settle()
    del cluster.brokers[2]
    assert cluster.state("t") == (3, 1, [3])
    # It has missed a change, and its own view is old.
    await cluster.create("v", [1])
    assert member.image.topics["t"].partitions[0].leader == 2
    session = cluster.sessions[2] = cluster.store.session()
    roles.clear()
    await member.rejoin(session, BrokerRegistration(2, "h", 2), 0.0)
    await settle()
    cluster.brokers[2] = member
    assert member.broker_epoch > epoch
    assert member.is_unfenced
    assert cluster.state("t") == (3, 1, [3])
    assert member.image.topics.keys() == {"t", "u", "v"}
    # All roles have ended, so all are assigned again.
    assert {str(change.tp) for change in roles[-1].partitions} == {"t-0", "u-0", "v-0"}
    await cluster.expand("t", 2)


@async_test
async def test_a_broker_that_lost_only_its_session_is_eligible():
    cluster = await cluster_of_three()
    await cluster.create("t", [2, 3])
    await cluster.alter("t", "min.insync.replicas", "2")
    member = cluster.brokers.pop(3)
    member.on_session_lost()
    await cluster.sessions[3].close()
    await settle()
    await cluster.vanish(2)
    assert (cluster.state("t"), cluster.partition("t").elr) == ((-1, 1, []), [3, 2])
    cluster.sessions[3] = cluster.store.session()
    await member.rejoin(cluster.sessions[3], BrokerRegistration(3, "h", 3), 0.0)
    await settle()
    assert (cluster.state("t"), cluster.partition("t").elr) == ((3, 2, [3]), [2])


@async_test
async def test_a_failover_does_not_wait_for_listeners():
    cluster = await cluster_of_three()
    gate = asyncio.get_running_loop().create_future()

    async def open_logs(delta: MetadataDelta) -> None:
        await gate

    cluster.brokers[1].add_listener(open_logs)
    await cluster.create("t", [2, 3])
    await cluster.vanish(2)
    assert cluster.state("t") == (3, 1, [3])
    gate.set_result(None)
    await cluster.brokers[1].wait_for_listeners()


@async_test
async def test_leaders_return_to_their_preferred_brokers():
    cluster = await cluster_of_three()
    await cluster.create("t", [2, 3])
    await cluster.vanish(2)
    await cluster.start(2)
    await cluster.elected.replication.balance_leaders()
    assert cluster.state("t") == (3, 1, [3])
    await cluster.expand("t", 2)
    await cluster.elected.replication.balance_leaders()
    await settle()
    assert cluster.state("t") == (2, 2, [3, 2])


@async_test
async def test_a_broker_of_a_version_without_the_features_of_the_cluster_stays_fenced(caplog: pytest.LogCaptureFixture):
    """Such a version does not check it, and would lead partitions of groups whose records it ignores."""
    cluster = await cluster_of_three()
    await cluster.create("t", [2, 3])
    await cluster.vanish(2)
    session = cluster.store.session()
    former = BrokerRegistration(2, "h", 2, epoch=9, features=FORMER_FEATURES)
    await session.create(znodes.broker_path(2), znodes.encode_broker(BrokerNode(former, -1)), ephemeral=True)
    await settle()
    assert (cluster.controller.image.brokers.keys(), cluster.state("t")) == ({1, 3}, (3, 1, [3]))
    assert "share.version 2" in caplog.text
    await session.close()
    await cluster.start(2)
    assert cluster.controller.image.brokers.keys() == {1, 2, 3}


@async_test
async def test_a_former_controller_does_not_balance_leaders():
    cluster = await cluster_of_three()
    await cluster.create("t", [2, 3])
    await cluster.vanish(2)
    await cluster.start(2)
    await cluster.expand("t", 2)
    former = cluster.elected
    former.resign()
    # It raises nothing: the next controller balances them.
    await former.replication.balance_leaders()
    assert cluster.state("t")[0] == 3


@async_test
async def test_a_replica_that_is_not_in_sync_leads_if_the_topic_permits_it():
    cluster = await cluster_of_three()
    await cluster.create("t", [2, 3])
    await cluster.vanish(3)
    await cluster.vanish(2)
    await cluster.start(3)
    assert cluster.state("t") == (-1, 1, [])
    await cluster.alter("t", "unclean.leader.election.enable", "true")
    assert cluster.state("t") == (3, 2, [3])
