"""The two clusters that are compared: three brokers of kbroker, and three nodes of Apache Kafka 4.4.0.

Both have replication factor 3, min.insync.replicas 2 and equal session timeouts, and else their defaults. kbroker is
`kbroker start --brokers 3`, whose parent is counted too; Kafka's nodes are brokers and controllers.
"""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from scripts.benchmark.peers import Kafka, Kbroker, Peer, java, kafka_classpath, wait_for_port
from scripts.ports import free_ports

SESSION_MS = 6_000
STOP_S = 30
# How long a broker that was killed may take until it listens: it reads all its logs.
RESTART_S = 600.0
BROKERS = 3


class KbrokerCluster(Kbroker):
    """`brokers` processes and their parent, whose ports count up from `port`."""

    def __init__(self, directory: Path, brokers: int = BROKERS) -> None:
        super().__init__(directory)
        self.brokers = brokers
        self.port = free_ports(brokers)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports())

    def ports(self) -> list[int]:
        """Return the client ports of the brokers 1, 2, ..."""
        return [self.port + index for index in range(self.brokers)]

    def command(self) -> list[str]:
        configs = (
            f"zookeeper.session.timeout.ms={SESSION_MS}",
            f"min.insync.replicas={min(2, self.brokers)}",
        )
        options = [word for config in configs for word in ("--set", config)]
        return [
            sys.executable, "-m", "kbroker", "start", "--brokers", str(self.brokers), "--data-dir",
            str(self.directory / "data"), "--listen", f"127.0.0.1:{self.port}", *options,
        ]  # fmt: skip

    def broker_pid(self, node_id: int) -> int:
        assert self.process is not None
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return sorted(map(int, children))[node_id - 1]

    def restart(self, node_id: int) -> subprocess.Popen[bytes]:
        """Start a broker that was killed, as a process of its own, and wait until it listens."""
        config = self.directory / "data" / f"broker-{node_id}.properties"
        command = [sys.executable, "-m", "kbroker", "start", "--config", str(config)]
        with self.log.open("ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.tree)
        try:
            wait_for_port(self.ports()[node_id - 1], process, self.log, RESTART_S)
        except SystemExit:
            process.kill()
            process.wait()
            raise
        return process


class KafkaCluster(Peer):
    """Three processes, each with the heap of Kafka's start script."""

    name = "Apache Kafka"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.nodes = [Kafka(directory / f"node-{node_id}") for node_id in range(1, BROKERS + 1)]

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes)

    def ports(self) -> list[int]:
        """Return the client ports of the nodes 1, 2, 3."""
        return [node.port for node in self.nodes]

    def prepare(self) -> None:
        controllers = [free_ports() for _ in self.nodes]
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
            with node.log.open("ab") as log:
                node.process = subprocess.Popen(node.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        for node in self.nodes:
            assert node.process is not None
            wait_for_port(node.port, node.process, node.log)

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

    def restart(self, node_id: int) -> subprocess.Popen[bytes]:
        """Start a node that was killed, and wait until it listens."""
        node = self.nodes[node_id - 1]
        assert node.process is not None
        node.process.wait()
        node.start_s = RESTART_S
        node.start()
        return node.process


Cluster = KbrokerCluster | KafkaCluster

T = TypeVar("T")


def measure_clusters(base: Path, rounds: int, no_kafka: bool, measure: Callable[[Cluster], T]) -> dict[str, list[T]]:
    """Return the results of all rounds by server, which take turns. `measure` starts its cluster, which is new."""
    kinds: list[type[Cluster]] = [KbrokerCluster]
    if not no_kafka:
        kafka_classpath()
        kinds.append(KafkaCluster)
    results: dict[str, list[T]] = {kind.name: [] for kind in kinds}
    for number in range(rounds):
        for kind in kinds if number % 2 else reversed(kinds):
            cluster = kind(base / f"{kind.__name__}-{number}")
            cluster.prepare()
            try:
                results[kind.name].append(measure(cluster))
            finally:
                cluster.stop()
                shutil.rmtree(cluster.directory, ignore_errors=True)
            print(f"{kind.name}: {results[kind.name][-1]}", file=sys.stderr, flush=True)
    return results
