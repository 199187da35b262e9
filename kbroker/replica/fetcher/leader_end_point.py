"""The interface through which fetchers send requests to the leaders of their partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from kbroker.common import Buffer

if TYPE_CHECKING:
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
