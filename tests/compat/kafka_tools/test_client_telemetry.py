"""Client telemetry (KIP-714): kafka-client-metrics, and what unchanged clients then push onto the metrics page."""

from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from scripts.ports import free_ports
from tests.compat.kafka_tools.jvm import Jvm
from tests.compat.kafka_tools.test_java_clients import JavaClients
from tests.compat.support import BrokerProcess, eventually, need_own_broker, running_broker, unique

PREFIX = "org.apache.kafka.producer."
CREATED = "org_apache_kafka_producer_connection_creation_total"


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, str]]:
    """A broker, and the address of its metrics page."""
    need_own_broker()
    listener = f"127.0.0.1:{free_ports()}"
    with running_broker(tmp_path_factory.mktemp("telemetry"), {"kbroker.metrics.listener": listener}) as broker:
        yield broker, f"http://{listener}/metrics"


def samples(url: str, name: str, client_id: str) -> list[dict[str, Any]]:
    """Return the labels of a client's samples, each with its value."""
    with urlopen(url) as page:
        families = text_string_to_metric_families(page.read().decode())
        found = [sample for family in families for sample in family.samples if sample.name == name]
    return [{**sample.labels, "value": sample.value} for sample in found if sample.labels["client_id"] == client_id]


def tool(jvm: Jvm, broker: BrokerProcess, *arguments: str) -> list[str]:
    return jvm.check("kafka-client-metrics", "--bootstrap-server", broker.bootstrap, *arguments).lines


def subscribe(jvm: Jvm, broker: BrokerProcess, client_id: str) -> None:
    match = f"client_id={client_id}"
    tool(jvm, broker, "--alter", "--name", client_id, "--metrics", PREFIX, "--interval", "200", "--match", match)


@pytest.mark.feature("client telemetry")
def test_subscriptions_are_managed_with_kafka_client_metrics(jvm: Jvm, metrics: tuple[BrokerProcess, str]) -> None:
    broker, _ = metrics
    subscribe(jvm, broker, "someone")
    assert "someone" in tool(jvm, broker, "--list")
    described = "\n".join(tool(jvm, broker, "--describe", "--name", "someone"))
    assert all(part in described for part in ("interval.ms=200", "match=client_id=someone", f"metrics={PREFIX}"))
    tool(jvm, broker, "--delete", "--name", "someone")
    assert "someone" not in tool(jvm, broker, "--list")
    refused = jvm.run(
        "kafka-client-metrics", "--bootstrap-server", broker.bootstrap, "--alter", "--name", "x", "--interval", "1"
    )
    assert "interval must be between 100 and 3600000 (1 hour)" in refused.out + refused.err


@pytest.mark.feature("client telemetry")
def test_a_java_client_reports(jvm: Jvm, metrics: tuple[BrokerProcess, str]) -> None:
    broker, url = metrics
    client_id, name = unique("java"), unique("topic")
    subscribe(jvm, broker, client_id)
    clients = JavaClients(jvm, broker.bootstrap)
    sender = clients.producer(client_id=client_id)
    for _ in range(20):
        sender.send(clients.record(name, b"value")).get()
    instance_id = sender.clientInstanceId(jvm.java.java.time.Duration.ofSeconds(60)).toString()
    (created,) = eventually(lambda: samples(url, CREATED, client_id), "the producer's metrics")
    assert created["value"] >= 1
    assert created["client_software_name"] == "apache-kafka-java"
    assert created["client_instance_id"] == instance_id
    sent = "org_apache_kafka_producer_node_request_latency_avg"
    assert eventually(lambda: samples(url, sent, client_id), "the metrics of a node")[0]["node_id"]
    clients.close()
    assert not samples(url, CREATED, "nobody")


@pytest.mark.feature("client telemetry")
@pytest.mark.client("confluent_kafka")
def test_librdkafka_reports(jvm: Jvm, metrics: tuple[BrokerProcess, str]) -> None:
    broker, url = metrics
    client_id, name = unique("librdkafka"), unique("topic")
    subscribe(jvm, broker, client_id)
    sender = Producer({"bootstrap.servers": broker.bootstrap, "client.id": client_id})
    for _ in range(20):
        sender.produce(name, b"value")
    sender.flush()

    def reported() -> list[dict[str, Any]]:
        sender.poll(0.1)
        return samples(url, CREATED, client_id)

    (created,) = eventually(reported, "the producer's metrics")
    assert created["value"] >= 1
    assert created["client_software_name"] == "confluent-kafka-python"
    # The totals grow: the client was not asked for the changes since its last push.
    before = created["value"]
    assert eventually(lambda: reported()[0]["value"] >= before, "another push")
