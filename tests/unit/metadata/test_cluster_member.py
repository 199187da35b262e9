"""A broker's life with its metadata: joining, changing topics and configs, restarting, more brokers in one
process.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kbroker.common import KafkaError
from kbroker.config import BrokerConfig
from kbroker.config.config_resource import ConfigResourceType
from kbroker.metadata.cluster_member import ClusterMember, join_cluster
from kbroker.metadata.image import BrokerRegistration, MetadataDelta, MetadataImage
from kbroker.metadata.store import znodes
from kbroker.metadata.store.coordination import NodeExists
from kbroker.metadata.store.embedded import EmbeddedSession, EmbeddedStore
from kbroker.metadata.topics.topic_plans import PartitionsSpec, TopicRef, TopicSpec
from protocol.errors import ErrorCode
from tests.unit.support.memory_disk import MemoryDisk, make_environment, settle

CONFIG = BrokerConfig.load({"listeners": "PLAINTEXT://127.0.0.1:9092", "num.partitions": "3"})


def run(story: Callable[[], Awaitable[Any]]) -> None:
    async def main() -> None:
        await story()

    asyncio.run(main())


class Broker:
    """A member with its deltas and faults recorded."""

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


FAULTS: list[BaseException] = []


async def start(disk: MemoryDisk, store: EmbeddedStore | None = None, node_id: int = 1) -> Broker:
    environment = make_environment(disk, node_id)
    store = store or await EmbeddedStore.open(environment, "/data")
    session = store.session()
    member = await join_cluster(
        environment, session, BrokerRegistration(node_id, "127.0.0.1", 9091 + node_id), lambda: CONFIG, FAULTS.append
    )
    return Broker(member, session, store)


async def create(broker: Broker, *specs: TopicSpec, validate_only: bool = False) -> list[Any]:
    return await broker.controller.create_topics(specs, validate_only)  # type: ignore[no-any-return]


def test_a_single_broker_is_the_controller_of_a_new_cluster():
    async def story():
        disk = MemoryDisk()
        one = await start(disk)
        assert one.controller.elected
        assert one.image.controller_id == 1
        assert len(one.image.cluster_id) == 22
        assert one.image.brokers == {1: BrokerRegistration(1, "127.0.0.1", 9092, None, 1)}
        again = await start(disk)
        assert again.image.cluster_id == one.image.cluster_id
        assert again.image.brokers[1].epoch == 2

    run(story)


def test_a_created_topic_is_in_the_image_and_with_the_listeners_when_the_call_returns():
    async def story():
        one = await start(MemoryDisk())
        (result,) = await create(one, TopicSpec("a", configs=[("retention.ms", "5")]))
        assert (result.error, result.partitions, result.replication_factor) == (None, 3, 1)
        topic = one.image.topics["a"]
        assert topic is one.image.topics_by_id[result.topic_id]
        assert topic.configs == one.image.overrides(ConfigResourceType.TOPIC, "a") == {"retention.ms": "5"}
        assert [partition.leader for partition in topic.partitions] == [1, 1, 1]
        (delta,) = one.deltas
        assert delta.created == [topic]
        assert [str(change.tp) for change in delta.partitions] == ["a-0", "a-1", "a-2"]
        assert all(change.old is None for change in delta.partitions)

    run(story)


def test_validate_only_writes_nothing():
    async def story():
        one = await start(MemoryDisk())
        (result,) = await create(one, TopicSpec("a"), validate_only=True)
        assert result.error is None
        assert result.topic_id != bytes(16)
        assert one.image.topics == {}
        assert one.deltas == []

    run(story)


def test_each_topic_of_a_request_stands_alone():
    async def story():
        one = await start(MemoryDisk())
        results = await create(
            one, TopicSpec("a"), TopicSpec("dup"), TopicSpec("a b"), TopicSpec("dup"), TopicSpec("b")
        )
        codes = [(result.name, result.error and result.error.code) for result in results]
        assert codes == [("a", None), ("dup", 42), ("a b", 17), ("b", None)]
        assert set(one.image.topics) == {"a", "b"}
        assert len(one.deltas) == 1

    run(story)


def test_everything_survives_a_restart_with_new_leader_epochs():
    async def story():
        disk = MemoryDisk()
        one = await start(disk)
        (result,) = await create(one, TopicSpec("a", 130, configs=[("retention.ms", "5")]))
        await one.controller.create_partitions([PartitionsSpec("a", 260)], False)
        await one.controller.alter_configs(ConfigResourceType.BROKER, "", {"log.retention.ms": "7"})
        await one.controller.alter_configs(ConfigResourceType.BROKER, "1", {"background.threads": "3"})
        await one.controller.alter_configs(ConfigResourceType.GROUP, "g/. ..%", {"consumer.session.timeout.ms": "9"})
        disk.power_loss()
        again = await start(disk)
        topic = again.image.topics["a"]
        assert topic.topic_id == result.topic_id
        assert len(topic.partitions) == 260
        assert topic.configs == {"retention.ms": "5"}
        assert {partition.leader_epoch for partition in topic.partitions} == {1}
        assert again.image.overrides(ConfigResourceType.BROKER, "") == {"log.retention.ms": "7"}
        assert again.image.overrides(ConfigResourceType.BROKER, "1") == {"background.threads": "3"}
        assert again.image.config_resources(ConfigResourceType.GROUP) == ["g/. ..%"]

    run(story)


def test_partitions_are_added():
    async def story():
        one = await start(MemoryDisk())
        await create(one, TopicSpec("a", 1), TopicSpec("b", 1))
        specs = [PartitionsSpec("a", 3), PartitionsSpec("b", 1), PartitionsSpec("nope", 2)]
        results = await one.controller.create_partitions(specs, True)
        assert [result.error and result.error.code for result in results] == [None, 37, 3]
        assert len(one.image.topics["a"].partitions) == 1
        await one.controller.create_partitions(specs, False)
        assert len(one.image.topics["a"].partitions) == 3
        assert one.deltas[-1].updated == [one.image.topics["a"]]
        assert [str(change.tp) for change in one.deltas[-1].partitions] == ["a-1", "a-2"]

    run(story)


def test_one_request_adds_at_most_ten_thousand_partitions():
    async def story():
        one = await start(MemoryDisk())
        await create(one, TopicSpec("a", 1), TopicSpec("b", 1))
        results = await one.controller.create_partitions([PartitionsSpec("a", 6001), PartitionsSpec("b", 6001)], True)
        assert [result.error and result.error.code for result in results] == [None, 44]

    run(story)


def test_deleting_and_creating_again_gives_another_topic():
    async def story():
        one = await start(MemoryDisk())
        await create(one, TopicSpec("a", configs=[("retention.ms", "5")]))
        first = one.image.topics["a"]
        answers = await one.controller.delete_topics([TopicRef(None, first.topic_id), TopicRef("nope")])
        assert [(line.name, line.error and line.error.code) for line in answers] == [("nope", 3), ("a", None)]
        assert one.image.topics == {}
        assert one.image.topics_by_id == {}
        assert one.deltas[-1].deleted == [first]
        assert [change.new for change in one.deltas[-1].partitions] == [None] * 3
        await create(one, TopicSpec("a", 1))
        assert one.image.topics["a"].topic_id != first.topic_id
        assert one.image.topics["a"].configs == {}

    run(story)


def test_room_of_deleted_partitions_is_used_again():
    async def story():
        one = await start(MemoryDisk())
        for _ in range(5):
            await create(one, TopicSpec("a", 200))
            await one.controller.delete_topics([TopicRef("a")])
        assert len(await one.session.children(znodes.PARTITIONS)) == 2

    run(story)


def test_configs_change_and_go():
    async def story():
        one = await start(MemoryDisk())
        await create(one, TopicSpec("a"))
        await one.controller.alter_configs(ConfigResourceType.TOPIC, "a", {"retention.ms": "1"})
        await one.controller.alter_configs(ConfigResourceType.TOPIC, "a", lambda now: {**now, "segment.ms": "2"})
        assert one.image.topics["a"].configs == {"retention.ms": "1", "segment.ms": "2"}
        assert list(one.deltas[-1].configs.values()) == [{"retention.ms": "1", "segment.ms": "2"}]
        await one.controller.alter_configs(ConfigResourceType.TOPIC, "a", None)
        assert one.image.topics["a"].configs == {}
        assert one.image.config_resources(ConfigResourceType.TOPIC) == []
        count = len(one.deltas)
        await one.controller.alter_configs(ConfigResourceType.TOPIC, "a", {})
        assert len(one.deltas) == count
        with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await one.controller.alter_configs(ConfigResourceType.TOPIC, "nope", {})

    run(story)


def test_a_name_that_no_path_can_hold_is_refused():
    async def story():
        one = await start(MemoryDisk())
        with pytest.raises(KafkaError, match="the path is too long"):
            await one.controller.alter_configs(
                ConfigResourceType.GROUP, "\u20ac" * 30_000, {"consumer.session.timeout.ms": "9"}
            )
        await create(one, TopicSpec("a"))
        assert set(one.image.topics) == {"a"}

    run(story)


def test_concurrent_requests_for_one_topic_create_it_once():
    async def story():
        one = await start(MemoryDisk())
        topics = await asyncio.gather(*(one.controller.auto_create("a") for _ in range(20)))
        assert {id(topic) for topic in topics} == {id(one.image.topics["a"])}
        offsets = await asyncio.gather(*(one.controller.ensure_internal_topic("__consumer_offsets") for _ in range(5)))
        assert offsets[0].internal
        assert len(offsets[0].partitions) == 50
        assert (await one.controller.auto_create("__consumer_offsets")) is offsets[0]
        with pytest.raises(KafkaError, match="INVALID_TOPIC_EXCEPTION"):
            await one.controller.auto_create("a b")

    run(story)


def test_producer_ids_are_never_given_twice():
    async def story():
        disk = MemoryDisk()
        seen: list[int] = []
        for _ in range(3):
            one = await start(disk)
            seen += await asyncio.gather(*(one.member.producer_ids.generate_producer_id() for _ in range(1500)))
            disk.power_loss()
        assert len(set(seen)) == len(seen)
        assert seen[:3] == [0, 1, 2]
        assert seen[1500] == 2000

    run(story)


def test_brokers_of_one_process_share_the_metadata():
    async def story():
        FAULTS.clear()
        disk = MemoryDisk()
        one = await start(disk)
        two = await start(disk, one.store, 2)
        assert one.controller.elected
        assert not two.controller.elected
        assert two.image.controller_id == 1
        await settle()
        assert set(one.image.brokers) == set(two.image.brokers) == {1, 2}
        await create(one, TopicSpec("a", 4, 2))
        await settle()
        assert two.image.topics == one.image.topics
        (refused,) = await create(two, TopicSpec("b"))
        assert refused.error.code == ErrorCode.NOT_CONTROLLER
        with pytest.raises(NodeExists):
            await start(disk, one.store, 2)
        await two.member.leave()
        await settle()
        assert set(one.image.brokers) == {1}
        assert one.image.offline_replicas(one.image.topics["a"].partitions[0]) == [2]
        assert FAULTS == []

    run(story)


def test_a_controller_that_lost_its_session_writes_nothing():
    async def story():
        disk = MemoryDisk()
        one = await start(disk)
        two = await start(disk, one.store, 2)
        old = one.controller
        # The old controller's node goes, as when its session expires, but it has not heard of it yet.
        await two.session.delete(znodes.CONTROLLER)
        assert await two.controller.campaign()
        await create(two, TopicSpec("a"))
        (refused,) = await old.create_topics([TopicSpec("b")], False)
        assert refused.error.code == ErrorCode.NOT_CONTROLLER
        assert not old.elected
        await settle()
        assert set(one.image.topics) == set(two.image.topics) == {"a"}

    run(story)


def test_a_controller_that_is_behind_catches_up():
    async def story():
        one = await start(MemoryDisk())
        await create(one, TopicSpec("a"))
        node = await one.session.get(znodes.CHANGES)
        await one.session.set(znodes.CHANGES, node.data)
        one.member.loader.changes_version = node.version
        (refused,) = await create(one, TopicSpec("b"))
        assert refused.error.code == ErrorCode.REQUEST_TIMED_OUT
        assert one.controller.elected
        (made,) = await create(one, TopicSpec("b"))
        assert made.error is None
        assert set(one.image.topics) == {"a", "b"}

    run(story)


def test_a_follower_that_missed_too_many_changes_reads_everything():
    async def story():
        disk = MemoryDisk()
        one = await start(disk)
        two = await start(disk, one.store, 2)
        await create(one, TopicSpec("old"), TopicSpec("kept", configs=[("retention.ms", "1")]))
        await settle()
        stale = two.member.loader
        await stale._turn.__aenter__()
        await one.controller.delete_topics([TopicRef("old")])
        for number in range(znodes.RECENT_CHANGES + 3):
            await create(one, TopicSpec(f"t{number}", 1))
        await one.controller.alter_configs(ConfigResourceType.TOPIC, "kept", None)
        await stale._turn.__aexit__()
        await stale.catch_up()
        assert two.image.topics == one.image.topics
        assert two.image.topics["kept"].configs == {}
        assert [topic.name for topic in two.deltas[-1].deleted] == ["old"]

    run(story)


def test_ten_thousand_partitions_in_one_request():
    async def story():
        disk = MemoryDisk()
        one = await start(disk)
        (result,) = await create(one, TopicSpec("big", 10_000))
        assert result.error is None
        assert len(await one.session.children(znodes.PARTITIONS)) == 79
        again = await start(disk)
        assert len(again.image.topics["big"].partitions) == 10_000

    run(story)


def test_a_disk_that_is_full_refuses_the_change_and_keeps_the_rest():
    async def story():
        disk = MemoryDisk()
        one = await start(disk)
        await create(one, TopicSpec("a"))
        disk.room = 20
        (result,) = await create(one, TopicSpec("b"))
        assert result.error.code == ErrorCode.REQUEST_TIMED_OUT
        assert set(one.image.topics) == {"a"}
        disk.room = None
        (result,) = await create(one, TopicSpec("b"))
        assert result.error is None
        assert set((await start(disk)).image.topics) == {"a", "b"}

    run(story)
