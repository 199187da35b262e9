"""The tree of the embedded coordination service: it applies operations and can roll them back."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from kbroker.coordination.interface import (
    ANY_VERSION,
    BadVersion,
    Check,
    CoordinationError,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    Set,
    WatchEvent,
)

# The journal has 16 bits for the length of a path. ZooKeeper has limits in the same range.
MAX_PATH_BYTES = 0xFFFF

Undo = Callable[[], None]


@dataclass(slots=True, eq=False)
class DataNode:
    """A node. `owner`: the session of an ephemeral node, 0 for a persistent one."""

    data: bytes
    version: int = 0
    owner: int = 0
    children: set[str] = field(default_factory=set)


@dataclass(slots=True)
class AppliedOps:
    """The effects of operations: events for watchers, functions that undo them, and the operations for the journal.

    `nodes`: the node after each operation, None if it was deleted or only checked.
    """

    nodes: list[Node | None] = field(default_factory=list)
    events: list[WatchEvent] = field(default_factory=list)
    undo: list[Undo] = field(default_factory=list)
    persistent_ops: list[Op] = field(default_factory=list)


class DataTree:
    """The nodes by path."""

    def __init__(self) -> None:
        self.nodes: dict[str, DataNode] = {"": DataNode(b"")}

    @property
    def is_empty(self) -> bool:
        return len(self.nodes) == 1

    def get(self, path: str) -> Node:
        node = self._find(path)
        return Node(node.data, node.version, node.owner)

    def version(self, path: str) -> int | None:
        node = self.nodes.get(path)
        return None if node is None else node.version

    def children(self, path: str) -> list[str]:
        return sorted(self._find(path).children)

    def ephemerals(self, session: int) -> list[str]:
        return [path for path, node in self.nodes.items() if node.owner == session]

    def persistent(self) -> Iterator[tuple[str, DataNode]]:
        """Return all nodes that are not ephemeral, parents before children."""
        return ((path, node) for path, node in self.nodes.items() if path and not node.owner)

    def apply(self, ops: Sequence[Op], session: int) -> AppliedOps:
        """Apply all operations or none. Raises the error of the first operation that fails."""
        applied = AppliedOps()
        try:
            for op in ops:
                node = self._apply_op(op, session, applied)
                applied.nodes.append(None if node is None else Node(node.data, node.version, node.owner))
        except CoordinationError as error:
            error.operation = len(applied.nodes)
            roll_back(applied.undo)
            raise
        return applied

    def _apply_op(self, op: Op, session: int, applied: AppliedOps) -> DataNode | None:
        """Apply an operation. Returns the node after it, None if it was deleted or only checked."""
        match op:
            case Check(path, version):
                self._find_version(path, version)
                return None
            case Create(path, data, ephemeral):
                node = DataNode(data, 0, session if ephemeral else 0)
                self._create(path, node, applied)
            case Set(path, data, version):
                node = self._find_version(path, version)
                self._set(node, path, data, applied)
            case Delete(path, version):
                node = self._find_version(path, version)
                self._delete(node, path, applied)
        if not node.owner:
            applied.persistent_ops.append(op)
        return None if isinstance(op, Delete) else node

    def _find(self, path: str) -> DataNode:
        node = self.nodes.get(path)
        if node is None:
            raise NoNode(path)
        return node

    def _find_version(self, path: str, version: int) -> DataNode:
        node = self._find(path)
        if version not in (ANY_VERSION, node.version):
            raise BadVersion(path, f"is {node.version}, expected {version}")
        return node

    def _create(self, path: str, node: DataNode, applied: AppliedOps) -> None:
        if path in self.nodes:
            raise NodeExists(path)
        if len(path.encode()) > MAX_PATH_BYTES:
            raise CoordinationError(path[:64], "the path is too long")
        parent_path, _, name = path.rpartition("/")
        parent = self._find(parent_path)
        if parent.owner:
            raise NoNode(path, "the parent is ephemeral")
        self.nodes[path] = node
        parent.children.add(name)
        applied.events += (WatchEvent("created", path), WatchEvent("children", parent_path))

        def undo() -> None:
            del self.nodes[path]
            parent.children.discard(name)

        applied.undo.append(undo)

    def _set(self, node: DataNode, path: str, data: bytes, applied: AppliedOps) -> None:
        old = node.data

        def undo() -> None:
            node.data = old
            node.version -= 1

        node.data = data
        node.version += 1
        applied.undo.append(undo)
        applied.events.append(WatchEvent("changed", path))

    def _delete(self, node: DataNode, path: str, applied: AppliedOps) -> None:
        if node.children:
            raise NotEmpty(path)
        parent_path, _, name = path.rpartition("/")
        parent = self._find(parent_path)
        del self.nodes[path]
        parent.children.discard(name)
        applied.events += (WatchEvent("deleted", path), WatchEvent("children", parent_path))

        def undo() -> None:
            self.nodes[path] = node
            parent.children.add(name)

        applied.undo.append(undo)


def roll_back(undo: Sequence[Undo]) -> None:
    """Undo operations in reverse order."""
    for step in reversed(undo):
        step()
