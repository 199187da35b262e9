"""Messages between a session and the coordination service, and the connection that carries them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kbroker.coordination.interface import CoordinationError, Node, Op, WatchEvent
from kbroker.simulation.network.channel import DelayedChannel

if TYPE_CHECKING:
    from asyncio import Future

Kind = Literal["get", "exists", "children", "multi", "set", "sync", "close"]
Result = Node | int | list[str] | None


@dataclass(slots=True, eq=False)
class OperationRequest:
    """`called_at` is in seconds of the caller's loop. `kind` says whether `path` or `ops` is used."""

    kind: Kind
    called_at: float
    response: "Future[Result]"
    path: str = ""
    ops: Sequence[Op] = ()
    watch: bool = False


@dataclass(slots=True)
class ConnectRequest:
    """Opens a connection of a session that has seen the effects of the transactions up to `last_seen`."""

    last_seen: int


@dataclass(slots=True)
class Ping:
    pass


@dataclass(slots=True)
class ConnectResponse:
    """`alive` is False if the session has expired; the service then closes the connection."""

    alive: bool


@dataclass(slots=True)
class PingResponse:
    pass


@dataclass(slots=True)
class ConnectionClosed:
    """The service has closed the connection."""


@dataclass(slots=True)
class OperationResponse:
    """`seen`: the number of the last transaction that the server had applied."""

    request: OperationRequest
    result: Result
    error: CoordinationError | None
    seen: int


@dataclass(slots=True)
class WatchNotification:
    """`seen`: the number of the transaction that fired the watch."""

    event: WatchEvent
    seen: int


ClientMessage = OperationRequest | ConnectRequest | Ping
ServiceMessage = ConnectResponse | PingResponse | ConnectionClosed | OperationResponse | WatchNotification


class SessionConnection:
    """A connection of the session with this number to the service.

    `late_s`: a delay of the requests in addition to that of the network, in seconds.
    """

    requests: DelayedChannel[ClientMessage]
    responses: DelayedChannel[ServiceMessage]

    def __init__(self, session: int) -> None:
        self.session = session
        self.late_s = 0.0
