"""Every client logs in with every mechanism, over TLS and without; wrong and missing credentials are refused."""

import asyncio
from pathlib import Path
from typing import Any

import kafka
import kafka.errors
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from kbroker.cli import main
from tests.compat.security.secure_broker import LOGINS, PROTOCOLS, Login, SecureBroker
from tests.compat.support import DEADLINE_S, unique

RECORDS = [f"record {number} {'x' * 30_000}".encode() for number in range(40)]
WRONG = [
    Login("SASL_SSL", "PLAIN", "alice", "x"),
    Login("SASL_SSL", "SCRAM-SHA-256", "alice", "x"),
    Login("SASL_PLAINTEXT", "SCRAM-SHA-512", "nobody", "scram secret"),
    Login("SASL_PLAINTEXT", "OAUTHBEARER", "alice", "expired.jwt"),
]
MESSAGES = {
    "PLAIN": "Authentication failed: Invalid username or password",
    "SCRAM-SHA-256": "due to invalid credentials with SASL mechanism SCRAM-SHA-256",
    "SCRAM-SHA-512": "due to invalid credentials with SASL mechanism SCRAM-SHA-512",
    "OAUTHBEARER": '{"status":"invalid_token"}',
}

pytestmark = pytest.mark.feature("security")
each_login = pytest.mark.parametrize("login", LOGINS, ids=str)
each_wrong = pytest.mark.parametrize("login", WRONG, ids=str)


@pytest.mark.client("kafka_python")
@each_login
def test_kafka_python(secure: SecureBroker, login: Login) -> None:
    topic, settings = unique("kafka-python"), secure.kafka_python(login)
    producer = kafka.KafkaProducer(**settings)
    for record in RECORDS:
        producer.send(topic, record)
    producer.flush(DEADLINE_S)
    producer.close()
    consumer = kafka.KafkaConsumer(topic, **settings, auto_offset_reset="earliest")
    received = [message.value for _, message in zip(RECORDS, consumer, strict=False)]
    consumer.close()
    assert received == RECORDS


@pytest.mark.client("confluent_kafka")
@each_login
def test_confluent_kafka(secure: SecureBroker, login: Login) -> None:
    topic, settings = unique("confluent"), secure.librdkafka(login)
    producer = Producer(settings)
    for record in RECORDS:
        producer.produce(topic, record)
    assert producer.flush(DEADLINE_S) == 0
    consumer = Consumer(settings | {"group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    received = consumer.consume(len(RECORDS), DEADLINE_S)
    consumer.close()
    assert [message.value() for message in received] == RECORDS


class AiokafkaTokens(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, secure: SecureBroker, login: Login) -> None:
        self._token = secure.token(login)

    async def token(self) -> str:
        return self._token


@pytest.mark.client("aiokafka")
@each_login
def test_aiokafka(secure: SecureBroker, login: Login) -> None:
    import ssl

    async def run() -> list[Any]:
        settings = secure.kafka_python(login)
        if login.mechanism == "OAUTHBEARER":
            settings["sasl_oauth_token_provider"] = AiokafkaTokens(secure, login)
        files = {name: settings.pop(name, None) for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile")}
        if files["ssl_cafile"]:
            settings["ssl_context"] = context = ssl.create_default_context(cafile=files["ssl_cafile"])
            if files["ssl_certfile"]:
                context.load_cert_chain(files["ssl_certfile"], files["ssl_keyfile"])
        topic = unique("aiokafka")
        async with AIOKafkaProducer(**settings) as producer:
            for record in RECORDS:
                await producer.send_and_wait(topic, record)
        async with AIOKafkaConsumer(topic, **settings, auto_offset_reset="earliest") as consumer:
            return [(await consumer.getone()).value for _ in RECORDS]

    assert asyncio.run(asyncio.wait_for(run(), DEADLINE_S)) == RECORDS


@pytest.mark.client("cli")
@each_login
def test_the_command_line(
    secure: SecureBroker, login: Login, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--bootstrap", secure.address(login), "--command-config", secure.java(login, tmp_path)]
    topic, file = unique("cli"), tmp_path / "lines"
    file.write_text("one\ntwo\n")
    assert main(["topics", "create", topic, *options]) == 0
    assert main(["produce", topic, "--file", str(file), *options]) == 0
    capsys.readouterr()
    assert main(["consume", topic, "--from", "beginning", "-n", "2", *options]) == 0
    assert capsys.readouterr().out == "one\ntwo\n"


@pytest.fixture
def java(secure: SecureBroker, login: Login, jvm: Any) -> Any:
    """A JVM that may read the token of a login (CVE-2025-27817)."""
    if login.mechanism == "OAUTHBEARER":
        jvm.java.System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", secure.token_url(login))
    return jvm


@pytest.mark.client("kafka_tools")
@each_login
def test_kafkas_tools(secure: SecureBroker, login: Login, tmp_path: Path, java: Any) -> None:
    topic = unique("java")
    options = ["--bootstrap-server", secure.address(login), "--topic", topic]
    config = ["--command-config", secure.java(login, tmp_path)]
    java.check("kafka-topics", "--create", *options, *config)
    java.check("kafka-console-producer", *options, *config, stdin="one\ntwo\n")
    consumed = java.consume(*options, *config, "--from-beginning", "--max-messages", "2")
    assert consumed.lines == ["one", "two"]


@pytest.mark.client("kafka_tools")
def test_kafka_configs_manages_users(secure: SecureBroker, tmp_path: Path, jvm: Any) -> None:
    options = ["--bootstrap-server", secure.address(LOGINS[0]), "--command-config", secure.java(LOGINS[0], tmp_path)]
    user = ["--entity-type", "users", "--entity-name", unique("user")]
    jvm.check("kafka-configs", *options, "--alter", *user, "--add-config", "SCRAM-SHA-256=[iterations=8192,password=p]")
    described = jvm.check("kafka-configs", *options, "--describe", *user).out
    assert described.endswith("are SCRAM-SHA-256=iterations=8192\n")
    login = Login("SASL_SSL", "SCRAM-SHA-256", user[-1], "p")
    assert AdminClient(secure.librdkafka(login)).list_topics(timeout=DEADLINE_S).brokers
    jvm.check("kafka-configs", *options, "--alter", *user, "--delete-config", "SCRAM-SHA-256")
    assert failure(secure, login) == MESSAGES["SCRAM-SHA-256"]


def failure(secure: SecureBroker, login: Login) -> str:
    """Return the known message with which librdkafka reports a login."""
    errors: list[str] = []
    admin = AdminClient({**secure.librdkafka(login), "error_cb": lambda error: errors.append(error.str())})
    while not any("uthentication" in error for error in errors):
        admin.poll(0.1)
    return next(message for message in MESSAGES.values() if message in " ".join(errors))


@pytest.mark.client("confluent_kafka")
@each_wrong
def test_wrong_credentials_in_librdkafka(secure: SecureBroker, login: Login) -> None:
    assert failure(secure, login) == MESSAGES[login.mechanism]


@pytest.mark.client("kafka_tools")
@each_wrong
def test_wrong_credentials_in_java(secure: SecureBroker, login: Login, tmp_path: Path, java: Any) -> None:
    options = ["--bootstrap-server", secure.address(login), "--command-config", secure.java(login, tmp_path)]
    failed = java.run("kafka-topics", "--list", *options)
    assert failed.code == 1
    assert MESSAGES[login.mechanism] in failed.out + failed.err


@pytest.fixture
def without_certificate(secure: SecureBroker) -> dict[str, Any]:
    settings = secure.kafka_python(Login("SSL"))
    del settings["ssl_certfile"], settings["ssl_keyfile"]
    return settings


@pytest.mark.client("kafka_python")
def test_a_missing_certificate(secure: SecureBroker, without_certificate: dict[str, Any]) -> None:
    with pytest.raises(kafka.errors.KafkaTimeoutError):
        kafka.KafkaAdminClient(**without_certificate, bootstrap_timeout_ms=2000)
    assert 'reason="TLS handshake failed" error=PEER_DID_NOT_RETURN_A_CERTIFICATE listener=SSL' in secure.errors


@pytest.mark.client("cli")
def test_the_wrong_security_protocol_is_named(secure: SecureBroker, capsys: pytest.CaptureFixture[str]) -> None:
    for protocol in PROTOCOLS:
        assert main(["topics", "list", "--bootstrap", f"127.0.0.1:{secure.ports[protocol]}"]) == 1
    assert "a client without TLS on a listener with TLS" in secure.errors
    assert 'reason="request before the login" api=Metadata listener=SASL_PLAINTEXT' in secure.errors
