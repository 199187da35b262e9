"""The requests of fetchers to leaders: Fetch and ListOffsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from kbroker.common import Buffer
from kbroker.interbroker.peers import Channel, Peers
from protocol.apis import ApiKey
from protocol.messages.k02_list_offsets import ListOffsetsRequest, ListOffsetsResponse

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
