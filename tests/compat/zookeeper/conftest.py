"""The ZooKeeper server that the tests share; a test that kills it starts it again."""

from collections.abc import Iterator

import pytest

from tests.compat.zookeeper.server import ZooKeeperServer


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    yield server
    server.kill()
