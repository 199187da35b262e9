"""One cluster for all tests: each test finds all brokers running, with all replicas in sync."""

import logging
from collections.abc import Iterator

import pytest

from tests.compat.cluster.cluster import Cluster, running_cluster


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    shared_cluster.restore()
    return shared_cluster


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """kafka-python logs every attempt to connect to a broker that is down."""
    caplog.set_level(logging.CRITICAL, logger="kafka")
