"""InitProducerId (key 22), versions 0 to 5: a producer id for an idempotent producer, or for a transactional id.

- An idempotent producer that names its old id and epoch (KIP-360) gets a new id: its old sequences cannot follow it.
- A transactional id keeps its producer id; each call bumps the epoch, which fences whoever had it before, and ends what
  was open. With the old id and epoch (from version 3 on, KIP-360) only their holder gets the next ones.
- Versions 0 to 3 do not know PRODUCER_FENCED.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.api.fenced_errors import fenced
from kbroker.common import NO_PRODUCER_ID, KafkaError
from protocol.errors import ErrorCode
from protocol.messages.k22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse

NO_EPOCH = -1
FIRST_WITH_FENCED = 4


async def handle(services: Services, context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
        return _refused(ErrorCode.INVALID_REQUEST)
    try:
        producer_id, epoch = await _init(services, request)
    except KafkaError as refusal:
        return _refused(fenced(refusal, context.version, FIRST_WITH_FENCED))
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)


async def _init(services: Services, request: InitProducerIdRequest) -> tuple[int, int]:
    if request.transactional_id is None:
        return await services.producer_ids.generate_producer_id(), 0
    return await services.transactions.init_producer_id(
        request.transactional_id, request.transaction_timeout_ms, request.producer_id, request.producer_epoch
    )


def _refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH)
