"""A cluster gets TLS and logins, between its brokers too, while it is used; and new certificates."""

import logging
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.cluster.cluster import IS_KBROKER
from tests.compat.cluster.ensemble import Ensemble
from tests.compat.cluster.security.secured_cluster import PLAINTEXT, SASL_SSL, SecuredCluster
from tests.compat.crash.background_producers import BackgroundProducer, ConfluentProducer, KafkaPythonProducer
from tests.compat.crash.checks import TopicRecords, check_exactly_once, offsets_of, wait_for_acknowledgements
from tests.compat.support import DEADLINE_S, EXTERNAL_BOOTSTRAP, eventually
from tests.sampling import THOROUGH

pytestmark = pytest.mark.skipif(not IS_KBROKER or bool(EXTERNAL_BOOTSTRAP), reason="not run: another program's brokers")

TOPIC, PARTITIONS = "rolled", 3
BOTH = (PLAINTEXT, SASL_SSL)


@pytest.fixture
def cluster(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[SecuredCluster]:
    # kafka-python logs every attempt to connect to a broker that is down.
    caplog.set_level(logging.CRITICAL, logger="kafka")
    ensemble = Ensemble(tmp_path, 1)
    cluster = SecuredCluster(tmp_path, ensemble)
    try:
        ensemble.start()
        yield cluster
    finally:
        cluster.end()


def create_topic(cluster: SecuredCluster, protocol: str) -> None:
    admin = AdminClient(cluster.librdkafka(protocol))
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(DEADLINE_S)
    cluster.wait_until_in_sync(protocol, TOPIC)


class Producers:
    """Unchanged clients that send all the time. No record may fail."""

    def __init__(self, cluster: SecuredCluster, protocol: str) -> None:
        settings = cluster.librdkafka(protocol) | {"enable.idempotence": True}
        python = cluster.kafka_python(protocol) | {"enable_idempotence": True}
        self.producers: list[BackgroundProducer] = [
            ConfluentProducer("", f"confluent-{protocol}", TOPIC, PARTITIONS, **settings),
            KafkaPythonProducer("", f"python-{protocol}", TOPIC, PARTITIONS, **python),
        ]
        for producer in self.producers:
            producer.pace_s = 0.05
            producer.start()
        self.wait_for_more()

    def __len__(self) -> int:
        """Return the number of acknowledged records."""
        return sum(len(producer.ledger.acknowledged) for producer in self.producers)

    def wait_for_more(self) -> None:
        for producer in self.producers:
            wait_for_acknowledgements(producer, 5)

    def stop(self) -> None:
        self.wait_for_more()
        for producer in self.producers:
            producer.stop()
            assert producer.ledger.failed == {}
            assert producer.ledger.outstanding == 0

    def check(self, stored: TopicRecords) -> None:
        for producer in self.producers:
            check_exactly_once(producer.ledger, offsets_of(producer.ledger, stored))


def read_all(cluster: SecuredCluster, count: int) -> TopicRecords:
    """Return the records of each partition, at least `count` in total."""
    settings = {"group.id": "reader", "auto.offset.reset": "earliest", "enable.partition.eof": False}
    consumer = Consumer(cluster.librdkafka(SASL_SSL) | settings)
    consumer.subscribe([TOPIC])
    records: TopicRecords = [[] for _ in range(PARTITIONS)]

    def is_complete() -> bool:
        for message in consumer.consume(1000, timeout=0.2):
            assert message.error() is None, message.error()
            records[message.partition()].append((message.offset(), message.key(), message.value()))
        return sum(map(len, records)) >= count

    try:
        eventually(is_complete, f"{count} records", interval=0)
    finally:
        consumer.close()
    return records


def roll(cluster: SecuredCluster, protocol: str, listeners: tuple[str, ...], inter_broker: str) -> None:
    """Restart all brokers with these listeners, one after the other. `protocol`: that of the check in between."""
    for node_id in cluster.brokers:
        cluster.change(node_id, listeners, inter_broker)
        cluster.stop(node_id)
        cluster.start(node_id)
        cluster.wait_until_in_sync(protocol, TOPIC)


def served_certificate(address: str, ca: Path) -> str:
    """Return the serial number of the certificate that a new connection gets."""
    context = ssl.create_default_context(cafile=str(ca))
    host, port = address.split(":")
    plain = socket.create_connection((host, int(port)), DEADLINE_S)
    with context.wrap_socket(plain, server_hostname=host) as encrypted:
        return str((encrypted.getpeercert() or {})["serialNumber"])


def test_brokers_replicate_over_tls_and_get_new_certificates(cluster: SecuredCluster) -> None:
    for node_id in cluster.brokers:
        cluster.change(node_id, BOTH, SASL_SSL)
    cluster.start()
    create_topic(cluster, SASL_SSL)
    producers = Producers(cluster, SASL_SSL)
    address, ca = cluster.address(SASL_SSL).split(",")[0], cluster.authority.ca
    before = served_certificate(address, ca)
    for node_id in cluster.brokers:
        cluster.authority.sign(f"broker{node_id}")
    eventually(lambda: served_certificate(address, ca) != before, "a new certificate", interval=0.2)
    producers.wait_for_more()
    # Its new connections to others, and theirs to it, have the new certificates.
    cluster.stop(2)
    cluster.start(2)
    cluster.wait_until_in_sync(SASL_SSL, TOPIC)
    producers.stop()
    producers.check(read_all(cluster, len(producers)))
    assert cluster.logged("certificates reloaded")
    assert cluster.logged("handshake failed") == []


@pytest.mark.skipif(not THOROUGH, reason="not run: nine restarts take long (KBROKER_TEST_THOROUGH=1)")
# Only a test that hangs may reach it.
@pytest.mark.timeout(1800)
def test_a_rolling_change_from_plaintext(cluster: SecuredCluster) -> None:
    cluster.start()
    create_topic(cluster, PLAINTEXT)
    former = Producers(cluster, PLAINTEXT)
    roll(cluster, PLAINTEXT, BOTH, PLAINTEXT)
    # From here on clients can be changed.
    changed = Producers(cluster, SASL_SSL)
    roll(cluster, PLAINTEXT, BOTH, SASL_SSL)
    former.stop()
    roll(cluster, SASL_SSL, (SASL_SSL,), SASL_SSL)
    changed.stop()
    stored = read_all(cluster, len(former) + len(changed))
    former.check(stored)
    changed.check(stored)
    assert cluster.logged("handshake failed") == []
