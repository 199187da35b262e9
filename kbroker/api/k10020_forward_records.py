"""ForwardRecords (key 10020), version 0, between brokers only: append batches of closing partitions. Not in Kafka.

- The leader of a closing partition sends it to the leader of the target partition, which drops batches that it has
  stored already (queues/closing/forwarding.py).
- The response is sent when the batches are committed.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.queues.closing.forwarding import append_forwarded
from protocol.messages.k10020_forward_records import ForwardRecordsRequest, ForwardRecordsResponse


async def handle(services: Services, context: RequestContext, request: ForwardRecordsRequest) -> ForwardRecordsResponse:
    records = bytes(request.records)
    partition = services.replicas.leader(request.topic_id, request.partition_index)
    last_position = await append_forwarded(services.environment, partition, records)
    return ForwardRecordsResponse(last_position=last_position)
