"""Three brokers become five and three again; `python -m tests.compat.cluster.growth.growth` does it with many seeds."""

import os
from pathlib import Path

import pytest

from tests.compat.cluster.cluster import IS_KBROKER
from tests.compat.cluster.growth.growth import Growth
from tests.compat.reports import reports
from tests.compat.support import EXTERNAL_BOOTSTRAP
from tests.sampling import runs_in_third

SEED = int(os.environ.get("KBROKER_COMPAT_SEED", "1"))


@runs_in_third(0)
@pytest.mark.skipif(not IS_KBROKER or EXTERNAL_BOOTSTRAP != "", reason="not run: needs its own brokers")
@pytest.mark.timeout(1200)
def test_controllers_are_killed_while_brokers_join_and_leave(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    growth = Growth(tmp_path, SEED)
    try:
        growth.run()
    except AssertionError as error:
        raise AssertionError(f"{error}\n{growth.cluster.description()}") from error
    finally:
        growth.end()
        reports(request.config).section("brokers that join and leave").extend(growth.report)
