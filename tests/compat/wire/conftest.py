"""The broker whose responses are compared with the recorded ones."""

import pytest

from tests.compat.wire.story import Cluster


@pytest.fixture(scope="session")
def cluster(bootstrap: str) -> Cluster:
    """The broker under test, which must be a single one, as the recorded one was."""
    cluster = Cluster(bootstrap)
    if cluster.nodes != 1:
        pytest.skip(f"not run: the recorded responses are of one node, and this cluster has {cluster.nodes}")
    return cluster
