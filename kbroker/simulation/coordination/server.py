"""A server of the coordination service, and its messages with a session."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from kbroker.coordination.data_tree import DataTree
from kbroker.coordination.interface import CoordinationError, Node, Op, WatchEvent, WatchManager
from kbroker.simulation.network.link import DelayedChannel

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


class Transaction(NamedTuple):
    """Operations that the leader has applied, with the session that has sent them."""

    ops: Sequence[Op]
    session: int


class Server:
    """Has the watches of its connections, and applies the leader's transactions in their order, each after a delay.

    `transactions` is the leader's log, `applied` the number of its transactions that are in `tree`, which the server
    starts with. `lag_s` is called for the delay of a transaction, in seconds. A connection receives the notification of
    a watch before any response that was produced after the change.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transactions: Sequence[Transaction],
        lag_s: Callable[[], float],
        tree: DataTree,
    ) -> None:
        self.tree = tree
        self.watches: WatchManager[SessionConnection] = WatchManager()
        self.applied = 0
        self._transactions = transactions
        # The numbers of transactions, from 1.
        self._commits: DelayedChannel[int] = DelayedChannel(
            loop, lambda number: lag_s(), lambda: True, self.apply_up_to
        )

    def commit(self, number: int) -> None:
        """Apply this transaction later."""
        self._commits.send(number)

    def apply_up_to(self, number: int) -> None:
        """Apply the transactions up to this one now, and fire their watches."""
        while self.applied < number:
            ops, session = self._transactions[self.applied]
            self.applied += 1
            for connection, event in self.watches.fire(self.tree.apply(ops, session).events):
                connection.responses.send(WatchNotification(event, self.applied))

    def stop(self) -> None:
        """Apply nothing more: another server has taken the place of this one."""
        self._commits.close()

    def forget(self, connection: SessionConnection) -> None:
        """Remove the watches of a connection that is lost."""
        self.watches.remove(lambda other: other is connection)
