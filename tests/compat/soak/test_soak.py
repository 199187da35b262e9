"""A short soak. `python -m tests.compat.soak` is the long one: see docs/development/testing.md."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat.reports import reports
from tests.compat.support import need_own_broker
from tests.sampling import runs_in_third

ROOT = Path(__file__).parents[3]
# A one-way cut between a leader and a follower, kill -9 of the controller during a plan of moves, and a one-way cut
# from a leader to all brokers. On a machine on which network namespaces may not be created, three other faults.
SEED, FAULTS = 54004, 3
TIMEOUT_S = 500


@runs_in_third(1)
def test_three_faults_under_load(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    need_own_broker()
    command = [sys.executable, "-m", "tests.compat.soak", "--faults", str(FAULTS), "--seed", str(SEED)]
    result = subprocess.run(
        [*command, "--directory", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    reports(request.config).section("faults under load").extend(result.stdout.splitlines())
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr[-8000:]}"
