"""Apache Kafka's command line tools, with the arguments of an operator."""

import json
import re
import time

import pytest

from tests.compat.support import eventually, unique


def fields(line: str) -> list[str]:
    return line.split()


@pytest.mark.feature("topics")
def test_kafka_topics(tool, jvm, bootstrap, name):
    created = tool("kafka-topics", "--create", "--topic", name, "--partitions", "3", "--config", "retention.ms=9000")
    assert f"Created topic {name}." in created.out
    assert name in tool("kafka-topics", "--list").lines
    head, *partitions = tool("kafka-topics", "--describe", "--topic", name).lines
    assert f"Topic: {name}" in head
    assert "PartitionCount: 3" in head
    assert "retention.ms=9000" in head
    for number, line in enumerate(partitions):
        match = re.search(r"Partition: (\d+)\tLeader: (\d+)\tReplicas: (\d+)\tIsr: (\d+)", line)
        assert match, line
        assert int(match[1]) == number
        assert match[2] == match[3] == match[4]
    tool("kafka-topics", "--alter", "--topic", name, "--partitions", "5")
    assert len(tool("kafka-topics", "--describe", "--topic", name).lines) == 1 + 5
    assert tool("kafka-topics", "--describe", "--under-replicated-partitions", "--topic", name).lines == []
    repeated = jvm.run("kafka-topics", "--bootstrap-server", bootstrap, "--create", "--topic", name)
    assert repeated.code == 1
    assert "already exists" in repeated.out
    tool("kafka-topics", "--delete", "--topic", name)
    eventually(lambda: name not in tool("kafka-topics", "--list").lines, "the topic to disappear")


@pytest.mark.feature("configs")
def test_kafka_configs(tool, jvm, bootstrap, topic):
    name = topic(configs={"retention.ms": "100000"})
    entity = ("--entity-type", "topics", "--entity-name", name)
    [_, line] = tool("kafka-configs", "--describe", *entity).lines
    assert line.split()[0] == "retention.ms=100000"
    assert "DYNAMIC_TOPIC_CONFIG:retention.ms=100000" in line
    tool("kafka-configs", "--alter", *entity, "--add-config", "max.message.bytes=5000,cleanup.policy=[compact,delete]")
    tool("kafka-configs", "--alter", *entity, "--delete-config", "retention.ms")

    def changed() -> bool:
        names = {line.split()[0] for line in tool("kafka-configs", "--describe", *entity).lines[1:]}
        return names == {"max.message.bytes=5000", "cleanup.policy=compact,delete"}

    eventually(changed, "the changed configs")
    everything = tool("kafka-configs", "--describe", "--all", *entity).out
    assert (
        "segment.bytes=1073741824 sensitive=false synonyms={DEFAULT_CONFIG:log.segment.bytes=1073741824}" in everything
    )
    rejected = jvm.run(
        "kafka-configs", "--bootstrap-server", bootstrap, "--alter", *entity, "--add-config", "segment.bytes=no"
    )
    assert rejected.code == 1
    assert "InvalidConfigurationException" in rejected.err


@pytest.mark.feature("configs")
def test_kafka_configs_of_the_broker(tool):
    version = tool("kafka-broker-api-versions").lines[0]
    node = re.search(r"id: (\d+)", version)[1]
    broker = ("--entity-type", "brokers", "--entity-name", node)
    output = tool("kafka-configs", "--describe", "--all", *broker).out
    assert f"  node.id={node} " in output
    assert "  log.retention.check.interval.ms=" in output
    tool("kafka-configs", "--alter", *broker, "--add-config", "log.cleaner.threads=2")
    try:
        eventually(
            lambda: "  log.cleaner.threads=2 " in tool("kafka-configs", "--describe", *broker).out,
            "the dynamic broker config",
        )
    finally:
        tool("kafka-configs", "--alter", *broker, "--delete-config", "log.cleaner.threads")
    eventually(
        lambda: "log.cleaner.threads" not in tool("kafka-configs", "--describe", *broker).out,
        "the broker config to be gone",
    )


@pytest.mark.feature("records")
def test_the_console_producer_and_consumer(tool, jvm, bootstrap, topic):
    name = topic(partitions=2)
    before = int(time.time() * 1000)
    tool(
        "kafka-console-producer", "--topic", name,
        "--reader-property", "parse.key=true", "--reader-property", "parse.headers=true",
        "--reader-property", "null.marker=NULL",
        stdin="a:1,b:two\tkey\tvalue\nNULL\tkey\tNULL\nc:3\tother\tünïcode\n",
    )  # fmt: skip
    shown = ["timestamp", "partition", "offset", "key", "headers"]
    properties = [word for field in shown for word in ("--formatter-property", f"print.{field}=true")]
    output = jvm.consume(
        "--bootstrap-server", bootstrap, "--topic", name, "--from-beginning",
        "--max-messages", "3", "--timeout-ms", "120000", *properties,
    )  # fmt: skip
    rows = [line.split("\t") for line in output.lines]
    assert sorted(row[3:] for row in rows) == [
        ["NO_HEADERS", "key", "null"],
        ["a:1,b:two", "key", "value"],
        ["c:3", "other", "ünïcode"],
    ]
    times = [int(row[0].removeprefix("CreateTime:")) for row in rows]
    assert all(before <= moment <= time.time() * 1000 for moment in times)
    assert [row[2] for row in rows if row[4] == "key"] == ["Offset:0", "Offset:1"]


@pytest.fixture
def used_group(tool, jvm, bootstrap, topic, group):
    """A group that has read two of five records of a topic: (group, topic)."""
    name = topic()
    tool("kafka-console-producer", "--topic", name, stdin="1\n2\n3\n4\n5\n")
    jvm.consume(
        "--bootstrap-server", bootstrap, "--topic", name, "--group", group, "--from-beginning",
        "--max-messages", "2", "--timeout-ms", "120000",
    )  # fmt: skip
    return group, name


def described(tool, group):
    """{partition: (current offset, log end offset, lag)} as kafka-consumer-groups prints it."""
    lines = [fields(line) for line in tool("kafka-consumer-groups", "--describe", "--group", group).lines]
    return {int(row[2]): tuple(map(int, row[3:6])) for row in lines if row and row[0] == group}


@pytest.mark.feature("group admin")
def test_kafka_consumer_groups(tool, jvm, bootstrap, used_group):
    group, name = used_group
    assert group in tool("kafka-consumer-groups", "--list").lines
    assert [group, "Empty"] in [fields(x) for x in tool("kafka-consumer-groups", "--list", "--state").lines]
    assert [group, "Classic", "consumer"] in [fields(x) for x in tool("kafka-groups", "--list").lines]
    assert described(tool, group) == {0: (2, 5, 3)}
    state = fields(tool("kafka-consumer-groups", "--describe", "--group", group, "--state").lines[-1])
    assert state[:2] == [group, bootstrap]
    assert state[-2:] == ["Empty", "0"]

    reset = ("--reset-offsets", "--group", group, "--topic", name)
    tool("kafka-consumer-groups", *reset, "--to-latest", "--dry-run")
    assert described(tool, group) == {0: (2, 5, 3)}
    tool("kafka-consumer-groups", *reset, "--shift-by", "-1", "--execute")
    assert described(tool, group) == {0: (1, 5, 4)}
    tool("kafka-consumer-groups", *reset, "--to-datetime", "2020-01-01T00:00:00.000", "--execute")
    assert described(tool, group) == {0: (0, 5, 5)}
    exported = tool("kafka-consumer-groups", *reset, "--to-current", "--dry-run", "--export").lines
    assert f'"{name}",0,0' in exported or f"{name},0,0" in exported

    tool("kafka-consumer-groups", "--delete-offsets", "--group", group, "--topic", name)
    assert described(tool, group) == {}
    tool("kafka-consumer-groups", "--delete", "--group", group)
    assert group not in tool("kafka-consumer-groups", "--list").lines
    absent = jvm.run("kafka-consumer-groups", "--bootstrap-server", bootstrap, "--delete", "--group", unique("absent"))
    assert "GroupIdNotFoundException" in absent.out + absent.err


@pytest.mark.feature("offsets")
def test_kafka_get_offsets(tool, topic):
    name = topic(partitions=2)
    tool("kafka-console-producer", "--topic", name, "--reader-property", "parse.key=true", stdin="k\t1\nk\t2\nk\t3\n")

    def at(*when: str) -> dict[int, int]:
        topic_options = () if "--topic-partitions" in when else ("--topic", name)
        lines = tool("kafka-get-offsets", *topic_options, *when).lines
        return {int(p): int(offset) for _, p, offset in (line.rsplit(":", 2) for line in lines)}

    [filled] = [partition for partition, offset in at().items() if offset]
    assert at() == {filled: 3, 1 - filled: 0}
    assert at("--time", "earliest") == {0: 0, 1: 0}
    assert at("--time", "max-timestamp")[filled] in (0, 1, 2)
    assert at("--time", "0")[filled] == 0
    assert at("--time", "earliest-local")[filled] == 0
    assert filled not in at("--time", "latest-tiered")
    assert at("--time", "latest", "--topic-partitions", f"{name}:{filled}") == {filled: 3}


@pytest.mark.feature("delete records")
def test_kafka_delete_records(tool, topic, tmp_path):
    name = topic()
    tool("kafka-console-producer", "--topic", name, stdin="1\n2\n3\n4\n5\n")
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"partitions": [{"topic": name, "partition": 0, "offset": 3}], "version": 1}))
    result = tool("kafka-delete-records", "--offset-json-file", str(plan)).out
    assert f"{name}-0\tlow_watermark: 3" in result
    assert tool("kafka-get-offsets", "--topic", name, "--time", "earliest").lines == [f"{name}:0:3"]


@pytest.mark.feature("cluster")
def test_kafka_log_dirs_cluster_id_and_api_versions(tool, jvm, bootstrap, topic):
    name = topic()
    tool("kafka-console-producer", "--topic", name, stdin="x" * 500 + "\n")
    result = json.loads(tool("kafka-log-dirs", "--describe", "--topic-list", name).lines[-1])
    [directory] = result["brokers"][0]["logDirs"]
    assert directory["error"] is None
    [partition] = directory["partitions"]
    assert partition["partition"] == f"{name}-0"
    assert 500 < partition["size"] < 700
    cluster = jvm.check("kafka-cluster", "cluster-id", "--bootstrap-server", bootstrap).out
    assert re.fullmatch(r"Cluster ID: \S{22}\s*", cluster)
    versions = tool("kafka-broker-api-versions").out
    for expected in ("Produce(0): 0 to 13", "Fetch(1): 4 to 18", "Metadata(3): 0 to 13", "ApiVersions(18): 0 to 5"):
        assert expected in versions


@pytest.mark.feature("idempotence")
def test_kafka_transactions_shows_idempotent_producers(tool, topic):
    name = topic()
    tool("kafka-console-producer", "--topic", name, stdin="1\n2\n3\n")
    *_, row = tool("kafka-transactions", "describe-producers", "--topic", name, "--partition", "0").lines
    _producer_id, epoch, coordinator_epoch, last_sequence, _time, open_transaction = fields(row)
    assert (epoch, coordinator_epoch, last_sequence, open_transaction) == ("0", "-1", "2", "None")


@pytest.mark.feature("performance tools")
def test_performance_tools(jvm, bootstrap, topic):
    name = topic(partitions=3)
    produced = jvm.check(
        "kafka-producer-perf-test", "--topic", name, "--num-records", "20000", "--record-size", "100",
        "--throughput", "-1", "--bootstrap-server", bootstrap,
    )  # fmt: skip
    assert "20000 records sent" in produced.out
    consumed = jvm.check(
        "kafka-consumer-perf-test", "--bootstrap-server", bootstrap, "--topic", name,
        "--num-records", "20000", "--timeout", "120000",
    )  # fmt: skip
    assert int(consumed.lines[-1].split(",")[4]) == 20_000
    latency = jvm.check(
        "kafka-e2e-latency", "--bootstrap-server", bootstrap, "--topic", topic(), "--num-records", "100",
        "--producer-acks", "all", "--record-size", "100",
    )  # fmt: skip
    assert "99th" in latency.out
