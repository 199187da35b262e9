"""The embedded coordination service on disk: a snapshot of the tree and a journal of what changed since.

A journal record is one fsync's worth of changes: u32 length, u32 CRC-32 of the payload, payload. The
payload is a u64 sequence number and the operations: u8 kind, u16 path length, path, and for Create and Set
u32 data length, data. The snapshot has the same frame around its sequence number and one (path, i32
version, data) per node. Ephemeral nodes are in neither. A snapshot is complete before the journal that it
replaces is cut, and records that it already holds are skipped by their number.

Should somebody remove one of the files while the store runs, the tree in memory is still whole: `missing` says so, and
`compact` makes both anew. A start does not go on without what is missing.
"""

import struct
import zlib
from collections.abc import Iterable, Sequence
from errno import ENOSPC
from typing import TYPE_CHECKING

from kbroker.metadata.store.coordination import CoordinationError, Create, Delete, Op, Set
from kbroker.metadata.store.data_tree import DataNode, DataTree

if TYPE_CHECKING:
    from kbroker.runtime.disk import Disk, DiskFile

FRAME = struct.Struct(">II")
NUMBER = struct.Struct(">Q")
OP = struct.Struct(">BH")
LENGTH = struct.Struct(">I")
NODE = struct.Struct(">HiI")
CREATE, SET, DELETE = 1, 2, 3
COMPACT_AT_BYTES = 1 << 20
# The CRCs that are computed in search of a record after a damaged one cover so many bytes for each that is there, and
# at least the others: a length is at every byte of a file that was made for it.
SEARCHED_PER_BYTE = 64
SEARCHED_AT_LEAST = 1 << 26


class JournalCorrupted(CoordinationError):
    """A file is not what was written: acknowledged changes cannot be recovered, so the broker must not
    start.
    """


class JournalFailed(CoordinationError):
    """The disk failed under the journal and what it holds is not known: nothing may be answered from
    memory.
    """


def encode_ops(ops: Iterable[Op]) -> bytes:
    out: list[bytes] = []
    for op in ops:
        path = op.path.encode()
        match op:
            case Create(data=data):
                out += (OP.pack(CREATE, len(path)), path, LENGTH.pack(len(data)), data)
            case Set(data=data):
                out += (OP.pack(SET, len(path)), path, LENGTH.pack(len(data)), data)
            case Delete():
                out += (OP.pack(DELETE, len(path)), path)
    return b"".join(out)


def decode_ops(payload: bytes, pos: int) -> list[Op]:
    """The operations from `pos` on. Raises ValueError for what encode_ops did not write."""
    ops: list[Op] = []
    try:
        while pos < len(payload):
            kind, size = OP.unpack_from(payload, pos)
            raw, pos = _take(payload, pos + OP.size, size)
            path = raw.decode()
            if kind == DELETE:
                ops.append(Delete(path))
                continue
            (length,) = LENGTH.unpack_from(payload, pos)
            data, pos = _take(payload, pos + LENGTH.size, length)
            if kind not in (CREATE, SET):
                raise ValueError(f"an operation of kind {kind}")
            ops.append(Create(path, data) if kind == CREATE else Set(path, data))
    except struct.error as fault:
        raise ValueError(str(fault)) from None
    return ops


def _take(payload: bytes, pos: int, size: int) -> tuple[bytes, int]:
    """`size` bytes and the position after them."""
    end = pos + size
    if end > len(payload):
        raise ValueError(f"{size} bytes where {len(payload) - pos} remain")
    return payload[pos:end], end


def frame(payload: bytes) -> bytes:
    return FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def unframe(buf: bytes, pos: int) -> bytes | None:
    """The payload of the whole and undamaged frame at `pos`, else None."""
    if pos + FRAME.size > len(buf):
        return None
    length, crc = FRAME.unpack_from(buf, pos)
    end = pos + FRAME.size + length
    if length < NUMBER.size or end > len(buf):
        return None
    # Not copied before it is known to be one.
    payload = memoryview(buf)[pos + FRAME.size : end]
    return bytes(payload) if zlib.crc32(payload) == crc else None


def next_record(buf: bytes, start: int) -> int:
    """Where the first whole record from `start` on is, at whatever byte; the end if there is none.

    Raises ValueError when too much looks like one to find out.
    """
    budget = SEARCHED_AT_LEAST + SEARCHED_PER_BYTE * len(buf)
    for pos in range(start, len(buf) - FRAME.size):
        length, _ = FRAME.unpack_from(buf, pos)
        if NUMBER.size <= length <= len(buf) - FRAME.size - pos:
            budget -= length
            if budget < 0:
                raise ValueError("too much looks like a record")
            if unframe(buf, pos) is not None:
                return pos
    return len(buf)


def encode_snapshot(tree: DataTree, number: int) -> bytes:
    out = [NUMBER.pack(number)]
    for path, node in tree.persistent():
        name = path.encode()
        out += (NODE.pack(len(name), node.version, len(node.data)), name, node.data)
    return frame(b"".join(out))


def load_snapshot(buf: bytes, tree: DataTree) -> int:
    """Fills an empty tree; gives the number of the last change that the snapshot holds. Raises Damaged."""
    payload = unframe(buf, 0)
    if payload is None or FRAME.size + len(payload) != len(buf):
        raise JournalCorrupted("", "the coordination snapshot is damaged")
    (number,) = NUMBER.unpack_from(payload)
    try:
        _load_nodes(payload, NUMBER.size, tree)
    except (ValueError, LookupError, struct.error) as fault:
        raise JournalCorrupted("", f"the coordination snapshot cannot be understood: {fault}") from None
    return int(number)


def _load_nodes(payload: bytes, pos: int, tree: DataTree) -> None:
    while pos < len(payload):
        name_size, version, data_size = NODE.unpack_from(payload, pos)
        raw, pos = _take(payload, pos + NODE.size, name_size)
        path = raw.decode()
        data, pos = _take(payload, pos, data_size)
        if path in tree.nodes:
            raise ValueError(f"{path!r} is there twice")
        parent, _, name = path.rpartition("/")
        tree.nodes[parent].children.add(name)
        tree.nodes[path] = DataNode(data, version)


class Journal:
    """The two files in a directory. Every method blocks: call them through offload, one at a time."""

    def __init__(self, disk: "Disk", directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._journal = f"{directory}/coordination.journal"
        self._snapshot = f"{directory}/coordination.snapshot"
        self._file: DiskFile | None = None
        self._number = 0
        self._size = 0
        self._compact_at = COMPACT_AT_BYTES
        self._has_snapshot = False
        # Files that somebody has removed, by name.
        self.missing: list[str] = []

    def load(self) -> DataTree:
        """The tree as of the last change; a torn last record is cut off. All of it is durable then.

        `missing` has the journal's name afterwards if there was a snapshot only.

        Raises Damaged, Lost, OSError.
        """
        self._disk.makedirs(self._directory)
        tree = DataTree()
        if self._disk.exists(self._snapshot):
            self._has_snapshot = True
            buf = self._disk.read(self._snapshot)
            self._compact_at = max(COMPACT_AT_BYTES, 4 * len(buf))
            self._number = load_snapshot(buf, tree)
        if self._disk.exists(self._journal):
            self._replay(self._disk.read(self._journal), tree)
            self._file = self._disk.open(self._journal)
            if self._file.size() > self._size:
                self._file.truncate(self._size)
        else:
            if self._has_snapshot:
                self.missing = [self._journal]
            self._file = self._disk.open(self._journal, create=True)
        self._make_durable(tree)
        return tree

    def _make_durable(self, tree: DataTree) -> None:
        """The last process may have ended between a write and its sync, or because a sync has failed. The system
        takes what was not written then for written, so another sync would not do: it is all written anew."""
        assert self._file is not None
        if self._size:
            try:
                self.compact(encode_snapshot(tree, self._number))
                return
            except OSError:
                # No room for a snapshot. Of an earlier failure nothing is known, so a sync may be enough.
                self._file.fdatasync()
        self._disk.sync_dir(self._directory)

    def _replay(self, buf: bytes, tree: DataTree) -> None:
        pos = 0
        while (payload := unframe(buf, pos)) is not None:
            (number,) = NUMBER.unpack_from(payload)
            if number > self._number + 1:
                raise JournalCorrupted(self._journal, self._gap(number))
            if number > self._number:
                try:
                    tree.apply(decode_ops(payload, NUMBER.size), 0)
                except (ValueError, CoordinationError) as fault:
                    raise JournalCorrupted(
                        self._journal, f"the record at byte {pos} cannot be applied: {fault}"
                    ) from None
                self._number = number
            pos += FRAME.size + len(payload)
        try:
            follows = next_record(buf, pos + 1) < len(buf)
        except ValueError:
            follows = True
        if follows:
            # Only the last record can be torn by a crash: each was synced before the next one was written.
            raise JournalCorrupted(self._journal, f"the record at byte {pos} is damaged and others follow it")
        self._size = pos

    def _gap(self, number: int) -> str:
        """What to say of a journal in which the change `number` is next."""
        if self._has_snapshot or self._number:
            return f"changes {self._number + 1} to {number - 1} are missing"
        return f"it begins with change {number}, and {self._snapshot}, which has those before, is missing"

    def append(self, ops: Sequence[Op]) -> None:
        """Makes changes durable, unless files are `missing` afterwards. OSError: nothing was changed, the next
        attempt may succeed. Lost: nobody knows.
        """
        assert self._file is not None
        record = frame(NUMBER.pack(self._number + 1) + encode_ops(ops))
        try:
            if self._file.append(record) < len(record):
                raise OSError(ENOSPC, "no room for the coordination journal")
        except OSError:
            # A read-only file system refuses every cut, and has written nothing.
            if self._file.size() != self._size:
                self._cut(self._size)
            raise
        try:
            self._file.fdatasync()
        except OSError as fault:
            raise JournalFailed(self._journal, f"sync failed: {fault}") from fault
        self._number += 1
        self._size += len(record)
        self.look()

    def look(self) -> None:
        """See whether the files are there."""
        expected = [self._journal, self._snapshot] if self._has_snapshot else [self._journal]
        self.missing = [path for path in expected if not self._disk.exists(path)]

    def _cut(self, size: int) -> None:
        assert self._file is not None
        try:
            self._file.truncate(size)
        except OSError as fault:
            raise JournalFailed(self._journal, f"cutting it failed: {fault}") from fault

    @property
    def number(self) -> int:
        """Of the last durable change."""
        return self._number

    @property
    def wants_snapshot(self) -> bool:
        return self._size > self._compact_at

    def compact(self, snapshot: bytes) -> None:
        """Replaces the journal by a snapshot of everything in it; makes both files anew if they are missing.

        OSError: the journal stays and grows on.
        """
        assert self._file is not None
        self._compact_at *= 2
        if self.missing:
            self._disk.makedirs(self._directory)
        self._disk.write_atomic(self._snapshot, snapshot)
        self._has_snapshot = True
        if self._journal in self.missing:
            # Whoever holds the file without a name writes for nobody.
            self._file = self._disk.open(self._journal, create=True)
            self._disk.sync_dir(self._directory)
        self._cut(0)
        try:
            self._file.fdatasync()
        except OSError as fault:
            raise JournalFailed(self._journal, f"sync failed: {fault}") from fault
        self._size = 0
        self._compact_at = max(COMPACT_AT_BYTES, 4 * len(snapshot))
        self.missing = []

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
