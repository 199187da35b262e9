"""Requests to the controller, wherever it is (Kafka: NodeToControllerChannelManager).

The controller is a broker. If the network between it and this broker is cut, but both still reach the coordination
service, no session expires and no broker is replaced. Without ISR changes, no record of a partition with both brokers
in its ISR could be committed until the cut ends. So a third broker relays requests that name their broker.

A client's request is forwarded in an Envelope (KIP-590), which has the request with its header; the response has the
controller's response with its header.
"""

import asyncio
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import cast

from kbroker.common import Buffer, KafkaError, Principal
from kbroker.interbroker.peers import Peers, PeerUnavailable
from kbroker.metadata.image import MetadataImage
from kbroker.runtime.environment import Environment
from kbroker.runtime.turns import yield_if_due
from protocol.errors import ErrorCode, MalformedError, known_error
from protocol.framing import decode_response_header, encode_request_header
from protocol.messages import message_classes
from protocol.messages.k56_alter_partition import AlterPartitionRequest
from protocol.messages.k58_envelope import DefaultPrincipalData, EnvelopeRequest, EnvelopeResponse
from protocol.messages.k63_broker_heartbeat import BrokerHeartbeatRequest
from protocol.messages.k73_assign_replicas_to_dirs import AssignReplicasToDirsRequest
from protocol.schema.codec import decode, decoder, encode, encoder
from protocol.schema.message import Message, message_info

# The backoff between two attempts, in seconds. Kafka's retry.backoff.ms of this channel is 100 ms.
MIN_BACKOFF_S = 0.02
MAX_BACKOFF_S = 0.5
# The principal of the requests that a broker forwards for itself. No client has one of this type.
BROKER_PRINCIPAL = Principal("Broker", "")
# The version of Envelope, which has another request inside, and of the principal in it.
_ENVELOPE_VERSION = 0
_PRINCIPAL_VERSION = 0
# A request without a response for this time is also sent through a relay; the timeout of a relay; both in seconds.
RELAY_DELAY_S = 2.0
RELAY_TIMEOUT_S = 3.0
# Requests with a broker id and epoch. These show whether a request was relayed: none is relayed twice.
RELAYED = (AlterPartitionRequest, AssignReplicasToDirsRequest, BrokerHeartbeatRequest)
# The relaying broker could not reach the controller.
_NOT_RELAYED = (ErrorCode.NOT_CONTROLLER, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def encode_envelope(
    api_key: int, version: int, client_id: str | None, principal: Principal, client_host: str, body: bytes
) -> EnvelopeRequest:
    header = encode_request_header(api_key, version, 0, client_id)
    return EnvelopeRequest(
        request_data=header + body,
        request_principal=encode_principal(principal),
        client_host_address=encode_address(client_host),
    )


def encode_principal(principal: Principal) -> bytes:
    """Return a principal as Kafka's DefaultKafkaPrincipalBuilder serializes it."""
    return _PRINCIPAL_VERSION.to_bytes(2, "big") + encode(
        DefaultPrincipalData(type=principal.type, name=principal.name), _PRINCIPAL_VERSION
    )


def decode_principal(data: bytes) -> Principal:
    """Raises MalformedError."""
    if int.from_bytes(data[:2], "big") != _PRINCIPAL_VERSION:
        raise MalformedError("unknown version of a principal")
    principal = decode(DefaultPrincipalData, data[2:], _PRINCIPAL_VERSION)
    return Principal(principal.type, principal.name)


def encode_address(host: str) -> bytes:
    """Return the 4 or 16 bytes of an address; none for a name."""
    try:
        return ip_address(host.partition("%")[0]).packed
    except ValueError:
        return b""


def decode_address(data: bytes) -> str:
    """Return the text of an address. Raises ValueError."""
    return str(ip_address(data)) if data else "?"


def response_of_envelope(api_key: int, version: int, envelope: EnvelopeResponse) -> Message:
    """Decode the response in an Envelope. Raises KafkaError."""
    data = envelope.response_data or b""
    try:
        _, pos = decode_response_header(data, api_key, version)
        response: Message
        response, _ = decoder(message_classes(api_key)[1], version)(data, pos, pause=yield_if_due)
        return response
    except MalformedError as error:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"The controller's response is malformed: {error}") from error


def _error_code(response: Message) -> int:
    """All responses to brokers have an error_code."""
    code: int = response.error_code  # type: ignore[attr-defined]
    return code


class ControllerChannel:
    """`serve_locally` handles a request when this broker is the controller."""

    def __init__(
        self,
        environment: Environment,
        node_id: int,
        image: MetadataImage,
        peers: Peers,
        serve_locally: Callable[[Message, int], Awaitable[Message]],
    ) -> None:
        self._loop = environment.loop
        self._node_id = node_id
        self._image = image
        self._peers = peers
        self._serve_locally = serve_locally
        # Completed when the image has another controller.
        self._changed: asyncio.Future[None] = self._loop.create_future()

    def on_controller_changed(self) -> None:
        """Resend the requests in flight to a new controller, because the former one may never respond."""
        changed, self._changed = self._changed, self._loop.create_future()
        changed.set_result(None)

    async def request(self, request: Message, version: int, timeout_ms: int) -> Message:
        """Return the controller's response. Its error_code is not NOT_CONTROLLER.

        Without a controller, or a response, the request is sent again until the timeout, as in Kafka; so it may be
        handled more than once. Raises PeerUnavailable.
        """
        deadline_s = self._loop.time() + timeout_ms / 1000
        backoff_s = MIN_BACKOFF_S
        while True:
            changed = self._changed
            response, failure = await self._attempt(request, version, deadline_s)
            if response is not None:
                return response
            if self._loop.time() + backoff_s >= deadline_s:
                raise PeerUnavailable(ErrorCode.REQUEST_TIMED_OUT, f"The controller has not responded: {failure}")
            await self._wait(changed, backoff_s)
            backoff_s = min(MAX_BACKOFF_S, 2 * backoff_s)

    async def _wait(self, changed: asyncio.Future[None], backoff_s: float) -> None:
        """Wait for the backoff, or for another controller if that is earlier."""
        if not changed.done():
            await asyncio.wait((changed,), timeout=backoff_s)

    async def _attempt(self, request: Message, version: int, deadline_s: float) -> tuple[Message | None, str]:
        """Return (the controller's response, ""), or (None, the reason why there is none)."""
        controller_id = self._image.controller_id
        try:
            if controller_id == self._node_id:
                response = await self._serve_locally(request, version)
            elif controller_id < 0:
                return None, "there is no controller"
            else:
                response = await self._request_peer(controller_id, request, version, deadline_s)
        except PeerUnavailable as error:
            return None, error.message or error.code.name
        if _error_code(response) == ErrorCode.NOT_CONTROLLER:
            return None, f"broker {controller_id} is not the controller"
        return response, ""

    async def _request_peer(self, controller_id: int, request: Message, version: int, deadline_s: float) -> Message:
        """Return the response of a broker. Raises PeerUnavailable, also if another broker becomes the controller."""
        changed = self._changed
        timeout_ms = max(1, int((deadline_s - self._loop.time()) * 1000))
        direct = self._loop.create_task(self._peers.request(controller_id, request, version, timeout_ms=timeout_ms))
        tasks = [direct]
        if isinstance(request, RELAYED):
            tasks.append(self._loop.create_task(self._relay(direct, controller_id, request, version)))
        try:
            while waiting := [task for task in tasks if not task.done()]:
                either: list[asyncio.Future[Message] | asyncio.Future[None]] = [*waiting, changed]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    if task.done() and not task.cancelled() and task.exception() is None:
                        return task.result()
                if changed.done():
                    raise PeerUnavailable(ErrorCode.NETWORK_EXCEPTION, "another broker is the controller now")
            # The reason why the controller could not be reached directly.
            return direct.result()
        finally:
            for task in tasks:
                task.cancel()

    async def _relay(
        self, direct: asyncio.Task[Message], controller_id: int, request: Message, version: int
    ) -> Message:
        """Send a request to the other brokers in turn, until one returns the controller's response.

        Waits first until the `direct` request has failed, or has had no response for RELAY_DELAY_S.
        """
        await asyncio.wait((direct,), timeout=RELAY_DELAY_S)
        timeout_ms = round(RELAY_TIMEOUT_S * 1000)
        for broker_id in list(self._image.brokers):
            if broker_id in (controller_id, self._node_id):
                continue
            try:
                # The relaying broker waits for the controller as long.
                response = await self._peers.request(broker_id, request, version, timeout_ms=2 * timeout_ms)
            except PeerUnavailable:
                continue
            if _error_code(response) not in _NOT_RELAYED:
                return response
        raise PeerUnavailable(ErrorCode.NETWORK_EXCEPTION, "no broker can relay the request")

    async def relay(self, request: Message, version: int) -> Message | None:
        """Send another broker's request to the controller. Returns None if it does not respond."""
        controller_id = self._image.controller_id
        if controller_id < 0 or controller_id == self._node_id:
            return None
        try:
            return await self._peers.request(controller_id, request, version, timeout_ms=round(RELAY_TIMEOUT_S * 1000))
        except PeerUnavailable:
            return None

    async def forward(
        self,
        request: Message,
        version: int,
        client_id: str | None,
        principal: Principal,
        client_host: str,
        timeout_ms: int,
    ) -> Message:
        """Forward a client's request in an Envelope (KIP-590), and return its response. Raises KafkaError."""
        api_key = message_info(type(request)).key
        assert api_key is not None
        body: list[Buffer] = []
        encoder(type(request), version)(request, body, yield_if_due)
        envelope = encode_envelope(api_key, version, client_id, principal, client_host, b"".join(body))
        response = cast(EnvelopeResponse, await self.request(envelope, _ENVELOPE_VERSION, timeout_ms))
        if response.error_code:
            # As in Kafka, which hides the errors between brokers from clients.
            name = known_error(response.error_code).name
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR, f"The controller has refused the forwarded request: {name}"
            )
        return response_of_envelope(api_key, version, response)
