"""Assembles a broker from all packages, and runs it as a process.

`Broker` runs in an `Environment`. `run` creates the environment of the real machine and blocks until the process is
asked to stop; simulations and tests create the same broker in another environment.
"""

from __future__ import annotations

import asyncio
import hmac
import posixpath
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

from kbroker.api.context import Services
from kbroker.api.dispatch import Dispatch
from kbroker.authorization.authorizer import Authorizer
from kbroker.common import format_address
from kbroker.config import BrokerConfig
from kbroker.config.broker.security import NO_SECURITY
from kbroker.config.config_def import ConfigResource, ConfigResourceType
from kbroker.config.no_effect_warnings import no_effect_warnings
from kbroker.config.values import ConfigError
from kbroker.coordination.interface import NodeExists
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kbroker.coordinator.group.share.share_group_states import ShareGroupStates
from kbroker.coordinator.share.persister import ShareStatePersister
from kbroker.coordinator.share.share_coordinator import ShareCoordinator
from kbroker.coordinator.transaction.add_partitions_to_txn_manager import AddPartitionsToTxnManager
from kbroker.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kbroker.coordinator.transaction.transaction_markers import TransactionMarkerChannels, TransactionMarkerWriter
from kbroker.interbroker.auto_topic_creation_manager import AutoTopicCreationManager
from kbroker.metadata.cluster_member import ClusterMember
from kbroker.metadata.coordination_sessions import BrokerMembership, CoordinationSessions, OpenSession
from kbroker.metadata.image import BrokerEndpoint, BrokerRegistration, MetadataDelta
from kbroker.metadata.recovery.seen_metadata_file import SeenMetadataFile
from kbroker.queues.closing.forwarding import ForwardingSender
from kbroker.queues.closing.partition_removal import PartitionRemoval
from kbroker.queues.queue_extensions import QueueExtensions
from kbroker.queues.views import ViewDirectory
from kbroker.quotas.client_quotas import ClientQuotaManager, QuotaWindows
from kbroker.replica.assigned_partitions import AssignedPartitions
from kbroker.replica.fetch.fetch_manager import FetchManager
from kbroker.replica.logs.data_directory import DataDirectory
from kbroker.replica.logs.log_cleaner import LogCleaner
from kbroker.replica.logs.log_manager import LogManager
from kbroker.replica.logs.scheduled_tasks import ScheduledTasks
from kbroker.replica.partition_state import RACK_AWARE
from kbroker.replica.replica_manager import ReplicaManager
from kbroker.replica.replication_throttle import leader_quota
from kbroker.runtime.environment import Environment
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.periodic_task import PeriodicTask
from kbroker.server.socket_server import Listener, SocketServer
from kbroker.share.dead_letters import DeadLetterWriter
from kbroker.share.group_settings import ShareGroupSettings
from kbroker.share.manager import SharePartitionManager
from kbroker.telemetry.client_instances import ClientMetricsManager

if TYPE_CHECKING:
    from kbroker.config.broker.security import FirstUser
    from kbroker.exporter.exporter import Exporter
    from kbroker.metadata.recovery.log_recovery_manager import LogsByBroker
    from kbroker.runtime.audit_log import AuditLog
    from kbroker.server.interbroker.cluster_parts import ClusterParts

log = EventLogger("kbroker")

# The interval at which a broker that was started on a full disk checks for free space, in seconds.
RENEWAL_MS = 1_000


class Broker:
    """One broker.

    It is a member of a cluster if it has a coordination service that brokers share: `open_session`, or ZooKeeper if
    zookeeper.connect is set. Else it opens an embedded one, and is alone.
    """

    services: Services
    exporter: Exporter

    def __init__(
        self,
        environment: Environment,
        config: BrokerConfig,
        open_session: OpenSession | None = None,
        first_users: Sequence[FirstUser] = (),
        dispatch: Dispatch | None = None,
    ) -> None:
        """`first_users`: SCRAM users that are created unless they exist. `dispatch`: None for the usual handlers."""
        if len(config.log_dirs) != 1:
            raise ConfigError(f"log.dirs names {len(config.log_dirs)} directories; kbroker keeps its data in one")
        self.environment = environment
        self.config = config
        self.stopped: asyncio.Future[BaseException | None] = environment.loop.create_future()
        self._open_session = open_session
        self._first_users = first_users
        self._cluster: ClusterParts | None = None
        handlers = Dispatch() if dispatch is None else dispatch
        self._server = SocketServer(environment, config, handlers, _listener_class(config))
        self._started: list[Callable[[], Awaitable[None]]] = []

    async def start(self) -> str:
        """Start everything, then accept clients. Returns the address that clients of the first listener connect to.

        Raises OSError, ConfigError.
        """
        self.environment.set_thread_count(self.config.num_io_threads)
        for line in no_effect_warnings(ConfigResourceType.BROKER, self.config.static_configs):
            log.warning("config without effect", reason=line)
        directory = DataDirectory(self.environment, self.config.log_dirs[0])
        await directory.lock()
        self._started.append(directory.unlock)
        await directory.check_owner(self.config.node_id)
        self._started.append(self._server.stop)
        ports = {endpoint.name: await self._server.bind(endpoint) for endpoint in self.config.listeners}
        member, deleted_topics = await self._load(directory)
        cluster = self._cluster
        endpoints = tuple(
            BrokerEndpoint(each.name, each.host, each.port or ports[each.name], each.security_protocol)
            for each in self.config.advertised_listeners
        )
        node = BrokerRegistration(
            self.config.node_id, endpoints[0].host, endpoints[0].port, self.config.broker_rack,
            directory_id=directory.directory_id, endpoints=endpoints,
        )  # fmt: skip
        if cluster is not None:
            host, inter_broker_port = await cluster.bind()
            self._started.append(cluster.stop)
            node = node._replace(
                inter_broker_host=host,
                inter_broker_port=inter_broker_port,
                inter_broker_listener=self.config.inter_broker_listener_name,
            )
        audit = await self._open_audit_log(directory.path)
        logs = LogManager(self.environment, directory.path, lambda: self.config)
        extensions = self._extensions = QueueExtensions(self.environment)
        replicas = ReplicaManager(
            self.environment, self.config.node_id, member.image, logs,
            configure=extensions.configure,
            views=ViewDirectory(member.image),
            is_rack_aware=self.config.replica_selector_class in RACK_AWARE,
            may_be_replaced=lambda: cluster is not None and cluster.is_in_doubt,
        )  # fmt: skip
        self._configure(member)
        assigned = self._assigned = AssignedPartitions(
            self.environment, replicas, member.image,
            fetchers=None if cluster is None else cluster.fetchers,
            is_image_older=lambda: member.has_seen_newer,
        )  # fmt: skip
        await self.environment.turns.run(assigned.start(deleted_topics))
        self._started += [assigned.stop, extensions.stop, replicas.history.stop]
        self.services = self._services(member, replicas)
        self.services.audit = self.services.auto_topic_creation.audit = audit
        extensions.closing.sender = ForwardingSender(
            self.environment, member.image, replicas, self.services.peers, lambda: self.config
        )

        def on_registered(broker_epoch: int) -> None:
            logs.on_registered(broker_epoch)
            if cluster is not None:
                cluster.identity.broker_epoch = broker_epoch

        member.add_registration_listener(on_registered)
        self._add_listeners(member, assigned)
        if cluster is not None:
            await replicas.write_health.check()
            await cluster.serve(self.services, replicas)
        else:
            member.controller.use_reports(self._read_own_logs)
        # A broker that could still be opening its logs must not be elected as a leader.
        try:
            membership = BrokerMembership(
                member,
                lambda: node._replace(write_health=replicas.write_health.health),
                partial(self._resign, member, assigned),
            )
            await self._sessions.register(membership, logs.previous_broker_epoch)
        except NodeExists:
            # With another node.id the directory can still be used.
            await directory.forget_owner()
            raise
        if self._first_users:
            from kbroker.server.authentication.first_users import create_first_users

            await create_first_users(self.services, self._first_users)
        await self._start_coordinators()
        self._start_background_tasks(member, replicas, assigned)
        await self._server.serve(self.services)
        # The server is stopped first: a broker that is partly stopped must not handle requests.
        self._started.append(self._server.stop)
        if cluster is not None:
            cluster.start_fencing_check(self._sessions)
            self._started += [self._sessions.stop_rejoining, cluster.hand_over]
        if self.config.kbroker_metrics_listener or self.config.kbroker_metrics_otlp:
            await self._export(member)
        return format_address(node.host, node.port)

    async def _open_audit_log(self, directory: str) -> AuditLog | None:
        if not self.config.kbroker_audit_log:
            return None
        from kbroker.runtime.audit_log import AuditLog

        path = posixpath.join(directory, self.config.kbroker_audit_log)
        max_bytes, files = self.config.kbroker_audit_log_max_bytes, self.config.kbroker_audit_log_files
        try:
            audit = await self.environment.offload(AuditLog, self.environment, path, max_bytes, files)
        except OSError as error:
            raise ConfigError(f"kbroker.audit.log: cannot open {path}: {error.strerror}") from None
        self._started.append(audit.stop)
        return audit

    async def _export(self, member: ClusterMember) -> None:
        from kbroker.exporter.exporter import Exporter

        parts = () if self._cluster is None else (self._cluster.server, self._cluster.fetchers)
        self.exporter = Exporter(self.environment, self.services, self._extensions, self._server, *parts)
        member.add_roles_listener(self.exporter.elections.on_delta)
        self._started.append(self.exporter.stop)
        await self.exporter.start(self.config.kbroker_metrics_listener, self.config.kbroker_metrics_otlp)

    async def _load(self, directory: DataDirectory) -> tuple[ClusterMember, Collection[bytes]]:
        """Open a session, and load the metadata. Returns also the ids of the topics that were deleted last."""
        node_id = self.config.node_id
        sessions = self._sessions = CoordinationSessions(
            self.environment, self.config, directory.check_new, self.stopped.done, self.fail, self._open_session
        )
        self._started.append(sessions.close)
        coordination = await sessions.open(f"{directory.path}/coordination")

        async def check_owner(cluster_id: str) -> None:
            await directory.check_owner(node_id, cluster_id)

        seen_file = SeenMetadataFile(self.environment, directory.path)
        member = ClusterMember(self.environment, coordination, node_id, lambda: self.config, self.fail, seen_file)
        deleted_topics = await sessions.load(member, check_owner)
        self._started.append(member.leave)
        if sessions.is_shared:
            from kbroker.server.interbroker.cluster_parts import ClusterParts

            self._cluster = ClusterParts(self.environment, lambda: self.config, member)
        return member, deleted_topics

    def _resign(self, member: ClusterMember, assigned: AssignedPartitions) -> None:
        """Give up all roles, because the session has ended."""
        member.on_session_lost()
        assigned.resign()
        self.services.groups.resign()
        self.services.transactions.resign()
        self.services.share_states.resign()
        self.services.share.resign()
        if self._cluster is not None:
            self._cluster.resign()

    async def _read_own_logs(self, brokers: Collection[int], keys: Sequence[tuple[bytes, int]]) -> LogsByBroker:
        """Return how far the logs of a lone broker go, whose metadata were restored from an older copy."""
        from kbroker.api.local_requests import handle_locally
        from kbroker.server.interbroker.broker_reports import read_replica_logs

        own = self.config.node_id
        return await read_replica_logs(
            brokers, keys, own, None, lambda request, version: handle_locally(self.services, request, version, (own, 0))
        )

    def _services(self, member: ClusterMember, replicas: ReplicaManager) -> Services:
        node_id, slots = self.config.node_id, self.config.max_incremental_fetch_session_cache_slots
        settings = self.config.authorizer
        groups = GroupCoordinator(self.environment, replicas, member.image, lambda: self.config)
        marker_writer = TransactionMarkerWriter(replicas, groups)
        peers = None if self._cluster is None else self._cluster.peers
        channel = None if self._cluster is None else self._cluster.controller_channel
        marker_channels = TransactionMarkerChannels(
            self.environment, node_id, member.image, lambda: self.config.request_timeout_ms, marker_writer, peers
        )
        transactions = TransactionCoordinator(
            self.environment, replicas, member.image, lambda: self.config, member.producer_ids, marker_channels
        )
        share_states = ShareCoordinator(self.environment, replicas, member.image, lambda: self.config)
        topics = AutoTopicCreationManager(
            self.environment, member.image, member.controller, channel, lambda: self.config
        )
        persister = ShareStatePersister(
            self.environment, node_id, member.image, lambda: self.config.request_timeout_ms, share_states, topics, peers
        )
        dead_letters = DeadLetterWriter(self.environment, member.image, replicas, topics, peers, lambda: self.config)
        return Services(
            node_id=node_id,
            config=self.config,
            environment=self.environment,
            metadata=member.image,
            controller=member.controller,
            replicas=replicas,
            fetching=FetchManager(
                self.environment, replicas, slots, self.config.fetch_max_bytes, leader_quota(lambda: self.config)
            ),
            groups=groups,
            transactions=transactions,
            add_partitions_to_txn=AddPartitionsToTxnManager(
                self.environment, node_id, member.image, lambda: self.config.request_timeout_ms, transactions, peers
            ),
            share_states=share_states,
            share=SharePartitionManager(
                self.environment,
                replicas,
                persister,
                ShareGroupSettings(member.image, lambda: self.config),
                lambda: self.config,
                dead_letters.start,
            ),
            share_group_states=ShareGroupStates(self.environment, member.image, groups, persister),
            marker_writer=marker_writer,
            producer_ids=member.producer_ids,
            delayed=self._extensions.delayed,
            auto_topic_creation=topics,
            partition_removal=PartitionRemoval(
                self.environment, member.image, member.controller, replicas, peers, lambda: self.config
            ),
            client_metrics=ClientMetricsManager(self.environment, member.image),
            quotas=ClientQuotaManager(member.image.client_quotas, QuotaWindows.of(self.config)),
            peers=peers,
            controller_channel=channel,
            authorizer=None if settings is None else Authorizer(member.image.rules, *settings),
            started_ms=self.environment.clock.now_ms(),
            salt_key=hmac.digest(member.secret, b"salts of unknown users", "sha256"),
        )

    def _add_listeners(self, member: ClusterMember, assigned: AssignedPartitions) -> None:
        """Follow the metadata. Roles begin when the controller unfences this broker, and end with the session."""
        maintenance, authorizer = self.services.replicas.maintenance, self.services.authorizer

        def change_roles(delta: MetadataDelta) -> None:
            if delta.rules is not None and authorizer is not None:
                # First, so that no request is completed by former rules.
                authorizer.use(delta.rules)
            if delta.configs:
                self._change_configs(member, assigned, delta)
            if delta.scram_users:
                self._server.close_revoked()
            if delta.client_quotas:
                self.services.quotas.update()
            assigned.on_roles_changed(delta)
            if not assigned.has_roles and member.is_unfenced:
                if not member.has_new_epochs:
                    maintenance.suspend_all_appends(self.services.replicas.partitions.values())
                assigned.assign_roles()

        member.add_roles_listener(change_roles)
        member.add_roles_listener(self.services.groups.on_delta)
        member.add_roles_listener(self.services.transactions.on_delta)
        member.add_roles_listener(self.services.share_states.on_delta)
        member.add_roles_listener(self.services.share.on_delta)
        member.add_roles_listener(self.services.client_metrics.on_delta)
        turns = self.environment.turns
        member.add_listener(lambda delta: turns.run(assigned.apply_delta(delta)))

    async def _start_coordinators(self) -> None:
        groups, transactions = self.services.groups, self.services.transactions
        await self.services.share_states.start()
        self._started += [self.services.share_states.stop, self.services.share.stop]
        await groups.start()
        self._started += [groups.stop, self.services.share_group_states.stop]
        await transactions.start()
        # Stopped before the groups: transactions that it completes commit their offsets.
        self._started.append(transactions.stop)

    def _start_background_tasks(
        self, member: ClusterMember, replicas: ReplicaManager, assigned: AssignedPartitions
    ) -> None:
        scheduled_tasks = ScheduledTasks(self.environment, replicas, assigned, lambda: self.config)
        scheduled_tasks.start()
        self._started.append(scheduled_tasks.stop)
        replicas.write_health.start(is_in_cluster=self._cluster is not None)
        self._started.append(replicas.write_health.stop)
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
        removal = self.services.partition_removal
        removals = PeriodicTask(
            self.environment,
            "removal of closed partitions",
            lambda: removal.interval_ms,
            removal.check_all,
            lambda: removal.is_needed,
        )
        removals.schedule()

        def on_closing(delta: MetadataDelta) -> None:
            if any(change.new is not None and change.new.forwarding is not None for change in delta.partitions):
                removals.schedule()

        member.add_roles_listener(on_closing)
        self._started.append(self.services.client_metrics.stop)
        self._started.append(removals.stop)

    def _change_configs(self, member: ClusterMember, assigned: AssignedPartitions, delta: MetadataDelta) -> None:
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
        """Stop the broker, because something essential was lost. Later failures are consequences of the first."""
        if not self.stopped.done():
            log.error("the broker stops", reason=reason)
            self.stopped.set_result(reason)

    async def stop(self) -> None:
        """Stop all parts that were started, in reverse order. A failure does not prevent the others from stopping."""
        while self._started:
            stop = self._started.pop()
            try:
                await stop()
            except Exception as error:
                log.failure("stopping failed", error)


def _listener_class(config: BrokerConfig) -> type[Listener]:
    if all(security == NO_SECURITY for security in config.security.values()):
        return Listener
    from kbroker.server.authentication.secured_listener import SecuredListener

    return SecuredListener
