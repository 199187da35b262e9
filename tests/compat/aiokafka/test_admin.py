"""Administration with aiokafka: topics, configs, groups, records, the cluster."""

from contextlib import suppress

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    GroupLoadInProgressError,
    InvalidPartitionsError,
    InvalidTopicError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

from tests.compat.aiokafka.helpers import eventually, in_loop, partitions, read, shared


@pytest.mark.feature("topics")
@in_loop
async def test_a_topic_is_created_described_and_deleted(clients, name):
    admin = await clients.admin()
    new = NewTopic(name, 3, 1)
    assert [code for _, code, *_ in (await admin.create_topics([new])).topic_errors] == [0]

    async def leaders() -> bool:
        [description] = await admin.describe_topics([name])
        return [p["leader"] >= 0 for p in description["partitions"]] == [True] * 3

    await eventually(leaders, "three leaders")
    assert name in await admin.list_topics()
    repeated = await admin.create_topics([new])
    assert [code for _, code, *_ in repeated.topic_errors] == [TopicAlreadyExistsError.errno]
    deleted = await admin.delete_topics([name])
    assert [code for _, code in deleted.topic_error_codes] == [0]

    async def gone() -> bool:
        return name not in await admin.list_topics()

    await eventually(gone, "the topic to disappear")
    deleted = await admin.delete_topics([name])
    assert [code for _, code in deleted.topic_error_codes] == [UnknownTopicOrPartitionError.errno]


@pytest.mark.feature("topics")
@in_loop
async def test_invalid_topics_are_rejected(clients, name):
    admin = await clients.admin()
    result = await admin.create_topics([NewTopic("no way", 1, 1), NewTopic(name, 0, 1)])
    codes = {topic: code for topic, code, *_ in result.topic_errors}
    assert codes == {"no way": InvalidTopicError.errno, name: InvalidPartitionsError.errno}
    assert not {"no way", name} & set(await admin.list_topics())


@pytest.mark.feature("topics")
@in_loop
async def test_partitions_are_added_and_never_removed(clients):
    name = await clients.topic(2)
    admin = await clients.admin()
    await admin.create_partitions({name: NewPartitions(4)})

    async def four() -> bool:
        return len((await admin.describe_topics([name]))[0]["partitions"]) == 4

    await eventually(four, "four partitions")
    with pytest.raises(InvalidPartitionsError):
        await admin.create_partitions({name: NewPartitions(3)})


@pytest.mark.feature("auto-creation")
@in_loop
async def test_producing_creates_the_topic(clients, name):
    sender = await clients.producer()
    assert (await sender.send_and_wait(name, b"first")).offset == 0
    assert [r.value for r in await read(await clients.consumer(name), 1)] == [b"first"]
    await (await clients.admin()).delete_topics([name])


@pytest.mark.feature("configs")
@in_loop
async def test_configs_are_described_and_altered(clients):
    name = await clients.topic(configs={"retention.ms": "123456"})
    admin = await clients.admin()

    async def configs() -> dict[str, str]:
        [result] = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
        [(code, _message, _type, _name, entries)] = result.resources
        assert code == 0
        return {entry[0]: entry[1] for entry in entries}

    assert (await configs())["retention.ms"] == "123456"
    change = ConfigResource(ConfigResourceType.TOPIC, name, configs={"segment.bytes": "2000000"})
    [result, *_] = await admin.alter_configs([change])
    assert [code for code, *_ in result.resources] == [0]

    async def changed() -> bool:
        now = await configs()
        return now["segment.bytes"] == "2000000" and now["retention.ms"] != "123456"

    await eventually(changed, "the new segment size, and the default retention")


@pytest.mark.feature("group admin")
@in_loop
async def test_a_group_is_listed_and_described(clients):
    name = await clients.topic(partitions=2)
    member = await clients.consumer(name, group_id=clients.group)
    await eventually(lambda: shared([member], set(partitions(name, 2))), "an assignment")
    admin = await clients.admin()

    async def listed():
        # As in Kafka, while a shard is loading: __consumer_offsets may be new.
        with suppress(GroupLoadInProgressError):
            return {tuple(row[:2]) for row in await admin.list_consumer_groups()}

    assert (clients.group, "consumer") in await eventually(listed, "all shards are loaded")
    [result] = await admin.describe_consumer_groups([clients.group])
    [(code, group, state, kind, protocol, members, *_)] = result.groups
    assert (code, group, state, kind) == (0, clients.group, "Stable", "consumer")
    assert protocol == "roundrobin"
    assert len(members) == 1
    [node] = (await admin.describe_cluster())["brokers"]
    assert await admin.find_coordinator(clients.group) == node["node_id"]


@pytest.mark.feature("delete records")
@in_loop
async def test_records_before_an_offset_are_deleted(clients):
    tp = TopicPartition(await clients.topic(), 0)
    sender = await clients.producer()
    for n in range(10):
        await sender.send_and_wait(tp.topic, str(n).encode(), partition=0)
    admin = await clients.admin()
    assert await admin.delete_records({tp: RecordsToDelete(before_offset=4)}) == {tp: 4}
    reader = await clients.consumer(tp.topic)
    assert [r.offset for r in await read(reader, 6)] == [4, 5, 6, 7, 8, 9]
    assert await reader.beginning_offsets([tp]) == {tp: 4}


@pytest.mark.feature("cluster")
@in_loop
async def test_the_cluster_describes_itself(clients, bootstrap):
    cluster = await (await clients.admin()).describe_cluster()
    [node] = cluster["brokers"]
    assert f"{node['host']}:{node['port']}" == bootstrap
    assert cluster["controller_id"] == node["node_id"]
    assert len(cluster["cluster_id"]) == 22
