"""Transcripts of Kafka's tools against three brokers; see tests/compat/kafka_tools/transcript.py for the format.

More commands: `kill NODE` (kill -9) waits until the other brokers have noticed; `start NODE` starts it again and waits
until it is in sync everywhere. `await TOPIC-PARTITION isr=1,2 leader=1 replicas=1,2` waits until every running broker
says so. `fill TOPIC BYTES` writes to partition 0. Broker ids are compared, addresses are shown as `BROKER1` and so on.

`python -m tests.compat.kafka_tools.cluster.cluster_shell [NAME...]` records the transcripts again, with three nodes of
Apache Kafka 4.4.0.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer

from scripts.benchmark.cluster.clusters import Cluster, KafkaCluster, KbrokerCluster
from tests.compat.cluster.views import ClusterView, cluster_view
from tests.compat.kafka_tools.jvm import Jvm
from tests.compat.kafka_tools.transcript import Shell, read, replay, write
from tests.compat.support import DEADLINE_S, eventually

HERE = Path(__file__).parent / "transcripts"
NODES = (1, 2, 3)
CONFIGS = {
    # A preferred leader returns only when a transcript says so.
    "auto.leader.rebalance.enable": "false",
    "default.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
REPLACED = (
    # The broker that is the controller or coordinates a group, the directories, and the sizes of batches differ.
    (re.compile(r"\b(LeaderId: +)\d+"), r"\1N"),
    (re.compile(r"BROKER\d +\(\d\)"), "BROKER (N)"),
    (re.compile(r"(MaxFollowerLagTimeMs: +)\d+"), r"\1N"),
    (re.compile(r"(?<=throttles on topics ).*"), lambda found: ",".join(sorted(found[0].split(",")))),
    (re.compile(r"(Cluster ID: )\S+"), r"\1ID"),
    (re.compile(r'"/[^"]*"'), '"DIRECTORY"'),
    (re.compile(r"(LogEndOffset )\d+( LastFetchTimestamp)"), r"\1LAG\2"),
    (re.compile(r'"size":[1-9]\d*'), '"size":SIZE'),
)
# The partitions of a directory in the output of kafka-log-dirs, which are in no order.
PARTITIONS = re.compile(r'(?<="partitions":\[\{)[^\]]+(?=\}\])')


class KafkaNodes(KafkaCluster):
    """Three nodes of Apache Kafka."""

    def prepare(self) -> None:
        super().prepare()
        for node in self.nodes:
            with (node.directory / "server.properties").open("a") as properties:
                properties.writelines(f"{name}={value}\n" for name, value in CONFIGS.items())


class KbrokerNodes(KbrokerCluster):
    """`kbroker start --brokers 3`."""

    def command(self) -> list[str]:
        return super().command() + [word for item in CONFIGS.items() for word in ("--set", "=".join(item))]


class Nodes:
    """Three brokers, of which some are dead. `addresses` by broker id."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.bootstrap = cluster.bootstrap
        self.addresses = dict(zip(NODES, cluster.bootstrap.split(","), strict=True))
        self._pids = {node_id: cluster.broker_pid(node_id) for node_id in NODES}
        self._restarted: dict[int, subprocess.Popen[bytes]] = {}
        self.dead: set[int] = set()

    def views(self) -> list[ClusterView]:
        """Return the metadata of all running brokers; none if one of them does not respond."""
        views = [cluster_view(address) for node_id, address in self.addresses.items() if node_id not in self.dead]
        return [] if None in views else [view for view in views if view]

    def kill(self, node_id: int) -> None:
        """Kill a broker (kill -9), and wait until the others have noticed."""
        os.kill(self._pids[node_id], signal.SIGKILL)
        self.dead.add(node_id)
        eventually(
            lambda: all_are(self.views(), lambda view: node_id not in view.brokers), f"the death of broker {node_id}"
        )

    def restart(self, node_id: int) -> None:
        """Start a dead broker, and wait until all replicas are in sync."""
        process = self._restarted[node_id] = self._cluster.restart(node_id)
        self._pids[node_id] = process.pid
        self.dead.remove(node_id)
        eventually(
            lambda: all_are(self.views(), lambda view: view.brokers == set(NODES) and view.is_fully_replicated),
            f"broker {node_id} is in sync",
        )

    def stop(self) -> None:
        """Kill everything."""
        self._cluster.stop(signal.SIGKILL)
        for process in self._restarted.values():
            process.kill()
            process.wait()


def all_are(views: list[ClusterView], condition: Callable[[ClusterView], bool]) -> bool:
    return bool(views) and all(map(condition, views))


class ClusterShell(Shell):
    """Runs the commands of one transcript against three brokers."""

    def __init__(self, jvm: Jvm, nodes: Nodes) -> None:
        super().__init__(jvm, nodes.bootstrap)
        self._nodes = nodes
        self._node = "NODE"  # ids are shown as they are

    def builtins(self) -> dict[str, Callable[[list[str], str], None]]:
        own = {"kill": self._kill, "start": self._start, "await": self._await, "fill": self._fill}
        return {**super().builtins(), **own}

    def _plain(self, line: str) -> str:
        for node_id, address in self._nodes.addresses.items():
            line = line.replace(address, f"BROKER{node_id}")
            line = re.sub(rf"\b{address.rpartition(':')[2]}\b", f"PORT{node_id}", line)
        line = PARTITIONS.sub(lambda found: "},{".join(sorted(found[0].split("},{"))), line)
        for pattern, replacement in REPLACED:
            line = pattern.sub(replacement, line)
        return super()._plain(line)

    def _kill(self, words: list[str], _: str) -> None:
        self._nodes.kill(int(words[0]))

    def _start(self, words: list[str], _: str) -> None:
        self._nodes.restart(int(words[0]))

    def _await(self, words: list[str], _: str) -> None:
        topic, _, partition = words[0].rpartition("-")
        conditions = dict(word.split("=") for word in words[1:])

        def is_met(view: ClusterView) -> bool:
            part = view.partitions.get((topic, int(partition)))
            if part is None:
                return False
            found = {"isr": sorted(part.isr), "replicas": list(part.replicas), "leader": [part.leader]}
            return all(",".join(map(str, found[name])) == value for name, value in conditions.items())

        eventually(lambda: all_are(self._nodes.views(), is_met), " ".join(words))

    def _fill(self, words: list[str], _: str) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "log_level": 2})
        for _ in range(int(words[1]) // 10_000):
            producer.produce(words[0], os.urandom(10_000), partition=0)
        assert producer.flush(DEADLINE_S) == 0

    def close(self) -> None:
        """Start the brokers that are not running, and delete the topics."""
        for node_id in sorted(self._nodes.dead):
            self._nodes.restart(node_id)
        super().close()


def main(names: list[str]) -> None:
    """Record transcripts again."""
    with tempfile.TemporaryDirectory() as temporary:
        cluster = KafkaNodes(Path(temporary))
        cluster.prepare()
        jvm = Jvm(Path(temporary) / "log")
        cluster.start()
        nodes = Nodes(cluster)
        try:
            for path in sorted(HERE.glob("*.txt")):
                if names and path.stem not in names:
                    continue
                shell = ClusterShell(jvm, nodes)
                path.write_text(write(replay(shell, read(path.read_text()))))
                shell.close()
                print(path.name)
        finally:
            nodes.stop()
            jvm.close()


if __name__ == "__main__":
    main(sys.argv[1:])
