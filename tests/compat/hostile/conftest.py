"""The broker that every hostile test attacks, and the control broker that none attacks."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.ports import free_ports
from tests.compat.hostile.target import Target
from tests.compat.security.secure_broker import PLAIN_MODULE
from tests.compat.support import BrokerProcess, need_own_broker, running_broker
from tests.unit.support.certificates import CertificateAuthority


class AttackedBroker(BrokerProcess):
    """`secured`: the ports of its listeners with TLS and logins, by name."""

    def __init__(self, directory: Path) -> None:
        key_store = CertificateAuthority(directory / "certificates").sign("broker")
        settings = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(key_store),
            "sasl.enabled.mechanisms": "PLAIN",
        }
        self.secured = {"SASL_SSL": free_ports(), "SASL_PLAINTEXT": free_ports()}
        jaas = f'{PLAIN_MODULE} required user_alice="secret";'
        for name in self.secured:
            settings[f"listener.name.{name.lower()}.plain.sasl.jaas.config"] = jaas
        super().__init__(directory, settings)

    def _command(self) -> list[str]:
        listeners = (f"{name}://127.0.0.1:{port}" for name, port in self.secured.items())
        return super()._command() + [part for listener in listeners for part in ("--listen", listener)]


@pytest.fixture(scope="session")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedBroker]:
    need_own_broker()
    broker = AttackedBroker(tmp_path_factory.mktemp("target"))
    try:
        broker.start()
        yield broker
        broker.stop()
    finally:
        broker.end()


@pytest.fixture(scope="session")
def shared_target(attacked: AttackedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with running_broker(tmp_path_factory.mktemp("control")) as control:
        target = Target(attacked, control)
        yield target
        target.end()


@pytest.fixture
def target(shared_target: Target) -> Target:
    return shared_target
