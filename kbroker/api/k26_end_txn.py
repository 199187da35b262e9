"""EndTxn (key 26), versions 0 to 5: commit or abort a producer's open transaction.

- The response is sent when the decision is committed; the transaction markers are written afterwards.
- From version 5 on the client uses transactions version 2 (KIP-890): each transaction bumps the epoch, and the response
  has the producer id and epoch to continue with; -1 with an error.
- Versions 0 and 1 do not know PRODUCER_FENCED.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.api.producer_errors import producer_error
from kbroker.common import KafkaError
from protocol.messages.k26_end_txn import EndTxnRequest, EndTxnResponse

EPOCH_BUMP_VERSION = 5
FENCED_VERSION = 2


async def handle(services: Services, context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    client_version = 2 if context.version >= EPOCH_BUMP_VERSION else 0
    try:
        producer_id, epoch = await services.transactions.end_transaction(
            request.transactional_id, request.producer_id, request.producer_epoch, request.committed, client_version
        )
    except KafkaError as error:
        return EndTxnResponse(error_code=producer_error(error, context.version, FENCED_VERSION))
    return EndTxnResponse(producer_id=producer_id, producer_epoch=epoch)
