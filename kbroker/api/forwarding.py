"""Requests that only the controller can handle, on other brokers.

*Clients' requests* of the APIs whose files say FORWARDED: a broker that is not the controller forwards them (KIP-590),
so a client may send them to any broker, as with Kafka. The handlers (kNN_*.py) are the same on both brokers. The
response is the controller's; if there is none within request.timeout.ms, it has the error REQUEST_TIMED_OUT. A file may
have a function `forward` that handles a part of the request here.

*Brokers' requests* to the controller: a broker that is cut off from it sends them to another one, which relays them
(kbroker/interbroker/controller_channel.py). A relayed request arrives over the connection of a broker other than the
one that it names. Both have proved that they belong to the cluster, and the controller checks the broker epoch in the
request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from kbroker.api.context import Handle, RequestContext, Services, complete_response
from kbroker.api.response_errors import has_error_code
from protocol.errors import ErrorCode
from protocol.messages.k56_alter_partition import AlterPartitionRequest
from protocol.messages.k63_broker_heartbeat import BrokerHeartbeatRequest
from protocol.messages.k73_assign_replicas_to_dirs import AssignReplicasToDirsRequest
from protocol.schema.message import Message

if TYPE_CHECKING:
    from kbroker.interbroker.controller_channel import ControllerChannel

R = TypeVar("R", bound="Message")

# Sends a request to the controller, and returns its response. Raises KafkaError.
Send = Callable[[Any], Awaitable[Any]]
# Handles a part of a request and sends the others to the controller.
Forward = Callable[["Services", "RequestContext", Any, Handle, Send], Awaitable["Message"]]


def forwarding(handle: Handle, forward: Forward | None = None) -> Handle:
    """Return the handler that forwards a request unless this broker is the controller."""

    def handle_or_forward(services: Services, context: RequestContext, request: Any) -> Any:
        channel = services.controller_channel
        if channel is None:
            return handle(services, context, request)
        return _handle_or_forward(services, channel, context, request, handle, forward)

    return handle_or_forward


async def _handle_or_forward(
    services: Services,
    channel: ControllerChannel,
    context: RequestContext,
    request: Any,
    handle: Handle,
    forward: Forward | None,
) -> Message:
    if services.controller.is_elected:
        response: Message = await complete_response(handle, services, context, request)
        if not has_error_code(response, ErrorCode.NOT_CONTROLLER):
            return response
    send = partial(_send, services, channel, context)
    return await (send(request) if forward is None else forward(services, context, request, handle, send))


async def _send(services: Services, channel: ControllerChannel, context: RequestContext, request: Message) -> Message:
    timeout_ms = services.config.request_timeout_ms
    return await channel.forward(request, context.version, context.client_id, *context.requester, timeout_ms)


async def relay_to_controller(
    services: Services,
    context: RequestContext,
    request: AlterPartitionRequest | AssignReplicasToDirsRequest | BrokerHeartbeatRequest,
    response_type: type[R],
) -> R | None:
    """Relay a broker's request to the controller, and return its response.

    Returns None if the controller does not respond, and if this broker must handle the request itself: it is the
    controller, or the request was relayed already.
    """
    is_relayed = context.peer_broker != (request.broker_id, request.broker_epoch)
    channel = services.controller_channel
    if is_relayed or channel is None or services.controller.is_elected:
        return None
    return cast("R | None", await channel.relay(request, context.version))
