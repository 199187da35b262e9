"""The options of Spark on a secured cluster: secrets are references to the file of --command-config."""

from collections.abc import Iterator
from pathlib import Path

import pytest

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
