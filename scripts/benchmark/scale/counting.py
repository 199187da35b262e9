"""A session of the coordination service that counts what one broker reads and writes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from kbroker.coordination.interface import ANY_VERSION, Check, Coordination, Create, Node, Op, Set, Watch


@dataclass(slots=True)
class Traffic:
    """`nodes_read` and `bytes_read`: nodes that were read, with the size of their data. `operations` are of `multis`.

    `bytes_written`: the data and the paths of the operations.
    """

    nodes_read: int = 0
    bytes_read: int = 0
    multis: int = 0
    operations: int = 0
    bytes_written: int = 0

    def since(self, before: "Traffic") -> "Traffic":
        return Traffic(*(getattr(self, each.name) - getattr(before, each.name) for each in fields(Traffic)))

    def copy(self) -> "Traffic":
        return self.since(Traffic())


class CountingSession:
    """Passes every call on to another session (Coordination), and counts it in `traffic`."""

    def __init__(self, session: Coordination) -> None:
        self.traffic = Traffic()
        self._session = session

    @property
    def session_id(self) -> int:
        return self._session.session_id

    @property
    def is_connected(self) -> bool:
        return self._session.is_connected

    async def get(self, path: str, watch: Watch | None = None) -> Node:
        node = await self._session.get(path, watch)
        self._count_read(node)
        return node

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        nodes = await self._session.get_many(paths)
        for node in nodes:
            self._count_read(node)
        return nodes

    def _count_read(self, node: Node | None) -> None:
        self.traffic.nodes_read += 1
        self.traffic.bytes_read += 0 if node is None else len(node.data)

    async def exists(self, path: str, watch: Watch | None = None) -> int | None:
        return await self._session.exists(path, watch)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        names = await self._session.children(path, watch)
        self.traffic.bytes_read += sum(map(len, names))
        return names

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        self._count_write([Create(path, data, ephemeral)])
        await self._session.create(path, data, ephemeral=ephemeral)

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        self._count_write([Set(path, data, version)])
        return await self._session.set(path, data, version)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self._count_write([Check(path, version)])
        await self._session.delete(path, version)

    async def multi(self, ops: Sequence[Op]) -> None:
        self._count_write(ops)
        await self._session.multi(ops)

    def _count_write(self, ops: Sequence[Op]) -> None:
        self.traffic.multis += 1
        self.traffic.operations += len(ops)
        self.traffic.bytes_written += sum(
            len(op.path) + (len(op.data) if isinstance(op, Create | Set) else 0) for op in ops
        )

    async def sync(self) -> None:
        await self._session.sync()

    def on_expired(self, callback: Callable[[], None]) -> None:
        self._session.on_expired(callback)

    async def close(self) -> None:
        await self._session.close()
