"""UnregisterBroker (key 64), version 0: remove the registration of a broker that has gone for good.

Replicas that are still assigned to it stay assigned, as in Apache Kafka: move them first. A broker that is alive
registers again. Unlike in Kafka, the id is no longer cordoned (KIP-1066): a later broker of this id is a new one. Nor
does it count as the last known leader of a partition (KIP-966): its disk may be another one. So INVALID_REQUEST is
returned while a partition without a leader waits for the broker.
"""

from kbroker.api.context import RequestContext, Services
from protocol.messages.k64_unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse

FORWARDED = True


async def handle(
    services: Services, context: RequestContext, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    await services.controller.replication.unregister_broker(request.broker_id)
    return UnregisterBrokerResponse()
