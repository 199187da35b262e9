"""The log of metadata changes: what each one has written, so that brokers read only these nodes.

A change includes the changed rows of partitions, so brokers that follow need not read their chunks. The last change is
in znodes.CHANGES if it is small. A ring of nodes has it and the others, one node for each of the last RECENT_CHANGES.

CHANGES also names the controllers that have written the last changes. So a broker finds out that the metadata are those
of another history than it knows: the coordination service was restored from an older copy (metadata/recovery).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kbroker.coordination.interface import ANY_VERSION, Op, Set
from kbroker.metadata.store.partition_chunks import SetChunk
from kbroker.metadata.store.znodes import (
    CHANGES,
    ROOT,
    ChunkRows,
    chunk_fields,
    chunk_path,
    decode,
    decode_partition,
    decode_row,
    decoding,
    encode,
    number_of,
)

RECENT = f"{ROOT}/recent"
RECENT_CHANGES = 32
# Every broker reads CHANGES after every change, so a larger change is stored only in its own node.
MAX_INLINE_BYTES = 2_000
# The most controllers that CHANGES names, the last ones.
MAX_WRITERS = 16


@dataclass(slots=True)
class Change:
    """`paths` are the nodes to read, `rows` the rows that were written, by the number of their chunk."""

    number: int
    paths: list[str] = field(default_factory=list)
    rows: dict[int, ChunkRows] = field(default_factory=dict)

    @classmethod
    def of(cls, number: int, ops: Iterable[Op]) -> "Change":
        """Return the change that consists of these operations."""
        change = cls(number)
        for op in ops:
            if isinstance(op, SetChunk) and op.rows is not None:
                change.rows[number_of(op.path)] = op.rows
            else:
                change.paths.append(op.path)
        return change


class Writer(NamedTuple):
    """A controller, by its epoch and a name that no other one has, and where its changes begin.

    They follow those before `after`. The first number is higher than that only if the controller has begun a recovery:
    then it is also higher than those of all changes that brokers have seen and the metadata lack.
    """

    epoch: int
    name: str
    after: int
    first: int


@dataclass(slots=True)
class ChangeLog:
    """The number of the last change, and the change itself unless it is only in its own node.

    `writers`: the last controllers, oldest first. Versions before this field drop it with their changes.
    """

    number: int = 0
    last: Change | None = None
    writers: tuple[Writer, ...] = ()


def recent_path(number: int) -> str:
    return f"{RECENT}/{number % RECENT_CHANGES}"


def recent_paths() -> Iterator[str]:
    """Return the nodes of the ring."""
    yield from map(recent_path, range(RECENT_CHANGES))


def _change_fields(change: Change) -> dict[str, object]:
    rows = {str(number): chunk_fields(chunk) for number, chunk in change.rows.items()}
    return {"number": change.number, "paths": [path.removeprefix(ROOT) for path in change.paths], "rows": rows}


def decode_change(path: str, data: bytes) -> Change | None:
    """Return the change in a node, None if it is empty. Raises InvalidNodeData."""
    return _decode_fields(path, decode(path, data)) if data else None


def _decode_fields(path: str, fields: Mapping[str, Any]) -> Change:
    with decoding(path):
        rows: dict[int, ChunkRows] = {
            int(number): {
                bytes.fromhex(topic_id): {int(index): row and decode_partition(*row) for index, row in rows.items()}
                for topic_id, rows in chunk.items()
            }
            for number, chunk in fields["rows"].items()
        }
        return Change(int(fields["number"]), [ROOT + path for path in fields["paths"]], rows)


def encode_change_log(change_log: ChangeLog) -> bytes:
    # Brokers of the version before look for "recent", and read all nodes if it does not have what they have missed.
    fields: dict[str, object] = {"number": change_log.number, "recent": []}
    if change_log.last is not None:
        fields["last"] = _change_fields(change_log.last)
    if change_log.writers:
        fields["writers"] = change_log.writers
    return encode(fields)


def change_ops(number: int, ops: Sequence[Op], version: int = ANY_VERSION, writers: Sequence[Writer] = ()) -> list[Op]:
    """Return the operations that announce a change. `version`: that of CHANGES after the change before."""
    change = Change.of(number, ops)
    data = encode(_change_fields(change))
    log = ChangeLog(number, change if len(data) <= MAX_INLINE_BYTES else None, tuple(writers)[-MAX_WRITERS:])
    return [Set(CHANGES, encode_change_log(log), version), Set(recent_path(number), data)]


def decode_change_log(data: bytes) -> ChangeLog:
    with decoding(CHANGES):
        fields = decode(CHANGES, data)
        last = fields.get("last")
        writers = tuple(decode_row(Writer, row) for row in fields.get("writers", ()))
        return ChangeLog(int(fields["number"]), None if last is None else _decode_fields(CHANGES, last), writers)


class NodesToRead:
    """The combined input of several changes: the paths to read, and the rows of chunks that need no read.

    `reads_all`: some changes are unknown, so all nodes are read. A chunk that is read has the rows of all changes so
    far, so the rows of earlier changes are dropped.
    """

    def __init__(self) -> None:
        self.reads_all = False
        self.paths: dict[str, None] = {}
        # The rows in the order of the changes, by chunk.
        self.rows: dict[int, list[ChunkRows]] = {}

    def add(self, change: Change) -> None:
        for path in change.paths:
            self.paths[path] = None
        written = set(change.paths)
        for number in [number for number in self.rows if chunk_path(number) in written]:
            del self.rows[number]
        for number, rows in change.rows.items():
            self.rows.setdefault(number, []).append(rows)
