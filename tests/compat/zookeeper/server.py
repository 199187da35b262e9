"""A real ZooKeeper server, from the jars of PySpark, and a proxy that cuts and stalls connections to it."""

import asyncio
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark

from kbroker.pipeline.spark.installation import require_java
from scripts.ports import free_ports
from tests.compat.java_programs import QUICK_JVM, class_archive
from tests.compat.support import DEADLINE_S, eventually

JARS = Path(pyspark.__file__).parent / "jars"
# Few jars, because Java opens all of them when it starts.
PATTERNS = ("zookeeper-*", "slf4j-api-*", "metrics-core-*", "netty-*", "snappy-*", "commons-io-*")
# The least session timeout of this server is 2 ticks. The default of the most, 20, is too short for a restart on a busy
# machine.
TICK_MS = 500
MIN_SESSION_S, MAX_SESSION_S = 2 * TICK_MS / 1000, 60.0


class ZooKeeperServer:
    """The server at one port with one data directory, which a test may kill, restart, pause and resume."""

    def __init__(self, directory: Path, host: str = "127.0.0.1", port: int = 0, prefix: Sequence[str] = ()) -> None:
        """`port`: 0 for a free one. `prefix`: the beginning of its command, to run it in a network namespace."""
        self.host = host
        self.port = port or free_ports()
        self.address = f"{host}:{self.port}"
        self._prefix = prefix
        self.directory = directory
        self._main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        self._process: subprocess.Popen[bytes] | None = None
        (directory / "zoo.cfg").write_text(
            f"dataDir={directory}\nclientPort={self.port}\nclientPortAddress={host}\nadmin.enableServer=false\n"
            f"tickTime={TICK_MS}\nmaxSessionTimeout={MAX_SESSION_S * 1000:.0f}\nmaxClientCnxns=0\n"
        )

    def make_quorum_of_two(self) -> None:
        """Make it a member of an ensemble whose other server does not run, in read-only mode."""
        self.join_ensemble(1, [f"127.0.0.1:{free_ports()}:{free_ports()}" for _ in range(2)])

    def require_tls(self, certificate: Path, both: Path) -> None:
        """Accept TLS only. `both`: a PEM file with the key and the certificate, which clients must present too."""
        path = self.directory / "zoo.cfg"
        plain = path.read_text().replace("clientPort=", "secureClientPort=")
        factory = "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory"
        path.write_text(
            plain.replace("clientPortAddress=", "secureClientPortAddress=")
            + f"{factory}\nssl.keyStore.location={both}\nssl.trustStore.location={certificate}\nssl.clientAuth=need\n"
        )

    def join_ensemble(self, number: int, members: Sequence[str]) -> None:
        """Make it member `number`, from 1, of an ensemble. `members`: HOST:PORT:ELECTION_PORT of each.

        One server can be an ensemble: unlike a server alone, its transaction ids rise with each start.
        """
        with (self.directory / "zoo.cfg").open("a") as config:
            # In ticks, with time for a slow machine.
            config.write("initLimit=40\nsyncLimit=20\nstandaloneEnabled=false\n")
            for index, member in enumerate(members, 1):
                config.write(f"server.{index}={member}\n")
        (self.directory / "myid").write_text(str(number))
        self._main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

    @property
    def data(self) -> Path:
        """The directory with the transactions and snapshots."""
        return self.directory / "version-2"

    def start(self) -> None:
        self.launch()
        self.wait_until_listening()

    def launch(self, *options: str) -> None:
        """Start the process without waiting for it. `options`: of the JVM."""
        self._process = self._launch(*options)

    def wait_until_listening(self) -> None:
        eventually(self._is_listening, "a ZooKeeper server")

    def _launch(self, *options: str) -> "subprocess.Popen[bytes]":
        jars = [str(path) for pattern in PATTERNS for path in sorted(JARS.glob(f"{pattern}.jar"))]
        java = [require_java(os.environ).executable, "-Xmx128m", *QUICK_JVM, *(options or archived_classes())]
        java += ["-Dreadonlymode.enabled=true", "-cp", ":".join(jars)]
        with (self.directory / "output").open("a") as output:
            command = [*self._prefix, *java, self._main, str(self.directory / "zoo.cfg")]
            return subprocess.Popen(command, stdout=output, stderr=output)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End the process with a signal, and wait for its end."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(DEADLINE_S)
            self._process = None

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        # The server may respond until it has stopped.
        os.waitpid(self._process.pid, os.WUNTRACED)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def is_serving(self) -> bool:
        """Return whether it serves clients: alone, or in an ensemble that has a quorum."""
        # A server that is just starting may accept a connection, and never respond.
        with suppress(OSError), socket.create_connection((self.host, self.port), 5.0) as connection:
            connection.sendall(b"srvr")
            with connection.makefile("rb") as response:
                return b"\nMode: " in response.read()
        return False

    def _is_listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((self.host, self.port)) == 0


def archived_classes() -> list[str]:
    """Return the options of a JVM that maps a server's classes from an archive: a third of its start less."""

    def train(option: str) -> None:
        with tempfile.TemporaryDirectory() as directory:
            server = ZooKeeperServer(Path(directory))
            server.join_ensemble(1, [f"127.0.0.1:{free_ports()}:{free_ports()}"])
            server.launch("-Xlog:disable", option)
            eventually(server.is_serving, "a ZooKeeper server")
            server.kill(signal.SIGTERM)

    return class_archive("zookeeper", JARS, train)


@contextmanager
def running(server: ZooKeeperServer) -> Iterator[ZooKeeperServer]:
    try:
        server.start()
        yield server
    finally:
        server.kill()


class Proxy:
    """Forwards connections to a server, on the event loop of the test."""

    def __init__(self, port: int) -> None:
        self.address = ""
        self.connections = 0
        # As many of the next connections never get a response, as some that a starting ZooKeeper accepts.
        self.unserved = 0
        self._port = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        # Cleared while bytes of that direction are held.
        self._requests = asyncio.Event()
        self._responses = asyncio.Event()
        self._requests.set()
        self._responses.set()

    async def start(self) -> "Proxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def cut(self) -> None:
        """Close all connections, and drop the bytes that are held."""
        for writer in self._writers:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()

    def stall(self, *, requests: bool = True, responses: bool = True) -> None:
        """Hold bytes in these directions, in new connections too."""
        if requests:
            self._requests.clear()
        if responses:
            self._responses.clear()

    def resume(self) -> None:
        self._requests.set()
        self._responses.set()

    async def stop(self) -> None:
        self.cut()
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        if self.unserved:
            self.unserved -= 1
            return
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(server_writer)
        for source, sink, gate in ((reader, server_writer, self._requests), (server_reader, writer, self._responses)):
            task = asyncio.create_task(self._forward(source, sink, gate))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, gate: asyncio.Event) -> None:
        with suppress(OSError):
            while data := await source.read(65_536):
                await gate.wait()
                sink.write(data)
        sink.transport.abort()


async def until(condition: Callable[[], object], description: str) -> None:
    """Wait on the event loop until the condition holds."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)
    assert condition(), description
