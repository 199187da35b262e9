"""The broker whose answers are compared."""

import pytest

from tests.compat.wire.play import Cluster


@pytest.fixture(scope="session")
def cluster(bootstrap: str) -> Cluster:
    """The broker under test; what was recorded is of a single one."""
    found = Cluster(bootstrap)
    if found.nodes != 1:
        pytest.skip(f"not run: the recorded answers are of one node, and this cluster has {found.nodes}")
    return found
