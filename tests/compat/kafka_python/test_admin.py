"""Administration with kafka-python: topics, configs, groups, records, the cluster."""

import uuid

import pytest
from kafka import OffsetAndMetadata, TopicPartition
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType, MemberToRemove, OffsetSpec, OffsetTimestamp
from kafka.errors import (
    GroupSubscribedToTopicError,
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    NoError,
    OffsetOutOfRangeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

from tests.compat.kafka_python.helpers import partitions, read, shared
from tests.compat.support import DEADLINE_S, eventually, unique


@pytest.fixture
def node(admin):
    """The id of the only broker."""
    return admin.describe_cluster()["brokers"][0]["broker_id"]


def described(admin, topic):
    [description] = admin.describe_topics([topic])
    return description


@pytest.mark.feature("topics")
def test_a_topic_is_created_described_and_deleted(admin, name, node):
    created = admin.create_topics({name: {"num_partitions": 3, "replication_factor": 1}})["topics"][0]
    assert (created["num_partitions"], created["replication_factor"]) == (3, 1)
    admin.wait_for_topics([name])
    assert name in admin.list_topics()
    description = described(admin, name)
    assert sorted(p["partition_index"] for p in description["partitions"]) == [0, 1, 2]
    for partition in description["partitions"]:
        assert partition["leader_id"] == node
        assert partition["replica_nodes"] == partition["isr_nodes"] == [node]
    assert str(description["topic_id"]) == str(created["topic_id"]) != str(uuid.UUID(int=0))
    [by_id] = admin.describe_topics([uuid.UUID(str(description["topic_id"]))])
    assert by_id["name"] == name

    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([name])
    admin.delete_topics([name])
    eventually(lambda: name not in admin.list_topics(), "the deleted topic to disappear")
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics([name])


@pytest.mark.feature("topics")
def test_a_topic_that_is_created_again_has_another_id(admin, name):
    admin.create_topics([name])
    admin.wait_for_topics([name])
    before = described(admin, name)["topic_id"]
    admin.delete_topics([uuid.UUID(str(before))])
    eventually(lambda: name not in admin.list_topics(), "the deleted topic to disappear")
    admin.create_topics([name])
    admin.wait_for_topics([name])
    assert described(admin, name)["topic_id"] != before
    admin.delete_topics([name])


@pytest.mark.feature("topics")
@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ({"num_partitions": 0}, InvalidPartitionsError),
        ({"num_partitions": 1, "replication_factor": 5}, InvalidReplicationFactorError),
        ({"num_partitions": 1, "configs": {"no.such.config": "1"}}, InvalidConfigurationError),
        ({"num_partitions": 1, "configs": {"retention.ms": "soon"}}, InvalidConfigurationError),
        ({"num_partitions": 1, "configs": {"cleanup.policy": "burn"}}, InvalidConfigurationError),
    ],
)
def test_an_invalid_topic_is_rejected(admin, name, spec, error):
    with pytest.raises(error):
        admin.create_topics({name: spec})
    assert name not in admin.list_topics()


@pytest.mark.feature("topics")
def test_validate_only_and_manual_assignment(admin, name, node):
    admin.create_topics({name: {"num_partitions": 2}}, validate_only=True)
    assert name not in admin.list_topics()
    admin.create_topics({name: {"assignments": {0: [node], 1: [node]}}})
    admin.wait_for_topics([name])
    assert len(described(admin, name)["partitions"]) == 2
    admin.delete_topics([name])


@pytest.mark.feature("topics")
def test_partitions_are_added_and_never_removed(admin, topic):
    name = topic(2)
    admin.create_partitions({name: 5}, validate_only=True)
    assert len(described(admin, name)["partitions"]) == 2
    admin.create_partitions({name: 5})
    eventually(lambda: len(described(admin, name)["partitions"]) == 5, "five partitions")
    for count in (5, 3):
        with pytest.raises(InvalidPartitionsError):
            admin.create_partitions({name: count})
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.create_partitions({unique("absent"): 5})


@pytest.mark.feature("topics")
def test_topic_partitions_in_pages(admin, topic):
    name = topic(5)
    page = admin.describe_topic_partitions([name], response_partition_limit=3)
    assert [p["partition_index"] for p in page["topics"][0]["partitions"]] == [0, 1, 2]
    cursor = page["next_cursor"]
    assert (cursor["topic_name"], cursor["partition_index"]) == (name, 3)
    rest = admin.describe_topic_partitions([name], response_partition_limit=3, cursor=cursor)
    assert [p["partition_index"] for p in rest["topics"][0]["partitions"]] == [3, 4]
    assert rest["next_cursor"] is None


@pytest.mark.feature("auto-creation")
def test_producing_creates_the_topic(producer, consumer, admin, name):
    assert producer().send(name, b"first").get(DEADLINE_S).offset == 0
    assert [r.value for r in read(consumer(name), 1)] == [b"first"]
    admin.delete_topics([name])


@pytest.mark.feature("auto-creation")
def test_metadata_of_an_unknown_topic_without_auto_creation_creates_no_topic(admin, name):
    # kafka-python's allow_auto_create_topics is not in its requests; the admin client never sets the flag.
    assert described(admin, name)["error_code"] == UnknownTopicOrPartitionError.errno
    assert name not in admin.list_topics()


def topic_configs(admin, name, **options):
    resource = ConfigResource(ConfigResourceType.TOPIC, name)
    return admin.describe_configs([resource], **options)["topic"][name]


@pytest.mark.feature("configs")
def test_configs_are_described_with_their_sources(admin, topic):
    name = topic(configs={"retention.ms": "123456"})
    every = topic_configs(admin, name, config_filter="all", include_synonyms=True)
    assert every["retention.ms"]["value"] == "123456"
    assert every["retention.ms"]["config_source"] == "DYNAMIC_TOPIC_CONFIG"
    first = every["retention.ms"]["synonyms"][0]
    assert (first["name"], first["source"]) == ("retention.ms", "DYNAMIC_TOPIC_CONFIG")
    assert every["segment.bytes"]["config_source"] == "DEFAULT_CONFIG"
    assert {"cleanup.policy", "compression.type", "max.message.bytes", "message.timestamp.type"} <= set(every)
    assert set(topic_configs(admin, name)) - {"min.insync.replicas"} == {"retention.ms"}


@pytest.mark.feature("configs")
def test_incremental_changes_set_delete_append_subtract(admin, topic):
    name = topic(configs={"retention.ms": "1000", "cleanup.policy": "delete"})

    def change(**configs):
        named = {key.replace("_", "."): value for key, value in configs.items()}
        resource = ConfigResource(ConfigResourceType.TOPIC, name, named)
        assert admin.alter_configs([resource], incremental=True) == {"topic": {name: "OK"}}

    def value_becomes(config, expected):
        eventually(
            lambda: topic_configs(admin, name, config_filter="all")[config]["value"] == expected,
            f"{config} = {expected}",
        )

    change(segment_bytes="2000000")
    value_becomes("segment.bytes", "2000000")
    value_becomes("retention.ms", "1000")
    change(cleanup_policy=(AlterConfigOp.APPEND, "compact"))
    value_becomes("cleanup.policy", "delete,compact")
    change(cleanup_policy=(AlterConfigOp.SUBTRACT, "delete"))
    value_becomes("cleanup.policy", "compact")
    change(retention_ms=(AlterConfigOp.DELETE, None))
    eventually(lambda: "retention.ms" not in topic_configs(admin, name), "the default retention")


@pytest.mark.feature("configs")
def test_an_invalid_config_change_is_rejected_completely(admin, topic):
    name = topic(configs={"retention.ms": "1000"})
    half_good = {"retention.ms": "2000", "segment.bytes": "tiny"}
    resource = ConfigResource(ConfigResourceType.TOPIC, name, half_good)
    for incremental in (True, False):
        result = admin.alter_configs([resource], incremental=incremental)["topic"][name]
        assert result.startswith("[Error 40]"), "INVALID_CONFIG"
    assert topic_configs(admin, name)["retention.ms"]["value"] == "1000"


@pytest.mark.feature("configs")
def test_alter_configs_resets_the_configs_that_it_does_not_name(admin, topic):
    name = topic(configs={"retention.ms": "1000", "segment.bytes": "2000000"})
    resource = ConfigResource(ConfigResourceType.TOPIC, name, {})
    ok = {"topic": {name: "OK"}}
    assert admin.reset_configs([resource], incremental=False, validate_only=True) == ok
    assert topic_configs(admin, name)["segment.bytes"]["value"] == "2000000"
    assert admin.reset_configs([resource], incremental=False) == ok
    eventually(lambda: not {"retention.ms", "segment.bytes"} & set(topic_configs(admin, name)), "the reset")


@pytest.mark.feature("configs")
def test_broker_configs(admin, node):
    resource = ConfigResource(ConfigResourceType.BROKER, str(node))
    configs = admin.describe_configs([resource], config_filter="all")["broker"][str(node)]
    assert configs["node.id"]["value"] == str(node)
    assert configs["node.id"]["read_only"] is True
    assert {"log.retention.ms", "log.segment.bytes", "num.partitions", "message.max.bytes"} <= set(configs)


@pytest.mark.feature("configs")
def test_config_resources_are_listed(admin, topic, node):
    name = topic()
    listed = admin.list_config_resources(["TOPIC", "BROKER"])
    assert name in listed["topic"]
    assert str(node) in listed["broker"]


@pytest.fixture
def active_group(member, topic, group):
    """A group with one member on a topic of two partitions: (group, topic, member)."""
    name = topic(partitions=2)
    running = member(name, group_id=group)
    eventually(lambda: shared([running], set(partitions(name, 2))), "an assignment")
    return group, name, running


def groups_by_id(admin, **filters):
    return {g["group_id"]: g for g in admin.list_groups(**filters)}


@pytest.mark.feature("group admin")
def test_a_group_is_listed_described_and_deleted(admin, active_group):
    group, _name, member = active_group
    listed = groups_by_id(admin)[group]
    assert (listed["protocol_type"], listed["group_type"]) == ("consumer", "classic")
    assert listed["group_state"] == "Stable"
    assert group in groups_by_id(admin, states_filter=["Stable"])
    assert group not in groups_by_id(admin, states_filter=["Empty"])

    description = admin.describe_groups([group])[group]
    assert (description["group_state"], description["protocol_type"]) == ("Stable", "consumer")
    assert description["protocol_data"] == "range"
    [described_member] = description["members"]
    assert described_member["client_id"].startswith("kafka-python")
    assert described_member["client_host"].startswith("/")
    member.leave()
    eventually(lambda: admin.describe_groups([group])[group]["group_state"] == "Empty", "an empty group")
    assert admin.delete_groups([group])[group] == "OK"
    eventually(lambda: group not in groups_by_id(admin), "the deleted group to disappear")
    assert admin.list_group_offsets({group: None})[group] == {}


@pytest.mark.feature("group admin")
def test_errors_of_groups(admin, active_group):
    group, name, _member = active_group
    assert admin.delete_groups([group])[group] == "NonEmptyGroupError"
    absent = unique("absent")
    assert admin.delete_groups([absent])[absent] == "GroupIdNotFoundError"
    tp = TopicPartition(name, 0)
    assert admin.delete_group_offsets(group, [tp])[tp] is GroupSubscribedToTopicError


@pytest.mark.feature("group admin")
def test_offsets_of_a_group_without_members_are_moved_and_removed(admin, producer, topic, group):
    name = topic(partitions=2)
    sender = producer()
    for n in range(10):
        sender.send(name, b"v", partition=n % 2, timestamp_ms=1_700_000_000_000 + n)
    sender.flush(DEADLINE_S)
    first, second = partitions(name, 2)
    offsets = {first: OffsetAndMetadata(3, "put", -1), second: OffsetAndMetadata(5, "", -1)}
    assert set(admin.alter_group_offsets(group, offsets).values()) == {NoError}
    stored = admin.list_group_offsets({group: None})[group]
    assert {tp: o.offset for tp, o in stored.items()} == {first: 3, second: 5}
    assert stored[first].metadata == "put"

    targets = {first: OffsetSpec.EARLIEST, second: OffsetTimestamp(1_700_000_000_005)}
    moved = admin.reset_group_offsets(group, targets)
    assert {tp: m["offset"] for tp, m in moved.items()} == {first: 0, second: 2}
    assert admin.delete_group_offsets(group, [first]) == {first: NoError}
    assert set(admin.list_group_offsets({group: None})[group]) == {second}


@pytest.mark.feature("group admin")
def test_a_member_is_removed_by_the_administrator(admin, active_group):
    group, _name, _member = active_group
    [member] = admin.describe_groups([group])[group]["members"]
    removed = admin.remove_group_members(group, [MemberToRemove(member_id=member["member_id"])])
    assert list(removed.values()) == [NoError]

    def gone() -> bool:
        members = admin.describe_groups([group])[group]["members"]
        return member["member_id"] not in {m["member_id"] for m in members}

    eventually(gone, "the member to be gone")


@pytest.mark.feature("delete records")
def test_records_before_an_offset_are_deleted(admin, producer, consumer, topic):
    tp = TopicPartition(topic(), 0)
    sender = producer()
    for n in range(10):
        sender.send(tp.topic, str(n).encode(), partition=0)
    sender.flush(DEADLINE_S)
    assert admin.delete_records({tp: 4})[tp]["low_watermark"] == 4
    reader = consumer(tp.topic)
    assert [r.offset for r in read(reader, 6)] == [4, 5, 6, 7, 8, 9]
    assert reader.beginning_offsets([tp]) == {tp: 4}
    with pytest.raises(OffsetOutOfRangeError):
        admin.delete_records({tp: 11})
    assert admin.delete_records({tp: -1})[tp]["low_watermark"] == 10
    assert reader.beginning_offsets([tp]) == {tp: 10}


@pytest.mark.feature("offsets")
def test_offsets_listed_by_the_administrator(admin, producer, topic):
    tp = TopicPartition(topic(), 0)
    sender = producer(batch_size=0)
    for timestamp in (1000, 3000, 2000):
        sender.send(tp.topic, b"v", partition=0, timestamp_ms=1_700_000_000_000 + timestamp)
    sender.flush(DEADLINE_S)

    def offset(spec):
        result = admin.list_partition_offsets({tp: spec})[tp]
        return result.offset, result.timestamp

    assert offset(OffsetSpec.EARLIEST) == (0, -1)
    assert offset(OffsetSpec.LATEST) == (3, -1)
    assert offset(OffsetSpec.MAX_TIMESTAMP) == (1, 1_700_000_003_000)
    assert offset(OffsetSpec.EARLIEST_LOCAL) == (0, -1)
    assert offset(OffsetSpec.LATEST_TIERED) == (-1, -1)
    assert offset(1_700_000_001_001) == (1, 1_700_000_003_000)
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.list_partition_offsets({TopicPartition(unique("absent"), 0): OffsetSpec.LATEST}, timeout_ms=500)


@pytest.mark.feature("cluster")
def test_the_cluster_describes_itself(admin, bootstrap):
    cluster = admin.describe_cluster()
    [node] = cluster["brokers"]
    assert f"{node['host']}:{node['port']}" == bootstrap
    assert cluster["controller_id"] == node["broker_id"]
    assert len(cluster["cluster_id"]) == 22


@pytest.mark.feature("cluster")
def test_describe_log_dirs_returns_sizes(admin, producer, topic):
    name = topic(partitions=2)
    producer().send(name, b"x" * 5000, partition=1).get(DEADLINE_S)
    [result] = admin.describe_log_dirs({name: [0, 1]})
    sizes = {
        p["partition_index"]: p["partition_size"]
        for directory in result["log_dirs"]
        for row in directory["topics"]
        if row["name"] == name
        for p in row["partitions"]
    }
    assert sizes[0] == 0
    assert 5000 < sizes[1] < 5200
    assert all(d["total_bytes"] > d["usable_bytes"] > 0 for d in result["log_dirs"])
