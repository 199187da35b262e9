"""The broker with an authorizer, and the users of the matrix."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.ports import free_ports
from tests.compat.security.authorization.case import World, matrix_users, new_world
from tests.compat.security.authorization.users import settings
from tests.compat.support import BrokerProcess, need_own_broker


class AuthorizingBroker(BrokerProcess):
    """`address`: of its listener SASL_PLAINTEXT."""

    def __init__(self, directory: Path, users: list[str]) -> None:
        super().__init__(directory, settings(users))
        self.address = f"127.0.0.1:{free_ports()}"

    def _command(self) -> list[str]:
        return [*super()._command(), "--listen", f"SASL_PLAINTEXT://{self.address}"]


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    need_own_broker()
    broker = AuthorizingBroker(tmp_path_factory.mktemp("authorizing"), matrix_users())
    try:
        broker.start()
        with new_world(broker.address) as world:
            yield world
        broker.stop()
    finally:
        broker.end()
