"""Relays the requests of brokers that are cut off from the controller: see kbroker/interbroker/controller_channel.py.

A relayed request arrives over the connection of a broker other than the one that it names. Both have proved that they
belong to the cluster, and the controller checks the broker epoch in the request.
"""

from __future__ import annotations

from kbroker.api.context import RequestContext, Services
from protocol.messages.k56_alter_partition import AlterPartitionRequest
from protocol.messages.k63_broker_heartbeat import BrokerHeartbeatRequest
from protocol.messages.k73_assign_replicas_to_dirs import AssignReplicasToDirsRequest
from protocol.schema.message import Message


async def relay_to_controller(
    services: Services,
    context: RequestContext,
    request: AlterPartitionRequest | AssignReplicasToDirsRequest | BrokerHeartbeatRequest,
) -> Message | None:
    """Relay a request to the controller, and return its response.

    Returns None if the controller does not respond, and if this broker must handle the request itself: it is the
    controller, or the request was relayed already.
    """
    is_relayed = context.peer_broker != (request.broker_id, request.broker_epoch)
    channel = services.controller_channel
    if is_relayed or channel is None or services.controller.is_elected:
        return None
    return await channel.relay(request, context.version)
