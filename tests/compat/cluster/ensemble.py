"""Three ZooKeeper servers, which a test may kill and start again, also with older data."""

import shutil
from pathlib import Path

from scripts.ports import free_ports
from tests.compat.support import eventually
from tests.compat.zookeeper.server import ZooKeeperServer


class Ensemble:
    def __init__(self, directory: Path, count: int = 3) -> None:
        self.servers: list[ZooKeeperServer] = []
        self._running: set[int] = set()
        members = [f"127.0.0.1:{free_ports()}:{free_ports()}" for _ in range(count)]
        for index in range(count):
            own = directory / f"zookeeper-{index + 1}"
            own.mkdir(parents=True)
            server = ZooKeeperServer(own)
            server.join_ensemble(index + 1, members)
            self.servers.append(server)

    @property
    def address(self) -> str:
        return ",".join(server.address for server in self.servers)

    def start(self) -> None:
        """Start the servers that do not run, and wait until all serve clients."""
        for index, server in enumerate(self.servers):
            if index not in self._running:
                server.launch()
                self._running.add(index)
        for server in self.servers:
            # Brokers end if the ensemble has no quorum for the time of a session.
            eventually(server.is_serving, "a quorum of ZooKeeper servers")

    def kill(self, *indexes: int) -> None:
        """Kill servers (kill -9), all if none is named."""
        for index in indexes or range(len(self.servers)):
            self.servers[index].kill()
            self._running.discard(index)

    def copy_to(self, directory: Path) -> None:
        """Copy the data of all servers, which are restarted for it, as a backup."""
        self.kill()
        for index, server in enumerate(self.servers):
            shutil.copytree(server.data, directory / str(index))
        self.start()

    def restore_from(self, directory: Path) -> None:
        """Replace the data of all servers by a copy, and restart them."""
        self.kill()
        for index, server in enumerate(self.servers):
            shutil.rmtree(server.data)
            shutil.copytree(directory / str(index), server.data)
        self.start()


class NoEnsemble(Ensemble):
    """For brokers of another program, which do not use ZooKeeper."""

    def __init__(self) -> None:
        self.servers = []
        self._running = set()

    @property
    def address(self) -> str:
        return "127.0.0.1:1"
