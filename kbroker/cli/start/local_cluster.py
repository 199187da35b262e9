"""The parent of the brokers: serves the coordination service to them, forwards signals, and reports what has ended.

It restarts nothing. The configs of each broker are in a file, with which it can be started again by hand.
"""

import asyncio
import gc
import os
import shlex
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from secrets import token_hex

from kbroker.cli.common.errors import CliError, exception_text, print_error, usage_error
from kbroker.cli.start.broker_process import ForkedBroker, end_orphans, fork_broker
from kbroker.cli.start.directories import broker_directory
from kbroker.config import BrokerConfig, Endpoint
from kbroker.config.broker.security import FirstUser
from kbroker.config.sources.static_configs import StaticConfigs
from kbroker.coordination.embedded import EmbeddedStore
from kbroker.coordination.interface import CoordinationError
from kbroker.coordination.zookeeper_server.server import ZooKeeperServer, first_session_id
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.real_disk import RealDisk, RealLock
from kbroker.runtime.system import new_event_loop, notify_service_manager, raise_descriptor_limit, system_environment
from kbroker.storage import file_names
from kbroker.storage.file_names import META_PROPERTIES

log = EventLogger("kbroker")

THREADS = 2
# A broker that has not ended within this time after a stop signal is killed.
STOP_S = 60.0
# Sessions of local brokers may be as short as these, in milliseconds.
SESSION_TIMEOUTS_MS = (1_000, 60_000)


def run_local_cluster(
    properties: StaticConfigs, brokers: int, first_users: Sequence[FirstUser], on_ready: Callable[[str], None]
) -> int:
    """Run brokers until SIGTERM, SIGINT or SIGHUP. Returns the exit status. Raises CliError, ConfigError, OSError.

    `on_ready`: called with the addresses of all brokers.
    """
    # Absolute, because a broker may be started again from elsewhere, where it must not begin with an empty directory.
    directory = os.path.abspath(properties["log.dirs" if "log.dirs" in properties else "log.dir"].text)
    # One for each broker, so that the sessions of a broker that has ended are known.
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(min(brokers, MAX_BROKERS))]
    connect = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    digest = f"kbroker:{token_hex(16)}"
    settings = broker_settings(properties, brokers, directory, connect, digest)
    configs = [BrokerConfig.load(each) for each in settings]
    check_directory(directory, brokers)
    os.makedirs(directory, exist_ok=True)
    # Before anything is written: the restart files are those of a cluster that may be running.
    lock = _lock(directory)
    end_orphans(directory, brokers)
    restart_files = [_write_restart_file(directory, node_id, each) for node_id, each in enumerate(settings, 1)]
    raise_descriptor_limit()
    # Imported once, before the processes are forked.
    import kbroker.cli.start.run
    import kbroker.coordination.zookeeper.open_session  # noqa: F401

    gc.collect()
    gc.freeze()
    gc.enable()
    parent_life = os.pipe()
    own_descriptors = [lock.fileno(), *(listener.fileno() for listener in listeners)]
    processes = [
        fork_broker(config, parent_life, own_descriptors, () if index else first_users)
        for index, config in enumerate(configs)
    ]
    loop = new_event_loop()
    try:
        cluster = LocalCluster(loop, directory, digest, processes, restart_files, on_ready)
        return loop.run_until_complete(cluster.run(listeners))
    except (OSError, CoordinationError) as error:
        print_error(f"the coordination service cannot run: {exception_text(error)}")
        return 1
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
        loop.close()
        lock.close()


def _lock(directory: str) -> RealLock:
    """Lock the directory. Raises CliError if another process uses it, OSError."""
    try:
        return RealDisk().lock(f"{directory}/{file_names.LOCK}")
    except BlockingIOError:
        raise CliError(f"{directory} is in use by another kbroker") from None


def _write_restart_file(directory: str, node_id: int, settings: dict[str, str]) -> str:
    """Write the configs of a broker to a file that only this user can read: it has the credentials of the cluster."""
    path = f"{directory}/broker-{node_id}.properties"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(properties_text(settings))
    return path


class LocalCluster:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        directory: str,
        digest: str,
        processes: list[ForkedBroker],
        restart_files: list[str],
        on_ready: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._directory = directory
        self._digest = digest
        self._processes = processes
        self._restart_files = restart_files
        self._report_ready = on_ready
        self._ended: asyncio.Future[None] = loop.create_future()
        self._server: ZooKeeperServer | None = None
        self._is_ready = False
        self._is_stopping = False
        self._has_failed = False

    async def run(self, listeners: Sequence[socket.socket]) -> int:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._loop.add_signal_handler(number, self._stop, number)
        for process in self._processes:
            self._loop.add_reader(process.output, self._on_output, process)
        environment = system_environment(self._loop)
        environment.set_thread_count(THREADS)
        last_session = first_session_id(environment.clock.now_ms())
        path = coordination_directory(self._directory)
        store = await EmbeddedStore.open(environment, path, self._on_store_failure, last_session)
        server = self._server = ZooKeeperServer(environment, store, self._digest, SESSION_TIMEOUTS_MS)
        await server.serve(listeners)
        await self._ended
        await server.stop()
        await store.close()
        return 1 if self._has_failed else 0

    def _on_output(self, process: ForkedBroker) -> None:
        process.read()
        if process.status is None:
            self._on_ready()
            return
        self._loop.remove_reader(process.output)
        if self._server is not None:
            # Other brokers need not wait for the session timeout.
            self._server.end_sessions(process.node_id - 1)
        if not self._is_stopping:
            self._report_end(process)
        elif process.status:
            self._has_failed = True
        self._end_if_idle()

    def _on_ready(self) -> None:
        if not self._is_ready and all(process.is_ready for process in self._processes):
            self._is_ready = True
            self._report_ready(",".join(process.bootstrap.strip() for process in self._processes))
            notify_service_manager("READY=1")

    def _report_end(self, process: ForkedBroker) -> None:
        if not self._is_ready:
            self._has_failed = True
            log.error("a broker did not start", broker=process.node_id, status=process.status)
            self._stop(signal.SIGTERM)
            return
        restart = f"kbroker start --config {shlex.quote(self._restart_files[process.node_id - 1])}"
        log.error("a broker has ended", broker=process.node_id, status=process.status, restart=restart)

    def _end_if_idle(self) -> None:
        """End after the last broker, unless brokers that were started by hand use the coordination service."""
        if any(process.status is None for process in self._processes):
            return
        if not self._is_stopping and self._server is not None and self._server.has_sessions:
            return
        self._has_failed |= not self._is_stopping
        if not self._ended.done():
            self._ended.set_result(None)

    def _stop(self, number: signal.Signals) -> None:
        """Stop the brokers, which need the coordination service until they have ended."""
        if not self._is_stopping:
            self._is_stopping = True
            log.info("stopping", signal=number.name)
            notify_service_manager("STOPPING=1")
            self._loop.call_later(STOP_S, self._kill)
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        self._end_if_idle()

    def _kill(self) -> None:
        for process in self._processes:
            if process.status is None:
                log.error("a broker does not stop, and is killed", broker=process.node_id, waited_s=STOP_S)
                process.send_signal(signal.SIGKILL)

    def _on_store_failure(self, error: CoordinationError) -> None:
        log.error("the coordination service has failed", reason=error)
        self._has_failed = True
        self._stop(signal.SIGTERM)


# Configs that the command line must not set: they differ between the brokers, or the coordination service lacks them.
OWN = (
    "node.id", "broker.id", "zookeeper.connect", "zookeeper.set.acl", "kbroker.zookeeper.digest",
    "kbroker.inter.broker.listener",
)  # fmt: skip
MAX_BROKERS = 100
# A broker that is killed is replaced after this time. kbroker's default is for a ZooKeeper in a network.
SESSION_TIMEOUT_MS = 6_000
# The parent opens the coordination service while the brokers start, which takes long on a slow disk.
CONNECTION_TIMEOUT_MS = 30_000


def coordination_directory(directory: str) -> str:
    return f"{directory}/coordination"


def check_directory(directory: str, brokers: int) -> None:
    """Raise CliError if the directory is that of a single broker or of more brokers, or has no metadata."""
    if os.path.exists(f"{directory}/{META_PROPERTIES}"):
        raise CliError(f"{directory} has the data of a single broker: start it without --brokers")
    # Not only that of the next broker, which may have lost its directory.
    if any(os.path.isdir(broker_directory(directory, number)) for number in range(brokers + 1, MAX_BROKERS + 1)):
        count = "one broker" if brokers == 1 else f"{brokers} brokers"
        raise CliError(f"{directory} has the data of more than {count}, and partitions may be on any of them")
    coordination = coordination_directory(directory)
    owned = (f"{broker_directory(directory, number)}/{META_PROPERTIES}" for number in range(1, brokers + 1))
    if not os.path.isdir(coordination) and any(map(os.path.exists, owned)):
        raise CliError(
            f"{directory} has the data of brokers, but not the metadata of their topics: restore {coordination}"
        )


def broker_settings(
    properties: StaticConfigs, brokers: int, directory: str, connect: Sequence[str], digest: str
) -> list[dict[str, str]]:
    """Return the configs of each broker.

    `connect`: an address of the coordination service for each broker; `digest`: its credentials. Ports count up from
    those that are configured. Raises CliError, ConfigError.
    """
    if not 1 <= brokers <= MAX_BROKERS:
        raise usage_error(f"--brokers must be from 1 to {MAX_BROKERS}")
    for name in OWN:
        if name in properties:
            raise usage_error(f"{name} cannot be set with --brokers ({properties[name].origin})")
    texts = {name: source.text for name, source in properties.items() if name not in ("log.dir", "log.dirs")}
    config = BrokerConfig.load(texts)
    ports = sorted(endpoint.port for endpoint in config.listeners if endpoint.port)
    if any(port - former < brokers for former, port in pairwise(ports)):
        raise CliError(f"ports count up from broker to broker: those of two listeners must be {brokers} apart")
    return [
        {
            **_defaults(brokers),
            **texts,
            **_addresses(config, texts, node_id - 1),
            "node.id": str(node_id),
            "log.dirs": broker_directory(directory, node_id),
            "zookeeper.connect": connect[node_id - 1],
            "kbroker.zookeeper.digest": digest,
        }
        for node_id in range(1, brokers + 1)
    ]


def _defaults(brokers: int) -> dict[str, str]:
    factor = str(min(3, brokers))
    return {
        "default.replication.factor": factor,
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.replication.factor": factor,
        "transaction.state.log.min.isr": "2" if brokers >= 3 else "1",
        "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
        "zookeeper.connection.timeout.ms": str(CONNECTION_TIMEOUT_MS),
    }


def _addresses(config: BrokerConfig, texts: Mapping[str, str], index: int) -> dict[str, str]:
    """Return the listeners of the broker with this index, from 0."""
    addresses = {"listeners": ",".join(str(_shifted(endpoint, index)) for endpoint in config.listeners)}
    if "advertised.listeners" in texts:
        endpoints = (_shifted(endpoint, index) for endpoint in config.advertised_listeners)
        addresses["advertised.listeners"] = ",".join(map(str, endpoints))
    if config.kbroker_metrics_listener:
        host, _, port = config.kbroker_metrics_listener.rpartition(":")
        addresses["kbroker.metrics.listener"] = f"{host}:{_shifted_port(int(port), index)}"
    return addresses


def _shifted(endpoint: Endpoint, index: int) -> Endpoint:
    return endpoint._replace(port=_shifted_port(endpoint.port, index))


def _shifted_port(port: int, index: int) -> int:
    """Return the port of a broker. Port 0 is any free port. Raises CliError beyond the highest port."""
    if port + index > 65_535:
        raise CliError(f"there is no port for broker {index + 1}: {port} + {index} is above 65535")
    return port + index if port else 0


def properties_text(settings: Mapping[str, str]) -> str:
    """Return the configs as a properties file."""
    lines = (f"{name}={text.replace(chr(92), chr(92) * 2)}" for name, text in sorted(settings.items()))
    return "# Written at each start of the cluster: this broker alone, after it was killed.\n" + "".join(
        f"{line}\n" for line in lines
    )
