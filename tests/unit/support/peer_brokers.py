"""Brokers that are only their inter-broker parts, on hosts of a simulated network.

Each `PeerBroker` has a listener whose handlers the test controls, and a Peers. BrokerHeartbeat calls `on_heartbeat`;
Fetch has a fake codec: its request is an integer, to which the response is that number of bytes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from kbroker.api.context import ApiHandler, Identity, Overlap, RequestContext, Services, complete_response
from kbroker.api.dispatch import Dispatch, UnsupportedRequest, load_handler, message_codec
from kbroker.api.local_requests import DetachedConnection, handle_locally
from kbroker.api.response_errors import no_failed_response
from kbroker.common import KafkaError
from kbroker.config import BrokerConfig
from kbroker.interbroker.auto_topic_creation_manager import AutoTopicCreationManager
from kbroker.interbroker.controller_channel import ControllerChannel
from kbroker.interbroker.handshake import BrokerIdentity
from kbroker.interbroker.peers import Channel, Peers
from kbroker.metadata.image import BrokerRegistration, MetadataDelta, MetadataImage, TopicImage
from kbroker.metadata.replication.isr_change_queue import AlterPartitionResult, IsrRequest
from kbroker.metadata.replication.replication_control_manager import ReplicaKey
from kbroker.metadata.topics.topic_control_manager import CreateTopicResult
from kbroker.metadata.topics.topic_requests import NewTopic
from kbroker.quotas.client_quotas import ClientQuotaManager, QuotaWindows
from kbroker.runtime.environment import Environment
from kbroker.runtime.metrics import RequestStats
from kbroker.server.interbroker.inter_broker_server import InterBrokerServer
from kbroker.simulation.network.transport import direct_socket
from kbroker.simulation.runtime.environment import SimClock
from protocol.apis import BROKER_LISTENER_APIS, ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k63_broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from protocol.schema.message import Message, message_info
from tests.unit.support.server_connection import DispatchTo
from tests.unit.support.simulated_hosts import SimulatedHosts

CLUSTER, SECRET, PORT = "rTfKmo8hSJq2Yd1uQk3bWg", b"\5" * 32, 9192
HEARTBEAT_VERSION, FETCH_VERSION = 2, 18


def response_bytes(size: int) -> bytes:
    """Return the body of the fake Fetch response. Bodies of different sizes have different bytes at each position."""
    return (bytes(range(251)) * (size // 251 + 2))[size % 251 :][:size]


class PeerBroker:
    """One broker. `image` is its own view of the cluster."""

    def __init__(
        self, hosts: PeerBrokers, broker_id: int, epoch: int, secret: bytes = SECRET, cluster_id: str = CLUSTER
    ) -> None:
        self.hosts = hosts
        self.id = broker_id
        self.host = f"b{broker_id}"
        self.loop = hosts.host(self.host)
        self.identity = BrokerIdentity(cluster_id, secret, broker_id, epoch)
        self.image = MetadataImage()
        self.received: list[int] = []
        self.on_heartbeat: Callable[[RequestContext, BrokerHeartbeatRequest], Any] = lambda context, request: (
            BrokerHeartbeatResponse(is_fenced=False)
        )
        self.environment = Environment(
            self.loop, SimClock(hosts.loop), cast(Any, None), Random(f"{hosts.seed}/{broker_id}/{epoch}"),
            self.loop.offload, cast(Any, None), direct_socket=direct_socket,
        )  # fmt: skip
        self.peers = Peers(self.environment, self.identity, self.image)
        dispatch = DispatchTo(self._find)
        self.server = InterBrokerServer(self.environment, BrokerConfig.load({}), dispatch, self.identity)

    @property
    def registration(self) -> BrokerRegistration:
        return BrokerRegistration(
            self.id, self.host, 9092, epoch=self.identity.broker_epoch,
            inter_broker_host=self.host, inter_broker_port=PORT,
        )  # fmt: skip

    async def start(self) -> None:
        await self.server.bind(self.host, PORT)
        await self.server.serve(cast(Any, SimpleNamespace(metadata=self.image)))

    async def stop(self) -> None:
        await self.peers.stop()
        await self.server.stop()

    def learn(self, *registrations: BrokerRegistration | int) -> None:
        """Apply registrations to the image; an id is that of a broker that is no longer registered."""
        changes = {r if isinstance(r, int) else r.id: None if isinstance(r, int) else r for r in registrations}
        delta = MetadataDelta(brokers=changes)
        self.image.apply(delta)
        self.peers.on_brokers_changed()
        self.server.on_brokers_changed()

    async def heartbeat(self, to: int, offset: int = 0, timeout_ms: int = 10_000) -> BrokerHeartbeatResponse:
        request = BrokerHeartbeatRequest(broker_id=self.id, current_metadata_offset=offset)
        response = await self.peers.request(to, request, HEARTBEAT_VERSION, timeout_ms=timeout_ms)
        assert isinstance(response, BrokerHeartbeatResponse)
        return response

    async def fetch(self, to: int, size: int, timeout_ms: int = 10_000) -> memoryview:
        body = (size.to_bytes(4, "big"),)
        return await self.peers.request_raw(
            to, ApiKey.FETCH, FETCH_VERSION, body, channel=Channel.FETCH, timeout_ms=timeout_ms
        )

    # The handlers.

    def _find(self, api_key: int, version: int) -> ApiHandler:
        if api_key == ApiKey.BROKER_HEARTBEAT:
            codec = message_codec(ApiKey.BROKER_HEARTBEAT, version)
            return _handler(ApiKey.BROKER_HEARTBEAT, version, codec.decode, self._heartbeat, codec.encode, Any)
        if api_key == ApiKey.FETCH:
            return _handler(ApiKey.FETCH, version, _decode_size, self._fetch, lambda response, _: response, bytes)
        raise UnsupportedRequest("API not served", api_key, version)

    def _heartbeat(self, services: object, context: RequestContext, request: BrokerHeartbeatRequest) -> Any:
        self.received.append(request.current_metadata_offset)
        return self.on_heartbeat(context, request)

    def _fetch(self, services: object, context: RequestContext, size: int) -> bytes:
        return response_bytes(size)


def _decode_size(frame: memoryview, pos: int, version: int, pause: object) -> int:
    return int.from_bytes(frame[pos:], "big")


def _handler(key: ApiKey, version: int, decode: Any, handle: Any, encode: Any, response_type: Any) -> ApiHandler:
    assert key in BROKER_LISTENER_APIS
    return ApiHandler(
        decode=decode,
        handle=handle,
        fail=no_failed_response,
        encode=encode,
        append=lambda response, version, out, pause: out.append(encode(response, version)),
        report_errors=lambda context, request, response: False,
        response_type=BrokerHeartbeatResponse if response_type is Any else response_type,
        stats=RequestStats(key, version),
        is_flexible=True,
        has_flexible_response_header=True,
        overlap=Overlap.NONE,
    )


class PeerBrokers(SimulatedHosts):
    """Brokers 1 and 2, which know each other."""

    brokers: dict[int, PeerBroker]

    async def start(self) -> None:
        self.brokers = {}
        self.one = await self.broker(1, 11)
        self.two = await self.broker(2, 22)
        self.introduce()

    async def broker(self, broker_id: int, epoch: int, secret: bytes = SECRET, cluster_id: str = CLUSTER) -> PeerBroker:
        """Start a broker, or a new process of it."""
        broker = self.brokers[broker_id] = PeerBroker(self, broker_id, epoch, secret, cluster_id)
        await broker.loop.run(broker.start())
        return broker

    def introduce(self) -> None:
        """Make all brokers known to each other."""
        for broker in self.brokers.values():
            broker.learn(*(other.registration for other in self.brokers.values()))

    def kill(self, broker: PeerBroker, *, silent: bool = False) -> None:
        broker.loop.die()
        self.loop.network.crash_host(broker.host, silent)

    @property
    def connections(self) -> Counter[int]:
        """The open inter-broker connections, by the broker that has accepted them."""
        return Counter({broker.id: len(broker.server.connections) for broker in self.brokers.values()})


# Brokers that forward requests to a fake controller.

CLIENT = "10.0.0.7:5000"


class FakeController:
    """A controller and its managers, whose topics have consecutive ids. `on_create` may raise or wait."""

    def __init__(self, broker: ForwardingBroker) -> None:
        self.is_elected = False
        self.topics = self.isr_changes = self.replication = self
        self.created: list[str] = []
        self.altered: list[tuple[int, str]] = []
        # (broker id, broker epoch, topic id) of each change of an ISR, which takes `delay_s`.
        self.shrunk: list[tuple[int, int, bytes]] = []
        self.delay_s = 0.0
        # The same of each replica whose log has failed.
        self.failed: list[tuple[int, int, bytes]] = []
        self._broker = broker

    async def on_create(self) -> None: ...

    async def create_topics(
        self, topics: Sequence[NewTopic], validate_only: bool, quota: object = None
    ) -> list[CreateTopicResult]:
        await self.on_create()
        if not self.is_elected:
            error = KafkaError(ErrorCode.NOT_CONTROLLER, "This broker is not the controller.")
            return [CreateTopicResult(topic.name, error=error) for topic in topics]
        results = []
        for topic in topics:
            if topic.name in self._broker.image.topics:
                results.append(
                    CreateTopicResult(topic.name, error=KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, "exists"))
                )
                continue
            self.created.append(topic.name)
            image = TopicImage(topic.name, len(self.created).to_bytes(16, "big"))
            self._broker.brokers.publish(MetadataDelta(created=[image]))
            results.append(CreateTopicResult(topic.name, image.topic_id, topic.partitions, 3))
        return results

    async def alter_partitions(
        self, broker_id: int, broker_epoch: int, requests: Sequence[IsrRequest]
    ) -> list[AlterPartitionResult]:
        if not self.is_elected:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "This broker is not the controller.")
        self.shrunk += [(broker_id, broker_epoch, request.topic_id) for request in requests]
        await asyncio.sleep(self.delay_s)
        return [ErrorCode.NONE for _ in requests]

    async def remove_failed_replicas(self, broker_id: int, broker_epoch: int, failed: Sequence[ReplicaKey]) -> None:
        if not self.is_elected:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "This broker is not the controller.")
        self.failed += [(broker_id, broker_epoch, topic_id) for topic_id, _ in failed]

    async def alter_configs(self, resource_type: int, name: str, new_overrides: Any) -> None:
        if not self.is_elected:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "This broker is not the controller.")
        new_overrides({})
        self.altered.append((resource_type, name))


class ForwardingBroker(PeerBroker):
    """A broker with the real handlers of brokers' APIs."""

    def __init__(self, brokers: ForwardingBrokers, broker_id: int) -> None:
        self.brokers = brokers
        super().__init__(brokers, broker_id, 10 * broker_id)
        self.server.context.dispatch = Dispatch(BROKER_LISTENER_APIS)
        self.controller = FakeController(self)
        self.config = BrokerConfig.load({"node.id": str(broker_id), "request.timeout.ms": "5000"})
        self.channel = ControllerChannel(self.environment, broker_id, self.image, self.peers, self._serve_locally)
        controller = cast(Any, self.controller)
        self.auto_topic_creation = AutoTopicCreationManager(
            self.environment, self.image, controller, self.channel, lambda: self.config
        )
        self.services = cast(
            Services,
            SimpleNamespace(
                audit=None,
                node_id=broker_id, config=self.config, environment=self.environment, metadata=self.image,
                controller=self.controller, controller_channel=self.channel, peers=self.peers,
                auto_topic_creation=self.auto_topic_creation, authorizer=None,
                quotas=ClientQuotaManager(self.image.client_quotas, QuotaWindows()),
            ),
        )  # fmt: skip

    async def start(self) -> None:
        await super().start()
        self.server.context.services = self.services

    async def _serve_locally(self, request: Message, version: int) -> Message:
        identity = self.identity
        return await handle_locally(self.services, request, version, (identity.broker_id, identity.broker_epoch))

    def apply(self, delta: MetadataDelta) -> None:
        self.image.apply(delta)
        if delta.controller_id is not None:
            self.channel.on_controller_changed()

    async def handle(self, request: Message, version: int) -> Any:
        """Handle a client's request."""
        key = message_info(type(request)).key
        handler = load_handler(ApiKey(key or 0), version)
        context = RequestContext(DetachedConnection(CLIENT, Identity("PLAINTEXT")), handler, version, 1, "an app", 0)
        return await complete_response(handler.handle, self.services, context, request)


class ForwardingBrokers(PeerBrokers):
    """Brokers 1, 2 and 3. The controller is 1; `elect` makes another broker the controller, and tells the others."""

    async def start(self) -> None:
        self.brokers = {}
        self.one, self.two, self.three = (ForwardingBroker(self, broker_id) for broker_id in (1, 2, 3))
        for broker in (self.one, self.two, self.three):
            self.brokers[broker.id] = broker
            await broker.loop.run(broker.start())
        self.introduce()
        self.elect(self.one)

    def elect(self, controller: ForwardingBroker, *, known_to: Sequence[ForwardingBroker] | None = None) -> None:
        for broker in (self.one, self.two, self.three):
            broker.controller.is_elected = broker is controller
        for broker in known_to if known_to is not None else (self.one, self.two, self.three):
            broker.apply(MetadataDelta(controller_id=controller.id))

    def publish(self, delta: MetadataDelta) -> None:
        """Apply a delta at each broker, after a while."""
        for broker in (self.one, self.two, self.three):
            if not broker.loop.dead:
                broker.loop.call_later(0.05 if not broker.controller.is_elected else 0, broker.apply, delta)
