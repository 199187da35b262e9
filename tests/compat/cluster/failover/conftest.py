"""A cluster of its own for each test, whose brokers are in three racks."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.cluster.cluster import Cluster, running_cluster

BROKERS = int(os.environ.get("KBROKER_COMPAT_BROKERS", "5"))
RACKS = 3


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path, BROKERS, RACKS, servers=1) as cluster:
        cluster.wait_until_healthy()
        yield cluster
