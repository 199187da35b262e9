"""Topics, configs, records and the cluster, with confluent-kafka's AdminClient."""

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from tests.compat.confluent_kafka.conftest import exists
from tests.compat.confluent_kafka.helpers import code_of, from_the_start, read, send, send_all
from tests.compat.support import DEADLINE_S, eventually, unique


def refusal(futures):
    """Return the error code of the only future of an admin call."""
    [future] = futures.values()
    with pytest.raises(KafkaException) as raised:
        future.result(DEADLINE_S)
    return code_of(raised.value)


def created(admin, new, **options):
    return admin.create_topics([new], **options)[new.topic].result(DEADLINE_S)


@pytest.mark.feature("topics")
def test_a_topic_is_created_described_and_deleted(admin, name):
    created(admin, NewTopic(name, 3, 1))
    eventually(lambda: exists(admin, name, 3), "the topic")
    future = admin.describe_topics(TopicCollection([name]), include_authorized_operations=True)[name]
    description = future.result(DEADLINE_S)
    [node] = admin.describe_cluster().result(DEADLINE_S).nodes
    assert [p.id for p in description.partitions] == [0, 1, 2]
    for partition in description.partitions:
        assert partition.leader.id == node.id
        assert [n.id for n in partition.replicas] == [n.id for n in partition.isr] == [node.id]
    assert not description.is_internal
    assert {"READ", "WRITE", "DELETE", "ALTER"} <= {op.name for op in description.authorized_operations}
    assert refusal(admin.create_topics([NewTopic(name, 1, 1)])) == KafkaError.TOPIC_ALREADY_EXISTS
    admin.delete_topics([name])[name].result(DEADLINE_S)
    eventually(lambda: name not in admin.list_topics(timeout=DEADLINE_S).topics, "the topic to disappear")
    assert refusal(admin.delete_topics([name])) == KafkaError.UNKNOWN_TOPIC_OR_PART
    absent = admin.describe_topics(TopicCollection([name]))
    assert refusal(absent) == KafkaError.UNKNOWN_TOPIC_OR_PART


@pytest.mark.feature("topics")
@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"num_partitions": 0}, KafkaError.INVALID_PARTITIONS),
        ({"num_partitions": 1, "replication_factor": 7}, KafkaError.INVALID_REPLICATION_FACTOR),
        ({"num_partitions": 1, "config": {"no.such.config": "1"}}, KafkaError.INVALID_CONFIG),
        ({"num_partitions": 1, "config": {"segment.bytes": "x"}}, KafkaError.INVALID_CONFIG),
        ({"num_partitions": 1, "replica_assignment": [[4711]]}, KafkaError.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_an_invalid_topic_is_rejected(admin, name, wrong, code):
    assert refusal(admin.create_topics([NewTopic(name, **wrong)])) == code
    assert name not in admin.list_topics(timeout=DEADLINE_S).topics


@pytest.mark.feature("topics")
def test_many_topics_in_one_request_fail_one_by_one(admin):
    good, existing = unique("good"), unique("existing")
    created(admin, NewTopic(existing, 1, 1))
    futures = admin.create_topics([NewTopic(good, 1, 1), NewTopic(existing, 1, 1), NewTopic("no way", 1, 1)])
    assert futures[good].result(DEADLINE_S) is None
    assert code_of(futures[existing].exception(DEADLINE_S)) == KafkaError.TOPIC_ALREADY_EXISTS
    assert code_of(futures["no way"].exception(DEADLINE_S)) == KafkaError.TOPIC_EXCEPTION
    for deleted in admin.delete_topics([good, existing]).values():
        deleted.result(DEADLINE_S)


@pytest.mark.feature("topics")
def test_validate_only_and_manual_assignment(admin, name):
    created(admin, NewTopic(name, 2, 1), validate_only=True)
    assert name not in admin.list_topics(timeout=DEADLINE_S).topics
    [node] = admin.describe_cluster().result(DEADLINE_S).nodes
    created(admin, NewTopic(name, 2, replica_assignment=[[node.id], [node.id]]))
    eventually(lambda: exists(admin, name, 2), "the topic")
    admin.delete_topics([name])[name].result(DEADLINE_S)


@pytest.mark.feature("topics")
def test_partitions_are_added_and_never_removed(admin, producer, topic):
    name = topic(2)
    admin.create_partitions([NewPartitions(name, 4)])[name].result(DEADLINE_S)
    eventually(lambda: exists(admin, name, 4), "four partitions")
    assert send(producer(), name, b"v", partition=3).offset() == 0
    assert refusal(admin.create_partitions([NewPartitions(name, 3)])) == KafkaError.INVALID_PARTITIONS
    absent = admin.create_partitions([NewPartitions(unique("absent"), 3)])
    assert refusal(absent) == KafkaError.UNKNOWN_TOPIC_OR_PART


@pytest.mark.feature("auto-creation")
def test_producing_creates_the_topic(producer, consumer, admin, name):
    send(producer(), name, b"first")
    assert len(admin.list_topics(timeout=DEADLINE_S).topics[name].partitions) >= 1
    partitions = len(admin.list_topics(timeout=DEADLINE_S).topics[name].partitions)
    assert [m.value() for m in read(from_the_start(consumer(), name, partitions), 1)] == [b"first"]
    admin.delete_topics([name])[name].result(DEADLINE_S)


@pytest.mark.feature("auto-creation")
def test_a_consumer_that_forbids_auto_creation_gets_an_error_and_creates_no_topic(consumer, admin, name):
    reader = consumer({"allow.auto.create.topics": False})
    reader.subscribe([name])

    def error() -> KafkaError | None:
        message = reader.poll(0.2)
        return message.error() if message else None

    assert eventually(error, "an error").code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert name not in admin.list_topics(timeout=DEADLINE_S).topics


@pytest.mark.feature("auto-creation")
def test_an_invalid_name_is_not_created(producer):
    with pytest.raises(KafkaException) as raised:
        send(producer({"message.timeout.ms": 8000}), "no way", b"v")
    assert code_of(raised.value) == KafkaError.TOPIC_EXCEPTION


def configs(admin, name):
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    return admin.describe_configs([resource])[resource].result(DEADLINE_S)


@pytest.mark.feature("configs")
def test_configs_are_described_with_their_sources_and_synonyms(admin, topic):
    described = configs(admin, topic(configs={"retention.ms": "123456"}))
    retention, segment = described["retention.ms"], described["segment.bytes"]
    assert (retention.value, retention.source) == ("123456", ConfigSource.DYNAMIC_TOPIC_CONFIG.value)
    assert (retention.is_default, retention.is_read_only, retention.is_sensitive) == (False, False, False)
    assert retention.synonyms["retention.ms"].value == "123456"
    assert (segment.value, segment.is_default) == ("1073741824", True)
    assert segment.synonyms["log.segment.bytes"].value == "1073741824"


@pytest.mark.feature("configs")
def test_incremental_changes_set_delete_append_subtract(admin, topic):
    name = topic(configs={"retention.ms": "1000", "cleanup.policy": "delete"})
    op = AlterConfigOpType

    def change(config: str, operation: AlterConfigOpType, value: str | None) -> None:
        entry = ConfigEntry(config, value, incremental_operation=operation)
        resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)

    def becomes(config: str, expected: str) -> None:
        eventually(lambda: configs(admin, name)[config].value == expected, f"{config} = {expected}")

    change("segment.bytes", op.SET, "2000000")
    becomes("segment.bytes", "2000000")
    assert configs(admin, name)["retention.ms"].value == "1000"
    change("cleanup.policy", op.APPEND, "compact")
    becomes("cleanup.policy", "delete,compact")
    change("cleanup.policy", op.SUBTRACT, "delete")
    becomes("cleanup.policy", "compact")
    change("retention.ms", op.DELETE, None)
    eventually(lambda: configs(admin, name)["retention.ms"].is_default, "the default retention")


@pytest.mark.feature("configs")
def test_alter_configs_resets_the_configs_that_it_does_not_name(admin, topic):
    name = topic(configs={"retention.ms": "1000", "max.message.bytes": "5000"})
    resource = ConfigResource(ConfigResource.Type.TOPIC, name, set_config={"segment.bytes": "3000000"})
    admin.alter_configs([resource])[resource].result(DEADLINE_S)
    eventually(lambda: configs(admin, name)["segment.bytes"].value == "3000000", "segment.bytes")
    assert configs(admin, name)["retention.ms"].is_default
    assert configs(admin, name)["max.message.bytes"].is_default


@pytest.mark.feature("configs")
def test_errors_of_configs(admin, topic):
    name = topic()
    bad = ConfigResource(ConfigResource.Type.TOPIC, name, set_config={"retention.ms": "never"})
    assert refusal(admin.alter_configs([bad])) == KafkaError.INVALID_CONFIG
    absent = ConfigResource(ConfigResource.Type.TOPIC, unique("absent"))
    assert refusal(admin.describe_configs([absent])) == KafkaError.UNKNOWN_TOPIC_OR_PART


@pytest.mark.feature("configs")
def test_a_new_limit_acts_at_once(admin, producer, topic):
    name = topic()
    sender = producer()
    send(sender, name, b"x" * 5000)
    entry = ConfigEntry("max.message.bytes", "1000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)

    def fails() -> bool:
        try:
            send(sender, name, b"x" * 5000)
        except KafkaException as error:
            return code_of(error) == KafkaError.MSG_SIZE_TOO_LARGE
        return False

    eventually(fails, "MSG_SIZE_TOO_LARGE under the new limit")


@pytest.mark.feature("configs")
def test_broker_configs(admin):
    [node] = admin.describe_cluster().result(DEADLINE_S).nodes
    resource = ConfigResource(ConfigResource.Type.BROKER, str(node.id))
    described = admin.describe_configs([resource])[resource].result(DEADLINE_S)
    assert described["node.id"].value == str(node.id)
    assert described["node.id"].is_read_only
    assert {"log.dirs", "num.partitions", "message.max.bytes", "auto.create.topics.enable"} <= set(described)


@pytest.mark.feature("delete records")
def test_records_before_an_offset_are_deleted(admin, producer, consumer, topic):
    name = topic()
    send_all(producer(), name, (str(n).encode() for n in range(10)))
    where = TopicPartition(name, 0, 4)
    assert admin.delete_records([where])[where].result(DEADLINE_S).low_watermark == 4
    reader = from_the_start(consumer(), name)
    assert [m.offset() for m in read(reader, 6)] == [4, 5, 6, 7, 8, 9]
    assert reader.get_watermark_offsets(TopicPartition(name, 0), timeout=DEADLINE_S) == (4, 10)
    assert refusal(admin.delete_records([TopicPartition(name, 0, 11)])) == KafkaError.OFFSET_OUT_OF_RANGE


@pytest.mark.feature("offsets")
def test_offsets_listed_by_the_administrator(admin, producer, topic):
    name = topic()
    sender = producer()
    for timestamp in (1000, 3000, 2000):
        send(sender, name, b"v", timestamp=1_700_000_000_000 + timestamp)
    tp = TopicPartition(name, 0)

    def offset(spec: OffsetSpec) -> tuple[int, int]:
        result = admin.list_offsets({tp: spec})[tp].result(DEADLINE_S)
        return result.offset, result.timestamp

    assert offset(OffsetSpec.earliest()) == (0, -1)
    assert offset(OffsetSpec.latest()) == (3, -1)
    assert offset(OffsetSpec.max_timestamp()) == (1, 1_700_000_003_000)
    assert offset(OffsetSpec.for_timestamp(1_700_000_001_001)) == (1, 1_700_000_003_000)


@pytest.mark.feature("cluster")
def test_the_cluster_describes_itself(admin, bootstrap):
    cluster = admin.describe_cluster(include_authorized_operations=True).result(DEADLINE_S)
    [node] = cluster.nodes
    assert f"{node.host}:{node.port}" == bootstrap
    assert cluster.controller.id == node.id
    assert len(cluster.cluster_id) == 22
    assert admin.list_topics(timeout=DEADLINE_S).cluster_id == cluster.cluster_id
    assert {"CREATE", "ALTER", "DESCRIBE"} <= {op.name for op in cluster.authorized_operations}
