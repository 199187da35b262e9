"""The leaders, over the connections to other brokers (Kafka: RemoteLeaderEndPoint)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from kbroker.common import Buffer
from kbroker.interbroker.peers import Channel, Peers
from kbroker.replica.fetcher.leader_end_point import LIST_OFFSETS_VERSION
from protocol.apis import ApiKey
from protocol.messages.k02_list_offsets import ListOffsetsRequest, ListOffsetsResponse


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
