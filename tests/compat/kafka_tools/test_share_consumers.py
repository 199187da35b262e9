"""Share groups with Kafka's Java share consumer, and the dead letters of a group with `kbroker dlq`."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.cli.app import run
from tests.compat.kafka_tools.jvm import Jvm
from tests.compat.kafka_tools.test_java_clients import DESERIALIZER, JavaClients
from tests.compat.support import BrokerProcess, eventually, need_own_broker, running_broker, unique

SETTINGS = {
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.heartbeat.interval.ms": "200",
    "group.share.assignment.interval.ms": "0",
    "share.coordinator.state.topic.num.partitions": "3",
}
GROUP = {
    "share.auto.offset.reset": "earliest",
    "share.isolation.level": "read_committed",
    "kbroker.share.retry.delays.ms": "300",
}
RECORDS = 60


@pytest.fixture
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    need_own_broker()
    with running_broker(tmp_path_factory.mktemp("broker"), SETTINGS) as broker:
        yield broker


def share_consumer(java: JavaClients, group: str, topic: str, **settings: object) -> Any:
    defaults = {
        "key.deserializer": DESERIALIZER,
        "value.deserializer": DESERIALIZER,
        "group.id": group,
        "share.acknowledgement.mode": "explicit",
    }
    consumer = java._opened(java.clients.consumer.KafkaShareConsumer, defaults, settings)
    consumer.subscribe(java.listed(topic))
    return consumer


@pytest.mark.feature("share groups")
def test_java_share_consumers(jvm: Jvm, own_broker: BrokerProcess, capsys: Any) -> None:
    """Two members process each record once; some fail once, wait and come again; some become dead letters."""
    java, group, name = JavaClients(jvm, own_broker.bootstrap), unique("share"), unique("tasks")
    at, dead = ("--bootstrap-server", own_broker.bootstrap), f"dlq.{name}"

    def kbroker(*args: str) -> str:
        assert run([*args, "-b", own_broker.bootstrap]) == 0
        return str(capsys.readouterr().out)

    def configure(**configs: str) -> None:
        changes = ",".join(f"{key}=[{value}]" for key, value in configs.items())
        jvm.check("kafka-configs", *at, "--alter", "--group", group, "--add-config", changes)

    jvm.check("kafka-topics", *at, "--create", "--topic", name, "--partitions", "2")
    enabled = ("--config", "errors.deadletterqueue.group.enable=true")
    jvm.check("kafka-topics", *at, "--create", "--topic", dead, "--partitions", "1", *enabled)
    configure(**GROUP, **{"errors.deadletterqueue.topic.name": dead})
    kinds = java.clients.consumer.AcknowledgeType
    try:
        sender = java.producer(compression_type="lz4", transactional_id=group)
        sender.initTransactions()
        for committed in (False, True):
            sender.beginTransaction()
            for n in range(RECORDS):
                sender.send(java.record(name, b"%d" % n if committed else b"aborted", partition=n % 2))
            sender.commitTransaction() if committed else sender.abortTransaction()
        members = [
            share_consumer(java, group, name),
            share_consumer(java, group, name, **{"share.acquire.mode": "record_limit", "max.poll.records": "7"}),
        ]
        done, failed, rejected, renewed = Counter[int](), set[int](), set[int](), set[int]()

        def work() -> bool:
            for member in members:
                records = java.poll(member)
                for record in records:
                    n, deliveries = int(record.value()), record.deliveryCount().get()
                    if n % 10 == 0 and n not in failed:
                        failed.add(n)
                        member.acknowledge(record, kinds.RELEASE)
                    elif n % 10 == 1:
                        rejected.add(n)
                        member.acknowledge(record, kinds.REJECT)
                    elif n % 10 == 2 and n not in renewed:
                        renewed.add(n)
                        member.acknowledge(record, kinds.RENEW)
                    else:
                        assert deliveries == (2 if n in failed else 1)
                        done[n] += 1
                        member.acknowledge(record, kinds.ACCEPT)
                for result in list(member.commitSync().values()) if records else ():
                    assert not result.isPresent(), result
            return len(done) + len(rejected) == RECORDS

        eventually(work, "all records")
        assert (len(failed), len(rejected), len(renewed)) == (RECORDS // 10,) * 3
        assert set(done.values()) == {1}
    finally:
        java.close()

    def letters() -> list[dict[str, Any]]:
        return [json.loads(line) for line in kbroker("dlq", "show", dead, "--json").splitlines()]

    eventually(lambda: len(letters()) == len(rejected), "the dead letters")
    # They name the records, and do not contain them: errors.deadletterqueue.copy.record.enable is false.
    assert {letter["value"] for letter in letters()} == {None}
    assert {int(letter["original"]["value"]) for letter in letters()} == rejected
    assert {"topic": dead, "records": len(rejected)} in json.loads(kbroker("dlq", "list", "--json"))
    assert f"{len(rejected)} records sent" in kbroker("dlq", "redrive", dead)
    values = [json.loads(line)["value"] for line in kbroker("consume", name, "--json").splitlines()]
    again = [int(value) for value in values if value != "aborted"]
    assert Counter(again) == Counter([*range(RECORDS), *rejected])
