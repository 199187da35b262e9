"""A cluster whose brokers have the listeners PLAINTEXT or SASL_SSL or both, and each its own certificate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.error import KafkaException

from scripts.ports import free_ports
from tests.compat.cluster.cluster import SETTINGS, Cluster
from tests.compat.cluster.ensemble import Ensemble
from tests.compat.security.secure_broker import PLAIN_MODULE
from tests.compat.support import BrokerProcess, eventually
from tests.unit.support.certificates import CertificateAuthority

PLAINTEXT, SASL_SSL = "PLAINTEXT", "SASL_SSL"
# No broker is killed, so no session needs to expire: a busy machine must not end one.
PATIENT = {"zookeeper.session.timeout.ms": "30000", "replica.lag.time.max.ms": "30000"}
USER, PASSWORD = "alice", "secret"


class SecuredBroker(BrokerProcess):
    """`listeners`: those of the next start, `inter_broker`: the one between brokers."""

    def __init__(self, directory: Path, settings: Mapping[str, str], key_store: Path, ca: Path) -> None:
        super().__init__(directory, settings)
        port = int(self.bootstrap.rpartition(":")[2])
        self.addresses = {PLAINTEXT: f"127.0.0.1:{port}", SASL_SSL: f"127.0.0.1:{free_ports()}"}
        self.listeners: tuple[str, ...] = (PLAINTEXT,)
        self.inter_broker = PLAINTEXT
        self._security = {
            "listener.name.sasl_ssl.ssl.keystore.type": "PEM",
            "listener.name.sasl_ssl.ssl.keystore.location": str(key_store),
            "listener.name.sasl_ssl.ssl.truststore.type": "PEM",
            "listener.name.sasl_ssl.ssl.truststore.location": str(ca),
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": (f'{PLAIN_MODULE} required user_{USER}="{PASSWORD}";'),
        }

    def _command(self) -> list[str]:
        command = super()._command()
        index = command.index("--listen")
        command[index : index + 2] = []
        for name in self.listeners:
            command += ["--listen", f"{name}://{self.addresses[name]}"]
        settings = {"inter.broker.listener.name": self.inter_broker}
        settings |= self._security if SASL_SSL in self.listeners else {}
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        return command


class SecuredCluster(Cluster):
    def __init__(self, directory: Path, ensemble: Ensemble) -> None:
        self.authority = CertificateAuthority(directory / "certificates")
        super().__init__(directory, ensemble, 3)

    def new_broker(
        self, directory: Path, node_id: int, settings: Mapping[str, str] | None = None, connect: str = ""
    ) -> BrokerProcess:
        directory.mkdir(parents=True, exist_ok=True)
        key_store = self.authority.sign(f"broker{node_id}")
        own = {"node.id": str(node_id), "broker.rack": f"rack-{node_id}", "zookeeper.connect": self.connect}
        return SecuredBroker(directory, {**SETTINGS, **PATIENT, **own}, key_store, self.authority.ca)

    def change(self, node_id: int, listeners: tuple[str, ...], inter_broker: str) -> None:
        """Set the listeners of the next start."""
        broker = self.brokers[node_id]
        assert isinstance(broker, SecuredBroker)
        broker.listeners, broker.inter_broker = listeners, inter_broker

    def address(self, protocol: str) -> str:
        brokers = (broker for broker in self.brokers.values() if isinstance(broker, SecuredBroker))
        return ",".join(broker.addresses[protocol] for broker in brokers)

    def librdkafka(self, protocol: str) -> dict[str, Any]:
        settings: dict[str, Any] = {"bootstrap.servers": self.address(protocol), "log_level": 0}
        if protocol == SASL_SSL:
            settings |= {"security.protocol": SASL_SSL, "ssl.ca.location": str(self.authority.ca)}
            settings |= {"sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": PASSWORD}
        return settings

    def kafka_python(self, protocol: str) -> dict[str, Any]:
        settings: dict[str, Any] = {"bootstrap_servers": self.address(protocol)}
        if protocol == SASL_SSL:
            settings |= {"security_protocol": SASL_SSL, "ssl_cafile": str(self.authority.ca)}
            settings |= {"sasl_mechanism": "PLAIN", "sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
        return settings

    def wait_until_in_sync(self, protocol: str, topic: str) -> None:
        """Wait until a client of this protocol sees all replicas in sync."""
        admin = AdminClient(self.librdkafka(protocol))

        seen: list[object] = []

        def is_in_sync() -> bool:
            seen.clear()
            try:
                metadata = admin.list_topics(topic, timeout=5)
            except KafkaException as error:
                seen.append(error)
                return False
            partitions = metadata.topics[topic].partitions.values()
            seen.extend([*metadata.brokers, *((partition.id, partition.isrs) for partition in partitions)])
            return len(metadata.brokers) == 3 and all(len(partition.isrs) == 3 for partition in partitions)

        try:
            eventually(is_in_sync, "all replicas are in sync", interval=0.1)
        except AssertionError as error:
            logs = (broker.all_errors for broker in self.brokers.values())
            raise AssertionError("\n".join([f"{error}: {seen}", *(log[-3000:] for log in logs)])) from error

    def logged(self, text: str) -> list[str]:
        """Return the lines of all brokers' logs with a text."""
        logs = (broker.all_errors for broker in self.brokers.values() if broker.starts)
        return [line for log in logs for line in log.splitlines() if text in line]
