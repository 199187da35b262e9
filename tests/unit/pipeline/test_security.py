"""The options of Spark on a secured cluster: secrets are references to the file of --command-config."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.cli.common.client_security import use_security_options
from kbroker.cli.common.errors import CliError
from kbroker.client.security import NO_SECURITY, current_security, use_security
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.security import kafka_options, use_security_file

PROPERTIES = r"""
bootstrap.servers=ignored:1
client.id=ignored
security.protocol=SASL_SSL
sasl.mechanism=PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="SECRET";
ssl.truststore.type=PEM
ssl.truststore.location=/etc/ca.pem
ssl.keystore.key=SECRET
"""


@pytest.fixture(autouse=True)
def _no_security() -> Iterator[None]:
    yield
    use_security(NO_SECURITY)


def test_without_a_file_there_is_the_address_only() -> None:
    assert kafka_options("a:1") == {"kafka.bootstrap.servers": "a:1"}


def test_what_is_not_known_to_be_harmless_is_a_reference(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(PROPERTIES)
    use_security_file(str(file))
    assert (current_security().user, current_security().password) == ("a", "SECRET")
    assert kafka_options("a:1") == {
        "kafka.bootstrap.servers": "a:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": f"${{file:{file}:sasl.jaas.config}}",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/etc/ca.pem",
        "kafka.ssl.keystore.key": f"${{file:{file}:ssl.keystore.key}}",
        "kafka.config.providers": "file",
        "kafka.config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
    }
    use_security_file("")
    assert current_security() == NO_SECURITY


def test_an_executor_without_the_file_says_so() -> None:
    with pytest.raises(PipelineError, match=r"/missing: .*No such file"):
        use_security_file("/missing")


def test_options_of_the_command_line_win(tmp_path: Path) -> None:
    """--kafka reaches Spark's clients, kbroker's own and executors; without a file, too."""
    file = tmp_path / "client.properties"
    file.write_text(PROPERTIES)
    given = ["security.protocol=SSL", "security.protocol=SASL_PLAINTEXT", "fetch.max.bytes=1000", "client.id=a=b"]
    use_security_options(str(file), kafka=given, has_spark=True)
    driver, options = current_security(), kafka_options("a:1")
    assert (driver.protocol, driver.user) == ("SASL_PLAINTEXT", "a")
    assert options["kafka.security.protocol"] == "SASL_PLAINTEXT"
    assert options["kafka.sasl.jaas.config"] == f"${{file:{file}:sasl.jaas.config}}"
    assert (options["kafka.fetch.max.bytes"], options["kafka.client.id"]) == ("1000", "a=b")
    use_security_options()
    use_security_file(driver.file, driver.properties)
    assert current_security() == driver
    use_security_options(kafka=["security.protocol=SSL", "ssl.truststore.location=/a", "ssl.truststore.type=PEM"])
    assert current_security().has_tls
    assert kafka_options("a:1")["kafka.ssl.truststore.location"] == "/a"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("fetch.max.bytes", "--kafka must be NAME=VALUE, not 'fetch.max.bytes'"),
        ("sasl.jaas.config=a", "--kafka sasl.jaas.config: everybody sees arguments; write it into the file of --comm"),
        ("ssl.key.password=SECRET", "--kafka ssl.key.password: everybody sees arguments"),
        ("bootstrap.servers=a:1", "--kafka bootstrap.servers: it is --bootstrap"),
        ("fetch.max.bytes=1", "--kafka fetch.max.bytes: this command runs without Spark, and has properties of sec"),
        ("security.protocol=TLS", "--kafka: security.protocol is TLS; it must be one of "),
    ],
)
def test_options_that_are_refused(given: str, message: str) -> None:
    """None of the messages has a value, which may be a secret."""
    with pytest.raises(CliError) as failure:
        use_security_options(kafka=[given])
    assert str(failure.value).startswith(message)
    assert "SECRET" not in str(failure.value)
