"""A surge: ten times the load that a cluster can take, while two brokers with empty directories join it.

    python -m tests.compat.cluster.surge.surge --seconds 60

Three brokers, later five, with one ZooKeeper server and the default session timeout. Idempotent producers with large
batches offer ten times what the cluster has acknowledged before, and a group reads behind them. Every broker's memory
must stay within MEMORY_BOUND of what it was, nothing may be lost, doubled or out of order, no client may see an error,
and soon after the load has ended all replicas are in sync again, by themselves.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Producer

from tests.compat.cluster.cluster import Cluster
from tests.compat.cluster.ensemble import Ensemble
from tests.compat.cluster.work import create_topic
from tests.compat.support import DEADLINE_S, Sampler, eventually

MIB = 1 << 20
PROGRAMS = Path(__file__).parent
FACTOR = 10
FIRST, JOINING = (1, 2, 3), (4, 5)
PARTITIONS = 6
CALIBRATION_S = 4.0
# Each broker bounds what requests hold (24 MiB, kbroker/server/request_memory.py), the buffers of frames, and what it
# reads for a follower at a time (replica.fetch.response.max.bytes: 10 MiB). The same bound as for a hostile client.
MEMORY_BOUND = 64 * MIB


class Report(NamedTuple):
    capacity: float  # bytes per second
    offered: float
    accepted: float
    records: int
    growth: dict[int, int]  # bytes, at the peak, by broker
    recovery_s: float  # from the last acknowledgement until all replicas are in sync

    def line(self) -> str:
        growth = ", ".join(f"{bytes_ / MIB:.0f}" for bytes_ in self.growth.values())
        return (
            f"capacity {self.capacity / MIB:.1f} MiB/s, offered {self.offered / MIB:.1f} MiB/s, accepted by buffers "
            f"of the clients {self.accepted / MIB:.1f} MiB/s; {self.records} records, all stored once and in order; "
            f"memory of the brokers grew by {growth} MiB; all replicas in sync {self.recovery_s:.1f} s after the last "
            "acknowledgement"
        )


class MemoryMeter(Sampler):
    """The largest resident memory of each broker, without files that are mapped."""

    interval_s = 0.1

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.before: dict[int, int] = {}
        self.peak: dict[int, int] = {}
        self._cluster = cluster

    def growth(self) -> dict[int, int]:
        return {node_id: peak - self.before[node_id] for node_id, peak in self.peak.items()}

    def sample(self) -> None:
        for node_id in self._cluster.running:
            used = anonymous_bytes(self._cluster.brokers[node_id].pid)
            self.before.setdefault(node_id, used)
            self.peak[node_id] = max(self.peak.get(node_id, 0), used)


def anonymous_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no memory")


class Program:
    """One of the programs of this folder."""

    def __init__(self, name: str, *arguments: object) -> None:
        command = [sys.executable, str(PROGRAMS / name), *map(str, arguments)]
        # Linux divides the processors between sessions first (sched_autogroup). In the brokers' session, the threads of
        # the clients would leave the brokers too little to be started.
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def line(self) -> str:
        """Return the next line of its output."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"{self.process.args} has ended with {self.process.wait()}"
        return line

    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self.line())
        assert self.process.wait(DEADLINE_S) == 0
        return result

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


def new_cluster(directory: Path) -> Cluster:
    """Return a cluster whose brokers do not run."""
    # The defaults: ten times too much work for the processors must not end sessions.
    defaults = {"zookeeper_session_timeout_ms": "18000", "replica_lag_time_max_ms": "30000"}
    return Cluster(directory, Ensemble(directory, 1), len(FIRST + JOINING), **defaults)


def surge(cluster: Cluster, seconds: float, producers: int, buffer_kib: int) -> Report:
    """Run a surge in a new cluster. `buffer_kib`: how much each producer keeps in its memory."""
    cluster.ensemble.start()
    cluster.start(*FIRST)
    topic = create_topic(cluster, [[1, 2, 3], [2, 3, 1], [3, 1, 2]] * (PARTITIONS // 3))
    bootstrap = ",".join(cluster.brokers[node_id].bootstrap for node_id in FIRST)
    programs: list[Program] = []
    try:
        with MemoryMeter(cluster) as memory:
            reader = Program("reader.py", bootstrap, topic)
            programs.append(reader)
            times = (CALIBRATION_S, seconds)
            overload = Program("overload.py", bootstrap, topic, PARTITIONS, producers, buffer_kib, FACTOR, *times)
            programs.append(overload)
            assert overload.line() == "calibrated\n"
            end = time.monotonic() + seconds
            cluster.start(*JOINING)
            use_new_brokers(cluster, end)
            load = overload.result()
            finished = time.monotonic()
            cluster.wait_until_healthy()
            recovery_s = time.monotonic() - finished
            records = sum(map(sum, load["sent"]))
            assert reader.process.stdin is not None
            reader.process.stdin.write(f"{records}\n")
            reader.process.stdin.flush()
            found = reader.result()
    finally:
        for program in programs:
            program.kill()
    assert load["errors"] == []
    assert load["acknowledged"] == records
    assert found["wrong"] == []
    expected = {
        f"{producer} {partition}": count
        for producer, counts in enumerate(load["sent"])
        for partition, count in enumerate(counts)
        if count
    }
    assert found["counts"] == expected
    growth = memory.growth()
    assert set(growth) == {*FIRST, *JOINING}
    assert max(growth.values()) <= MEMORY_BOUND, {node_id: used / MIB for node_id, used in growth.items()}
    return Report(load["capacity"], load["offered"], load["accepted"], records, growth, recovery_s)


def use_new_brokers(cluster: Cluster, end: float) -> None:
    """Produce to partitions of the new brokers, until the surge ends."""
    topic = create_topic(cluster, [[4, 5, 1], [5, 4, 2]])
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "log_level": 2})
    number = 0
    while not number or time.monotonic() < end:
        producer.produce(topic, bytes(1000), partition=number % 2, on_delivery=lambda error, _: errors.append(error))
        number += 1
        producer.poll(0.05)
    eventually(lambda: producer.flush(1) == 0, "records on the new brokers", interval=0)
    assert errors == [None] * number


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compat.cluster.surge.surge", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="the duration of the surge")
    parser.add_argument("--producers", type=int, default=20, help="the number of producers")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kbroker-surge-") as name:
        cluster = new_cluster(Path(name))
        try:
            print(surge(cluster, args.seconds, args.producers, 16 * 1024).line())
        finally:
            cluster.end()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
