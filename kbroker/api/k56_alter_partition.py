"""AlterPartition (key 56), version 3, between brokers only: a leader changes the in-sync replicas of its partitions.

- A broker that is not the controller relays the request of a leader that may be cut off from the controller.
- The broker epochs of the in-sync replicas are checked (KIP-903).
- Changes that arrive within 50 ms are written together; the response is sent when they are.
- The leader recovery state (KIP-704) is always RECOVERED: kbroker's logs have nothing to recover after an unclean
  election.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.api.forwarding import relay_to_controller
from kbroker.metadata.replication.isr_change_queue import AlterPartitionResult, IsrRequest
from kbroker.metadata.replication.partition_requests import RequestedIsr
from protocol.errors import ErrorCode
from protocol.messages.k56_alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionResponse,
    AlterPartitionResponsePartition,
    AlterPartitionResponseTopic,
)


async def handle(services: Services, context: RequestContext, request: AlterPartitionRequest) -> AlterPartitionResponse:
    relayed = await relay_to_controller(services, context, request, AlterPartitionResponse)
    if relayed is not None:
        return relayed
    isr_requests = [
        IsrRequest(topic.topic_id, partition.partition_index, _requested_isr(partition))
        for topic in request.topics
        for partition in topic.partitions
    ]
    results = await services.controller.isr_changes.alter_partitions(
        request.broker_id, request.broker_epoch, isr_requests
    )
    remaining = iter(results)
    return AlterPartitionResponse(
        topics=[
            AlterPartitionResponseTopic(
                topic_id=topic.topic_id,
                partitions=[_result(partition.partition_index, next(remaining)) for partition in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _requested_isr(partition: AlterPartitionRequestPartition) -> RequestedIsr:
    isr = [(broker.broker_id, broker.broker_epoch) for broker in partition.new_isr_with_epochs]
    return RequestedIsr(partition.leader_epoch, partition.partition_epoch, isr)


def _result(index: int, result: AlterPartitionResult) -> AlterPartitionResponsePartition:
    if isinstance(result, ErrorCode):
        return AlterPartitionResponsePartition(partition_index=index, error_code=result)
    return AlterPartitionResponsePartition(
        partition_index=index,
        leader_id=result.leader,
        leader_epoch=result.leader_epoch,
        isr=result.isr,
        partition_epoch=result.partition_epoch,
    )
