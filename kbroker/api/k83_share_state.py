"""The share coordinator's APIs (KIP-932), with which brokers keep the state of share partitions.

- InitializeShareGroupState (key 83), version 0: the group coordinator sets the start offset, in a new state epoch.
- ReadShareGroupState (key 84), version 0: a new leader reads the state, and fences the leaders before it.
- WriteShareGroupState (key 85), versions 0 and 1: the leader changes ranges and the start offset.
- DeleteShareGroupState (key 86), version 0: the group coordinator deletes the state of a group or of its topics.
- ReadShareGroupStateSummary (key 87), versions 0 and 1: the start offset, for those who describe the group.

Each partition of a request has its own result, and may have its own coordinator.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Iterator, Sequence
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

RUNS_IN_TURNS = True

T = TypeVar("T")


async def initialize(
    services: Services, context: RequestContext, request: InitializeShareGroupStateRequest
) -> InitializeShareGroupStateResponse:
    def start(key: SharePartitionKey, row: Any) -> Future[None]:
        return services.share_states.initialize(key, row.state_epoch, row.start_offset)

    results = await _results(request, start, _nothing, ShareStateResult, ShareStateTopicResult)
    return InitializeShareGroupStateResponse(results=results)
