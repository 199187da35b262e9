"""Four brokers and three ZooKeeper servers, each on a host of its own if network namespaces may be created."""

import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.ports import free_ports
from tests.compat.cluster.cluster import SETTINGS, Cluster
from tests.compat.cluster.ensemble import Ensemble
from tests.compat.soak.network import Host, Network
from tests.compat.support import DEADLINE_S, BrokerProcess, eventually
from tests.compat.zookeeper.server import ZooKeeperServer

# One broker more than replicas, so that each can be drained.
BROKERS, ZOOKEEPERS = 4, 3
# Leaderships return to the first replicas while the soak runs.
SOAK_SETTINGS = {"leader.imbalance.check.interval.seconds": "20"}


def broker_host(node_id: int) -> str:
    return f"broker-{node_id}"


def zookeeper_host(index: int) -> str:
    return f"zookeeper-{index + 1}"


HOSTS = [*(broker_host(node_id) for node_id in range(1, BROKERS + 1)), *(zookeeper_host(i) for i in range(ZOOKEEPERS))]


class HostedBroker(BrokerProcess):
    """A broker on a host. Clients and brokers connect to the host's address."""

    def __init__(self, directory: Path, settings: Mapping[str, str], host: Host | None) -> None:
        super().__init__(directory, settings)
        self._prefix: Sequence[str] = host.prefix if host else ()
        if host:
            self.bootstrap = f"{host.address}:9092"

    def _command(self) -> list[str]:
        return [*self._prefix, *super()._command()]


class HostedEnsemble(Ensemble):
    """`paused`: the servers that are stopped with SIGSTOP."""

    def __init__(self, directory: Path, network: Network | None) -> None:
        super().__init__(directory, 0)
        self.paused: set[int] = set()
        for index in range(ZOOKEEPERS):
            own = directory / zookeeper_host(index)
            own.mkdir(parents=True)
            host = network.hosts[zookeeper_host(index)] if network else None
            port, prefix = (2181, host.prefix) if host else (free_ports(), ())
            self.servers.append(ZooKeeperServer(own, host.address if host else "127.0.0.1", port, prefix))
        members = [
            f"{server.host}:2888:3888" if network else f"{server.host}:{free_ports()}:{free_ports()}"
            for server in self.servers
        ]
        for index, server in enumerate(self.servers):
            server.join_ensemble(index + 1, members)

    def mode(self, index: int) -> str:
        """Return leader, follower, or "" while a server is neither."""
        server = self.servers[index]
        try:
            with socket.create_connection((server.host, server.port), timeout=2) as connection:
                connection.sendall(b"srvr")
                text = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
        except OSError:
            return ""
        return next((line.split()[1] for line in text.splitlines() if line.startswith("Mode: ")), "")

    def is_healthy(self) -> bool:
        return sorted(map(self.mode, range(ZOOKEEPERS))) == ["follower", "follower", "leader"]

    def wait_until_healthy(self) -> None:
        eventually(self.is_healthy, "a ZooKeeper leader with two followers", interval=0.2)

    def member(self, role: str) -> int:
        """Return the first server with a role."""
        return next(index for index in range(ZOOKEEPERS) if self.mode(index) == role)

    def pause(self, index: int) -> None:
        self.paused.add(index)
        self.servers[index].pause()

    def resume(self) -> None:
        for index in self.paused:
            self.servers[index].resume()
        self.paused.clear()

    def terminate(self, index: int) -> None:
        """Stop a server with SIGTERM."""
        self.servers[index].kill(signal.SIGTERM)
        self._running.discard(index)


class HostedCluster(Cluster):
    """`ensemble` is a HostedEnsemble. `network`: None if servers share this machine's loopback interface."""

    def __init__(self, directory: Path, network: Network | None) -> None:
        self.network = network
        self.servers = HostedEnsemble(directory, network)
        self.directory = directory
        super().__init__(directory, self.servers, BROKERS)

    def new_broker(
        self, directory: Path, node_id: int, settings: Mapping[str, str] | None = None, connect: str = ""
    ) -> BrokerProcess:
        directory.mkdir(parents=True, exist_ok=True)
        own = {"node.id": str(node_id), "broker.rack": f"rack-{node_id}", "zookeeper.connect": connect or self.connect}
        host = self.network.hosts[broker_host(node_id)] if self.network else None
        return HostedBroker(directory, {**SETTINGS, **SOAK_SETTINGS, **own, **(settings or {})}, host)

    def followers(self, topic: str, partition: int) -> list[int]:
        """Return the replicas of a partition without its leader."""
        leader = self.leader(topic, partition)
        found = (view.partitions.get((topic, partition)) for view in self.views().values() if view is not None)
        part = next(part for part in found if part is not None)
        return [node_id for node_id in part.replicas if node_id != leader]

    def restore(self) -> None:
        """Undo every fault, and wait until all servers run and all replicas are in sync."""
        if self.network:
            self.network.heal()
        self.servers.resume()
        super().restore()
        self.servers.wait_until_healthy()

    def stop_all(self) -> None:
        """Stop all brokers with SIGTERM, all at the same time."""
        processes = [(node_id, self.brokers[node_id].pid) for node_id in self.running]
        for _, pid in processes:
            os.kill(pid, signal.SIGTERM)
        for node_id, _ in processes:
            self.stopped.add(node_id)
            code = self.brokers[node_id].wait()
            assert code == 0, f"broker {node_id} has ended with {code} within {DEADLINE_S:g} s"
