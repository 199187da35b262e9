"""Reads and writes the state of share partitions, with any broker's share coordinator (KIP-932: Persister).

The calls of one iteration of the event loop share a request to each broker, if they are of one group and one API.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kbroker.common import KafkaError
from kbroker.coordinator.peer_requests import RequestQueues
from kbroker.coordinator.runtime.write_event import complete, complete_or_fail
from kbroker.coordinator.share.records import decode_batches, encode_batches
from kbroker.coordinator.share.share_coordinator import ShareCoordinator
from kbroker.coordinator.share.share_partition_state import PersistedState, SharePartitionKey, StateSummary, StateWrite
from kbroker.interbroker.auto_topic_creation_manager import AutoTopicCreationManager
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.topics.topic_names import SHARE_GROUP_STATE_TOPIC
from kbroker.runtime.environment import Environment
from protocol.errors import ErrorCode, known_error
from protocol.messages.k83_share_state import (
    DeleteShareGroupStateRequest,
    DeleteStateData,
    DeleteStatePartition,
    InitializeShareGroupStateRequest,
    InitializeStateData,
    InitializeStatePartition,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    ReadStateData,
    ReadStatePartition,
    WriteShareGroupStateRequest,
    WriteStateData,
    WriteStatePartition,
)
from protocol.schema.message import Message, Struct

if TYPE_CHECKING:
    from kbroker.interbroker.peers import Peers

T = TypeVar("T")

# How long a call is repeated, and the delays between the attempts, in seconds.
RETRY_S = 30.0
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.02, 1.0
# The coordinator may know a new topic later than the broker that calls it.
RETRIABLE = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class _Api(NamedTuple):
    """An API of the share coordinator: its request with the struct of a topic, and the result of a partition."""

    request: type[Message]
    topic: type[Struct]
    version: int
    result: Callable[[Any], Any]


def _nothing(result: object) -> None:
    return None


def _state(result: Any) -> PersistedState:
    return PersistedState(result.state_epoch, result.start_offset, decode_batches(result.state_batches))


def _summary(result: Any) -> StateSummary:
    return StateSummary(result.state_epoch, result.leader_epoch, result.start_offset, result.delivery_complete_count)


_INITIALIZE = _Api(InitializeShareGroupStateRequest, InitializeStateData, 0, _nothing)
_READ = _Api(ReadShareGroupStateRequest, ReadStateData, 0, _state)
_WRITE = _Api(WriteShareGroupStateRequest, WriteStateData, 1, _nothing)
_DELETE = _Api(DeleteShareGroupStateRequest, DeleteStateData, 0, _nothing)
_READ_SUMMARY = _Api(ReadShareGroupStateSummaryRequest, ReadStateData, 1, _summary)


class _Call(NamedTuple):
    """`partition` is its struct in the request."""

    key: SharePartitionKey
    partition: Struct
    response: Future[Any]


class ShareStatePersister:
    """Methods return when the coordinator has committed the change. Requests that may succeed later are repeated.

    They raise KafkaError: FENCED_LEADER_EPOCH if a newer leader has read the state, FENCED_STATE_EPOCH if the state was
    initialized again, UNKNOWN_TOPIC_OR_PARTITION if the topic is deleted, INVALID_REQUEST if the state is not
    initialized, or the reason why the coordinator cannot be reached in time. After COORDINATOR_NOT_AVAILABLE,
    NETWORK_EXCEPTION and REQUEST_TIMED_OUT the outcome is unknown. Calls for one partition may overtake one another.

    `peers` is None if the cluster has no other broker.
    """

    def __init__(
        self,
        environment: Environment,
        node_id: int,
        metadata: MetadataImage,
        request_timeout_ms: Callable[[], int],
        coordinator: ShareCoordinator,
        topics: AutoTopicCreationManager,
        peers: Peers | None = None,
    ) -> None:
        self._environment = environment
        self._node_id = node_id
        self._metadata = metadata
        self._coordinator = coordinator
        self._topics = topics
        self._peers = peers
        self._queues: dict[_Api, RequestQueues[_Call]] = {
            api: RequestQueues(
                environment,
                api.version,
                request_timeout_ms,
                _next_request,
                partial(_encode, api),
                partial(_complete, api),
                _fail,
            )
            for api in (_INITIALIZE, _READ, _WRITE, _DELETE, _READ_SUMMARY)
        }

    async def initialize(
        self, key: SharePartitionKey, state_epoch: int, start_offset: int, may_repeat: Callable[[], bool] = lambda: True
    ) -> None:
        """Set the start offset and discard the ranges, in a new state epoch.

        `may_repeat`: asked before the call is repeated, since that would discard what has been written since.
        """
        partition = InitializeStatePartition(
            partition=key.partition, state_epoch=state_epoch, start_offset=start_offset
        )
        await self._call(
            _INITIALIZE,
            key,
            partition,
            lambda: self._coordinator.initialize(key, state_epoch, start_offset),
            may_repeat,
        )

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> PersistedState:
        """Return the state for a new leader. Leaders of lower epochs can no longer write."""
        partition = ReadStatePartition(partition=key.partition, leader_epoch=leader_epoch)
        return await self._call(_READ, key, partition, lambda: self._coordinator.read(key, leader_epoch))

    async def write(self, key: SharePartitionKey, write: StateWrite) -> None:
        """Change ranges, and the start offset. May be repeated; ranges that do not overlap may be written at once."""
        partition = WriteStatePartition(
            partition=key.partition,
            state_epoch=write.state_epoch,
            leader_epoch=write.leader_epoch,
            start_offset=write.start_offset,
            delivery_complete_count=write.delivery_complete_count,
            state_batches=encode_batches(write.batches),
        )
        await self._call(_WRITE, key, partition, lambda: self._coordinator.write(key, write))

    async def delete(self, key: SharePartitionKey) -> None:
        """Delete the state, if there is any."""
        partition = DeleteStatePartition(partition=key.partition)
        await self._call(_DELETE, key, partition, lambda: self._coordinator.delete(key))

    async def read_summary(self, key: SharePartitionKey, leader_epoch: int = -1) -> StateSummary:
        """Return the start offset and how many records are completed."""
        partition = ReadStatePartition(partition=key.partition, leader_epoch=leader_epoch)
        return await self._call(_READ_SUMMARY, key, partition, lambda: self._coordinator.read_summary(key))

    async def _call(
        self,
        api: _Api,
        key: SharePartitionKey,
        partition: Struct,
        call_locally: Callable[[], Future[T]],
        may_repeat: Callable[[], bool] = lambda: True,
    ) -> T:
        """Call the coordinator; repeat that after errors that may pass, unless the topic is deleted."""
        loop = self._environment.loop
        deadline_s, backoff_s = loop.time() + RETRY_S, MIN_BACKOFF_S
        while True:
            try:
                if SHARE_GROUP_STATE_TOPIC not in self._metadata.topics:
                    await self._topics.ensure_internal_topic(SHARE_GROUP_STATE_TOPIC)
                if self._leader(key) == self._node_id:
                    return await call_locally()
                response: T = await self._call_peer(api, key, partition)
                return response
            except KafkaError as error:
                is_final = error.code not in RETRIABLE or not self._exists(key)
                if is_final or loop.time() + backoff_s > deadline_s:
                    raise
                failure = error
            await self._environment.sleep(backoff_s)
            if not may_repeat():
                raise failure
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    def _exists(self, key: SharePartitionKey) -> bool:
        topic = self._metadata.topics_by_id.get(key.topic_id)
        return topic is not None and key.partition < len(self._metadata.resolve_view(topic).partitions)

    def _leader(self, key: SharePartitionKey) -> int:
        """Return the broker of the coordinator. Raises COORDINATOR_NOT_AVAILABLE."""
        index = self._coordinator.runtime.partition_for(str(key))
        partition = self._metadata.partition(SHARE_GROUP_STATE_TOPIC, index)
        if partition is None or partition.leader not in self._metadata.brokers:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return partition.leader

    def _call_peer(self, api: _Api, key: SharePartitionKey, partition: Struct) -> Future[Any]:
        if self._peers is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        response: Future[Any] = self._environment.loop.create_future()
        self._queues[api].add(self._peers, self._leader(key), _Call(key, partition, response))
        return response


def _next_request(queue: list[_Call]) -> tuple[list[_Call], list[_Call]]:
    """Return the calls of the next request, and the others. A request has one group, and each partition once."""
    request: dict[SharePartitionKey, _Call] = {}
    others: list[_Call] = []
    group_id = queue[0].key.group_id
    for call in queue:
        if call.key.group_id == group_id and call.key not in request:
            request[call.key] = call
        else:
            others.append(call)
    return list(request.values()), others


def _encode(api: _Api, request: Sequence[_Call]) -> Message:
    partitions: dict[bytes, list[Struct]] = {}
    for key, partition, _ in request:
        partitions.setdefault(key.topic_id, []).append(partition)
    topics = [api.topic(topic_id=topic_id, partitions=rows) for topic_id, rows in partitions.items()]
    return api.request(group_id=request[0].key.group_id, topics=topics)


def _complete(api: _Api, request: Sequence[_Call], response: Any) -> None:
    results = {(topic.topic_id, result.partition): result for topic in response.results for result in topic.partitions}
    for key, _, future in request:
        result = results.get((key.topic_id, key.partition))
        if result is None:
            complete_or_fail(future, None, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))
        elif result.error_code != ErrorCode.NONE:
            complete_or_fail(future, None, KafkaError(known_error(result.error_code), result.error_message))
        else:
            complete(future, api.result(result))


def _fail(request: Sequence[_Call], error: KafkaError) -> None:
    for call in request:
        complete_or_fail(call.response, None, error)
