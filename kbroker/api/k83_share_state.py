"""The share coordinator's APIs (KIP-932), with which brokers keep the state of share partitions.

- InitializeShareGroupState (key 83), version 0: the group coordinator sets the start offset, in a new state epoch.
- ReadShareGroupState (key 84), version 0: a new leader reads the state, and fences the leaders before it.
- WriteShareGroupState (key 85), versions 0 and 1: the leader changes ranges and the start offset.
- DeleteShareGroupState (key 86), version 0: the group coordinator deletes the state of a group or of its topics.
- ReadShareGroupStateSummary (key 87), versions 0 and 1: the start offset, for those who describe the group.

Each partition of a request has its own result, and may have its own coordinator.
"""

from asyncio import Future
from collections.abc import Callable
from typing import Any, TypeVar

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.coordinator.share.records import decode_batches, encode_batches
from kbroker.coordinator.share.share_partition_state import PersistedState, SharePartitionKey, StateSummary, StateWrite
from kbroker.runtime.turns import paced
from protocol.apis import ApiKey
from protocol.messages.k83_share_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    ReadStatePartitionResult,
    ReadStateResult,
    ReadStateSummaryPartitionResult,
    ReadStateSummaryResult,
    ShareStateResult,
    ShareStateTopicResult,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)
from protocol.schema.message import Struct

RUNS_IN_TURNS = True

T = TypeVar("T")


async def initialize(
    services: Services, context: RequestContext, request: InitializeShareGroupStateRequest
) -> InitializeShareGroupStateResponse:
    def start(key: SharePartitionKey, row: Any) -> Future[None]:
        return services.share_states.initialize(key, row.state_epoch, row.start_offset)

    results = await _results(request, start, _nothing, ShareStateResult, ShareStateTopicResult)
    return InitializeShareGroupStateResponse(results=results)


async def read(
    services: Services, context: RequestContext, request: ReadShareGroupStateRequest
) -> ReadShareGroupStateResponse:
    def start(key: SharePartitionKey, row: Any) -> Future[PersistedState]:
        return services.share_states.read(key, row.leader_epoch)

    def fields(state: PersistedState) -> dict[str, Any]:
        batches = encode_batches(state.batches)
        return {"state_epoch": state.state_epoch, "start_offset": state.start_offset, "state_batches": batches}

    results = await _results(request, start, fields, ReadStatePartitionResult, ReadStateResult)
    return ReadShareGroupStateResponse(results=results)


async def write(
    services: Services, context: RequestContext, request: WriteShareGroupStateRequest
) -> WriteShareGroupStateResponse:
    def start(key: SharePartitionKey, row: Any) -> Future[None]:
        batches = decode_batches(row.state_batches)
        change = StateWrite(row.state_epoch, row.leader_epoch, row.start_offset, row.delivery_complete_count, batches)
        return services.share_states.write(key, change)

    results = await _results(request, start, _nothing, ShareStateResult, ShareStateTopicResult)
    return WriteShareGroupStateResponse(results=results)


async def delete(
    services: Services, context: RequestContext, request: DeleteShareGroupStateRequest
) -> DeleteShareGroupStateResponse:
    def start(key: SharePartitionKey, row: Any) -> Future[None]:
        return services.share_states.delete(key)

    results = await _results(request, start, _nothing, ShareStateResult, ShareStateTopicResult)
    return DeleteShareGroupStateResponse(results=results)


async def read_summary(
    services: Services, context: RequestContext, request: ReadShareGroupStateSummaryRequest
) -> ReadShareGroupStateSummaryResponse:
    def start(key: SharePartitionKey, row: Any) -> Future[StateSummary]:
        return services.share_states.read_summary(key)

    results = await _results(
        request, start, StateSummary._asdict, ReadStateSummaryPartitionResult, ReadStateSummaryResult
    )
    return ReadShareGroupStateSummaryResponse(results=results)


def _nothing(result: None) -> dict[str, Any]:
    return {}


async def _results(
    request: Any,
    start: Callable[[SharePartitionKey, Any], Future[T]],
    fields: Callable[[T], dict[str, Any]],
    partition_result: type[Struct],
    topic_result: type[Struct],
) -> list[Any]:
    """Start the operations of all partitions, and return their results; as in Kafka, none without a group or topics.

    `fields` returns the fields of a result besides the partition.
    """
    is_initialize = isinstance(request, InitializeShareGroupStateRequest)
    if not request.group_id or not (is_initialize or all(topic.partitions for topic in paced(request.topics))):
        return []
    operations: list[tuple[SharePartitionKey, Future[T] | KafkaError]] = []
    for topic in paced(request.topics):
        for row in paced(topic.partitions):
            key = SharePartitionKey(request.group_id, topic.topic_id, row.partition)
            try:
                operations.append((key, start(key, row)))
            except KafkaError as error:
                operations.append((key, error))
    # Of a partition that is named twice, the last result counts.
    results: dict[bytes, dict[int, Struct]] = {}
    for (_, topic_id, partition), operation in paced(operations):
        try:
            if isinstance(operation, KafkaError):
                raise operation
            result = partition_result(partition=partition, **fields(await operation))
        except KafkaError as error:
            result = partition_result(partition=partition, error_code=error.code, error_message=error.message)
        results.setdefault(topic_id, {})[partition] = result
    return [
        topic_result(topic_id=topic_id, partitions=list(partitions.values()))
        for topic_id, partitions in results.items()
    ]


HANDLERS = {
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: initialize,
    ApiKey.READ_SHARE_GROUP_STATE: read,
    ApiKey.WRITE_SHARE_GROUP_STATE: write,
    ApiKey.DELETE_SHARE_GROUP_STATE: delete,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: read_summary,
}
