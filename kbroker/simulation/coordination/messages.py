"""What a session and the coordination service tell each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kbroker.metadata.store.coordination import CoordinationError, Node, Op, WatchEvent
from kbroker.simulation.network.channel import Channel

if TYPE_CHECKING:
    from asyncio import Future

Kind = Literal["get", "exists", "children", "multi", "set", "close"]
Result = Node | int | list[str] | None


@dataclass(slots=True, eq=False)
class Request:
    """`called_at`: on the caller's loop, in seconds. `path` or `ops`, as the kind needs."""

    kind: Kind
    called_at: float
    answer: "Future[Result]"
    path: str = ""
    ops: Sequence[Op] = ()
    watch: bool = False


@dataclass(slots=True)
class Hello:
    """A new connection of a session, which has seen its events up to this number."""

    seen: int


@dataclass(slots=True)
class Ping:
    seen: int


@dataclass(slots=True)
class Welcome:
    """The session goes on; or it is over, and so is the connection."""

    alive: bool


@dataclass(slots=True)
class Pong:
    pass


@dataclass(slots=True)
class Closed:
    """The service has closed the connection."""


@dataclass(slots=True)
class Answer:
    request: Request
    result: Result
    error: CoordinationError | None


@dataclass(slots=True)
class Event:
    """The session's events have numbers from 1."""

    number: int
    event: WatchEvent


Asked = Request | Hello | Ping
Told = Welcome | Pong | Closed | Answer | Event


class Connection:
    """Of a session (its number) to the service."""

    requests: Channel[Asked]
    answers: Channel[Told]

    def __init__(self, session: int) -> None:
        self.session = session
