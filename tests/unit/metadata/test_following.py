"""Brokers that follow changes by their rows have the image of a broker that reads all nodes."""

from random import Random
from typing import Any

import pytest

from kbroker.common import NO_LEADER
from kbroker.config.config_def import ConfigResourceType
from kbroker.coordination.embedded import EmbeddedStore
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.store import change_log
from kbroker.metadata.topics.topic_requests import NewPartitions, NewTopic, TopicNameOrId
from scripts.benchmark.scale.metadata_cluster import CONTROLLER, FOLLOWER, MetadataCluster
from tests.sampling import third_of
from tests.unit.support.async_test import async_test
from tests.unit.support.memory_disk import MemoryDisk, make_environment, settle


async def cluster_of_six() -> MetadataCluster:
    environment = make_environment(MemoryDisk())
    cluster = MetadataCluster(environment, await EmbeddedStore.open(environment, "/data"))
    await cluster.start(6)
    return cluster


async def change_something(cluster: MetadataCluster, random: Random, number: int) -> None:
    controller, image = cluster.controller.controller, cluster.controller.image
    names = sorted(image.topics)
    action = random.randrange(8)
    if action == 0 or not names:
        await cluster.create([NewTopic(f"t{number}", random.choice((1, 7, 90, 200)), 3)])
        return
    name = random.choice(names)
    index = random.randrange(len(image.topics[name].partitions))
    partition = cluster.partition(name, index)
    if action == 1:
        await controller.topics.delete_topics([TopicNameOrId(name)])
    elif action == 2:
        count = len(image.topics[name].partitions)
        await controller.topics.create_partitions([NewPartitions(name, count + random.choice((1, 40)))], False)
    elif action == 3:
        overrides = {"retention.ms": str(number)}
        await controller.alter_configs(ConfigResourceType.TOPIC, name, overrides)
    elif action == 4:
        await cluster.prefer_second(name, index)
    elif partition.leader == NO_LEADER or not set(partition.replicas) <= image.brokers.keys():
        return
    elif len(partition.isr) > 1:
        await cluster.shrink_isr(name, index)
    else:
        await cluster.expand_isr(name, index)


def content(image: MetadataImage) -> tuple[Any, ...]:
    return image.topics, image.topics_by_id, image.brokers, image.fenced_brokers, image.names_by_collision_key


@pytest.mark.parametrize("seed", third_of(range(6)))
@async_test
async def test_a_follower_has_the_image_of_a_broker_that_reads_all_nodes(seed: int, monkeypatch: Any) -> None:
    """The follower reads each change immediately or some changes later; changes have all sizes."""
    monkeypatch.setattr("kbroker.metadata.replication.isr_change_queue.GATHER_S", 0.0)
    random = Random(seed)
    monkeypatch.setattr(change_log, "MAX_INLINE_BYTES", random.choice((0, 300, 2_000)))
    monkeypatch.setattr(change_log, "RECENT_CHANGES", random.choice((4, 32)))
    cluster = await cluster_of_six()
    follower = cluster.members[FOLLOWER].loader
    for number in range(60):
        if random.random() < 0.2:
            follower.stop()
        if number == 40:
            await cluster.kill(5)
            await cluster.wait_until_fenced(5)
        await change_something(cluster, random, number)
        if random.random() < 0.3:
            follower.follow()
            await follower.catch_up()
    await follower.catch_up()
    restarted = await cluster.start_member(7)
    await follower.catch_up()
    await settle()
    expected = content(restarted.image)
    assert content(cluster.members[FOLLOWER].image) == expected
    assert content(cluster.members[CONTROLLER].image) == expected
    loaded = cluster.members[FOLLOWER].loader.chunks
    assert dict(loaded.items()) == dict(restarted.loader.chunks.items())
    assert sorted(loaded.free()) == sorted(restarted.loader.chunks.free())
    assert not cluster.failures
