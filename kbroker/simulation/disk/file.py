"""An open file, and its content: what programs read from the page cache, and what a power loss leaves on the disk.

Writes go to the page cache and reach the disk in any order, as whole pages of 4 KiB or only some of their sectors,
until a sync makes content and size durable. A power loss may undo a truncation that was not synced, as it does with a
journal transaction that was not written; the page in which the truncated file ends is written in place, before or
after it.

A failed sync behaves as on Linux: it marks the pages clean, so the next sync succeeds without writing them. Only pages
that are dirtied again in the meantime reach the disk.
"""

import errno
from random import Random
from sys import maxsize

from kbroker.common import Buffer
from kbroker.runtime.disk import DirectSocket
from kbroker.simulation.disk.device import Device, raise_os_error

PAGE = 4096
SECTOR = 512


class WorstCase(Random):
    """Makes a power loss take everything that was not synced."""

    def random(self) -> float:
        return 0.0


class Inode:
    """A file's content and what of it is durable.

    `data` is what programs read. The disk has `data[:clean_to]` except for `holes`, followed by `truncated`, the bytes
    cut off since the last sync. `linked` means that the file has a name and counts as used space.
    """

    __slots__ = ("clean_to", "data", "failed_to", "holes", "linked", "mtime_ms", "redirtied_from", "truncated")

    def __init__(self, mtime_ms: int, data: Buffer = b"") -> None:
        """Create a file whose content is durable."""
        self.data = bytearray(data)
        self.mtime_ms = mtime_ms
        self.linked = True
        self.clean_to = len(self.data)
        self.truncated = b""
        # A failed sync has marked the pages up to here clean; those from `redirtied_from` on are dirty again.
        self.failed_to = 0
        self.redirtied_from = maxsize
        # Ranges that a successful sync did not write because an earlier one had failed: (offset, the disk's bytes).
        self.holes: list[tuple[int, bytes]] = []

    def append(self, data: Buffer) -> None:
        if self.failed_to or self.holes:
            self._dirty_page()
        self.data += data

    def truncate(self, size: int) -> None:
        """Shorten the file, or extend it by zeros."""
        data = self.data
        if size > len(data):
            self.append(bytes(size - len(data)))
            return
        if size < self.clean_to:
            kept = bytearray(memoryview(data)[size : self.clean_to])
            for start, old in self.holes:
                _overlay(kept, start - size, old)
            self.truncated = bytes(kept) + self.truncated
            self.clean_to = size
        del data[size:]
        if self.failed_to or self.holes:
            self.failed_to = min(self.failed_to, size)
            self._dirty_page()

    def _dirty_page(self) -> None:
        """Mark the page in which the file ends dirty."""
        end = len(self.data)
        self.redirtied_from = min(self.redirtied_from, end - end % PAGE)

    def sync(self) -> None:
        """Make everything durable except pages that an earlier, failed sync has marked clean."""
        if self.failed_to or self.holes:
            self.holes = [
                (start, old[: self.redirtied_from - start]) for start, old in self.holes if start < self.redirtied_from
            ]
            end = min(self.failed_to, self.redirtied_from)
            if end > self.clean_to:
                size = end - self.clean_to
                self.holes.append((self.clean_to, self.truncated[:size].ljust(size, b"\0")))
            self.failed_to = 0
            self.redirtied_from = maxsize
        self.clean_to = len(self.data)
        self.truncated = b""

    def fail_sync(self) -> None:
        self.failed_to = len(self.data)
        self.redirtied_from = maxsize

    @property
    def has_unwritten_clean_pages(self) -> bool:
        """Whether pages that the disk does not have are marked clean."""
        return bool(self.holes) or min(self.failed_to, self.redirtied_from) > self.clean_to

    def evict_clean_pages(self, offset: int) -> None:
        """Read the clean pages from `offset` on from the disk again."""
        start = offset - offset % PAGE
        for hole, old in self.holes:
            if hole + len(old) > start:
                _overlay(self.data, max(hole, start), old[max(0, start - hole) :])
        self.holes = [(hole, old[: start - hole]) for hole, old in self.holes if hole < start]
        end = min(self.failed_to, self.redirtied_from, len(self.data))
        start = max(start, self.clean_to)
        if end > start:
            on_disk = self.truncated[start - self.clean_to : end - self.clean_to]
            _overlay(self.data, start, on_disk.ljust(end - start, b"\0"))
            self.failed_to = start if start > self.clean_to else 0

    def durable_prefix(self) -> bytes:
        """Return the longest prefix that survives any power loss."""
        end = min([self.clean_to, *(start for start, _ in self.holes)])
        return bytes(memoryview(self.data)[:end])

    def flip_bit(self, offset: int, bit: int) -> None:
        """Flip a bit of the medium."""
        self.data[offset] ^= 1 << bit

    def copy(self) -> "Inode":
        copy = Inode(self.mtime_ms, self.data)
        copy.clean_to, copy.truncated = self.clean_to, self.truncated
        copy.failed_to, copy.redirtied_from, copy.holes = self.failed_to, self.redirtied_from, list(self.holes)
        return copy

    def after_power_loss(self, random: Random) -> "Inode":
        """Return one of the states in which the disk may be."""
        if self.truncated and random.random() < 0.5:
            left = self._with_truncation_undone(random)
        else:
            left = self._with_some_pages(random)
        for start, old in self.holes:
            for page in range(start, min(start + len(old), len(left)), PAGE):
                if random.random() < 0.75:
                    _overlay(left, page, old[page - start : page - start + PAGE])
        return Inode(self.mtime_ms, left)

    def _with_truncation_undone(self, random: Random) -> bytearray:
        left = self.data[: self.clean_to] + self.truncated
        if random.random() < 0.5:
            return left
        page_end = -(-self.clean_to // PAGE) * PAGE
        new = bytes(self.data[self.clean_to : page_end]).ljust(page_end - self.clean_to, b"\0")
        self._write_sectors(left, self.clean_to, new, random)
        return left

    def _with_some_pages(self, random: Random) -> bytearray:
        start, end = self.clean_to, len(self.data)
        chance = random.random()
        if chance < 0.25 or start == end:
            return self.data[:start]
        if chance < 0.5:
            return self.data[:]
        end = random.randint(start, end)
        left = self.data[:start] + bytes(end - start)
        while start < end:
            page_end = min(end, start - start % PAGE + PAGE)
            fate = random.random()
            if fate < 0.75:
                left[start:page_end] = self.data[start:page_end]
            elif fate < 0.875:
                self._write_sectors(left, start, bytes(self.data[start:page_end]), random)
            start = page_end
        return left

    @staticmethod
    def _write_sectors(left: bytearray, start: int, new: bytes, random: Random) -> None:
        """Write a random part of a page's sectors."""
        position = start
        while position < start + len(new):
            sector_end = position - position % SECTOR + SECTOR
            if random.random() < 0.5:
                _overlay(left, position, new[position - start : sector_end - start])
            position = sector_end


def _overlay(left: bytearray, start: int, new: bytes) -> None:
    """Overwrite `left` with `new` at `start`; ignore what lies outside. The size stays."""
    if start < 0:
        new, start = new[-start:], 0
    new = new[: max(0, len(left) - start)]
    left[start : start + len(new)] = new


class SimFile:
    """Implements DiskFile. Writes append."""

    __slots__ = ("_device", "_inode", "_path", "_writable")

    def __init__(self, device: Device, path: str, inode: Inode, writable: bool) -> None:
        self._device = device
        self._path = path
        self._inode: Inode | None = inode
        self._writable = writable

    def append(self, data: Buffer, /) -> int:
        inode, device = self._open_inode(writing=True), self._device
        size = len(data)
        if size:
            device.faults.before("write", self._path)
            size = device.writable_bytes(device.faults.part_of(size), self._path)
        if device.crashes_next:
            # The machine crashes in the middle of the write.
            self._append(inode, memoryview(data)[: device.random.randint(0, size)])
        device.begin_change("write", self._path, size)
        self._append(inode, data if size == len(data) else memoryview(data)[:size])
        inode.mtime_ms = device.clock.now_ms()
        return size

    def _append(self, inode: Inode, data: Buffer) -> None:
        inode.append(data)
        if inode.linked:
            self._device.used += len(data)

    def pread(self, size: int, offset: int, /) -> bytes:
        inode, device = self._open_inode(), self._device
        device.faults.before("read", self._path)
        if device.cold and device.random.random() < device.cold:
            device.busy_ns += device.faults.read_ns()
        return bytes(memoryview(inode.data)[offset : offset + size])

    def pread_reused(self, size: int, offset: int, /) -> bytes:
        return self.pread(size, offset)

    def pread_nowait(self, size: int, offset: int, /) -> bytes | None:
        inode, device = self._open_inode(), self._device
        if device.cold and device.random.random() < device.cold:
            return None
        return bytes(memoryview(inode.data)[offset : offset + size])

    def send_nowait(self, socket: DirectSocket, size: int, offset: int, /) -> int | None:
        try:
            data = self.pread_nowait(size, offset)
        except OSError:
            # A read reports it.
            return None
        if not data:
            return None
        try:
            return socket.send(data, 0)
        except BlockingIOError:
            return 0
        except OSError:
            return None

    def truncate(self, size: int, /) -> None:
        inode, device = self._open_inode(writing=True), self._device
        device.begin_change("truncate", self._path, size)
        size_before = len(inode.data)
        inode.truncate(size)
        if inode.linked:
            device.used += size - size_before

    def size(self) -> int:
        return len(self._open_inode().data)

    def fdatasync(self) -> None:
        inode, device = self._open_inode(), self._device
        device.begin_change("sync", self._path)
        device.count_sync()
        device.syncs[self._path] += 1
        try:
            device.faults.before("sync", self._path)
        except OSError:
            inode.fail_sync()
            raise
        inode.sync()

    def drop_clean_pages(self, offset: int, /) -> None:
        self._open_inode().evict_clean_pages(offset)
        self._device.changes[self._path.rpartition("/")[0]] += 1

    def start_writeback(self, offset: int, size: int, /) -> None:
        """Do nothing: here pages may reach the disk at any time."""

    def close(self) -> None:
        self._inode = None

    def _open_inode(self, *, writing: bool = False) -> Inode:
        self._device.check_alive()
        inode = self._inode
        if inode is None or (writing and not self._writable):
            raise_os_error(errno.EBADF)
        return inode


class SimLock:
    def __init__(self, locked: dict[str, None], path: str) -> None:
        self._locked = locked
        self._path = path

    def close(self) -> None:
        self._locked.pop(self._path, None)
