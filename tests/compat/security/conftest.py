"""The broker of the tests of TLS and SASL."""

from collections.abc import Iterator

import pytest

from tests.compat.security.secure_broker import SecureBroker
from tests.compat.support import need_own_broker


@pytest.fixture(scope="session")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    need_own_broker()
    pytest.importorskip("cryptography", reason="not run: PKCS12 needs cryptography (extra `secure`)")
    broker = SecureBroker(tmp_path_factory.mktemp("secure"), {"max.connections.per.ip": "600"})
    try:
        broker.start()
        yield broker
        broker.stop()
    finally:
        broker.end()
