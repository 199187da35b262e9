"""An open file of a simulated disk."""

import errno

from kbroker.common import Buffer
from kbroker.runtime.disk import DirectSocket
from kbroker.simulation.disk.device import Device
from kbroker.simulation.disk.faults import raise_os_error
from kbroker.simulation.disk.inode import Inode


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
            device.faults.before_write(self._path)
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
        device.faults.before_read(self._path)
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
            device.faults.before_sync(self._path)
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
