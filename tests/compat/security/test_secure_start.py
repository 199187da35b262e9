"""`kbroker start --secure`: its files are all that clients, commands and Spark need, and no secret leaves them."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kafka
import pytest
from confluent_kafka import Consumer, Producer

from kbroker.cli import main
from kbroker.client.security import NO_SECURITY, use_security
from kbroker.config.client_properties import parse_client_security
from scripts.ports import free_ports
from tests.compat.support import BrokerProcess, eventually, need_own_broker, unique

pytestmark = pytest.mark.feature("security")
RECORDS = [b"record %d" % number for number in range(50)]


class SecuredBroker(BrokerProcess):
    options: tuple[str, ...] = ("--secure",)

    def _command(self) -> list[str]:
        return [*super()._command(), *self.options]

    def file(self, name: str) -> Path:
        return self.data_dir / "secure" / name

    def settings(self, name: str) -> dict[str, Any]:
        settings: dict[str, Any] = json.loads(self.file(name).read_text())
        return settings

    @property
    def password(self) -> str:
        return self.file("admin.password").read_text()

    def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.data_dir / "audit.log").read_text().splitlines()]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    need_own_broker()
    pytest.importorskip("cryptography", reason="not run: --secure needs cryptography (extra `secure`)")
    broker = SecuredBroker(tmp_path_factory.mktemp("secured"))
    try:
        broker.start()
        yield broker
        assert broker.password not in broker.all_errors
        broker.stop()
    finally:
        broker.end()


def fill(secured: SecuredBroker, topic: str) -> None:
    producer = kafka.KafkaProducer(**secured.settings("kafka-python.json"))
    for record in RECORDS:
        producer.send(topic, record)
    producer.flush()
    producer.close()


def read(secured: SecuredBroker, topic: str) -> list[bytes]:
    settings = secured.settings("confluent-kafka.json") | {"group.id": topic, "auto.offset.reset": "earliest"}
    consumer, values = Consumer(settings), []
    consumer.subscribe([topic])
    while len(values) < len(RECORDS):
        message = consumer.poll(20)
        assert message is not None, f"{len(values)} records arrived"
        assert message.error() is None
        values.append(message.value())
    consumer.close()
    return values


@pytest.mark.client("confluent_kafka")
def test_python_clients_and_the_audit_log(secured: SecuredBroker) -> None:
    topic = unique("secured")
    fill(secured, topic)
    assert read(secured, topic) == RECORDS
    errors: list[Any] = []
    wrong = secured.settings("confluent-kafka.json") | {
        "sasl.password": "wrong",
        "log_level": 0,
        "error_cb": errors.append,
    }
    producer = Producer(wrong)
    eventually(lambda: producer.poll(0.1) or errors, "the error of a wrong password")
    eventually(lambda: any(line["event"] == "login failed" for line in secured.audit()), "a line in the audit log")
    (failed,) = {line["error"]: line for line in secured.audit() if line["event"] == "login failed"}.values()
    assert (failed["host"], failed["reason"]) == ("127.0.0.1", "authentication failed")
    assert "admin" in failed["error"]


@pytest.mark.client("cli")
def test_commands(secured: SecuredBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    topic = unique("commands")
    monkeypatch.setenv("KBROKER_BOOTSTRAP", secured.bootstrap)
    properties = ["--command-config", str(secured.file("client.properties"))]
    assert main(["topics", "create", topic, *properties]) == 0
    capsys.readouterr()
    short = ["--tls-ca", str(secured.file("ca.pem")), "--login", "admin"]
    assert main(["topics", "list", *short]) == 2
    assert "--login needs the password in KBROKER_PASSWORD, or a terminal" in capsys.readouterr().err
    monkeypatch.setenv("KBROKER_PASSWORD", secured.password)
    assert main(["topics", "list", *short]) == 0
    assert topic in capsys.readouterr().out
    doctor = ["doctor", "--secure", "--data-dir", str(secured.data_dir), "--listen", secured.bootstrap, "--json"]
    main([*doctor, *properties])
    found = {row["check"]: row for row in json.loads(capsys.readouterr().out)}
    assert [found[check]["status"] for check in ("listener", "certificate", "security", "secrets")] == ["ok"] * 4
    assert found["listener"]["found"].endswith(": 1 topic") or found["listener"]["found"].endswith(" topics")
    assert main(["configs", "set", "topic", topic, "retention.ms=3600000", *short]) == 0

    def changes() -> list[tuple[str, ...]]:
        lines = [line for line in secured.audit() if line.get("resource") == f"TOPIC:{topic}"]
        return [(line["event"], line["principal"], line["api"], line["change"]) for line in lines]

    eventually(lambda: len(changes()) == 2, "the changes in the audit log")
    assert changes() == [
        ("changed", "User:admin", "CreateTopics", "created with 1 partitions"),
        ("changed", "User:admin", "IncrementalAlterConfigs", "retention.ms=3600000"),
    ]


@pytest.mark.client("cli")
def test_another_user_has_no_rights(
    secured: SecuredBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, user = unique("denied"), unique("bob")
    monkeypatch.setenv("KBROKER_BOOTSTRAP", secured.bootstrap)
    properties = ["--command-config", str(secured.file("client.properties"))]
    assert main(["topics", "create", topic, *properties]) == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("secret\n"))
    assert main(["users", "set", user, *properties]) == 0
    monkeypatch.setenv("KBROKER_PASSWORD", "secret")
    short = ["--tls-ca", str(secured.file("ca.pem")), "--login", user]
    assert main(["topics", "delete", topic, "--yes", *short]) == 1
    assert "authorization" in capsys.readouterr().err.lower()

    def denials() -> list[dict[str, Any]]:
        return [line for line in secured.audit() if line["event"] == "denied" and line["principal"] == f"User:{user}"]

    eventually(lambda: denials(), "the denial in the audit log")
    assert {line["topic"] for line in denials()} == {topic}
    assert denials()[0]["host"] == "127.0.0.1"
    assert denials()[0]["error"] == "TOPIC_AUTHORIZATION_FAILED"


@pytest.mark.client("kafka_python")
def test_a_later_start_has_the_same_credentials(secured: SecuredBroker) -> None:
    before = secured.file("client.properties").read_text(), secured.file("ca.pem").read_text()
    topic = unique("restarted")
    fill(secured, topic)
    secured.stop()
    secured.start()
    assert (secured.file("client.properties").read_text(), secured.file("ca.pem").read_text()) == before
    assert read(secured, topic) == RECORDS


@pytest.mark.client("confluent_kafka")
def test_brokers_of_one_command(tmp_path: Path) -> None:
    need_own_broker()
    pytest.importorskip("cryptography", reason="not run: --secure needs cryptography (extra `secure`)")
    # Consumers read what both brokers have: the follower has fetched it over TLS.
    cluster, topic = SecuredBroker(tmp_path, {"min.insync.replicas": "2"}), unique("secured")
    cluster.options, cluster.bootstrap = ("--secure", "--brokers", "2"), f"127.0.0.1:{free_ports(2)}"
    try:
        cluster.start()
        settings = cluster.settings("kafka-python.json")
        assert len(settings["bootstrap_servers"].split(",")) == 2
        fill(cluster, topic)
        assert read(cluster, topic) == RECORDS
        assert "handshake failed" not in cluster.all_errors
        cluster.stop()
    finally:
        cluster.end()


@pytest.mark.spark
@pytest.mark.client("spark")
def test_spark_and_the_pipeline_show_no_secret(secured: SecuredBroker, spark: Any, tmp_path: Path) -> None:
    from kbroker.archive.catalogs import open_archive
    from kbroker.archive.storage import open_storage
    from kbroker.pipeline.cluster_admin import cluster_client
    from kbroker.pipeline.replay.plan import ReplayRequest
    from kbroker.pipeline.replay.preparation import ReplayContext, prepare_replay
    from kbroker.pipeline.replay.routing import target_names
    from kbroker.pipeline.replay.run import create_plan, execute_plan
    from kbroker.pipeline.replay.selection import Selection
    from kbroker.pipeline.replay.sending import SpeedLimit
    from tests.compat.spark.pipeline.archiver import Archiver

    topic, target = unique("archived"), unique("replayed")
    fill(secured, topic)
    properties = secured.file("client.properties")
    use_security(parse_client_security(str(properties), properties.read_bytes()))
    try:
        archiver = Archiver(spark, secured.bootstrap, tmp_path / "archive")
        archiver.once(topic)
        assert len(archiver.files(topic)) == 1
        archive, cluster = open_archive(str(tmp_path / "archive")), cluster_client(secured.bootstrap)
        storage = open_storage(str(tmp_path / "archive"))
        context = ReplayContext(spark, archive, storage, cluster, secured.bootstrap, lambda _: None, patience_s=20)
        request = ReplayRequest(Selection((topic,)), target_names([topic], target, None))
        execute_plan(context, create_plan(context, prepare_replay(context, request, {})), SpeedLimit())
    finally:
        use_security(NO_SECURITY)
    assert sorted(read(secured, target)) == sorted(RECORDS)

    frame = spark.read.format("kafka").options(**secured.settings("spark.json")).option("subscribe", topic).load()
    assert frame.count() == len(RECORDS)
    plans = frame._jdf.queryExecution().toString()
    events = Path(spark.conf.get("spark.eventLog.dir"))
    logs = "".join(path.read_text() for path in events.rglob("*") if path.is_file())
    assert "SparkListenerSQLExecutionEnd" in logs
    assert secured.password not in plans + logs
