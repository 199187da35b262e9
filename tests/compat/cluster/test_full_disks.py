"""The disk of one broker is full: others lead its partitions and acknowledge, until it has space again."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.compat.cluster.cluster import IS_KBROKER, Cluster
from tests.compat.cluster.ensemble import Ensemble
from tests.compat.cluster.work import GapMeter, create_topic, working
from tests.compat.reports import reports
from tests.compat.support import EXTERNAL_BOOTSTRAP, eventually, fill

pytestmark = pytest.mark.skipif(not IS_KBROKER, reason="not run: another program's brokers")

# The time in which a broker must have given up its roles, in seconds: clients need a part of it to find the new leader.
MAX_GAP_S = 3.0
FULL = 1
NOTE = f"broker {FULL} cannot write to its disk"


@pytest.fixture(scope="module")
def small_disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers. The data directory of the first is on a file system of 64 MiB."""
    if EXTERNAL_BOOTSTRAP:
        pytest.skip("not run: needs a cluster of its own, and the suite was pointed at a broker")
    directory = tmp_path_factory.mktemp("full-disks")
    # No follower leaves the ISR because it lags behind.
    cluster = Cluster(directory, Ensemble(directory, 1), replica_lag_time_max_ms="60000")
    disk = directory / "disk"
    disk.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)]
    if subprocess.run(mounting, capture_output=True, check=False).returncode != 0:
        pytest.skip("not run: file systems cannot be mounted here")
    try:
        cluster.brokers[FULL].data_dir = disk / "data"
        cluster.ensemble.start()
        cluster.start()
        yield cluster
    finally:
        cluster.end()
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def status(bootstrap: str) -> tuple[int, str]:
    """Return the exit status and the output of `kbroker cluster status`."""
    command = [sys.executable, "-m", "kbroker", "cluster", "status", "--bootstrap", bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_writes_go_on_while_a_disk_is_full(small_disks: Cluster, role: str, request: pytest.FixtureRequest) -> None:
    cluster = small_disks
    cluster.wait_until_healthy()
    topic = create_topic(cluster, [[1, 2, 3] if role == "leader" else [2, 1, 3]])
    # Nobody writes to this one: its leader learns from its disk alone that it cannot.
    idle = create_topic(cluster, [[1, 2, 3]])
    filler = cluster.brokers[FULL].data_dir.parent / "filler"
    with working(cluster, topic, 1) as work:
        try:
            with GapMeter(work) as meter:
                fill(filler)
                cluster.wait_until(
                    lambda view: all(
                        view.partitions[name, 0].leader != FULL and view.partitions[name, 0].isr == {2, 3}
                        for name in (topic, idle)
                    ),
                    "the broker with the full disk leads nothing, and is not in sync",
                )
                work.wait_for_more()
            exit_status, output = status(cluster.brokers[2].bootstrap)
            assert exit_status == 1
            assert NOTE in output
        finally:
            filler.unlink(missing_ok=True)
        work.wait_for_more()
        cluster.wait_until_healthy()
        eventually(lambda: NOTE not in status(cluster.brokers[2].bootstrap)[1], "the status is green again")
    reports(request.config).section("full disk").append(
        f"{role}: longest time without an acknowledgement {meter.longest_s * 1000:.0f} ms"
    )
    assert meter.longest_s <= MAX_GAP_S
