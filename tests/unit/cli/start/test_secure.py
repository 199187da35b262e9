"""`kbroker start --secure`: what it creates, what a later start keeps, and what it refuses."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kbroker.cli.common.errors import CliError
from kbroker.cli.start.options import StartOptions, exposed_secrets, load_properties, parse_options
from kbroker.config import BrokerConfig

pytest.importorskip("cryptography", reason="not run: --secure needs cryptography (extra `secure`)")

from cryptography import x509

from kbroker.cli.start import secure as module
from kbroker.cli.start.secure import certificate_names, secure


def start(data: Path, *arguments: str, bootstrap: str = "broker.example:9093") -> tuple[BrokerConfig, str]:
    """Return the config of a start, and the administrator's password."""
    options = parse_options(["--secure", "--data-dir", str(data), *arguments])
    assert options is not None
    properties, admin, write_client_files = secure(load_properties(options, {})[0])
    assert write_client_files(bootstrap) == data / "secure"
    assert (admin.name, admin.mechanism.name) == ("admin", "SCRAM_SHA_512")
    return BrokerConfig.load({name: source.text for name, source in properties.items()}), admin.password


def certificate(data: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate((data / "secure/server.pem").read_bytes())


def test_one_command_makes_a_secured_broker(tmp_path: Path) -> None:
    arguments = ["--listen", "0.0.0.0:9093", "--advertise", "broker.example:9093"]
    config, password = start(tmp_path / "data", *arguments)
    assert [str(each) for each in config.listeners] == ["SASL_SSL://0.0.0.0:9093"]
    security = config.listener_security("SASL_SSL")
    assert security.sasl is not None
    assert security.sasl.mechanisms == ("SCRAM-SHA-512",)
    assert certificate_names(certificate(tmp_path / "data")) == {"broker.example", "localhost", "127.0.0.1", "::1"}
    assert len(password) == 32


def test_only_the_user_can_read_the_files(tmp_path: Path) -> None:
    start(tmp_path)
    directory = tmp_path / "secure"
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()} == dict.fromkeys(
        ["admin.password", "ca.key", "ca.pem", "server.pem", "client.properties", "librdkafka.conf",
         "confluent-kafka.json", "kafka-python.json", "spark.json"], 0o600,
    )  # fmt: skip


def test_each_client_has_a_file(tmp_path: Path) -> None:
    _, password = start(tmp_path)
    directory = tmp_path / "secure"
    for name in ("client.properties", "librdkafka.conf", "confluent-kafka.json", "kafka-python.json"):
        words = set(re.findall(r"[\w./:-]+", (directory / name).read_text()))
        assert {"broker.example:9093", password, str(directory / "ca.pem")} <= words
    options = json.loads((directory / "spark.json").read_text())
    assert options["kafka.security.protocol"] == "SASL_SSL"
    assert options["kafka.sasl.jaas.config"] == f"${{file:{directory}/client.properties:sasl.jaas.config}}"
    assert password not in str(options)


def test_a_later_start_reuses_everything(tmp_path: Path) -> None:
    _, password = start(tmp_path)
    files = {path: path.read_bytes() for path in (tmp_path / "secure").iterdir()}
    assert start(tmp_path)[1] == password
    assert {path: path.read_bytes() for path in (tmp_path / "secure").iterdir()} == files


def test_a_new_name_and_a_near_end_renew_the_certificate_and_not_the_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(tmp_path)
    authority, first = (tmp_path / "secure/ca.pem").read_bytes(), certificate(tmp_path)
    start(tmp_path, "--advertise", "other.example:9093")
    second = certificate(tmp_path)
    assert certificate_names(second) > certificate_names(first)

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(UTC) + timedelta(days=340)

    monkeypatch.setattr(module, "datetime", Later)
    start(tmp_path, "--advertise", "other.example:9093")
    assert certificate(tmp_path).not_valid_after_utc > second.not_valid_after_utc + timedelta(days=300)
    assert (tmp_path / "secure/ca.pem").read_bytes() == authority


def test_the_key_of_the_authority_may_be_elsewhere(tmp_path: Path) -> None:
    start(tmp_path)
    authority, key = (tmp_path / "secure/ca.pem").read_bytes(), tmp_path / "secure/ca.key"
    key.rename(tmp_path / "safe.key")
    start(tmp_path)
    with pytest.raises(CliError, match=r"server\.pem must be issued again, and .*ca\.key is missing"):
        start(tmp_path, "--advertise", "other.example:9093")
    assert (tmp_path / "secure/ca.pem").read_bytes() == authority
    (tmp_path / "safe.key").rename(key)
    start(tmp_path, "--advertise", "other.example:9093")
    assert "other.example" in certificate_names(certificate(tmp_path))


@pytest.mark.parametrize("password", ["", "two\nlines", 'a"quote', "back\\slash"])
def test_a_password_that_the_files_of_clients_cannot_have(tmp_path: Path, password: str) -> None:
    start(tmp_path)
    (tmp_path / "secure/admin.password").write_text(password)
    with pytest.raises(CliError, match=r"admin\.password must have one line, without quotes"):
        start(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "ssl.keystore.location=a.pem"], r"ssl.keystore.location cannot be set with --secure \(--set\)"),
        (
            [
                "--listen",
                ":9093",
                "--listen",
                "PLAINTEXT://:9092",
                "--advertise",
                "a:1",
                "--advertise",
                "PLAINTEXT://a:2",
            ],
            "needs SASL_SSL for all listeners, and PLAINTEXT://:9092 has not",
        ),
    ],
)
def test_what_would_weaken_it_is_refused(tmp_path: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(CliError, match=message):
        start(tmp_path / "data", *arguments)
    assert not (tmp_path / "data").exists()


def test_a_secret_in_the_list_of_processes_is_reported_and_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("store secret\n")
    name = "listener.name.tls.ssl.keystore.password"
    literal = StartOptions(set=[f"{name}=literal", "node.id=3"], add_scram=["SCRAM-SHA-256=[name=a,password=b]"])
    assert load_properties(literal, {})[0][name].text == "literal"
    assert exposed_secrets(literal) == [f"--set {name}=@FILE", "--add-scram @FILE"]
    in_files = StartOptions(set=[f"{name}=@{tmp_path}/password"], add_scram=["@users"])
    assert load_properties(in_files, {})[0][name].text == "store secret"
    assert exposed_secrets(in_files) == []
    with pytest.raises(CliError, match=f"--set {name}: /missing: No such file"):
        load_properties(StartOptions(set=[f"{name}=@/missing"]), {})
