"""The coordination service as the broker sees it: a small subset of ZooKeeper.

A tree of nodes. Each node has data (bytes, up to about 1 MiB) and a version that starts at 0 and grows by
one with each `set`, so writers can compare and set. `multi` makes several changes or none. An ephemeral
node lives as long as the session that made it. Watches fire once, on the loop, after the change is durable.

Implementations: `embedded` (one process, journaled file), `zookeeper`, `simulated`. One object is one
session.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

ANY_VERSION = -1


class CoordinationError(Exception):
    """The base of what a coordination call may raise; `path` names the node where one is to blame."""

    def __init__(self, path: str = "", detail: str = "") -> None:
        super().__init__(path, detail)
        self.path = path
        self.detail = detail

    def __str__(self) -> str:
        return " ".join(part for part in (type(self).__name__, self.path, self.detail) if part)


class NodeExists(CoordinationError):
    """`create` found a node."""


class NoNode(CoordinationError):
    """The node is not there, or the parent is not there for a `create`."""


class BadVersion(CoordinationError):
    """Compare-and-set lost: the node's version is another one."""


class NotEmpty(CoordinationError):
    """`delete` of a node that has children."""


class SessionExpired(CoordinationError):
    """The session is over; its ephemeral nodes are gone and no call on it will succeed again."""


class Unavailable(CoordinationError):
    """The service cannot be reached or cannot write. It is not known whether the change was made."""


class NoRoom(Unavailable):
    """The service has no room to write the change, which was not made."""


class Node(NamedTuple):
    """What `get` returns."""

    data: bytes
    version: int


class WatchEvent(NamedTuple):
    """`kind` is one of created, changed, deleted, children."""

    kind: str
    path: str


Watch = Callable[[WatchEvent], None]


@dataclass(slots=True, frozen=True)
class Check:
    """Fails the multi with BadVersion unless the node has this version."""

    path: str
    version: int


@dataclass(slots=True, frozen=True)
class Create:
    path: str
    data: bytes
    ephemeral: bool = False


@dataclass(slots=True, frozen=True)
class Set:
    """`per_session`: every session writes it anew when it begins. A service in this process may then keep it in memory
    as long as its disk is full, so that a broker can start."""

    path: str
    data: bytes
    version: int = ANY_VERSION
    per_session: bool = False


@dataclass(slots=True, frozen=True)
class Delete:
    path: str
    version: int = ANY_VERSION


Op = Check | Create | Set | Delete


class Coordination(Protocol):
    """One session. Paths are absolute, without a trailing slash; parents must exist, as in ZooKeeper."""

    @property
    def session_id(self) -> int: ...

    async def get(self, path: str, watch: Watch | None = None) -> Node:
        """Raises NoNode (and then leaves no watch)."""
        ...

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """The nodes as they are now, None where there is none: many reads for little more than one round
        trip.
        """
        ...

    async def exists(self, path: str, watch: Watch | None = None) -> int | None:
        """The node's version, or None. The watch is left in both cases."""
        ...

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """The names of the children, sorted. Raises NoNode."""
        ...

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        """Raises NodeExists, NoNode."""
        ...

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        """The new version. Raises NoNode, BadVersion."""
        ...

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Raises NoNode, BadVersion, NotEmpty."""
        ...

    async def multi(self, ops: Sequence[Op]) -> None:
        """All of the changes or none; raises what the first failing one would raise."""
        ...

    def on_expired(self, callback: Callable[[], None]) -> None:
        """Calls back once when the session is lost (not when it is closed)."""
        ...

    async def close(self) -> None:
        """Ends the session; its ephemeral nodes vanish."""
        ...
