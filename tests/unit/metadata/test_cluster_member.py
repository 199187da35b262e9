"""Brokers join a cluster, change topics and configs through the controller, and load each other's changes."""

import asyncio
import logging
from typing import Any

import pytest

from kbroker.common import ANONYMOUS, KafkaError
from kbroker.config import BrokerConfig
from kbroker.config.config_def import ConfigResourceType
from kbroker.coordination.embedded import EmbeddedSession, EmbeddedStore
from kbroker.interbroker.auto_topic_creation_manager import AutoTopicCreationManager
from kbroker.metadata.cluster_member import ClusterMember
from kbroker.metadata.features import INITIAL_FEATURES, OWN_FEATURES, FinalizedFeatures, UnsupportedFeatures
from kbroker.metadata.image import BrokerRegistration, MetadataDelta, MetadataImage
from kbroker.metadata.registration import BrokerIdInUse, WrongSecret
from kbroker.metadata.store import znodes
from kbroker.metadata.store.change_log import RECENT_CHANGES
from kbroker.metadata.topics.topic_requests import NewPartitions, NewTopic, TopicNameOrId
from protocol.errors import ErrorCode
from tests.unit.support.async_test import async_test, until
from tests.unit.support.memory_disk import MemoryDisk, make_environment, settle
from tests.unit.support.metadata_cluster import join_cluster

CONFIG = BrokerConfig.load({"listeners": "PLAINTEXT://127.0.0.1:9092", "num.partitions": "3"})


class JoinedBroker:
    """A cluster member that records its deltas."""

    def __init__(self, member: ClusterMember, session: EmbeddedSession, store: EmbeddedStore) -> None:
        self.member = member
        self.session = session
        self.store = store
        self.deltas: list[MetadataDelta] = []

        async def record(delta: MetadataDelta) -> None:
            self.deltas.append(delta)

        member.add_listener(record)

    @property
    def image(self) -> MetadataImage:
        return self.member.image

    @property
    def controller(self) -> Any:
        return self.member.controller


FAILURES: list[BaseException] = []


async def start(
    disk: MemoryDisk,
    store: EmbeddedStore | None = None,
    node_id: int = 1,
    *,
    directory_id: str = "",
    max_wait_s: float = 0.0,
) -> JoinedBroker:
    environment = make_environment(disk, node_id)
    store = store or await EmbeddedStore.open(environment, "/data")
    session = store.session()
    registration = BrokerRegistration(node_id, "127.0.0.1", 9091 + node_id, directory_id=directory_id)
    member = await join_cluster(
        environment, session, registration, lambda: CONFIG, FAILURES.append, max_wait_s=max_wait_s
    )
    return JoinedBroker(member, session, store)


async def create(broker: JoinedBroker, *topics: NewTopic, validate_only: bool = False) -> list[Any]:
    return await broker.controller.topics.create_topics(topics, validate_only)  # type: ignore[no-any-return]


@async_test
async def test_a_single_broker_is_the_controller_of_a_new_cluster():
    disk = MemoryDisk()
    broker = await start(disk)
    assert broker.controller.is_elected
    assert broker.image.controller_id == 1
    assert len(broker.image.cluster_id) == 22
    assert broker.image.brokers == {1: BrokerRegistration(1, "127.0.0.1", 9092, None, 1, features=OWN_FEATURES)}
    restarted = await start(disk)
    assert restarted.image.cluster_id == broker.image.cluster_id
    assert restarted.image.brokers[1].epoch == 2


@async_test
async def test_create_topics_returns_when_the_image_and_the_listeners_have_the_topic():
    broker = await start(MemoryDisk())
    (result,) = await create(broker, NewTopic("a", configs=[("retention.ms", "5")]))
    assert (result.error, result.partitions, result.replication_factor) == (None, 3, 1)
    topic = broker.image.topics["a"]
    assert topic is broker.image.topics_by_id[result.topic_id]
    assert topic.configs == broker.image.overrides(ConfigResourceType.TOPIC, "a") == {"retention.ms": "5"}
    assert [partition.leader for partition in topic.partitions] == [1, 1, 1]
    (delta,) = broker.deltas
    assert delta.created == [topic]
    assert [str(change.tp) for change in delta.partitions] == ["a-0", "a-1", "a-2"]
    assert all(change.old is None for change in delta.partitions)


@async_test
async def test_validate_only_writes_nothing():
    broker = await start(MemoryDisk())
    (result,) = await create(broker, NewTopic("a"), validate_only=True)
    assert result.error is None
    assert result.topic_id != bytes(16)
    assert broker.image.topics == {}
    assert broker.deltas == []


@async_test
async def test_an_invalid_topic_does_not_prevent_the_others_of_a_request():
    broker = await start(MemoryDisk())
    results = await create(broker, NewTopic("a"), NewTopic("dup"), NewTopic("a b"), NewTopic("dup"), NewTopic("b"))
    codes = [(result.name, result.error and result.error.code) for result in results]
    assert codes == [("a", None), ("dup", 42), ("a b", 17), ("b", None)]
    assert set(broker.image.topics) == {"a", "b"}
    assert len(broker.deltas) == 1


@async_test
async def test_everything_survives_a_restart_with_new_leader_epochs():
    disk = MemoryDisk()
    broker = await start(disk)
    (result,) = await create(broker, NewTopic("a", 130, configs=[("retention.ms", "5")]))
    await broker.controller.topics.create_partitions([NewPartitions("a", 260)], False)
    await broker.controller.alter_configs(ConfigResourceType.BROKER, "", {"log.retention.ms": "7"})
    await broker.controller.alter_configs(ConfigResourceType.BROKER, "1", {"background.threads": "3"})
    await broker.controller.alter_configs(ConfigResourceType.GROUP, "g/. ..%", {"consumer.session.timeout.ms": "9"})
    disk.power_loss()
    restarted = await start(disk)
    topic = restarted.image.topics["a"]
    assert topic.topic_id == result.topic_id
    assert len(topic.partitions) == 260
    assert topic.configs == {"retention.ms": "5"}
    assert {partition.leader_epoch for partition in topic.partitions} == {1}
    assert restarted.image.overrides(ConfigResourceType.BROKER, "") == {"log.retention.ms": "7"}
    assert restarted.image.overrides(ConfigResourceType.BROKER, "1") == {"background.threads": "3"}
    assert restarted.image.resources_with_overrides(ConfigResourceType.GROUP) == ["g/. ..%"]


@async_test
async def test_create_partitions():
    broker = await start(MemoryDisk())
    await create(broker, NewTopic("a", 1), NewTopic("b", 1))
    topics = [NewPartitions("a", 3), NewPartitions("b", 1), NewPartitions("nope", 2)]
    results = await broker.controller.topics.create_partitions(topics, True)
    assert [result.error and result.error.code for result in results] == [None, 37, 3]
    assert len(broker.image.topics["a"].partitions) == 1
    await broker.controller.topics.create_partitions(topics, False)
    assert len(broker.image.topics["a"].partitions) == 3
    assert broker.deltas[-1].updated == [broker.image.topics["a"]]
    assert [str(change.tp) for change in broker.deltas[-1].partitions] == ["a-1", "a-2"]


@async_test
async def test_one_request_adds_at_most_ten_thousand_partitions():
    broker = await start(MemoryDisk())
    await create(broker, NewTopic("a", 1), NewTopic("b", 1))
    results = await broker.controller.topics.create_partitions(
        [NewPartitions("a", 6001), NewPartitions("b", 6001)], True
    )
    assert [result.error and result.error.code for result in results] == [None, 44]


@async_test
async def test_a_topic_that_is_created_again_after_its_deletion_has_another_id():
    broker = await start(MemoryDisk())
    await create(broker, NewTopic("a", configs=[("retention.ms", "5")]))
    first = broker.image.topics["a"]
    deletions = await broker.controller.topics.delete_topics(
        [TopicNameOrId(None, first.topic_id), TopicNameOrId("nope")]
    )
    assert [(deletion.name, deletion.error and deletion.error.code) for deletion in deletions] == [
        ("nope", 3),
        ("a", None),
    ]
    assert broker.image.topics == {}
    assert broker.image.topics_by_id == {}
    assert broker.deltas[-1].deleted == [first]
    assert [change.new for change in broker.deltas[-1].partitions] == [None] * 3
    await create(broker, NewTopic("a", 1))
    assert broker.image.topics["a"].topic_id != first.topic_id
    assert broker.image.topics["a"].configs == {}


@async_test
async def test_chunks_of_deleted_partitions_are_reused():
    broker = await start(MemoryDisk())
    for _ in range(5):
        await create(broker, NewTopic("a", 200))
        await broker.controller.topics.delete_topics([TopicNameOrId("a")])
    assert len(await broker.session.children(znodes.PARTITIONS)) == 2


@async_test
async def test_alter_configs():
    broker = await start(MemoryDisk())
    await create(broker, NewTopic("a"))
    await broker.controller.alter_configs(ConfigResourceType.TOPIC, "a", {"retention.ms": "1"})
    await broker.controller.alter_configs(ConfigResourceType.TOPIC, "a", lambda current: {**current, "segment.ms": "2"})
    assert broker.image.topics["a"].configs == {"retention.ms": "1", "segment.ms": "2"}
    assert list(broker.deltas[-1].configs.values()) == [{"retention.ms": "1", "segment.ms": "2"}]
    await broker.controller.alter_configs(ConfigResourceType.TOPIC, "a", None)
    assert broker.image.topics["a"].configs == {}
    assert broker.image.resources_with_overrides(ConfigResourceType.TOPIC) == []
    count = len(broker.deltas)
    await broker.controller.alter_configs(ConfigResourceType.TOPIC, "a", {})
    assert len(broker.deltas) == count
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        await broker.controller.alter_configs(ConfigResourceType.TOPIC, "nope", {})


@async_test
async def test_a_name_that_is_too_long_for_a_path_is_rejected():
    broker = await start(MemoryDisk())
    with pytest.raises(KafkaError, match="the path is too long"):
        await broker.controller.alter_configs(
            ConfigResourceType.GROUP, "\u20ac" * 30_000, {"consumer.session.timeout.ms": "9"}
        )
    await create(broker, NewTopic("a"))
    assert set(broker.image.topics) == {"a"}


@async_test
async def test_concurrent_requests_for_one_topic_create_it_once():
    broker = await start(MemoryDisk())
    creation = AutoTopicCreationManager(make_environment(), broker.image, broker.controller, None, lambda: CONFIG)
    topics = await asyncio.gather(*(creation.auto_create_topic("a", (ANONYMOUS, "10.0.0.7")) for _ in range(20)))
    assert {id(topic) for topic in topics} == {id(broker.image.topics["a"])}
    offsets = await asyncio.gather(*(creation.ensure_internal_topic("__consumer_offsets") for _ in range(5)))
    assert offsets[0].internal
    assert len(offsets[0].partitions) == 50
    assert offsets[0].has_kafka_key_hash
    assert not topics[0].has_kafka_key_hash
    assert (await creation.auto_create_topic("__consumer_offsets", (ANONYMOUS, "10.0.0.7"))) is offsets[0]
    with pytest.raises(KafkaError, match="INVALID_TOPIC_EXCEPTION"):
        await creation.auto_create_topic("a b", (ANONYMOUS, "10.0.0.7"))


@async_test
async def test_topics_are_created_in_the_background_and_failures_are_remembered():
    broker = await start(MemoryDisk())
    creation = AutoTopicCreationManager(make_environment(), broker.image, broker.controller, None, lambda: CONFIG)
    topics = [NewTopic("a", 2, 1), NewTopic("b", 1, 1, configs=[("cleanup.policy", "foo")])]
    for _ in range(2):
        # At the second time, both are being created.
        assert creation.begin_creation(topics, remember_ms=60_000, requester=(ANONYMOUS, "10.0.0.7")) == {}
    reason = "Invalid value foo for configuration cleanup.policy: String must be one of: compact, delete"
    await until(
        lambda: creation.begin_creation(topics, remember_ms=60_000, requester=(ANONYMOUS, "10.0.0.7")) == {"b": reason},
        seconds=30,
    )
    assert len(broker.image.topics["a"].partitions) == 2


@async_test
async def test_producer_ids_are_never_allocated_twice():
    disk = MemoryDisk()
    ids: list[int] = []
    for _ in range(3):
        broker = await start(disk)
        ids += await asyncio.gather(*(broker.member.producer_ids.generate_producer_id() for _ in range(1500)))
        disk.power_loss()
    assert len(set(ids)) == len(ids)
    assert ids[:3] == [0, 1, 2]
    assert ids[1500] == 2000


@async_test
async def test_brokers_of_one_process_share_the_metadata():
    FAILURES.clear()
    disk = MemoryDisk()
    broker = await start(disk)
    other = await start(disk, broker.store, 2)
    assert broker.controller.is_elected
    assert not other.controller.is_elected
    assert other.image.controller_id == 1
    await settle()
    assert set(broker.image.brokers) == set(other.image.brokers) == {1, 2}
    await create(broker, NewTopic("a", 4, 2))
    await settle()
    assert other.image.topics == broker.image.topics
    (result,) = await create(other, NewTopic("b"))
    assert result.error.code == ErrorCode.NOT_CONTROLLER
    with pytest.raises(BrokerIdInUse, match=r"^another broker of this cluster has node.id=2: it serves "):
        await start(disk, broker.store, 2)
    await other.member.leave()
    await settle()
    assert set(broker.image.brokers) == {1}
    assert 2 not in broker.image.endpoints("PLAINTEXT")
    assert FAILURES == []


@pytest.mark.parametrize(
    ("directory_id", "expected"),
    [
        ("a", "INFO waiting for the end of this broker's former session"),
        ("b", "WARNING a broker with another log directory has this id address=127.0.0.1:9093"),
    ],
)
def test_a_restarted_broker_waits_for_the_end_of_its_former_session(
    directory_id: str, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The controller is another broker. The session of the killed one exists for its timeout."""

    @async_test
    async def restart():
        disk = MemoryDisk()
        broker = await start(disk)
        killed = await start(disk, broker.store, 2, directory_id="a")
        caplog.clear()
        restarting = asyncio.create_task(start(disk, broker.store, 2, directory_id=directory_id, max_wait_s=20))
        async with asyncio.timeout(10):
            while not caplog.records:
                await settle()
        await killed.session.close()
        await restarting
        assert broker.image.brokers[2].epoch == 3

    caplog.set_level(logging.INFO, "kbroker.metadata")
    restart()
    first = caplog.records[0]
    assert f"{first.levelname} {first.message}" == f"{expected} waiting_s=20"


@async_test
async def test_a_controller_that_lost_its_session_writes_nothing():
    disk = MemoryDisk()
    broker = await start(disk)
    other = await start(disk, broker.store, 2)
    old_controller = broker.controller
    # Delete the old controller's node, as when its session expires before it is notified.
    await other.session.delete(znodes.CONTROLLER)
    assert await other.controller.campaign()
    await create(other, NewTopic("a"))
    (result,) = await old_controller.topics.create_topics([NewTopic("b")], False)
    assert result.error.code == ErrorCode.NOT_CONTROLLER
    assert not old_controller.is_elected
    await settle()
    assert set(broker.image.topics) == set(other.image.topics) == {"a"}


@async_test
async def test_a_controller_with_a_stale_image_catches_up():
    broker = await start(MemoryDisk())
    await create(broker, NewTopic("a"))
    node = await broker.session.get(znodes.CHANGES)
    await broker.session.set(znodes.CHANGES, node.data)
    broker.member.loader.change_log_version = node.version
    (result,) = await create(broker, NewTopic("b"))
    assert result.error.code == ErrorCode.REQUEST_TIMED_OUT
    assert broker.controller.is_elected
    (result,) = await create(broker, NewTopic("b"))
    assert result.error is None
    assert set(broker.image.topics) == {"a", "b"}


@async_test
async def test_a_loader_that_has_missed_too_many_changes_reads_all_nodes():
    disk = MemoryDisk()
    broker = await start(disk)
    other = await start(disk, broker.store, 2)
    await create(broker, NewTopic("old"), NewTopic("kept", configs=[("retention.ms", "1")]))
    await settle()
    loader = other.member.loader
    async with loader._lock:
        await broker.controller.topics.delete_topics([TopicNameOrId("old")])
        for number in range(RECENT_CHANGES + 3):
            await create(broker, NewTopic(f"t{number}", 1))
        await broker.controller.alter_configs(ConfigResourceType.TOPIC, "kept", None)
    await loader.catch_up()
    assert other.image.topics == broker.image.topics
    assert other.image.topics["kept"].configs == {}
    assert [topic.name for topic in other.deltas[-1].deleted] == ["old"]


@async_test
async def test_ten_thousand_partitions_in_one_request():
    disk = MemoryDisk()
    broker = await start(disk)
    (result,) = await create(broker, NewTopic("big", 10_000))
    assert result.error is None
    assert len(await broker.session.children(znodes.PARTITIONS)) == 79
    restarted = await start(disk)
    assert len(restarted.image.topics["big"].partitions) == 10_000


@async_test
async def test_a_change_that_a_full_disk_rejects_leaves_the_rest_unchanged():
    disk = MemoryDisk()
    broker = await start(disk)
    await create(broker, NewTopic("a"))
    disk.room = 20
    (result,) = await create(broker, NewTopic("b"))
    assert result.error.code == ErrorCode.REQUEST_TIMED_OUT
    assert set(broker.image.topics) == {"a"}
    disk.room = None
    (result,) = await create(broker, NewTopic("b"))
    assert result.error is None
    assert set((await start(disk)).image.topics) == {"a", "b"}


@async_test
async def test_a_broker_that_lacks_a_finalized_level_does_not_register():
    broker = await start(MemoryDisk())
    features = FinalizedFeatures(1, INITIAL_FEATURES.levels | {"group.version": 9, "later.version": 1})
    await broker.session.set(znodes.FEATURES, znodes.encode_features(features))
    with pytest.raises(UnsupportedFeatures, match=r"the cluster uses group.version 9, later.version 1, which"):
        await start(MemoryDisk(), broker.store, 2)
    assert await broker.session.exists(znodes.broker_path(2)) is None


@async_test
async def test_a_broker_with_another_secret_does_not_register():
    """Neither at its start nor in another session: no other broker would accept its connections."""
    broker = await start(MemoryDisk())
    secret = broker.member.secret
    await broker.session.set(znodes.SECRET, znodes.encode_secret(b"other"))
    with pytest.raises(WrongSecret, match="/kbroker/secret has another secret"):
        await start(MemoryDisk(), broker.store, 2)
    assert await broker.session.exists(znodes.broker_path(2)) is None
    # The first broker knows the right one, and may continue in another session. One that does not may not.
    registration = BrokerRegistration(1, "127.0.0.1", 9092)
    for known, error in ((secret, None), (b"other", WrongSecret)):
        broker.member.on_session_lost()
        await broker.session.close()
        broker.session, broker.member.secret = broker.store.session(), known
        rejoin = broker.member.rejoin(broker.session, registration, 0.0)
        if error is None:
            await rejoin
        else:
            with pytest.raises(error):
                await rejoin


@async_test
async def test_a_lost_secret_is_replaced_when_its_digest_is_deleted_too():
    broker = await start(MemoryDisk())
    await broker.session.delete(znodes.SECRET)
    with pytest.raises(WrongSecret):
        await start(MemoryDisk(), broker.store, 2)
    await broker.session.delete(znodes.SECRET_DIGEST)
    assert (await start(MemoryDisk(), broker.store, 2)).member.secret != broker.member.secret
