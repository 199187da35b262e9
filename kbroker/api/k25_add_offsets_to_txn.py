"""AddOffsetsToTxn (key 25), versions 0 to 4: a group's offsets become part of a producer's open transaction.

Clients of transactions version 2 (KIP-890) do not ask for it: TxnOffsetCommit adds them. As in Kafka the group is not
looked at, and __consumer_offsets need not exist yet.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.api.fenced_errors import fenced
from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.internal_log import GROUP_METADATA_TOPIC
from protocol.messages.k25_add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

FIRST_WITH_FENCED = 2


async def handle(
    services: Services, context: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    partition = TopicPartition(GROUP_METADATA_TOPIC, services.groups.partition_for(request.group_id))
    try:
        await services.transactions.add_partitions(
            request.transactional_id, request.producer_id, request.producer_epoch, [partition], 0
        )
    except KafkaError as refusal:
        return AddOffsetsToTxnResponse(error_code=fenced(refusal, context.version, FIRST_WITH_FENCED))
    return AddOffsetsToTxnResponse()
