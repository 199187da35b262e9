"""A process with kbroker's embedded coordination service in ZooKeeper's protocol, in place of a ZooKeeper server."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

from kbroker.coordination.embedded import EmbeddedStore
from kbroker.coordination.zookeeper_server.server import ZooKeeperServer as Server
from kbroker.coordination.zookeeper_server.server import first_session_id
from kbroker.runtime.system import new_event_loop, system_environment
from tests.compat.zookeeper.server import MAX_SESSION_S, MIN_SESSION_S, ZooKeeperServer

DIGEST = "kbroker:secret"


class ServedCoordination(ZooKeeperServer):
    """Unlike ZooKeeper's, its sessions end with the process. `digest`: whether clients must know DIGEST."""

    def __init__(self, directory: Path, *, digest: bool = False) -> None:
        super().__init__(directory)
        self._digest = digest

    def _launch(self) -> "subprocess.Popen[bytes]":
        digest = DIGEST if self._digest else ""
        command = [sys.executable, "-m", __name__, str(self.port), str(self.directory / "data"), digest]
        with (self.directory / "output").open("a") as output:
            return subprocess.Popen(command, stdout=output, stderr=output)


async def serve(port: int, directory: str, digest: str) -> None:
    loop = asyncio.get_running_loop()
    environment = system_environment(loop)
    environment.set_thread_count(2)
    last_session = first_session_id(environment.clock.now_ms())
    store = await EmbeddedStore.open(environment, directory, last_session=last_session)
    timeouts_ms = (round(MIN_SESSION_S * 1000), round(MAX_SESSION_S * 1000))
    server = Server(environment, store, digest, timeouts_ms)
    await server.start(port=port)
    stopped = loop.create_future()
    loop.add_signal_handler(signal.SIGTERM, stopped.set_result, None)
    await stopped
    await server.stop()
    await store.close()


if __name__ == "__main__":
    loop = new_event_loop()
    loop.run_until_complete(serve(int(sys.argv[1]), *sys.argv[2:]))
