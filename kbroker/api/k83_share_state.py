"""The share coordinator's APIs (KIP-932), with which brokers keep the state of share partitions.

- InitializeShareGroupState (key 83), version 0: the group coordinator sets the start offset, in a new state epoch.
- ReadShareGroupState (key 84), version 0: a new leader reads the state, and fences the leaders before it.
- WriteShareGroupState (key 85), versions 0 and 1: the leader changes ranges and the start offset.
- DeleteShareGroupState (key 86), version 0: the group coordinator deletes the state of a group or of its topics.
- ReadShareGroupStateSummary (key 87), versions 0 and 1: the start offset, for those who describe the group.

Each partition of a request has its own result, and may have its own coordinator.
"""

from asyncio import Future
from collections.abc import Callable, Mapping
from typing import Any

from kbroker.api.context import RequestContext, Services
from kbroker.api.response_errors import failed_rows_response
from kbroker.common import KafkaError
from kbroker.coordinator.share.records import decode_batches, encode_batches
from kbroker.coordinator.share.share_coordinator import ShareCoordinator
from kbroker.coordinator.share.share_partition_state import PersistedState, SharePartitionKey, StateSummary, StateWrite
from kbroker.runtime.turns import paced
from protocol.apis import ApiKey
from protocol.messages.k83_share_state import (
    DeleteShareGroupStateResponse,
    InitializeShareGroupStateResponse,
    ReadShareGroupStateResponse,
    ReadShareGroupStateSummaryResponse,
    WriteShareGroupStateResponse,
)

failed_response = failed_rows_response

RUNS_IN_TURNS = True

Start = Callable[[ShareCoordinator, SharePartitionKey, Any], Future[Any]]
Fields = Callable[[Any], Mapping[str, Any]]


def _write(states: ShareCoordinator, key: SharePartitionKey, row: Any) -> Future[None]:
    batches = decode_batches(row.state_batches)
    change = StateWrite(row.state_epoch, row.leader_epoch, row.start_offset, row.delivery_complete_count, batches)
    return states.write(key, change)


def _state_fields(state: PersistedState) -> Mapping[str, Any]:
    batches = encode_batches(state.batches)
    return {"state_epoch": state.state_epoch, "start_offset": state.start_offset, "state_batches": batches}


def _no_fields(result: None) -> Mapping[str, Any]:
    return {}


# The response; how to start the operation of a partition; the fields that its result has besides the partition.
OPERATIONS: Mapping[int, tuple[Any, Start, Fields]] = {
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: (
        InitializeShareGroupStateResponse,
        lambda states, key, row: states.initialize(key, row.state_epoch, row.start_offset),
        _no_fields,
    ),
    ApiKey.READ_SHARE_GROUP_STATE: (
        ReadShareGroupStateResponse, lambda states, key, row: states.read(key, row.leader_epoch), _state_fields
    ),
    ApiKey.WRITE_SHARE_GROUP_STATE: (WriteShareGroupStateResponse, _write, _no_fields),
    ApiKey.DELETE_SHARE_GROUP_STATE: (
        DeleteShareGroupStateResponse, lambda states, key, row: states.delete(key), _no_fields
    ),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: (
        ReadShareGroupStateSummaryResponse, lambda states, key, row: states.read_summary(key), StateSummary._asdict
    ),
}  # fmt: skip


async def handle(services: Services, context: RequestContext, request: Any) -> Any:
    """Start the operations of all partitions, and return their results; as in Kafka, none without a group or topics."""
    response_class, start, fields = OPERATIONS[context.api_key]
    topic_result: Any = response_class.__rows__["results"].type[0]
    partition_result: Any = topic_result.__rows__["partitions"].type[0]
    is_initialize = context.api_key == ApiKey.INITIALIZE_SHARE_GROUP_STATE
    if not request.group_id or not (is_initialize or all(topic.partitions for topic in paced(request.topics))):
        return response_class(results=[])
    operations: list[tuple[SharePartitionKey, Future[Any] | KafkaError]] = []
    for topic in paced(request.topics):
        for row in paced(topic.partitions):
            key = SharePartitionKey(request.group_id, topic.topic_id, row.partition)
            try:
                operations.append((key, start(services.share_states, key, row)))
            except KafkaError as error:
                operations.append((key, error))
    # Of a partition that is named twice, the last result counts.
    results: dict[bytes, dict[int, Any]] = {}
    for (_, topic_id, partition), operation in paced(operations):
        try:
            if isinstance(operation, KafkaError):
                raise operation
            result = partition_result(partition=partition, **fields(await operation))
        except KafkaError as error:
            result = partition_result(partition=partition, error_code=error.code, error_message=error.message)
        results.setdefault(topic_id, {})[partition] = result
    return response_class(
        results=[
            topic_result(topic_id=topic_id, partitions=list(partitions.values()))
            for topic_id, partitions in results.items()
        ]
    )


HANDLERS = dict.fromkeys(OPERATIONS, handle)
