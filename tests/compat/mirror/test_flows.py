"""Apache Kafka's MirrorMaker 2 mirrors Kafka to kbroker, kbroker to Kafka, and kbroker to kbroker.

It is killed once while it copies (world.py), in its exactly-once mode: nothing may be missing or doubled afterwards.
"""

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource, NewPartitions, ResourceType
from confluent_kafka.admin import AlterConfigOpType as Op

from tests.compat.mirror.contents import (
    QUIET,
    configs,
    consumer,
    content_of,
    contents,
    flush,
    partitions_of,
    producer,
    read_assigned,
    stored_codecs,
)
from tests.compat.mirror.world import FLOWS, KEYS, PARTITIONS, TOPICS, VERSIONS, Flow, World, keyed
from tests.compat.support import DEADLINE_S, eventually
from tests.sampling import runs_in_third

pytestmark = runs_in_third(2)

ZSTD = 4


@pytest.mark.feature("exactly once, kill -9")
def test_records_arrive_once_although_mirrormaker_is_killed(world: World, flow: Flow) -> None:
    mirrored = world.mirrored(flow, "records")
    assert mirrored == contents(world.bootstrap(flow.source), "records")
    assert stored_codecs(world.bootstrap(flow.target), flow.remote("records")) == {ZSTD}


@pytest.mark.feature("compaction")
def test_a_compacted_topic_keeps_the_latest_of_each_key(world: World, flow: Flow) -> None:
    def latest(cluster: str, topic: str) -> dict[bytes | None, bytes | None]:
        [records] = contents(world.bootstrap(cluster), topic)
        return keyed(records)

    sender = producer(world.bootstrap(flow.source))
    # The active segment is not compacted.
    sender.produce("compacted", str(flow).encode(), key=b"last")
    flush(sender)
    expected = latest(flow.source, "compacted")
    assert len(expected) == KEYS * 3 // 4 + 1
    eventually(lambda: latest(flow.target, flow.remote("compacted")) == expected, f"latest values of {flow}")
    for cluster, topic in ((flow.source, "compacted"), (flow.target, flow.remote("compacted"))):
        assert configs(world.bootstrap(cluster), topic)["cleanup.policy"] == "compact"

    def is_compacted() -> bool:
        [records] = contents(world.bootstrap(flow.source), "compacted")
        return len(records) < KEYS * VERSIONS

    eventually(is_compacted, "a compacted source")


@pytest.mark.feature("transactions")
def test_only_committed_transactions_are_mirrored(world: World, flow: Flow) -> None:
    mirrored = world.mirrored(flow, "transactions")
    assert mirrored == contents(world.bootstrap(flow.source), "transactions")
    expected = [f"committed {number} {record}".encode() for number in (0, 2, 4) for record in range(5)]
    assert [[content.value for content in partition] for partition in mirrored] == [expected, expected]


@pytest.mark.feature("configs")
def test_configs_and_new_partitions_follow(world: World, flow: Flow) -> None:
    source, target = world.bootstrap(flow.source), world.bootstrap(flow.target)
    for topic in TOPICS:
        eventually(
            lambda topic=topic: configs(target, flow.remote(topic)) == configs(source, topic), f"configs of {topic}"
        )
    admin = AdminClient({"bootstrap.servers": source, **QUIET})
    size = f"{len(str(flow))}000000"
    changes = [
        ConfigEntry("retention.bytes", None, incremental_operation=Op.DELETE),
        ConfigEntry("max.message.bytes", size, incremental_operation=Op.SET),
    ]
    [altered] = admin.incremental_alter_configs(
        [ConfigResource(ResourceType.TOPIC, "altered", incremental_configs=changes)]
    ).values()
    altered.result(DEADLINE_S)
    reader = consumer(target)
    if partitions_of(source_reader := consumer(source), "altered") == 1:
        admin.create_partitions([NewPartitions("altered", 2)])["altered"].result(DEADLINE_S)
    eventually(lambda: partitions_of(source_reader, "altered") == 2, "two partitions of the source")
    expected = {"max.message.bytes": size}
    eventually(lambda: configs(target, flow.remote("altered")) == expected, "altered configs")
    eventually(lambda: partitions_of(reader, flow.remote("altered")) == 2, "two partitions")
    reader.close()
    source_reader.close()


@pytest.mark.feature("commits")
def test_a_group_in_the_middle_skips_nothing(world: World, flow: Flow) -> None:
    """Its offsets are translated to those of the latest offset sync before, so that it reads some records again."""
    mirrored, group = world.mirrored(flow, "records"), f"{flow.source}-half"
    reader = consumer(world.bootstrap(flow.source), group)
    partitions = [TopicPartition("records", partition) for partition in range(PARTITIONS)]
    processed = [position.offset for position in reader.committed(partitions, DEADLINE_S)]
    reader.close()
    reader = consumer(world.bootstrap(flow.target), group, enable_partition_eof=True)
    reader.assign([TopicPartition(flow.remote("records"), partition) for partition in range(PARTITIONS)])
    remaining = [[content_of(message) for message in part] for part in read_assigned(reader, PARTITIONS)]
    reader.close()
    for records, rest, position in zip(mirrored, remaining, processed, strict=True):
        assert len(rest) >= len(records) - position
        assert rest == records[len(records) - len(rest) :]


@pytest.mark.feature("group admin")
def test_a_group_that_has_read_everything_continues_exactly(world: World, flow: Flow) -> None:
    world.mirrored(flow, "records")
    source, target = world.bootstrap(flow.source), world.bootstrap(flow.target)
    group, topic = f"{flow.source}-to-{flow.target}", flow.remote("records")
    reader = consumer(source, group, enable_partition_eof=True)
    reader.assign([TopicPartition("records", partition) for partition in range(PARTITIONS)])
    read_assigned(reader, PARTITIONS)
    reader.commit(asynchronous=False)
    reader.close()

    moved = consumer(target, group, enable_partition_eof=True)
    partitions = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]

    def at_the_end() -> bool:
        moved.assign(moved.committed(partitions, DEADLINE_S))
        return not any(read_assigned(moved, PARTITIONS))

    eventually(at_the_end, f"{group} has committed the end of {topic}", interval=0.3)
    committed = {position.partition: position.offset for position in moved.committed(partitions, DEADLINE_S)}
    assert world.translated_offsets(flow, group) == committed
    sender = producer(source)
    for partition in range(PARTITIONS):
        sender.produce("records", group.encode(), partition=partition)
    flush(sender)
    received: list[bytes] = []

    def has_received() -> bool:
        received.extend(message.value() for message in moved.consume(10, timeout=0.1) if message.error() is None)
        return len(received) >= PARTITIONS

    eventually(has_received, "the records that were written after the move", interval=0)
    assert received == [group.encode()] * PARTITIONS
    moved.close()


@pytest.mark.feature("cluster")
def test_no_request_of_mirrormaker_is_refused(world: World) -> None:
    """This is the last test, so that the log has everything."""
    assert world.maker.refusals() == []
    # Once for each flow and start of MirrorMaker; Kafka responds the same without an authorizer.
    assert world.maker.log().count("No ACL authorizer is configured on the source Kafka cluster") >= len(FLOWS)
