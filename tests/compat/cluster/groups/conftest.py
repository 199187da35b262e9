"""One cluster for all tests of groups. ZooKeeper's servers do not fail here, so it has one."""

from collections.abc import Iterator

import pytest

from tests.compat.cluster.cluster import Cluster, running_cluster


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("groups"), servers=1) as cluster:
        yield cluster
