"""The pipeline on secured listeners: archives and aggregates with each kind of login."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer

from kbroker.cli.common.client_security import use_security_options
from kbroker.client.security import NO_SECURITY, use_security
from kbroker.pipeline.aggregate.definition import AggregateDefinition
from kbroker.pipeline.aggregate.query import AggregateQuery, ResultSink, RunOptions
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.security import kafka_options
from tests.compat.security.secure_broker import LOGINS, PASSWORD, Login, SecureBroker
from tests.compat.spark.pipeline.archiver import Archiver
from tests.compat.support import unique

pytestmark = [pytest.mark.spark, pytest.mark.feature("security"), pytest.mark.client("spark")]

OF_EACH_KIND = {"SASL_SSL-PLAIN", "SASL_PLAINTEXT-SCRAM-SHA-512", "SSL", "SASL_SSL-OAUTHBEARER"}
DATE_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def _no_security() -> Iterator[None]:
    yield
    use_security(NO_SECURITY)


def produce(secure: SecureBroker, login: Login, topic: str) -> None:
    producer = KafkaProducer(**secure.kafka_python(login))
    for number in range(20):
        producer.send(topic, b"%d" % number, timestamp_ms=DATE_MS)
    producer.close()


def log_in(secure: SecureBroker, login: Login, directory: Path, **changed: str) -> None:
    """Connect with a file that has the secrets, and with --kafka for the rest."""
    settings = {**secure.java_settings(login), **changed}
    shown = {name: settings.pop(name) for name in ("security.protocol", "sasl.mechanism") if name in settings}
    file = directory / "secrets.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    use_security_options(str(file), kafka=[f"{name}={value}" for name, value in shown.items()], has_spark=True)


@pytest.mark.parametrize("login", [each for each in LOGINS if str(each) in OF_EACH_KIND], ids=str)
def test_an_archive(secure: SecureBroker, login: Login, spark: Any, tmp_path: Path) -> None:
    """Spark's clients and kbroker's own log in, and no secret is in Spark's plans."""
    topic = unique("secured")
    produce(secure, login, topic)
    log_in(secure, login, tmp_path)
    archiver = Archiver(spark, secure.address(login), tmp_path / "archive")
    archiver.once(topic)
    assert archiver.numbers(topic) == list(range(20))
    options = kafka_options(secure.address(login))
    assert not any(secret and secret in str(options) for secret in (login.password if login.user else PASSWORD,))


def test_an_aggregate(secure: SecureBroker, spark: Any, tmp_path: Path) -> None:
    login = next(each for each in LOGINS if str(each) == "SASL_SSL-SCRAM-SHA-256")
    topic = unique("secured")
    produce(secure, login, topic)
    log_in(secure, login, tmp_path)
    definition = AggregateDefinition((topic,), window_ms=3_600_000, slide_ms=3_600_000)
    sink = ResultSink(directory=str(tmp_path / "results"))
    query = AggregateQuery(spark, secure.address(login), definition, sink)
    query.run(RunOptions(), lambda batch: None, threading.Event())
    assert [row["count"] for row in spark.read.parquet(sink.directory).collect()] == [20]


def test_credentials_that_fail(secure: SecureBroker, spark: Any, tmp_path: Path) -> None:
    """One sentence that says what is wrong, and no secret."""
    login = next(each for each in LOGINS if str(each) == "SASL_SSL-PLAIN")
    wrong = login._replace(password="wrong secret")
    cases = {
        "login as alice": (wrong, {}),
        "certificate verify failed": (login, {"ssl.truststore.location": secure.certificates.path("server.crt")}),
    }
    for message, (each, changed) in cases.items():
        log_in(secure, each, tmp_path, **changed)
        with pytest.raises(PipelineError, match=message) as failure:
            Archiver(spark, secure.address(login), tmp_path / "archive").once("any", broker_wait_s=0)
        assert "secret" not in str(failure.value)
