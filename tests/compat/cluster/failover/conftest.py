"""A cluster of its own for each test, whose brokers are in three racks."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.cluster.cluster import IS_KBROKER, Cluster
from tests.compat.cluster.ensemble import Ensemble, NoEnsemble
from tests.compat.support import EXTERNAL_BOOTSTRAP

BROKERS = int(os.environ.get("KBROKER_COMPAT_BROKERS", "5"))
RACKS = 3


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if EXTERNAL_BOOTSTRAP:
        pytest.skip("not run: needs a cluster of its own, and the suite was pointed at a broker")
    ensemble = Ensemble(tmp_path, 1) if IS_KBROKER else NoEnsemble()
    cluster = Cluster(tmp_path, ensemble, BROKERS, RACKS)
    try:
        ensemble.start()
        cluster.start()
        cluster.wait_until_healthy()
        yield cluster
    finally:
        cluster.end()
