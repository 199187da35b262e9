"""A short surge; `python -m tests.compat.cluster.surge.surge` runs a long one."""

from pathlib import Path

import pytest

from tests.compat.cluster.cluster import IS_KBROKER
from tests.compat.cluster.surge.surge import new_cluster, surge
from tests.compat.reports import reports
from tests.compat.support import EXTERNAL_BOOTSTRAP

SECONDS = 4.0
PRODUCERS = 8
BUFFER_KIB = 2 * 1024


@pytest.mark.skipif(not IS_KBROKER or EXTERNAL_BOOTSTRAP != "", reason="not run: needs its own brokers")
def test_ten_times_the_load_while_brokers_join(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    cluster = new_cluster(tmp_path)
    try:
        reports(request.config).section("surge").append(surge(cluster, SECONDS, PRODUCERS, BUFFER_KIB).line())
    finally:
        cluster.end()
