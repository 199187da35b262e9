"""BrokerHeartbeat (key 63), versions 0 to 2, between brokers only: a broker asks for a controlled shutdown.

- With want_shut_down the controller moves the broker's leaderships to others, and ends its ISR memberships. The broker
  may stop when the response has should_shut_down.
- There are no periodic heartbeats: a broker is fenced when its session with the coordination service ends. So a request
  without want_shut_down changes nothing, and want_fence is ignored.
- Offline and cordoned log directories (versions 1 and 2) are ignored: a broker has one directory.
"""

from __future__ import annotations

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from protocol.errors import ErrorCode
from protocol.messages.k63_broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse


async def handle(
    services: Services, context: RequestContext, request: BrokerHeartbeatRequest
) -> BrokerHeartbeatResponse:
    if context.peer_broker != (request.broker_id, request.broker_epoch):
        return BrokerHeartbeatResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    should_shut_down = False
    if request.want_shut_down:
        try:
            remaining = await services.controller.controlled_shutdown(request.broker_id, request.broker_epoch)
        except KafkaError as error:
            return BrokerHeartbeatResponse(error_code=error.code)
        should_shut_down = remaining == 0
    return BrokerHeartbeatResponse(
        is_caught_up=True,
        is_fenced=request.broker_id not in services.metadata.brokers,
        should_shut_down=should_shut_down,
    )
