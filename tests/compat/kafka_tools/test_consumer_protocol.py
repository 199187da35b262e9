"""Consumer groups of the protocol of KIP-848 with Kafka's Java consumer and kafka-consumer-groups."""

from collections.abc import Iterator

import pytest

from tests.compat.kafka_tools.jvm import Jvm
from tests.compat.kafka_tools.test_java_clients import JavaClients
from tests.compat.support import BrokerProcess, eventually, need_own_broker, running_broker, unique

SETTINGS = {
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.assignment.interval.ms": "0",
}
PROTOCOL = {"group_protocol": "consumer", "heartbeat_interval_ms": None}


@pytest.fixture
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    need_own_broker()
    with running_broker(tmp_path_factory.mktemp("broker"), SETTINGS) as broker:
        yield broker


@pytest.mark.feature("consumer groups")
def test_java_consumers_share_the_partitions_of_a_pattern(jvm: Jvm, own_broker: BrokerProcess) -> None:
    java, group, name = JavaClients(jvm, own_broker.bootstrap), unique("java"), unique("pattern")
    at = ("--bootstrap-server", own_broker.bootstrap)
    jvm.check("kafka-topics", *at, "--create", "--topic", name, "--partitions", "4")
    try:
        pattern = java.clients.consumer.SubscriptionPattern(f"{name}.*")
        members = []
        for count in (1, 2):
            members.append(java.consumer(group_id=group, **PROTOCOL))
            members[-1].subscribe(pattern)
            eventually(lambda: java.shared(members, name, 4), f"four partitions over {count} members")
        sender = java.producer()
        for partition in range(4):
            sender.send(java.record(name, b"v", partition=partition)).get()
        records: list[object] = []
        eventually(
            lambda: [records.extend(java.poll(member)) for member in members] and len(records) >= 4, "four records"
        )
        for member in members:
            member.commitSync()

        def groups(*arguments: str) -> str:
            return jvm.check("kafka-consumer-groups", *at, "--group", group, "--describe", *arguments).out

        assert "Stable" in groups("--state"), "both members have their targets"
        # Each member has two partitions, and its target.
        assert groups("--members", "--verbose").count(f"{name}:0,1") == 2
        assert [line.split()[3:6] for line in groups("--offsets").splitlines() if name in line] == [["1", "1", "0"]] * 4
        members[0].close()
        eventually(lambda: java.shared(members[1:], name, 4), "all partitions for the one that stays")
    finally:
        java.close()
