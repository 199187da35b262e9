"""Brokers that are only their inter-broker parts, on hosts of a simulated network.

Each has a listener whose handlers the test controls, and a Peers. BrokerHeartbeat calls `on_heartbeat`; Fetch has a
fake codec: its request is an integer, to which the response is that number of bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from kbroker.api.context import ApiHandler, Overlap, RequestContext
from kbroker.api.dispatch import BROKER_LISTENER_APIS, Dispatch, UnsupportedRequest, message_codec
from kbroker.config import BrokerConfig
from kbroker.interbroker.handshake import BrokerIdentity
from kbroker.interbroker.peers import Channel, Peers
from kbroker.metadata.image import BrokerRegistration, MetadataDelta, MetadataImage
from kbroker.runtime.environment import Environment
from kbroker.runtime.metrics import RequestStats
from kbroker.server.interbroker.inter_broker_server import InterBrokerServer
from kbroker.simulation.network.transport import direct_socket
from kbroker.simulation.runtime.environment import SimClock
from protocol.apis import ApiKey
from protocol.messages.k63_broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
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
        dispatch = cast(Dispatch, SimpleNamespace(find=self._find, stats=list))
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
        self.peers.on_delta(delta)
        self.server.on_delta(delta)

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


def _decode_size(frame: memoryview, pos: int, version: int) -> int:
    return int.from_bytes(frame[pos:], "big")


def _handler(key: ApiKey, version: int, decode: Any, handle: Any, encode: Any, response_type: Any) -> ApiHandler:
    assert key in BROKER_LISTENER_APIS
    return ApiHandler(
        decode=decode,
        handle=handle,
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
