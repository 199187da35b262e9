"""A cluster of three brokers for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.ports import free_ports
from tests.compat.local_cluster.local_cluster import LocalCluster
from tests.compat.support import need_own_broker


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    need_own_broker()
    # No test waits for the end of a session: it ends with the process of its broker.
    cluster = LocalCluster(tmp_path, {"zookeeper.session.timeout.ms": "60000", "min.insync.replicas": "2"})
    cluster.bootstrap = f"127.0.0.1:{free_ports(3)}"
    cluster.start()
    yield cluster
    cluster.end()
