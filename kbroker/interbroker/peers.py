"""Requests to other brokers (Kafka: NetworkClient), over one connection for each peer and channel."""

import asyncio
import ssl
from asyncio import CancelledError, Future, Task
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import cast

from kbroker.common import Buffer, format_address
from kbroker.interbroker.frame_protocol import PeerFrameBuffers
from kbroker.interbroker.handshake import NONCE_BYTES, BrokerIdentity, HandshakeError, InitiatorHandshake
from kbroker.interbroker.peer_connection import PeerConnection, PeerStats, PeerUnavailable, tls_failure
from kbroker.metadata.image import BrokerRegistration, MetadataImage
from kbroker.runtime.environment import Environment
from kbroker.runtime.event_log import EventLogger
from protocol.errors import ErrorCode
from protocol.messages import message_classes
from protocol.messages.k63_broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from protocol.schema.codec import decode, encode
from protocol.schema.message import Message, message_info

__all__ = ["Channel", "PeerUnavailable", "Peers"]

log = EventLogger("kbroker.interbroker")

# The timeout of connecting and of the handshake, in seconds.
CONNECT_TIMEOUT_S = 5.0
# Kafka's reconnect.backoff.ms and reconnect.backoff.max.ms.
MIN_BACKOFF_S = 0.05
MAX_BACKOFF_S = 1.0
BROKER_HEARTBEAT_VERSION = 2
# The interval of asking whether a broker has a metadata change, in seconds.
IMAGE_POLL_S = 0.02


class Channel(IntEnum):
    """The channels to a peer. Each has its own connection, so that a large Fetch response delays no other requests."""

    CONTROL = 0
    FETCH = 1


@dataclass(slots=True, eq=False)
class _Link:
    """The connection of a channel to one process of a peer.

    `own_epoch`: this broker's epoch in the handshake. `attempt`: connecting, while that is in progress. `failure`: why
    the last handshake has failed, empty if it has not, or if it is expected to succeed later.
    """

    peer: BrokerRegistration
    channel: Channel
    own_epoch: int
    connection: PeerConnection | None = None
    attempt: Future[PeerConnection] | None = None
    failures: int = 0
    failure: str = ""
    # The loop's time before which no new attempt begins.
    next_attempt_s: float = 0.0


# Returns the TLS context of connections to a broker, and the host that its certificate must have; None without TLS.
# Raises HandshakeError.
FindTls = Callable[[BrokerRegistration], tuple[ssl.SSLContext, str] | None]


class Peers:
    """`identity` may change: a new broker epoch takes effect with the next request."""

    def __init__(
        self,
        environment: Environment,
        identity: BrokerIdentity,
        image: MetadataImage,
        find_tls: FindTls = lambda peer: None,
    ) -> None:
        self._environment = environment
        self._loop = environment.loop
        self._identity = identity
        self._image = image
        self._find_tls = find_tls
        self.stats = PeerStats()
        self._buffers = PeerFrameBuffers()
        self._links: dict[tuple[int, Channel], _Link] = {}
        self._tasks: dict[Task[None], None] = {}
        self._is_stopped = False

    # Requests.

    async def request(
        self, broker_id: int, request: Message, version: int, *, channel: Channel = Channel.CONTROL, timeout_ms: int
    ) -> Message:
        """Return the response of a peer. Raises PeerUnavailable: the outcome is then unknown."""
        api_key = message_info(type(request)).key
        assert api_key is not None
        body = encode(request, version)
        view = await self.request_raw(broker_id, api_key, version, (body,), channel=channel, timeout_ms=timeout_ms)
        return decode(message_classes(api_key)[1], view, version)

    async def request_raw(
        self, broker_id: int, api_key: int, version: int, body: Sequence[Buffer], *, channel: Channel, timeout_ms: int
    ) -> memoryview:
        """Return the encoded response of a peer, after its header. Raises PeerUnavailable.

        The buffer of the response is reused when no view of it exists any more.
        """
        timeout_s = timeout_ms / 1000
        connection = self._open_connection(broker_id, channel)
        if connection is None:
            deadline_s = self._loop.time() + timeout_s
            connection = await self._connect(broker_id, channel, deadline_s)
            timeout_s = deadline_s - self._loop.time()
        return await connection.request(api_key, version, body, timeout_s)

    async def wait_for_images(self, number: int, timeout_s: float) -> None:
        """Wait until the images of all other brokers have the metadata change `number`, for at most `timeout_s`.

        A broker that does not respond is not waited for.
        """
        deadline_s = self._loop.time() + timeout_s
        others = [broker_id for broker_id in self._image.brokers if broker_id != self._identity.broker_id]
        await asyncio.gather(*(self._wait_for_image(broker_id, number, deadline_s) for broker_id in others))

    async def _wait_for_image(self, broker_id: int, number: int, deadline_s: float) -> None:
        own = self._identity
        request = BrokerHeartbeatRequest(
            broker_id=own.broker_id, broker_epoch=own.broker_epoch, current_metadata_offset=number
        )
        while (remaining_s := deadline_s - self._loop.time()) > 0:
            try:
                response = await self.request(
                    broker_id, request, BROKER_HEARTBEAT_VERSION, timeout_ms=int(remaining_s * 1000)
                )
            except PeerUnavailable:
                return
            if cast(BrokerHeartbeatResponse, response).is_caught_up:
                return
            await self._environment.sleep(IMAGE_POLL_S)

    # Connections.

    def _open_connection(self, broker_id: int, channel: Channel) -> PeerConnection | None:
        link = self._links.get((broker_id, channel))
        if link is None or link.own_epoch != self._identity.broker_epoch:
            return None
        connection = link.connection
        return connection if connection is not None and connection.is_open else None

    async def _connect(self, broker_id: int, channel: Channel, deadline_s: float) -> PeerConnection:
        """Return a connection, which may have been opened for another request. Raises PeerUnavailable."""
        link = self._link(broker_id, channel)
        attempt = link.attempt
        if attempt is None:
            attempt = link.attempt = self._loop.create_future()
            task = self._loop.create_task(self._attempt(link, attempt))
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)
        await asyncio.wait((attempt,), timeout=deadline_s - self._loop.time())
        if not attempt.done():
            raise PeerUnavailable(ErrorCode.REQUEST_TIMED_OUT, f"Broker {broker_id} cannot be reached in time.")
        return attempt.result()

    def _link(self, broker_id: int, channel: Channel) -> _Link:
        """Return the link to the current process of a peer. Raises PeerUnavailable if it is not registered."""
        peer = self._image.brokers.get(broker_id) or self._image.fenced_brokers.get(broker_id)
        if self._is_stopped or peer is None or not peer.inter_broker_port:
            raise PeerUnavailable(ErrorCode.NETWORK_EXCEPTION, f"Broker {broker_id} is not registered.")
        link = self._links.get((broker_id, channel))
        own_epoch = self._identity.broker_epoch
        if link is None or link.peer.epoch != peer.epoch or link.own_epoch != own_epoch:
            if link is not None:
                self._close_link(link, "The broker epoch has changed.")
            link = self._links[broker_id, channel] = _Link(peer, channel, own_epoch)
        return link

    async def _attempt(self, link: _Link, attempt: Future[PeerConnection]) -> None:
        """Connect once, after the backoff of former failures, and complete `attempt`."""
        error: Exception
        try:
            delay_s = link.next_attempt_s - self._loop.time()
            if delay_s > 0:
                await self._environment.sleep(delay_s)
            connection = await self._open(link)
        except (HandshakeError, PeerUnavailable, OSError) as failure:
            error = failure
        except CancelledError:
            error = PeerUnavailable(ErrorCode.NETWORK_EXCEPTION, "The broker stops.")
        else:
            link.attempt = None
            if attempt.done():
                # The link was closed meanwhile.
                connection.close("The broker epoch has changed.")
                return
            link.connection, link.failures, link.failure = connection, 0, ""
            attempt.set_result(connection)
            return
        link.attempt = None
        if not attempt.done():
            self._on_failure(link, error)
            unavailable = PeerUnavailable(ErrorCode.NETWORK_EXCEPTION, f"Connecting failed: {error}")
            unavailable.__cause__ = error
            attempt.set_exception(unavailable)
            # The requests may have timed out meanwhile.
            attempt.exception()

    async def _open(self, link: _Link) -> PeerConnection:
        """Open a connection and finish the handshake. Raises HandshakeError, PeerUnavailable, OSError."""
        peer = link.peer
        nonce = self._environment.random.randbytes(NONCE_BYTES)
        handshake = InitiatorHandshake(self._identity, (peer.id, peer.epoch), link.channel, nonce)

        def on_end(connection: PeerConnection) -> None:
            if link.connection is connection:
                link.connection = None

        # This side opens few connections, so the loop's own TLS does: nobody else can make it keep many.
        context, host = self._find_tls(peer) or (None, None)
        connection = PeerConnection(self._loop, self._buffers, handshake, on_end, self.stats)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._loop.create_connection(
                    lambda: connection,
                    peer.inter_broker_host,
                    peer.inter_broker_port,
                    ssl=context,
                    server_hostname=host,
                )
                await connection.ready
        except ssl.SSLError as error:
            raise tls_failure(error) from error
        except TimeoutError:
            reason = "connecting has timed out" if connection.transport is None else "The peer does not respond."
            connection.close(reason)
            raise PeerUnavailable(ErrorCode.NETWORK_EXCEPTION, reason) from None
        except CancelledError:
            connection.close("The broker stops.")
            raise
        finally:
            if connection.ready.done() and not connection.ready.cancelled():
                connection.ready.exception()
        return connection

    def _on_failure(self, link: _Link, error: Exception) -> None:
        self.stats.connection_failures += 1
        backoff_s = min(MAX_BACKOFF_S, MIN_BACKOFF_S * 2**link.failures)
        link.next_attempt_s = self._loop.time() + backoff_s * self._environment.random.uniform(0.8, 1.2)
        link.failures += 1
        link.failure = ""
        if isinstance(error, HandshakeError) and not error.is_transient:
            link.failure = ": ".join((error.reason, *map(str, error.detail.values())))
        if link.failures > 1:
            # The first failure was logged. The next message is that of another process of the peer.
            return
        peer = link.peer
        address = format_address(peer.inter_broker_host, peer.inter_broker_port)
        if isinstance(error, HandshakeError):
            # Nothing has failed if the metadata of one of them is older.
            report, event = (log.info, "refused") if error.is_transient else (log.error, "failed")
            report(f"handshake {event}", broker=peer.id, peer=address, reason=error.reason, **error.detail)
        else:
            log.info("broker unreachable", broker=peer.id, peer=address, reason=str(error) or type(error).__name__)

    def failed_handshakes(self) -> dict[int, str]:
        """Return the brokers that run, but to which this one cannot connect, with the reasons."""
        return {broker_id: link.failure for (broker_id, _), link in self._links.items() if link.failure}

    # The end.

    def on_brokers_changed(self) -> None:
        """Close connections to processes that have ended, or are no longer registered."""
        for link in list(self._links.values()):
            peer = self._image.brokers.get(link.peer.id) or self._image.fenced_brokers.get(link.peer.id)
            if peer is None or peer.epoch != link.peer.epoch:
                del self._links[link.peer.id, link.channel]
                self._close_link(link, "The broker is no longer registered.")

    def _close_link(self, link: _Link, reason: str) -> None:
        if link.connection is not None:
            link.connection.close(reason)
        if link.attempt is not None and not link.attempt.done():
            link.attempt.set_exception(PeerUnavailable(ErrorCode.NETWORK_EXCEPTION, reason))
            link.attempt.exception()

    def reset(self) -> None:
        """Close all connections: this broker's epoch has ended. Requests in flight fail with PeerUnavailable."""
        for link in self._links.values():
            self._close_link(link, "The broker epoch has ended.")
        self._links.clear()

    async def stop(self) -> None:
        """Close all connections. Requests in flight fail with PeerUnavailable, as do all later ones."""
        self._is_stopped = True
        for task in list(self._tasks):
            task.cancel()
        for link in self._links.values():
            self._close_link(link, "The broker stops.")
        self._links.clear()
