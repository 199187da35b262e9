"""`kbroker doctor` on secured listeners: certificates, open listeners, and secrets that others can read."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.cli.doctor.host import OK, PROBLEM, WARNING, CheckContext, CheckResult, Host
from kbroker.cli.doctor.security_checks import check_certificates, check_open_listeners, check_secret_files
from kbroker.cli.start.options import StartOptions, load_properties
from kbroker.client.security import NO_SECURITY, use_security
from kbroker.config import BrokerConfig
from kbroker.config.client_properties import parse_client_security
from kbroker.runtime.real_disk import RealDisk

pytest.importorskip("cryptography", reason="not run: --secure needs cryptography (extra `secure`)")

from kbroker.cli.start.secure import secure

DAY_MS = 86_400_000


class LaterHost(Host):
    """This machine, some days later."""

    def __init__(self, days: int) -> None:
        self._days = days

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._days * DAY_MS


@pytest.fixture(autouse=True)
def _no_security() -> Iterator[None]:
    yield
    use_security(NO_SECURITY)


@pytest.fixture
def secured(tmp_path: Path) -> dict[str, str]:
    """The configs of a broker with --secure, whose certificate has the name broker.example."""
    options = StartOptions(
        data_dir=str(tmp_path), listen=["0.0.0.0:9093"], advertise=["broker.example:9093"], secure=True
    )
    properties, _, write_client_files = secure(load_properties(options, {})[0])
    write_client_files("broker.example:9093")
    return {name: source.text for name, source in properties.items()}


def context(configs: dict[str, str], days: int = 0, secret_files: tuple[str, ...] = ()) -> CheckContext:
    return CheckContext(LaterHost(days), RealDisk(), BrokerConfig.load(configs), secret_files)


def certificate(configs: dict[str, str], days: int = 0) -> CheckResult:
    (result,) = check_certificates(context(configs, days))
    return result


def test_a_certificate_with_the_advertised_name(secured: dict[str, str]) -> None:
    listener = "SASL_SSL://broker.example:9093"
    message = f"{listener}: valid for 364 more days; --command-config checks who trusts it"
    assert certificate(secured) == CheckResult("certificate", OK, message)
    assert certificate(secured | {"ssl.protocol": "TLSv1.2"}).status == OK
    assert certificate(secured, 340).status == WARNING
    assert certificate(secured, 340).message.startswith(f"{listener}: valid for 24 more days")


def test_a_certificate_with_other_names(secured: dict[str, str]) -> None:
    found = certificate(secured | {"advertised.listeners": "SASL_SSL://other.example:9093"})
    assert found.status == PROBLEM
    assert found.message.startswith("SASL_SSL://other.example:9093: Hostname mismatch")
    assert "its names are " in found.message
    assert "broker.example" in found.message


def test_whether_a_client_trusts_it(secured: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "secure/client.properties"
    use_security(parse_client_security(str(file), file.read_bytes()))
    assert certificate(secured).status == OK
    other = tmp_path / "other"
    secure(load_properties(StartOptions(data_dir=str(other), secure=True), {})[0])
    (tmp_path / "secure/ca.pem").write_bytes((other / "secure/ca.pem").read_bytes())
    use_security(NO_SECURITY)
    # A context is kept for equal settings.
    use_security(parse_client_security(str(file), file.read_bytes() + b"ssl.key.password=other\n"))
    assert certificate(secured).status == PROBLEM
    assert "not trusted with the options of this command: self-signed certificate in" in certificate(secured).message


def test_a_key_store_that_cannot_be_loaded(secured: dict[str, str]) -> None:
    found = certificate(secured | {"ssl.keystore.location": "/missing.pem"})
    assert (found.status, found.message) == (
        PROBLEM,
        "ssl.keystore.location: cannot load /missing.pem: No such file or directory",
    )


def open_listeners(configs: dict[str, str]) -> list[str]:
    return [result.message for result in check_open_listeners(context(configs)) if result.status == WARNING]


def test_listeners_that_are_open_without_reason(secured: dict[str, str]) -> None:
    plain = {
        "listeners": "SASL_SSL://0.0.0.0:9093,PLAINTEXT://0.0.0.0:9092",
        "advertised.listeners": "SASL_SSL://broker.example:9093,PLAINTEXT://broker.example:9092",
    }
    is_open = "PLAINTEXT://0.0.0.0:9092 is open to everybody who reaches it"
    assert open_listeners(secured | plain) == [is_open]
    local = {"listeners": plain["listeners"].replace("0.0.0.0:9092", "127.0.0.1:9092")}
    assert open_listeners(secured | plain | local) == []
    exporter = {"kbroker.metrics.listener": "0.0.0.0:9100"}
    shown = "kbroker.metrics.listener=0.0.0.0:9100 shows the names of topics and groups"
    assert open_listeners(secured | exporter) == [shown]
    assert open_listeners({"listeners": "PLAINTEXT://10.0.0.1:9092"}) == []
    authorizer = {"authorizer.class.name": secured["authorizer.class.name"]}
    assert open_listeners(authorizer) == ["there is an authorizer, and no listener knows its clients"]
    without = {name: text for name, text in secured.items() if name not in ("authorizer.class.name", "super.users")}
    assert open_listeners(without) == ["without an authorizer, everybody who has logged in may do everything"]


def test_secrets_that_others_can_read(secured: dict[str, str], tmp_path: Path) -> None:
    (result,) = check_secret_files(context(secured))
    assert result.status == OK
    key_store, config = tmp_path / "secure/server.pem", tmp_path / "server.properties"
    key_store.chmod(0o640)
    config.write_text("ssl.key.password=x")
    (result,) = check_secret_files(context(secured, secret_files=(str(config),)))
    assert (result.status, result.message) == (WARNING, f"others can read {key_store}, {config}")
    assert result.advice.startswith(f"chmod go= {key_store} {config},")
