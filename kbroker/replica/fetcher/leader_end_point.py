"""The requests of fetchers to leaders: Fetch, and ListOffsets when a leader does not have an offset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

from kbroker.common import Buffer, KafkaError
from kbroker.interbroker.peers import Channel, Peers
from protocol.apis import ApiKey
from protocol.errors import known_error
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

if TYPE_CHECKING:
    from kbroker.replica.fetcher.fetched_partitions import PartitionFetchState

FETCH_VERSION = 18
LIST_OFFSETS_VERSION = 9


class LeaderEndPoint(Protocol):
    """Sends requests to leaders. Both methods raise KafkaError if the leader did not respond in time."""

    async def fetch(self, broker_id: int, version: int, body: Sequence[Buffer], timeout_ms: int) -> memoryview:
        """Send a Fetch request. Returns the body of the response, in a buffer that nothing else uses."""
        ...

    async def list_offsets(self, broker_id: int, request: ListOffsetsRequest, timeout_ms: int) -> ListOffsetsResponse:
        """Send a ListOffsets request of LIST_OFFSETS_VERSION."""
        ...


class RemoteLeaderEndPoint:
    """A LeaderEndPoint. Fetches have a connection of their own for each leader."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def fetch(self, broker_id: int, version: int, body: Sequence[Buffer], timeout_ms: int) -> memoryview:
        return await self._peers.request_raw(
            broker_id, ApiKey.FETCH, version, body, channel=Channel.FETCH, timeout_ms=timeout_ms
        )

    async def list_offsets(self, broker_id: int, request: ListOffsetsRequest, timeout_ms: int) -> ListOffsetsResponse:
        response = await self._peers.request(broker_id, request, LIST_OFFSETS_VERSION, timeout_ms=timeout_ms)
        return cast(ListOffsetsResponse, response)


LATEST, EARLIEST = -1, -2


async def leader_offsets(
    leaders: LeaderEndPoint, replica_id: int, state: PartitionFetchState, timeout_ms: int
) -> tuple[int, int]:
    """Return the start and the end offset of the leader's log. Raises KafkaError."""
    start, end = [
        await _list_offset(leaders, replica_id, state, timestamp, timeout_ms) for timestamp in (EARLIEST, LATEST)
    ]
    return start, end


async def _list_offset(
    leaders: LeaderEndPoint, replica_id: int, state: PartitionFetchState, timestamp: int, timeout_ms: int
) -> int:
    row = ListOffsetsPartition(
        partition_index=state.key[1], current_leader_epoch=state.leader_epoch, timestamp=timestamp
    )
    request = ListOffsetsRequest(
        replica_id=replica_id, topics=[ListOffsetsTopic(name=state.partition.tp.topic, partitions=[row])]
    )
    response = await leaders.list_offsets(state.leader_id, request, timeout_ms)
    result = response.topics[0].partitions[0]
    if result.error_code:
        raise KafkaError(known_error(result.error_code))
    return result.offset
