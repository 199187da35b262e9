"""Assembles a broker from all packages, and runs it as a process.

`Broker` runs in an `Environment`. `run` creates the environment of the real machine and blocks until the process is
asked to stop; simulations and tests create the same broker in another environment.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from kbroker.api.context import Services
from kbroker.api.dispatch import Dispatch
from kbroker.config import BrokerConfig
from kbroker.config.config_resource import ConfigResource, ConfigResourceType
from kbroker.config.no_effect_warnings import no_effect_warnings
from kbroker.config.values import ConfigError
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kbroker.coordinator.transaction.add_partitions_to_txn_manager import AddPartitionsToTxnManager
from kbroker.coordinator.transaction.marker_channels import TransactionMarkerChannels
from kbroker.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kbroker.coordinator.transaction.transaction_markers import TransactionMarkerWriter
from kbroker.interbroker.controller_gateway import ControllerGateway
from kbroker.metadata.cluster_member import ClusterMember
from kbroker.metadata.image import BrokerRegistration, MetadataDelta
from kbroker.metadata.store import znodes
from kbroker.metadata.store.coordination import Coordination, SessionExpired
from kbroker.metadata.store.embedded import EmbeddedStore
from kbroker.replica.assigned_partitions import AssignedPartitions
from kbroker.replica.fetch.fetch_manager import FetchManager
from kbroker.replica.logs.data_directory import DataDirectory
from kbroker.replica.logs.log_cleaner import LogCleaner
from kbroker.replica.logs.log_manager import LogManager
from kbroker.replica.logs.scheduled_tasks import ScheduledTasks
from kbroker.replica.replica_manager import ReplicaManager
from kbroker.runtime.environment import Environment
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.periodic_task import PeriodicTask
from kbroker.runtime.system import new_event_loop, raise_descriptor_limit, system_environment
from kbroker.server.socket_server import SocketServer

if TYPE_CHECKING:
    from kbroker.exporter.exporter import Exporter

log = EventLogger("kbroker")

# A garbage collection of the oldest generation visits every live object. So the objects created at startup are frozen,
# and later collections are made rare. One of the middle generation visits some 16,000 objects: of 400,000, as large
# requests have, it would hold the event loop for 40 ms.
GC_THRESHOLDS = (4_000, 3, 2_000)
# The time in seconds that a restarted broker waits for its previous session to expire. Kafka's timeout is 18 s.
FORMER_SESSION_S = 20.0
FORMER_SESSION_MARGIN_S = 2.0
# The interval at which a broker that was started on a full disk checks for free space, in seconds.
RENEWAL_MS = 1_000


class Broker:
    """One broker. `coordination`: the service that brokers share. By default a broker opens an embedded one."""

    services: Services
    exporter: Exporter

    def __init__(
        self, environment: Environment, config: BrokerConfig, coordination: Coordination | None = None
    ) -> None:
        if len(config.log_dirs) != 1:
            raise ConfigError(f"log.dirs names {len(config.log_dirs)} directories; kbroker keeps its data in one")
        if len(config.listeners) != 1:
            raise ConfigError(f"listeners names {len(config.listeners)} listeners; kbroker has one")
        self.environment = environment
        self.config = config
        self.stopped: asyncio.Future[BaseException | None] = environment.loop.create_future()
        self._coordination = coordination
        self._store: EmbeddedStore | None = None
        self._server = SocketServer(environment, config, Dispatch())
        self._started: list[Callable[[], Awaitable[None]]] = []

    async def start(self) -> str:
        """Start everything, then accept clients. Returns the bootstrap address. Raises OSError, ConfigError."""
        self.environment.set_thread_count(self.config.num_io_threads)
        for line in no_effect_warnings(ConfigResourceType.BROKER, self.config.static_configs):
            log.warning("config without effect", reason=line)
        directory = DataDirectory(self.environment, self.config.log_dirs[0])
        await directory.lock()
        self._started.append(directory.unlock)
        await directory.check_owner(self.config.node_id)
        listener, advertised = self.config.listeners[0], self.config.advertised_listeners[0]
        port = await self._server.bind(listener.host or None, listener.port)
        self._started.append(self._server.stop)
        node = BrokerRegistration(
            self.config.node_id, advertised.host, advertised.port or port, self.config.broker_rack
        )
        member, session_wait_s = await self._load(directory)
        logs = LogManager(self.environment, directory.path, lambda: self.config)
        replicas = ReplicaManager(self.environment, node.id, member.image, logs)
        self._configure(member)
        assigned = AssignedPartitions(self.environment, replicas, member.image)
        await assigned.start()
        self._started.append(assigned.stop)
        member.add_roles_listener(assigned.on_roles_changed)
        member.add_listener(assigned.apply_delta)
        # A broker that could still be opening its logs must not be elected as a leader.
        await member.register(node, session_wait_s)
        if not member.has_new_epochs:
            replicas.maintenance.suspend_all_appends(replicas.partitions.values())
        assigned.assign_roles()
        self.services = self._services(member, replicas)
        await self._start_coordinators(member, assigned)
        self._start_background_tasks(member, replicas, assigned)
        await self._server.serve(self.services)
        # The server is stopped first: a broker that is partly stopped must not handle requests.
        self._started.append(self._server.stop)
        if self.config.kbroker_metrics_listener:
            await self._export()
        return advertised._replace(port=node.port).address

    async def _export(self) -> None:
        from kbroker.exporter.exporter import Exporter

        self.exporter = Exporter(self.environment, self.services, self._server)
        self._started.append(self.exporter.stop)
        await self.exporter.start(self.config.kbroker_metrics_listener)

    async def _load(self, directory: DataDirectory) -> tuple[ClusterMember, float]:
        """Return the loaded metadata, and the time in seconds after which a former session of this broker has ended."""
        session_wait_s = FORMER_SESSION_S
        uses_zookeeper = self._coordination is None and bool(self.config.get("zookeeper.connect"))
        if uses_zookeeper:
            self._coordination, session_wait_s = await self._open_zookeeper(directory)
        elif self._coordination is None:
            # Sessions of a store in this process end with the process.
            session_wait_s = 0.0
            self._store = await EmbeddedStore.open(self.environment, f"{directory.path}/coordination", self.fail)
            self._started.append(self._store.close)
            if self._store.is_empty:
                directory.check_new(f"{directory.path}/coordination")
            self._coordination = self._store.session()
        coordination = self._coordination
        # Another broker may have become the leader of this broker's partitions.
        coordination.on_expired(lambda: self.fail(SessionExpired()))
        self._started.append(coordination.close)

        async def check_owner(cluster_id: str) -> None:
            await directory.check_owner(self.config.node_id, cluster_id)

        node_id = self.config.node_id
        member = ClusterMember(self.environment, coordination, node_id, lambda: self.config, self.fail)
        await member.load(check_owner)
        self._started.append(member.leave)
        return member, session_wait_s

    async def _open_zookeeper(self, directory: DataDirectory) -> tuple[Coordination, float]:
        """Return a session, and the time in seconds after which a former session of this broker has expired."""
        # Imported here because kazoo takes time and memory.
        from kbroker.config.broker.zookeeper_settings import zookeeper_settings
        from kbroker.metadata.store.zookeeper.open_session import open_session

        settings = zookeeper_settings(self.config.values)
        session = await open_session(self.environment.loop, settings)
        self._started.append(session.close)
        if await session.exists(znodes.CLUSTER_ID) is None:
            directory.check_new(f"ZooKeeper at {settings.address}")
        return session, settings.session_timeout_s + FORMER_SESSION_MARGIN_S

    def _services(self, member: ClusterMember, replicas: ReplicaManager) -> Services:
        node_id, slots = self.config.node_id, self.config.max_incremental_fetch_session_cache_slots
        groups = GroupCoordinator(self.environment, replicas, member.image, lambda: self.config)
        marker_writer = TransactionMarkerWriter(replicas, groups)
        marker_channels = TransactionMarkerChannels(
            self.environment, node_id, member.image, lambda: self.config.request_timeout_ms, marker_writer
        )
        transactions = TransactionCoordinator(
            self.environment, replicas, member.image, lambda: self.config, member.producer_ids, marker_channels
        )
        return Services(
            node_id=node_id,
            config=self.config,
            environment=self.environment,
            metadata=member.image,
            controller=member.controller,
            replicas=replicas,
            fetching=FetchManager(self.environment, replicas, slots, self.config.fetch_max_bytes),
            groups=groups,
            transactions=transactions,
            add_partitions_to_txn=AddPartitionsToTxnManager(
                self.environment, node_id, member.image, lambda: self.config.request_timeout_ms, transactions
            ),
            marker_writer=marker_writer,
            producer_ids=member.producer_ids,
            controller_gateway=ControllerGateway(
                self.environment, member.image, member.controller, None, lambda: self.config
            ),
        )

    async def _start_coordinators(self, member: ClusterMember, assigned: AssignedPartitions) -> None:
        groups, transactions = self.services.groups, self.services.transactions
        member.add_roles_listener(groups.on_delta)
        member.add_roles_listener(transactions.on_delta)
        member.add_listener(lambda delta: self._on_delta(member, assigned, delta))
        await groups.start()
        self._started.append(groups.stop)
        await transactions.start()
        # Stopped before the groups: transactions that it completes commit their offsets.
        self._started.append(transactions.stop)

    def _start_background_tasks(
        self, member: ClusterMember, replicas: ReplicaManager, assigned: AssignedPartitions
    ) -> None:
        scheduled_tasks = ScheduledTasks(self.environment, replicas, assigned, lambda: self.config)
        scheduled_tasks.start()
        self._started.append(scheduled_tasks.stop)
        log_cleaner = LogCleaner(self.environment, replicas, lambda: self.config)
        log_cleaner.start()
        self._started.append(log_cleaner.stop)
        maintenance = replicas.maintenance

        async def renew_epochs() -> None:
            maintenance.appends_suspended = not await member.renew_epochs()

        renewal = PeriodicTask(
            self.environment,
            "new leader epochs",
            lambda: RENEWAL_MS,
            renew_epochs,
            lambda: maintenance.appends_suspended,
        )
        renewal.schedule()
        self._started.append(renewal.stop)

    async def _on_delta(self, member: ClusterMember, assigned: AssignedPartitions, delta: MetadataDelta) -> None:
        """Apply dynamic broker configs: those of all brokers, and this broker's, which take precedence."""
        own = str(self.config.node_id)
        if any(ConfigResource(ConfigResourceType.BROKER, name) in delta.configs for name in ("", own)):
            self._configure(member)
            self.services.config = self.config
            self._server.configure(self.config)
            assigned.update_configs()

    def _configure(self, member: ClusterMember) -> None:
        common = member.image.overrides(ConfigResourceType.BROKER, "")
        own = member.image.overrides(ConfigResourceType.BROKER, str(self.config.node_id))
        self.config, warnings = self.config.with_stored_dynamic(common, own)
        for line in warnings:
            log.warning("stored config ignored", reason=line)
        self.environment.set_thread_count(self.config.num_io_threads)

    def fail(self, reason: BaseException) -> None:
        """Stop the broker, because something essential was lost."""
        log.error("the broker stops", reason=reason)
        if not self.stopped.done():
            self.stopped.set_result(reason)

    async def stop(self) -> None:
        """Stop all parts that were started, in reverse order. A failure does not prevent the others from stopping."""
        while self._started:
            stop = self._started.pop()
            try:
                await stop()
            except Exception as error:
                log.failure("stopping failed", error)


def run(config: BrokerConfig, *, on_ready: Callable[[str], None]) -> int:
    """Run a broker until SIGTERM, SIGINT or SIGHUP. Returns the exit status; raises errors of the startup."""
    raise_descriptor_limit()
    loop = new_event_loop()
    try:
        return loop.run_until_complete(_serve(loop, config, on_ready))
    finally:
        loop.close()


async def _serve(loop: asyncio.AbstractEventLoop, config: BrokerConfig, on_ready: Callable[[str], None]) -> int:
    broker = Broker(system_environment(loop), config)

    def on_signal(number: signal.Signals) -> None:
        if not broker.stopped.done():
            log.info("stopping", signal=number.name)
            broker.stopped.set_result(None)

    for number in _stop_signals():
        loop.add_signal_handler(number, on_signal, number)
    try:
        bootstrap = await broker.start()
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        log.info("serving", bootstrap=bootstrap, data=config.log_dirs[0])
        on_ready(bootstrap)
        failure = await broker.stopped
    finally:
        await broker.stop()
    log.info("stopped")
    return 0 if failure is None else 1


def _stop_signals() -> list[signal.Signals]:
    """Return the signals that stop the broker cleanly. As with a JVM, SIGHUP is included unless nohup started it."""
    hangup = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN else []
    return [signal.SIGTERM, signal.SIGINT, *hangup]
