"""The interface of the coordination service: a small subset of ZooKeeper.

A tree of nodes. Each node has data (bytes, up to about 1 MiB) and a version that starts at 0 and grows by one with each
`set`, so that writers can compare and set. `multi` applies several operations or none. An ephemeral node is deleted
when the session that created it ends. A watch fires once, on the event loop, after the change is durable: at the first
change, or when the service can no longer report changes to it, because the connection was lost. A session that expires
does not fire its watches: who waits for one also needs `on_expired`.

Reads of a session never go back, and they have every change that the session has made, has been notified of, or has
failed on (such as the version of a BadVersion). They may not have other changes of other sessions yet: see `sync`.

Implementations: embedded.py (in the broker's process, with a journal), zookeeper/ (an ensemble, through kazoo), and
kbroker.simulation.coordination (over a simulated network). WatchManager has the watches of each of them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

K = TypeVar("K")

ANY_VERSION = -1
# A cluster's metadata is below ROOT. CLUSTER_ID exists from the first start of the cluster on.
ROOT = "/kbroker"
CLUSTER_ID = f"{ROOT}/cluster-id"
# The size at which another multi is begun, well below ZooKeeper's limit of about 1 MiB.
MULTI_BYTES = 400_000


class CoordinationError(Exception):
    """The base of all errors of coordination calls. `path`: the node that caused the error, if one did.

    `operation`: the index of the operation of a multi that has failed; set by the embedded service only.
    """

    operation = 0

    def __init__(self, path: str = "", detail: str = "") -> None:
        super().__init__(path, detail)
        self.path = path
        self.detail = detail

    def __str__(self) -> str:
        return " ".join(part for part in (type(self).__name__, self.path, self.detail) if part)


class NodeExists(CoordinationError):
    """`create` of a node that exists."""


class NoNode(CoordinationError):
    """The node does not exist; for `create`, its parent."""


class BadVersion(CoordinationError):
    """The node does not have the expected version."""


class NotEmpty(CoordinationError):
    """`delete` of a node that has children."""


class SessionExpired(CoordinationError):
    """The session has ended: its ephemeral nodes are deleted, and every further call fails."""


class Unavailable(CoordinationError):
    """The service cannot be reached or cannot write. It is unknown whether the change was made.

    It is not made later than the session's next `sync` or successful write. The owner of an ephemeral node shows which
    session has created it.
    """


class TooLarge(CoordinationError):
    """The operations have more bytes than the service accepts, and no change was made."""


class NoSpace(Unavailable):
    """The disk of the service is full, and the change was not made."""


class Node(NamedTuple):
    """The contents of a node. `owner`: the session of an ephemeral node, 0 for a persistent one."""

    data: bytes
    version: int
    owner: int = 0


class WatchEvent(NamedTuple):
    """`kind` is one of created, changed, deleted, children, lost.

    After `lost`, the node must be read again: it may have changed, and it is not watched any more.
    """

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
    """`per_session`: every session writes the node again when it begins.

    While its disk is full, the embedded service may keep such a change only in memory, so that a broker can start."""

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

    @property
    def is_connected(self) -> bool:
        """Whether the service has responded lately. If not, the session may have expired."""
        ...

    @property
    def timeout_ms(self) -> int:
        """The session timeout in milliseconds, which the service may choose; 0 if the session does not expire."""
        ...

    async def get(self, path: str, watch: Watch | None = None) -> Node:
        """Return a node. Raises NoNode, without setting the watch."""
        ...

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Return nodes, None for those that do not exist. The requests share about one round trip."""
        ...

    async def exists(self, path: str, watch: Watch | None = None) -> int | None:
        """Return the version of a node, None if it does not exist. Sets the watch in both cases."""
        ...

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Return the names of the children, sorted. Raises NoNode."""
        ...

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        """Create a node. Raises NodeExists, NoNode."""
        ...

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        """Set the data of a node; returns its new version. Raises NoNode, BadVersion."""
        ...

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node. Raises NoNode, BadVersion, NotEmpty."""
        ...

    async def multi(self, ops: Sequence[Op]) -> None:
        """Apply all operations or none. Raises the error of the first operation that fails, or TooLarge."""
        ...

    async def sync(self) -> None:
        """Wait until later reads of this session have every change that was made before the call."""
        ...

    def on_expired(self, callback: Callable[[], None]) -> None:
        """Call `callback` once if the session expires. Not called if it is closed."""
        ...

    async def close(self) -> None:
        """End the session and delete its ephemeral nodes."""
        ...


class WatchManager(Generic[K]):
    """Watches that fire once, in the order in which they were set. `K` identifies a watcher."""

    def __init__(self) -> None:
        # By path; a dict keeps the order of registration.
        self._node_watches: dict[str, dict[K, None]] = {}
        self._child_watches: dict[str, dict[K, None]] = {}

    def add(self, path: str, watcher: K, *, children: bool = False) -> None:
        """Watch a node, or its list of children."""
        watches = self._child_watches if children else self._node_watches
        watches.setdefault(path, {})[watcher] = None

    def remove(self, is_closed: Callable[[K], bool]) -> None:
        """Remove the watches of closed watchers."""
        for watches in (self._node_watches, self._child_watches):
            for path in list(watches):
                remaining = {watcher: None for watcher in watches[path] if not is_closed(watcher)}
                if remaining:
                    watches[path] = remaining
                else:
                    del watches[path]

    def fire(self, events: Iterable[WatchEvent]) -> Iterator[tuple[K, WatchEvent]]:
        """Yield (watcher, event) for each watch that the events fire, and remove these watches."""
        for event in events:
            watches = self._child_watches if event.kind == "children" else self._node_watches
            watchers = watches.pop(event.path, {})
            if event.kind == "deleted":
                watchers |= self._child_watches.pop(event.path, {})
            for watcher in watchers:
                yield watcher, event

    def lose_all(self) -> Iterator[tuple[K, WatchEvent]]:
        """Remove all watches, and yield (watcher, event) for each: the service no longer reports changes to them."""
        for path in dict.fromkeys((*self._node_watches, *self._child_watches)):
            watchers = self._node_watches.pop(path, {}) | self._child_watches.pop(path, {})
            for watcher in watchers:
                yield watcher, WatchEvent("lost", path)


def op_bytes(op: Op) -> int:
    return len(op.path) + (len(op.data) if isinstance(op, Create | Set) else 0)


def batches(ops: Iterable[Op]) -> Iterator[list[Op]]:
    """Split operations into multis of about MULTI_BYTES."""
    batch: list[Op] = []
    size = 0
    for op in ops:
        batch.append(op)
        size += op_bytes(op)
        if size > MULTI_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
