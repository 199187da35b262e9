"""InitProducerId (key 22), versions 0 to 5: a producer id for an idempotent producer or a transactional id.

- An idempotent producer that sends its old id and epoch (KIP-360) gets a new id, since it cannot continue its old
  sequences.
- A transactional id keeps its producer id. Each request bumps the epoch, which fences the former producer, and aborts
  its open transaction. With producer id and epoch (from version 3 on, KIP-360) only the current producer is accepted.
- Versions 0 to 3 do not know PRODUCER_FENCED.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.api.producer_errors import producer_error
from kbroker.common import NO_PRODUCER_ID, KafkaError
from protocol.errors import ErrorCode
from protocol.messages.k22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse

NO_EPOCH = -1
FENCED_VERSION = 4


async def handle(services: Services, context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    try:
        producer_id, epoch = await _init_producer_id(services, request)
    except KafkaError as error:
        code = producer_error(error, context.version, FENCED_VERSION)
        return InitProducerIdResponse(error_code=code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)


async def _init_producer_id(services: Services, request: InitProducerIdRequest) -> tuple[int, int]:
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is None:
        return await services.producer_ids.generate_producer_id(), 0
    return await services.transactions.init_producer_id(
        request.transactional_id, request.transaction_timeout_ms, request.producer_id, request.producer_epoch
    )
