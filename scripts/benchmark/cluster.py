"""Three brokers of kbroker and three nodes of Apache Kafka 4.3.1, side by side: `./scripts/bench --cluster`.

Both run on this machine, with replication factor 3, min.insync.replicas 2, acks=all and equal session timeouts. kbroker
is `kbroker start --brokers 3`, whose parent is counted too; Kafka's nodes are brokers and controllers.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from clients import latency, produce, run, with_warm_up
from kafka import KafkaProducer
from metering import Meter, per_record
from peers import Kafka, Kbroker, Peer, environment, free_port, java, kafka_classpath, wait_for_port

SESSION_MS = 6_000
STOP_S = 30
BROKERS = 3


class KbrokerCluster(Kbroker):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        # The brokers have consecutive ports, below the range of outgoing connections.
        self.port = 21_000 + os.getpid() % 9_000

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{self.port + index}" for index in range(BROKERS))

    def command(self) -> list[str]:
        configs = (f"zookeeper.session.timeout.ms={SESSION_MS}", "min.insync.replicas=2")
        options = [word for config in configs for word in ("--set", config)]
        return [
            sys.executable, "-m", "kbroker", "start", "--brokers", str(BROKERS), "--data-dir",
            str(self.directory / "data"), "--listen", f"127.0.0.1:{self.port}", *options,
        ]  # fmt: skip

    def broker_pid(self, node_id: int) -> int:
        assert self.process is not None
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return sorted(map(int, children))[node_id - 1]


class KafkaCluster(Peer):
    """Three processes; `process` is the first."""

    name = "Apache Kafka"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.nodes = [Kafka(directory / f"node-{node_id}", "512m") for node_id in range(1, BROKERS + 1)]

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes)

    def prepare(self) -> None:
        controllers = [free_port() for _ in self.nodes]
        voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(controllers, 1))
        for number, (node, controller) in enumerate(zip(self.nodes, controllers, strict=True), 1):
            path = node.directory / "server.properties"
            path.write_text(
                f"process.roles=broker,controller\nnode.id={number}\ncontroller.quorum.voters={voters}\n"
                f"listeners=PLAINTEXT://{node.bootstrap},CONTROLLER://127.0.0.1:{controller}\n"
                f"advertised.listeners=PLAINTEXT://{node.bootstrap}\ncontroller.listener.names=CONTROLLER\n"
                f"log.dirs={node.directory}/data\ndefault.replication.factor=3\nmin.insync.replicas=2\n"
                f"broker.session.timeout.ms={SESSION_MS}\n"
            )
            command = ("format", "--ignore-formatted", "-t", "k" + "A" * 21, "-c", str(path))
            quiet = subprocess.DEVNULL
            subprocess.run(java("kafka.tools.StorageTool", *command), check=True, stdout=quiet, stderr=quiet)

    def start(self) -> None:
        for node in self.nodes:
            with open(node.directory / "server.log", "ab") as log:
                node.process = subprocess.Popen(node.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        for node in self.nodes:
            assert node.process is not None
            wait_for_port(node.port, node.process)

    def stop(self, how: int = signal.SIGTERM) -> None:
        """Stop all nodes at once, and kill those that wait for a quorum of controllers which has ended already."""
        running = [node.process for node in self.nodes if node.process is not None]
        for process in running:
            process.send_signal(how)
        with suppress(subprocess.TimeoutExpired):
            for process in running:
                process.wait(timeout=STOP_S)
        for node in self.nodes:
            node.kill()

    def processes(self) -> list[int]:
        return [pid for node in self.nodes if node.process is not None for pid in node.processes()]

    def broker_pid(self, node_id: int) -> int:
        process = self.nodes[node_id - 1].process
        assert process is not None
        return process.pid


Cluster = KbrokerCluster | KafkaCluster


def cli(peer: Peer, *args: str) -> str:
    return run([sys.executable, "-m", "kbroker", *args, "--bootstrap", peer.bootstrap])


def new_topic(peer: Peer, partitions: int) -> str:
    name = f"topic-{time.monotonic_ns()}"
    cli(peer, "topics", "create", name, "--partitions", str(partitions), "--replication-factor", "3")
    return name


def throughput(peer: Cluster, records: int, size: int, *properties: str) -> dict[str, float]:
    topic = new_topic(peer, 6)
    meter = Meter(peer)
    rate = produce(peer, topic, records, size, *properties)
    used = meter.figure(per_record(with_warm_up(records)), rate)
    return {"records/s": rate, "processor us/record": used.processor_time or 0.0}


def paced(peer: Cluster, records: int) -> dict[str, float]:
    p50, p99 = latency(peer, new_topic(peer, 6), "produce", records)
    return {"p50 ms": p50 / 1000, "p99 ms": p99 / 1000}


def gap(peer: Cluster, number: signal.Signals) -> dict[str, float]:
    """Send a signal to the leader of a partition, and return the longest time without an acknowledgement."""
    topic = new_topic(peer, 1)
    acknowledged = [time.monotonic()]
    stopping = threading.Event()
    producer = KafkaProducer(
        bootstrap_servers=peer.bootstrap.split(","), acks="all", enable_idempotence=True, linger_ms=0,
        retry_backoff_ms=20, reconnect_backoff_ms=20, reconnect_backoff_max_ms=100,
    )  # fmt: skip

    def send() -> None:
        while not stopping.wait(0.005):
            producer.send(topic, b"x" * 100).add_callback(lambda _: acknowledged.append(time.monotonic()))

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    time.sleep(2)
    (description,) = json.loads(cli(peer, "topics", "describe", topic, "--json"))
    before = len(acknowledged)
    os.kill(peer.broker_pid(description["partitions"][0]["leader"]), number)
    time.sleep(SESSION_MS / 1000 + 6)
    stopping.set()
    thread.join()
    producer.flush(60)
    producer.close()
    times = acknowledged[before - 1 :]
    return {"s": max(later - earlier for earlier, later in pairwise(times))}


def creation(peer: Cluster) -> dict[str, float]:
    start = time.monotonic()
    new_topic(peer, 1000)
    return {"s": time.monotonic() - start}


def cases(scale: float) -> list[tuple[str, Callable[[Cluster], dict[str, float]]]]:
    """The last two end a broker, and the cluster is started again after each."""
    return [
        ("produce 1 KiB, 6 partitions, default batches", lambda peer: throughput(peer, int(100_000 * scale), 1024)),
        ("produce 100 B, 6 partitions, 64 KiB batches",
         lambda peer: throughput(peer, int(1_000_000 * scale), 100, "batch.size=65536", "linger.ms=5")),
        ("produce latency at 2,000/s", lambda peer: paced(peer, int(20_000 * scale))),
        ("memory of all processes", lambda peer: {"MiB": peer.resident_mib()}),
        ("create a topic of 1,000 partitions", creation),
        (f"gap after kill -9 of a leader, session timeout {SESSION_MS // 1000} s",
         lambda peer: gap(peer, signal.SIGKILL)),
        ("gap after a clean stop of a leader", lambda peer: gap(peer, signal.SIGTERM)),
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench --cluster", description=__doc__)
    parser.add_argument("--only", metavar="TEXT", default="", help="only the cases whose name contains this")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the numbers of records")
    args = parser.parse_args()
    kafka_classpath()
    machine = environment()
    print(f"{time.strftime('%Y-%m-%d')}, {machine['cores']} cores, {machine['memory_gib']} GiB, one round each\n")
    print("| case | figure | kbroker | Apache Kafka |\n|---|---|---|---|")
    chosen = [(name, measure) for name, measure in cases(args.scale) if args.only in name]
    base = Path(tempfile.mkdtemp(prefix="kbroker-bench-"))
    results: dict[str, list[dict[str, float]]] = {name: [] for name, _ in chosen}
    try:
        for kind, directory in ((KbrokerCluster, "kbroker"), (KafkaCluster, "kafka")):
            peer = kind(base / directory)
            peer.prepare()
            try:
                peer.start()
                time.sleep(5)  # until all brokers are registered
                for name, measure in chosen:
                    results[name].append(measure(peer))
                    print(f"{peer.name}, {name}: {results[name][-1]}", file=sys.stderr, flush=True)
                    if name.startswith("gap"):
                        peer.stop()
                        peer.start()
                        time.sleep(5)
            finally:
                peer.stop()
    finally:
        shutil.rmtree(base, ignore_errors=True)
    for name, (ours, theirs) in results.items():
        for unit, value in ours.items():
            print(f"| {name} | {unit} | {value:,.2f} | {theirs[unit]:,.2f} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
