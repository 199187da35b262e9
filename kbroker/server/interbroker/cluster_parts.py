"""Assembles the parts that only a broker of a cluster has: connections to other brokers, replica fetchers, ISR changes.

A lone broker (kbroker/broker.py) imports none of them.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, cast

from kbroker.api.dispatch import Dispatch
from kbroker.api.local_requests import handle_locally
from kbroker.interbroker.controller_channel import ControllerChannel
from kbroker.interbroker.fencing_check import FencingCheck
from kbroker.interbroker.handshake import BrokerIdentity
from kbroker.interbroker.peers import BROKER_HEARTBEAT_VERSION, Peers, PeerUnavailable
from kbroker.replica.fetcher.fetched_partitions import LeaderEndPoint
from kbroker.replica.fetcher.replica_fetcher import ReplicaFetcherManager
from kbroker.replica.logs.disk_reports import DiskReporter
from kbroker.runtime.event_log import EventLogger
from kbroker.server.interbroker.broker_reports import read_disks, read_replica_logs
from kbroker.server.interbroker.broker_tls import BrokerTls
from kbroker.server.interbroker.inter_broker_server import InterBrokerServer
from protocol.apis import BROKER_LISTENER_APIS
from protocol.errors import known_error
from protocol.messages.k56_alter_partition import AlterPartitionRequest, AlterPartitionResponse
from protocol.messages.k63_broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from kbroker.api.context import Services
    from kbroker.config import BrokerConfig
    from kbroker.metadata.cluster_member import ClusterMember
    from kbroker.metadata.coordination_sessions import CoordinationSessions
    from kbroker.metadata.image import MetadataDelta
    from kbroker.replica.replica_manager import ReplicaManager
    from kbroker.runtime.environment import Environment
    from protocol.messages.k73_assign_replicas_to_dirs import AssignReplicasToDirsRequest
    from protocol.schema.message import Message

log = EventLogger("kbroker.cluster")

ALTER_PARTITION_VERSION = 3
ASSIGN_REPLICAS_TO_DIRS_VERSION = 0
# The time in which the controller must have moved all leaderships away from a broker that stops, and the interval of
# asking whether it has.
CONTROLLED_SHUTDOWN_S = 10.0
CONTROLLED_SHUTDOWN_POLL_S = 0.02
# The time in which the other brokers must have that in their images.
IMAGES_S = 3.0


class ClusterParts:
    """`member` has loaded the metadata, and is not registered yet. The caller sets the broker epoch of `identity`."""

    def __init__(self, environment: Environment, config: Callable[[], BrokerConfig], member: ClusterMember) -> None:
        self._environment = environment
        self._config = config
        self._member = member
        node_id, image = config().node_id, member.image
        self.identity = BrokerIdentity(image.cluster_id, member.secret, node_id)
        tls = BrokerTls(config)
        dispatch = Dispatch(BROKER_LISTENER_APIS)
        self.server = InterBrokerServer(environment, config(), dispatch, self.identity, tls.accepting)
        self.peers = Peers(environment, self.identity, image, tls.connecting)
        self.controller_channel = ControllerChannel(environment, node_id, image, self.peers, self._serve_locally)
        self.fetchers = ReplicaFetcherManager(
            environment, node_id, self._broker_epoch, LeaderEndPoint(self.peers), config
        )
        self._services: Services | None = None
        self._disk_reporter: DiskReporter | None = None
        self._fencing_check: FencingCheck | None = None
        member.add_roles_listener(self._on_delta)

    def _broker_epoch(self) -> int:
        return self.identity.broker_epoch

    def _on_delta(self, delta: MetadataDelta) -> None:
        if delta.brokers or delta.fenced_brokers:
            self.peers.on_brokers_changed()
            self.server.on_brokers_changed()
        if delta.controller_id is not None:
            self.controller_channel.on_controller_changed()

    async def bind(self) -> tuple[str, int]:
        """Bind the listener for brokers. Returns the address at which other brokers reach it. Raises ConfigError."""
        listener, advertised_host = self._config().inter_broker_listener
        return advertised_host, await self.server.bind(listener.host or None, listener.port)

    async def serve(self, services: Services, replicas: ReplicaManager) -> None:
        """Serve other brokers, and propose ISR changes of the partitions that this broker will lead."""
        self._services = services
        replicas.isr_manager.start(
            self._alter_partition, self._broker_epoch, lambda: self._config().replica_lag_time_max_ms
        )
        self._member.add_roles_listener(replicas.isr_manager.on_delta)
        self._disk_reporter = DiskReporter(
            self._environment, replicas, self._member.image, self._broker_epoch, self._report_logs
        )
        self._disk_reporter.start()
        self._member.controller.use_reports(
            lambda brokers, keys: read_replica_logs(
                brokers, keys, self._config().node_id, self.peers, self._serve_locally
            ),
            lambda brokers: read_disks(brokers, self._config().node_id, self.peers, self._serve_locally),
        )
        await self.server.serve(services)

    def start_fencing_check(self, sessions: CoordinationSessions) -> None:
        """Ask other brokers whether this one is fenced or cut off: see FencingCheck."""
        self._fencing_check = FencingCheck(
            self._environment,
            self.identity,
            self._member.image,
            self.peers,
            lambda: sessions.session_timeout_ms,
            lambda: sessions.is_connected,
            lambda: self._member.controller.is_elected,
            sessions.on_fenced,
            sessions.on_isolated,
        )
        self._fencing_check.start()

    @property
    def is_in_doubt(self) -> bool:
        """Whether other brokers may lead this broker's partitions without its knowledge: it reaches none of them."""
        return self._fencing_check is not None and self._fencing_check.is_in_doubt

    async def _serve_locally(self, request: Message, version: int) -> Message:
        assert self._services is not None
        own = (self._config().node_id, self.identity.broker_epoch)
        return await handle_locally(self._services, request, version, own)

    async def _alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Send ISR changes to the controller. Without a response, the outcome is unknown."""
        timeout_ms = self._config().request_timeout_ms
        try:
            response = await self.controller_channel.request(request, ALTER_PARTITION_VERSION, timeout_ms)
        except PeerUnavailable as error:
            return AlterPartitionResponse(error_code=error.code)
        return cast(AlterPartitionResponse, response)

    async def _report_logs(self, request: AssignReplicasToDirsRequest) -> None:
        """Report failed logs or the write health to the controller. Without success, the report is repeated."""
        with suppress(PeerUnavailable):
            timeout_ms = self._config().request_timeout_ms
            await self.controller_channel.request(request, ASSIGN_REPLICAS_TO_DIRS_VERSION, timeout_ms)

    async def hand_over(self) -> None:
        """Ask the controller to move all leaderships to other brokers (controlled.shutdown.enable).

        Waits at most CONTROLLED_SHUTDOWN_S.
        """
        # Logs that are closed have not failed.
        await self._stop_reporting()
        if not self._config().controlled_shutdown_enable or self.identity.broker_epoch < 0:
            return
        loop = self._environment.loop
        deadline_s = loop.time() + CONTROLLED_SHUTDOWN_S
        request = BrokerHeartbeatRequest(
            broker_id=self._config().node_id, broker_epoch=self.identity.broker_epoch, want_shut_down=True
        )
        reason = ""
        while (remaining_s := deadline_s - loop.time()) > 0:
            try:
                response = cast(
                    BrokerHeartbeatResponse,
                    await self.controller_channel.request(request, BROKER_HEARTBEAT_VERSION, int(remaining_s * 1000)),
                )
            except PeerUnavailable as error:
                reason = error.message or error.code.name
                break
            if response.error_code:
                reason = known_error(response.error_code).name
                break
            if response.should_shut_down:
                await self._wait_for_images(loop.time() + IMAGES_S)
                log.info("leaderships handed over")
                return
            await self._environment.sleep(CONTROLLED_SHUTDOWN_POLL_S)
        log.warning("stopping without a complete hand-over of leaderships", reason=reason or "timeout")

    async def _wait_for_images(self, deadline_s: float) -> None:
        """Wait until no live broker refers clients to this one. One that does not respond is not waited for."""
        own, image = self._config().node_id, self._member.image
        while any(broker_id != own for broker_id in image.brokers) and any(
            partition.leader == own for _, partition in image.partitions()
        ):
            if self._environment.loop.time() > deadline_s:
                return
            await self._environment.sleep(CONTROLLED_SHUTDOWN_POLL_S)
        number = self._member.loader.change_log.number
        await self.peers.wait_for_images(number, deadline_s - self._environment.loop.time())

    async def _stop_reporting(self) -> None:
        if self._disk_reporter is not None:
            await self._disk_reporter.stop()

    def resign(self) -> None:
        """Close connections to other brokers, since they are bound to a broker epoch that has ended."""
        self.identity.broker_epoch = -1
        self.peers.reset()

    async def stop(self) -> None:
        await self._stop_reporting()
        await self.server.stop()
        await self.peers.stop()
        if self._fencing_check is not None:
            # Its requests would wait for brokers that are silent.
            await self._fencing_check.stop()
