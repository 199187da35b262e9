"""BrokerHeartbeat (key 63), versions 0 to 2, between brokers only: a broker asks for a controlled shutdown.

- With want_shut_down the controller moves the broker's leaderships to others, and ends its ISR memberships. The broker
  may stop when the response has should_shut_down.
- is_caught_up: whether the responding broker's image has the change with the number current_metadata_offset. A broker
  that stops asks all others, because they must no longer refer clients to it. In Kafka the controller knows this from
  heartbeats.
- A broker is fenced when its session with the coordination service ends, not when heartbeats stop. A request without
  want_shut_down changes nothing, and any broker responds: is_fenced shows a broker that is cut off from the service
  whether it has been replaced. want_fence is ignored.
- Offline and cordoned log directories (versions 1 and 2) are ignored: a broker has one directory, in which logs fail
  one by one. It reports those with AssignReplicasToDirs.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.api.forwarding import relay_to_controller
from kbroker.metadata.image import MetadataImage
from protocol.messages.k63_broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse


async def handle(
    services: Services, context: RequestContext, request: BrokerHeartbeatRequest
) -> BrokerHeartbeatResponse:
    should_shut_down = False
    if request.want_shut_down:
        relayed = await relay_to_controller(services, context, request, BrokerHeartbeatResponse)
        if relayed is not None:
            return relayed
        remaining = await services.controller.replication.controlled_shutdown(request.broker_id, request.broker_epoch)
        should_shut_down = remaining == 0
    return BrokerHeartbeatResponse(
        is_caught_up=services.controller.last_change_number >= request.current_metadata_offset,
        is_fenced=_is_fenced(services.metadata, request.broker_id, request.broker_epoch),
        should_shut_down=should_shut_down,
    )


def _is_fenced(image: MetadataImage, broker_id: int, broker_epoch: int) -> bool:
    """Return whether a broker epoch has ended. False if the image is older than the registration."""
    fenced, unfenced = image.fenced_brokers.get(broker_id), image.brokers.get(broker_id)
    if unfenced is not None:
        return unfenced.epoch > broker_epoch
    return fenced is not None and fenced.epoch >= broker_epoch
