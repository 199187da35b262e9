"""AddOffsetsToTxn (key 25), versions 0 to 4: add the offsets of a group to a producer's open transaction.

Clients of transactions version 2 (KIP-890) do not send it; TxnOffsetCommit adds the offsets. As in Kafka the group is
not validated, and __consumer_offsets need not exist yet.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.api.producer_errors import producer_error
from kbroker.common import KafkaError, TopicPartition
from kbroker.metadata.topics.topic_names import GROUP_METADATA_TOPIC
from protocol.messages.k25_add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

FENCED_VERSION = 2


async def handle(
    services: Services, context: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    partition = TopicPartition(GROUP_METADATA_TOPIC, services.groups.runtime.partition_for(request.group_id))
    try:
        await services.transactions.add_partitions(
            request.transactional_id, request.producer_id, request.producer_epoch, [partition], 0
        )
    except KafkaError as error:
        return AddOffsetsToTxnResponse(error_code=producer_error(error, context.version, FENCED_VERSION))
    return AddOffsetsToTxnResponse()
