"""The files of the embedded coordination service: a snapshot of the tree, and a journal of the changes since.

A journal record has the changes of one fsync: length (uint32), CRC-32 of the payload (uint32), payload. The payload is
a sequence number (uint64) and the operations: kind (uint8), path length (uint16), path, and for Create and Set data
length (uint32) and data. The snapshot is one such record: the sequence number of its last change, and the path, version
(int32) and data of each node. Neither has ephemeral nodes. The journal is truncated only after the snapshot that
replaces it is complete; records that the snapshot includes are skipped by their sequence number.

If one of the files is removed while the store runs, the tree in memory is still complete: the file is then in
`missing`, and `compact` writes both files again. At startup, missing changes are an error.
"""

import struct
import zlib
from collections.abc import Iterable, Sequence
from errno import ENOSPC

from kbroker.coordination.data_tree import DataNode, DataTree
from kbroker.coordination.interface import CoordinationError, Create, Delete, Op, Set
from kbroker.runtime.disk import Disk, DiskFile

FRAME = struct.Struct(">II")
NUMBER = struct.Struct(">Q")
OP = struct.Struct(">BH")
LENGTH = struct.Struct(">I")
NODE = struct.Struct(">HiI")
CREATE, SET, DELETE = 1, 2, 3
COMPACT_AT_BYTES = 1 << 20
# The search for a record after a damaged one computes CRCs of at most this many bytes per byte of the file, or of
# MIN_CRC_BYTES if that is more. A file can be made to look like a record at every byte.
CRC_BYTES_PER_BYTE = 64
MIN_CRC_BYTES = 1 << 26


class JournalCorrupted(CoordinationError):
    """A file is damaged. Acknowledged changes cannot be recovered, so the broker must not start."""


class JournalFailed(CoordinationError):
    """A write or sync failed, and the content of the journal is unknown. The store must no longer be used."""


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
    """Decode the operations from a position on. Raises ValueError."""
    ops: list[Op] = []
    try:
        while pos < len(payload):
            kind, size = OP.unpack_from(payload, pos)
            raw, pos = _slice(payload, pos + OP.size, size)
            path = raw.decode()
            if kind == DELETE:
                ops.append(Delete(path))
                continue
            (length,) = LENGTH.unpack_from(payload, pos)
            data, pos = _slice(payload, pos + LENGTH.size, length)
            if kind not in (CREATE, SET):
                raise ValueError(f"an operation of kind {kind}")
            ops.append(Create(path, data) if kind == CREATE else Set(path, data))
    except struct.error as error:
        raise ValueError(str(error)) from None
    return ops


def _slice(payload: bytes, pos: int, size: int) -> tuple[bytes, int]:
    """Return `size` bytes and the position after them. Raises ValueError."""
    end = pos + size
    if end > len(payload):
        raise ValueError(f"{size} bytes where {len(payload) - pos} remain")
    return payload[pos:end], end


def frame(payload: bytes) -> bytes:
    return FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def unframe(buf: bytes, pos: int) -> bytes | None:
    """Return the payload of the frame at `pos`; None if it is incomplete or damaged."""
    if pos + FRAME.size > len(buf):
        return None
    length, crc = FRAME.unpack_from(buf, pos)
    end = pos + FRAME.size + length
    if length < NUMBER.size or end > len(buf):
        return None
    # The payload is copied only if it is valid.
    payload = memoryview(buf)[pos + FRAME.size : end]
    return bytes(payload) if zlib.crc32(payload) == crc else None


def next_record(buf: bytes, start: int) -> int:
    """Return the position of the first valid record from `start` on, at any byte; the end if there is none.

    Raises ValueError if too many bytes look like records.
    """
    budget = MIN_CRC_BYTES + CRC_BYTES_PER_BYTE * len(buf)
    for pos in range(start, len(buf) - FRAME.size):
        length, _ = FRAME.unpack_from(buf, pos)
        if NUMBER.size <= length <= len(buf) - FRAME.size - pos:
            budget -= length
            if budget < 0:
                raise ValueError("too many bytes that only look like records")
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
    """Load a snapshot into an empty tree; returns the number of its last change. Raises JournalCorrupted."""
    payload = unframe(buf, 0)
    if payload is None or FRAME.size + len(payload) != len(buf):
        raise JournalCorrupted("", "the coordination snapshot is damaged")
    (number,) = NUMBER.unpack_from(payload)
    try:
        _load_nodes(payload, NUMBER.size, tree)
    except (ValueError, LookupError, struct.error) as error:
        raise JournalCorrupted("", f"the coordination snapshot cannot be decoded: {error}") from None
    return int(number)


def _load_nodes(payload: bytes, pos: int, tree: DataTree) -> None:
    while pos < len(payload):
        name_size, version, data_size = NODE.unpack_from(payload, pos)
        raw, pos = _slice(payload, pos + NODE.size, name_size)
        path = raw.decode()
        data, pos = _slice(payload, pos, data_size)
        if path in tree.nodes:
            raise ValueError(f"{path!r} occurs twice")
        parent, _, name = path.rpartition("/")
        tree.nodes[parent].children.add(name)
        tree.nodes[path] = DataNode(data, version)


class Journal:
    """The snapshot and the journal in a directory. All methods block: call them in a thread, one at a time."""

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
        # The paths of files that were removed while the store runs.
        self.missing: list[str] = []

    def load(self) -> DataTree:
        """Read the files. Returns the tree after the last change, which is durable by then.

        An incomplete record at the end of the journal is truncated. If there is a snapshot but no journal, the journal
        is in `missing` afterwards. Raises JournalCorrupted, JournalFailed, OSError.
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
        """Write everything again.

        The last process may have ended between a write and its sync, or because a sync failed. The kernel may then
        consider pages that were never written as clean, so another sync would not write them.
        """
        assert self._file is not None
        if self._size:
            try:
                self.compact(encode_snapshot(tree, self._number))
                return
            except OSError:
                # There is no space for a snapshot. A sync may be enough, since it is unknown whether an earlier one
                # failed.
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
                except (ValueError, CoordinationError) as error:
                    raise JournalCorrupted(
                        self._journal, f"the record at byte {pos} cannot be applied: {error}"
                    ) from None
                self._number = number
            pos += FRAME.size + len(payload)
        try:
            has_following = next_record(buf, pos + 1) < len(buf)
        except ValueError:
            has_following = True
        if has_following:
            # A crash can tear only the last record: each record is synced before the next one is written.
            raise JournalCorrupted(self._journal, f"the record at byte {pos} is damaged and others follow it")
        self._size = pos

    def _gap(self, number: int) -> str:
        """Return the error message for a journal that continues with change `number`."""
        if self._has_snapshot or self._number:
            return f"changes {self._number + 1} to {number - 1} are missing"
        return f"it begins with change {number}, and {self._snapshot}, which has those before, is missing"

    def append(self, ops: Sequence[Op]) -> None:
        """Append a record with these operations and sync it. If `missing` is not empty afterwards, it is not durable
        yet.

        Raises OSError if nothing was written, and JournalFailed.
        """
        assert self._file is not None
        record = frame(NUMBER.pack(self._number + 1) + encode_ops(ops))
        try:
            if self._file.append(record) < len(record):
                raise OSError(ENOSPC, "no space for the coordination journal")
        except OSError:
            # A read-only file system has written nothing, and does not allow truncation.
            if self._file.size() != self._size:
                self._truncate(self._size)
            raise
        try:
            self._file.fdatasync()
        except OSError as error:
            raise JournalFailed(self._journal, f"sync failed: {error}") from error
        self._number += 1
        self._size += len(record)
        self.check_files()

    def check_files(self) -> None:
        """Record in `missing` which of the expected files do not exist."""
        expected = [self._journal, self._snapshot] if self._has_snapshot else [self._journal]
        self.missing = [path for path in expected if not self._disk.exists(path)]

    def _truncate(self, size: int) -> None:
        assert self._file is not None
        try:
            self._file.truncate(size)
        except OSError as error:
            raise JournalFailed(self._journal, f"truncate failed: {error}") from error

    @property
    def number(self) -> int:
        """The sequence number of the last durable change."""
        return self._number

    @property
    def wants_snapshot(self) -> bool:
        return self._size > self._compact_at

    def compact(self, snapshot: bytes) -> None:
        """Write a snapshot of the tree and truncate the journal; creates the files if they are missing.

        Raises OSError if the journal is unchanged, and JournalFailed.
        """
        assert self._file is not None
        self._compact_at *= 2
        if self.missing:
            self._disk.makedirs(self._directory)
        self._disk.write_atomic(self._snapshot, snapshot)
        self._has_snapshot = True
        if self._journal in self.missing:
            # The file that is open has been deleted.
            self._file = self._disk.open(self._journal, create=True)
            self._disk.sync_dir(self._directory)
        self._truncate(0)
        try:
            self._file.fdatasync()
        except OSError as error:
            raise JournalFailed(self._journal, f"sync failed: {error}") from error
        self._size = 0
        self._compact_at = max(COMPACT_AT_BYTES, 4 * len(snapshot))
        self.missing = []

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
