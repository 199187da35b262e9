"""A file system in memory: the Disk and DiskFile of storage/backend.py.

Failures are the OSErrors that a kernel gives. When it is full, a write takes what fits and the next one fails.
"""

import errno
import os
import posixpath
from collections.abc import Sequence
from random import Random
from typing import NoReturn

from kbroker.model import Buffer
from kbroker.world import Clock

# What a disk without a capacity says of itself.
LARGE = 1 << 40


class _Content:
    """What a file holds. Open files keep it when the name is gone."""

    __slots__ = ("data", "mtime_ms")

    def __init__(self, mtime_ms: int) -> None:
        self.data = bytearray()
        self.mtime_ms = mtime_ms


class SimDisk:
    """`cold`: the chance that a read without waiting finds nothing in memory. `capacity`: in bytes, None: no limit."""

    def __init__(self, clock: Clock, random: Random, *, capacity: int | None = None, cold: float = 0.0) -> None:
        self.clock = clock
        self.random = random
        self.capacity = capacity
        self.cold = cold
        self._files: dict[str, _Content] = {}
        self._directories = {"/", "."}
        self._locked: set[str] = set()

    def open(self, path: str, *, create: bool = False, write: bool = True) -> "SimFile":
        path = posixpath.normpath(path)
        content = self._files.get(path)
        if content is None:
            if path in self._directories:
                _fail(errno.EISDIR, path)
            if not create:
                _fail(errno.ENOENT, path)
            content = self._create(path)
        return SimFile(self, content, write)

    def read(self, path: str) -> bytes:
        return bytes(self._content(path).data)

    def write_atomic(self, path: str, data: bytes, *, sync: bool = True) -> None:
        path = posixpath.normpath(path)
        old = self._files.get(path)
        more = len(data) - (len(old.data) if old else 0)
        if self.room_for(more) < more:
            _fail(errno.ENOSPC, path)
        self._create(path).data += data

    def listdir(self, path: str) -> list[str]:
        path = posixpath.normpath(path)
        if path not in self._directories:
            _fail(errno.ENOTDIR if path in self._files else errno.ENOENT, path)
        entries = [*self._files, *self._directories - {"/", "."}]
        return [posixpath.basename(entry) for entry in sorted(entries) if _parent(entry) == path]

    def isdir(self, path: str) -> bool:
        return posixpath.normpath(path) in self._directories

    def exists(self, path: str) -> bool:
        return self.isdir(path) or posixpath.normpath(path) in self._files

    def size(self, path: str) -> int:
        return len(self._content(path).data)

    def mtime_ms(self, path: str) -> int:
        return self._content(path).mtime_ms

    def makedirs(self, path: str) -> None:
        path = posixpath.normpath(path)
        while path not in self._directories:
            if path in self._files:
                _fail(errno.EEXIST, path)
            self._directories.add(path)
            path = _parent(path)

    def rename(self, old: str, new: str) -> None:
        old, new = posixpath.normpath(old), posixpath.normpath(new)
        self._check_parent(new)
        if old in self._files:
            if new in self._directories:
                _fail(errno.EISDIR, new)
            self._files[new] = self._files.pop(old)
        elif old in self._directories:
            if new in self._files:
                _fail(errno.ENOTDIR, new)
            if new in self._directories and self.listdir(new):
                _fail(errno.ENOTEMPTY, new)
            self._move_directory(old, new)
        else:
            _fail(errno.ENOENT, old)

    def _move_directory(self, old: str, new: str) -> None:
        for directory in [each for each in self._directories if _is_within(each, old)]:
            self._directories.remove(directory)
            self._directories.add(new + directory[len(old) :])
        for path in [each for each in self._files if _is_within(each, old)]:
            self._files[new + path[len(old) :]] = self._files.pop(path)

    def unlink(self, path: str) -> None:
        self._content(path)
        del self._files[posixpath.normpath(path)]

    def rmtree(self, path: str) -> None:
        path = posixpath.normpath(path)
        if path in self._files:
            _fail(errno.ENOTDIR, path)
        self._directories = {each for each in self._directories if not _is_within(each, path)}
        self._files = {each: content for each, content in self._files.items() if not _is_within(each, path)}

    def sync_dir(self, path: str) -> None:
        if not self.isdir(path):
            _fail(errno.ENOENT, path)

    def usage(self, path: str) -> tuple[int, int]:
        capacity = LARGE if self.capacity is None else self.capacity
        return capacity, max(0, capacity - self._used())

    def room_for(self, size: int) -> int:
        """How much of `size` bytes there is room for."""
        return size if self.capacity is None else min(size, max(0, self.capacity - self._used()))

    def _used(self) -> int:
        return sum(len(content.data) for content in self._files.values())

    def lock(self, path: str) -> "SimLock":
        path = posixpath.normpath(path)
        if path in self._locked:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        if path not in self._files:
            self._create(path)
        self._locked.add(path)
        return SimLock(self._locked, path)

    def _create(self, path: str) -> _Content:
        self._check_parent(path)
        if path in self._directories:
            _fail(errno.EISDIR, path)
        content = self._files[path] = _Content(self.clock.now_ms())
        return content

    def _check_parent(self, path: str) -> None:
        if _parent(path) not in self._directories:
            _fail(errno.ENOENT, path)

    def _content(self, path: str) -> _Content:
        path = posixpath.normpath(path)
        content = self._files.get(path)
        if content is None:
            _fail(errno.EISDIR if path in self._directories else errno.ENOENT, path)
        return content


class SimFile:
    """An open file. Writes go to its end."""

    __slots__ = ("_content", "_disk", "_writable")

    def __init__(self, disk: SimDisk, content: _Content, writable: bool) -> None:
        self._disk = disk
        self._content: _Content | None = content
        self._writable = writable

    def append(self, data: Buffer, /) -> int:
        content = self._open(writing=True)
        room = self._disk.room_for(len(data))
        if len(data) and not room:
            _fail(errno.ENOSPC)
        content.data += memoryview(data)[:room]
        content.mtime_ms = self._disk.clock.now_ms()
        return room

    def appendv(self, parts: Sequence[Buffer], /) -> int:
        return self.append(b"".join(parts))

    def pread(self, size: int, offset: int, /) -> bytes:
        return bytes(self._open().data[offset : offset + size])

    def pread_reused(self, size: int, offset: int, /) -> bytes:
        return self.pread(size, offset)

    def pread_nowait(self, size: int, offset: int, /) -> bytes | None:
        if self._disk.cold and self._disk.random.random() < self._disk.cold:
            return None
        return self.pread(size, offset)

    def truncate(self, size: int, /) -> None:
        content = self._open(writing=True)
        del content.data[size:]
        content.data += bytes(size - len(content.data))

    def size(self) -> int:
        return len(self._open().data)

    def fdatasync(self) -> None:
        self._open()

    def start_writeback(self, offset: int, size: int, /) -> None:
        pass

    def close(self) -> None:
        self._content = None

    def _open(self, *, writing: bool = False) -> _Content:
        if self._content is None or (writing and not self._writable):
            _fail(errno.EBADF)
        return self._content


class SimLock:
    def __init__(self, locked: set[str], path: str) -> None:
        self._locked = locked
        self._path = path

    def close(self) -> None:
        self._locked.discard(self._path)


def _parent(path: str) -> str:
    return posixpath.dirname(path) or "."


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory + "/")


def _fail(code: int, path: str | None = None) -> NoReturn:
    raise OSError(code, os.strerror(code), path)
