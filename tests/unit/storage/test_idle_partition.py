"""The memory of a partition without traffic: a broker may have ten thousand."""

import gc
import subprocess
import sys
import tracemalloc
from pathlib import Path
from unittest.mock import Mock

from kbroker.replica.partition import Partition
from kbroker.replica.partition_state import PartitionState
from kbroker.runtime.real_disk import RealDisk
from tests.unit.support.log_lab import Lab

MAX_BYTES = 2048


def test_an_idle_partition_takes_at_most_2_kib(tmp_path: Path) -> None:
    """In a new process: attributes that other tests add to partitions make the next ones larger."""
    command = [sys.executable, "-m", __name__, str(tmp_path)]
    measured = subprocess.run(command, cwd=Path(__file__).parents[3], check=True, capture_output=True, text=True)
    assert float(measured.stdout) <= MAX_BYTES


def idle_bytes(tmp_path: Path) -> float:
    """Return the bytes of one idle partition."""
    listener, replicas = Mock(), [1]
    disk = RealDisk()
    labs = [Lab(tmp_path / str(number), disk) for number in range(100)]

    def open_partition(lab: Lab) -> Partition:
        partition = Partition(lab.open(), PartitionState(1, 0, replicas, replicas=replicas), listener)
        partition.begin_epoch()
        return partition

    first = open_partition(Lab(tmp_path / "first", disk))
    # Without what the lab allocates, such as a random generator for each log, and other parts of kbroker in here.
    packages = ("storage", "replica", "runtime", "config")
    filters = [tracemalloc.Filter(True, f"*/kbroker/{name}/*") for name in packages]
    filters.append(tracemalloc.Filter(True, __file__))
    gc.collect()
    tracemalloc.start()
    try:
        partitions = [open_partition(lab) for lab in labs]
        gc.collect()
        statistics = tracemalloc.take_snapshot().filter_traces(filters).statistics("filename")
    finally:
        tracemalloc.stop()
    size = sum(statistic.size for statistic in statistics)
    assert first.log.log_end_offset == 0
    return size / len(partitions)


if __name__ == "__main__":
    print(idle_bytes(Path(sys.argv[1])))
