"""An open file of a simulated disk."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kbroker.common import Buffer
from kbroker.simulation.disk.content import Content
from kbroker.simulation.disk.faults import fail
from kbroker.simulation.runtime.death import MachineDied

if TYPE_CHECKING:
    from kbroker.simulation.disk.disk import SimDisk


class SimFile:
    """An open file. Writes go to its end."""

    __slots__ = ("_content", "_disk", "_path", "_writable")

    def __init__(self, disk: SimDisk, path: str, content: Content, writable: bool) -> None:
        self._disk = disk
        self._path = path
        self._content: Content | None = content
        self._writable = writable

    def append(self, data: Buffer, /) -> int:
        content, disk = self._open(writing=True), self._disk
        size = len(data)
        if size:
            disk.faults.before_write(self._path)
            size = disk.room_for(disk.faults.part_of(size), self._path)
        if disk.dies_next:
            # The machine dies in the middle of it.
            self._grow(content, memoryview(data)[: disk.random.randint(0, size)])
        disk.before("write", self._path, size)
        self._grow(content, data if size == len(data) else memoryview(data)[:size])
        content.mtime_ms = disk.clock.now_ms()
        return size

    def _grow(self, content: Content, data: Buffer) -> None:
        content.append(data)
        if content.linked:
            self._disk.used += len(data)

    def appendv(self, parts: Sequence[Buffer], /) -> int:
        return self.append(b"".join(parts))

    def pread(self, size: int, offset: int, /) -> bytes:
        content, disk = self._open(), self._disk
        disk.faults.before_read(self._path)
        if disk.cold and disk.random.random() < disk.cold:
            disk.busy_ns += disk.faults.read_ns()
        return bytes(memoryview(content.data)[offset : offset + size])

    def pread_reused(self, size: int, offset: int, /) -> bytes:
        return self.pread(size, offset)

    def pread_nowait(self, size: int, offset: int, /) -> bytes | None:
        content, disk = self._open(), self._disk
        if disk.cold and disk.random.random() < disk.cold:
            return None
        return bytes(memoryview(content.data)[offset : offset + size])

    def truncate(self, size: int, /) -> None:
        content, disk = self._open(writing=True), self._disk
        disk.before("truncate", self._path, size)
        before = len(content.data)
        content.truncate(size)
        if content.linked:
            disk.used += size - before

    def size(self) -> int:
        return len(self._open().data)

    def fdatasync(self) -> None:
        content, disk = self._open(), self._disk
        disk.before("sync", self._path)
        disk.busy_ns += disk.faults.sync_ns()
        disk.syncs[self._path] += 1
        try:
            disk.faults.before_sync(self._path)
        except OSError:
            content.fail_sync()
            raise
        content.sync()

    def forget_clean(self, offset: int, /) -> None:
        self._open().forget_clean(offset)

    def start_writeback(self, offset: int, size: int, /) -> None:
        """Pages may reach the disk at any time here."""

    def close(self) -> None:
        self._content = None

    def _open(self, *, writing: bool = False) -> Content:
        if self._disk.dead:
            raise MachineDied
        content = self._content
        if content is None or (writing and not self._writable):
            fail(errno.EBADF)
        return content


class SimLock:
    def __init__(self, locked: dict[str, None], path: str) -> None:
        self._locked = locked
        self._path = path

    def close(self) -> None:
        self._locked.pop(self._path, None)
