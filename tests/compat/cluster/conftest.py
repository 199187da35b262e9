"""One cluster for all tests: each test finds all brokers running, with all replicas in sync."""

import logging
from collections.abc import Iterator

import pytest

from tests.compat.cluster.cluster import IS_KBROKER, Cluster
from tests.compat.cluster.ensemble import Ensemble, NoEnsemble
from tests.compat.support import EXTERNAL_BOOTSTRAP


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if EXTERNAL_BOOTSTRAP:
        pytest.skip("not run: needs a cluster of its own, and the suite was pointed at a broker")
    directory = tmp_path_factory.mktemp("cluster")
    cluster = Cluster(directory, Ensemble(directory) if IS_KBROKER else NoEnsemble())
    try:
        cluster.ensemble.start()
        cluster.start()
        yield cluster
    finally:
        cluster.end()


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    shared_cluster.restore()
    return shared_cluster


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """kafka-python logs every attempt to connect to a broker that is down."""
    caplog.set_level(logging.CRITICAL, logger="kafka")
