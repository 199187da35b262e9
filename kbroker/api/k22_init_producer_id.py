"""InitProducerId (key 22), versions 0 to 5: a producer id for an idempotent producer.

- An idempotent producer that names its old id and epoch (KIP-360) gets a new id: its old sequences cannot
follow it.
- A transactional id: transactions do not exist yet, and the refusal must be final. Of the codes that say so,
  TRANSACTIONAL_ID_AUTHORIZATION_FAILED is the one at which the Java client, librdkafka and kafka-python all
  give up at once; at others librdkafka tries again for ever.
"""

from kbroker.api.services import RequestContext, Services
from kbroker.model import NO_PRODUCER_ID, KafkaError
from protocol.errors import ErrorCode
from protocol.messages.k22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse

NO_EPOCH = -1


async def handle(services: Services, context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    if request.transactional_id is not None:
        transactional = bool(request.transactional_id)
        return _refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if transactional else ErrorCode.INVALID_REQUEST)
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
        return _refused(ErrorCode.INVALID_REQUEST)
    try:
        producer_id = await services.producer_ids.next()
    except KafkaError as refusal:
        return _refused(refusal.code)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH)
