"""The servers that the tests share; a test that kills a server starts it again."""

from collections.abc import Iterator

import pytest

from tests.compat.support import eventually
from tests.compat.zookeeper.served import ServedCoordination
from tests.compat.zookeeper.server import ZooKeeperServer, running


@pytest.fixture(scope="session")
def apache_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A real ZooKeeper, for what only it does: ACLs of nodes, sessions that survive its restart."""
    with running(ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"))) as server:
        # A connection that it has accepted before never gets a response.
        eventually(server.is_serving, "a ZooKeeper server that responds")
        yield server


@pytest.fixture(scope="session")
def served_coordination(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """kbroker's embedded coordination service in ZooKeeper's protocol."""
    with running(ServedCoordination(tmp_path_factory.mktemp("served"))) as server:
        yield server


@pytest.fixture(params=["apache_zookeeper", "served_coordination"])
def zookeeper(request: pytest.FixtureRequest) -> ZooKeeperServer:
    """Each of the two in turn: the adapter promises the same with both."""
    server = request.getfixturevalue(request.param)
    assert isinstance(server, ZooKeeperServer)
    return server
