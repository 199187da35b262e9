"""EndTxn (key 26), versions 0 to 5: commit or abort a producer's open transaction.

- Answered when the decision is written down; the partitions learn of it afterwards.
- From version 5 on the client speaks transactions version 2 (KIP-890): its epoch is bumped with each transaction, and
  the answer has the producer id and epoch to go on with; -1 beside an error.
- Versions 0 and 1 do not know PRODUCER_FENCED.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.api.fenced_errors import fenced
from kbroker.common import KafkaError
from protocol.messages.k26_end_txn import EndTxnRequest, EndTxnResponse

FIRST_OF_VERSION_2 = 5
FIRST_WITH_FENCED = 2


async def handle(services: Services, context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    client_version = 2 if context.version >= FIRST_OF_VERSION_2 else 0
    try:
        producer_id, epoch = await services.transactions.end(
            request.transactional_id, request.producer_id, request.producer_epoch, request.committed, client_version
        )
    except KafkaError as refusal:
        return EndTxnResponse(error_code=fenced(refusal, context.version, FIRST_WITH_FENCED))
    return EndTxnResponse(producer_id=producer_id, producer_epoch=epoch)
