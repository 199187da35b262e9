"""The interface of the connections to other brokers, for coordinators and their clients on this broker."""

from typing import Any, Protocol

from protocol.errors import ErrorCode
from protocol.schema.message import Message


class PeerRequests(Protocol):
    """The part of `kbroker.interbroker.peers.Peers` that coordinators use."""

    async def request(self, broker_id: int, request: Message, version: int, *, timeout_ms: int) -> Any:
        """Return the response of a broker.

        Raises KafkaError (NETWORK_EXCEPTION, REQUEST_TIMED_OUT) if there is none; the broker may have handled the
        request nevertheless.
        """
        ...


def error_code(code: int) -> ErrorCode:
    """Return the error in a peer's response. A peer of a later version may know more errors."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
