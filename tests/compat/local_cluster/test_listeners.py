"""Brokers with two listeners, and a client of each: it gets and uses the addresses of its own listener only.

127.0.0.1 stands for the network of the containers, 127.0.0.2 for that of the host.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

from scripts.ports import free_ports
from tests.compat.support import DEADLINE_S, BrokerProcess, need_own_broker, unique

ROOT = Path(__file__).parents[3]
INSIDE, HOST = "127.0.0.1", "127.0.0.2"
PARTITIONS = 6
CREATED = re.compile(r'^kafka_server_socket_server_metrics_connection_creation_total\{listener="(\w+)"\} (\d+)', re.M)


class TwoNetworks(BrokerProcess):
    """One broker, or the brokers of `--brokers N`."""

    def __init__(self, directory: Path, brokers: int) -> None:
        super().__init__(directory, {"listener.name.host.max.connections": "1000"})
        self.brokers = brokers
        self.ports = {INSIDE: free_ports(brokers), HOST: free_ports(brokers), "metrics": free_ports(brokers)}
        self.bootstrap = f"{INSIDE}:{self.ports[INSIDE]}"

    def _command(self) -> list[str]:
        several = ["--brokers", str(self.brokers)] if self.brokers > 1 else []
        metrics = f"{INSIDE}:{self.ports['metrics']}"
        return [
            *super()._command(), "--listen", f"HOST://{HOST}:{self.ports[HOST]}", "--metrics", metrics, *several,
        ]  # fmt: skip

    def addresses(self, network: str) -> set[tuple[str, int]]:
        return {(network, self.ports[network] + index) for index in range(self.brokers)}

    def connections(self) -> dict[str, int]:
        """Return how many connections each listener has accepted, on all brokers."""
        counts = {"PLAINTEXT": 0, "HOST": 0}
        for index in range(self.brokers):
            with urlopen(f"http://{INSIDE}:{self.ports['metrics'] + index}/metrics") as page:
                for name, count in CREATED.findall(page.read().decode()):
                    if name in counts:
                        counts[name] += int(count)
        return counts


@pytest.fixture(params=[1, 3], ids=["broker", "cluster"])
def brokers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TwoNetworks]:
    need_own_broker()
    brokers = TwoNetworks(tmp_path, request.param)
    try:
        brokers.start()
        yield brokers
    finally:
        brokers.end()


def produce_and_consume(brokers: TwoNetworks, network: str) -> None:
    """Create a topic with leaders on all brokers, and write and read it with two clients, one of them in a group."""
    bootstrap, topic = f"{network}:{brokers.ports[network]}", unique("listeners")
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
        described = admin.describe_cluster()["brokers"]
        assert {(broker["host"], broker["port"]) for broker in described} == brokers.addresses(network)
    listed = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, DEADLINE_S)
    assert {(broker.host, broker.port) for broker in listed.brokers.values()} == brokers.addresses(network)
    assert {partition.leader for partition in listed.topics[topic].partitions.values()} == set(listed.brokers)
    with closing(KafkaProducer(bootstrap_servers=bootstrap)) as producer:
        for index in range(PARTITIONS):
            producer.send(topic, b"%d" % index, partition=index).get(timeout=DEADLINE_S)
    confluent = Producer({"bootstrap.servers": bootstrap})
    for index in range(PARTITIONS):
        confluent.produce(topic, b"%d" % (index + PARTITIONS), partition=index)
    assert confluent.flush(DEADLINE_S) == 0
    expected = {b"%d" % number for number in range(2 * PARTITIONS)}
    with closing(
        KafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=unique("g"), auto_offset_reset="earliest")
    ) as consumer:
        values: set[bytes] = set()
        while values != expected:
            for records in consumer.poll(1000).values():
                values |= {record.value for record in records}
    with closing(
        Consumer({"bootstrap.servers": bootstrap, "group.id": unique("g"), "auto.offset.reset": "earliest"})
    ) as other:
        other.subscribe([topic])
        values = set()
        while values != expected:
            record = other.poll(1.0)
            if record is not None and record.error() is None:
                values.add(record.value())


def test_each_client_reaches_its_own_addresses_only(brokers: TwoNetworks) -> None:
    produce_and_consume(brokers, INSIDE)
    before = brokers.connections()
    assert before["PLAINTEXT"] > 0 == before["HOST"]
    produce_and_consume(brokers, HOST)
    after = brokers.connections()
    assert after["HOST"] > 0
    assert after["PLAINTEXT"] == before["PLAINTEXT"]


# The image and the compose file.


def image_command(command: list[str], data: Path, ports: dict[str, int]) -> list[str]:
    """Return what the image runs for a compose service, with other ports, this data directory, and loopback names."""
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    entrypoint = re.search(r"^ENTRYPOINT (\[.*\])$", dockerfile, re.M)
    assert entrypoint is not None
    words = [*json.loads(entrypoint[1]), *command]
    assert words[0] == "kbroker"
    for old, new in {"/data": str(data), "0.0.0.0": INSIDE, "kbroker:": f"{INSIDE}:", **{
        f":{port}": f":{own}" for port, own in ports.items()
    }}.items():  # fmt: skip
        words[1:] = [word.replace(old, new) for word in words[1:]]
    return [sys.executable, "-m", *words]


def test_the_compose_file_has_a_listener_for_containers_and_one_for_the_host(tmp_path: Path) -> None:
    need_own_broker()
    compose = (ROOT / "docker" / "compose.yaml").read_text()
    service = re.search(r"^  kbroker:\n(?:(?:    .*)?\n)*?    command: (\[.*\])$", compose, re.M)
    assert service is not None
    assert re.search(r'^    ports:\n      - "127.0.0.1:19092:19092"$', compose, re.M)
    first = free_ports(2)
    command = image_command(json.loads(service[1]), tmp_path / "data", {"9092": first, "19092": first + 1})
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"kbroker ready: bootstrap {INSIDE}:{first}\n"
        for bootstrap, name in ((f"{INSIDE}:{first}", INSIDE), (f"localhost:{first + 1}", "localhost")):
            listed = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=DEADLINE_S)
            (broker,) = listed.brokers.values()
            assert f"{broker.host}:{broker.port}" == bootstrap
            assert broker.host == name
    finally:
        process.kill()
        process.communicate()
