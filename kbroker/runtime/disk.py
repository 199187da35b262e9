"""What the storage room asks of a disk, and the real disk.

Everything above uses `Disk` and `DiskFile`; the simulation has its own in memory. Failures are OSError with an
errno (ENOSPC, EIO, ENOENT, ...) from every implementation. All calls may block, except `pread_nowait`; `append`
and `appendv` block only when the kernel throttles writers, which early writeback avoids.
"""

import errno
import fcntl
import os
import shutil
import sys
from collections.abc import Sequence
from threading import Lock
from typing import Any, Protocol

from kbroker.common import Buffer


class DiskFile(Protocol):
    """An open file. It is also closed with its last reference, so that a reader in a thread never loses it."""

    def append(self, data: Buffer, /) -> int:
        """One write(2) at the end; gives the bytes written, which are fewer than asked when the disk is full."""
        ...

    def appendv(self, parts: Sequence[Buffer], /) -> int:
        """One writev(2) at the end of the file, of at most 1,024 parts; gives the bytes written."""
        ...

    def pread(self, size: int, offset: int, /) -> bytes:
        """Read `size` bytes at `offset`, fewer only at the end of the file."""
        ...

    def pread_reused(self, size: int, offset: int, /) -> Buffer:
        """As pread, perhaps in memory that is used again as soon as nobody refers to the result."""
        ...

    def pread_nowait(self, size: int, offset: int, /) -> Buffer | None:
        """Read what is in memory already, perhaps less than `size`; None when that is nothing or unknown."""
        ...

    def truncate(self, size: int, /) -> None: ...

    def size(self) -> int: ...

    def fdatasync(self) -> None:
        """Make the content and the size durable. After a failure nothing is known of the unsynced bytes."""
        ...

    def start_writeback(self, offset: int, size: int, /) -> None:
        """Ask the kernel to begin writing these dirty bytes; no promise of durability, never fails."""
        ...

    def forget_clean(self, offset: int, /) -> None:
        """Let what lies from `offset` on and counts as written be read from the disk again. After a sync that has
        failed these are not the same: Linux takes the bytes that it could not write for clean. Never fails."""
        ...

    def close(self) -> None: ...


class DiskLock(Protocol):
    def close(self) -> None: ...


class Disk(Protocol):
    """A file system. Paths are absolute or relative to the process, with forward slashes."""

    def open(self, path: str, *, create: bool = False, write: bool = True) -> DiskFile:
        """Open an existing file; with `create` make an empty one if there is none. Writes go to the end only."""
        ...

    def read(self, path: str) -> bytes:
        """The whole content; FileNotFoundError if there is no such file."""
        ...

    def write_atomic(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Replace a file by way of `path + ".tmp"` and a rename; with `sync` both are durable afterwards.

        When it fails the old file is there as before, or the new one whose name is not durable.
        """
        ...

    def listdir(self, path: str) -> list[str]:
        """Names of files and directories, in no order."""
        ...

    def isdir(self, path: str) -> bool: ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def mtime_ms(self, path: str) -> int: ...

    def makedirs(self, path: str) -> None:
        """Make the directory and its parents; no error if it is there."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file or directory, replacing a file of the new name."""
        ...

    def unlink(self, path: str) -> None: ...

    def rmtree(self, path: str) -> None:
        """Remove a directory and all in it; no error if it is gone."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make the directory's entries durable."""
        ...

    def usage(self, path: str) -> tuple[int, int]:
        """(total, free) bytes of the file system that holds `path`."""
        ...

    def lock(self, path: str) -> DiskLock:
        """Lock this file exclusively, making it if needed; BlockingIOError if another process holds it."""
        ...


# How far a thread that reads from the disk asks for what follows.
_READ_AHEAD = 8 << 20
RWF_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
_NOT_NOW = (errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


_SYNC_FILE_RANGE_WRITE = 2
# Of the pages that machines have, in bytes.
_LARGEST_PAGE = 1 << 16


class _ReadBuffers:
    """Memory of large reads that is used again: zeroing and faulting in a fresh MiB costs more than reading it.

    Whoever was given a buffer keeps it as long as he refers to it; nobody has to give it back.
    """

    SIZE = 1 << 20
    SMALLEST = 1 << 17  # Smaller ones the allocator keeps by itself.
    KEPT = 8
    _UNUSED = 2  # References to a buffer that only the list and the call that counts them have.

    def __init__(self) -> None:
        self._buffers: list[bytearray] = []
        self._lock = Lock()

    def take(self, size: int) -> bytearray:
        """At least `size` bytes, of any content."""
        if not self.SMALLEST <= size <= self.SIZE:
            return bytearray(size)
        buffers = self._buffers
        with self._lock:
            for number in range(len(buffers)):
                if sys.getrefcount(buffers[number]) == self._UNUSED:
                    return buffers[number]
            if len(buffers) < self.KEPT:
                buffers.append(bytearray(self.SIZE))
                return buffers[-1]
        return bytearray(size)


class _Volume:
    """What was learnt of one mounted file system."""

    __slots__ = ("_sync_file_range", "buffers", "nowait")

    def __init__(self, buffers: _ReadBuffers) -> None:
        self.buffers = buffers
        self.nowait = RWF_NOWAIT != 0
        self._sync_file_range: Any = _load_sync_file_range

    def start_writeback(self, fd: int, offset: int, size: int) -> None:
        if self._sync_file_range is _load_sync_file_range:
            try:
                self._sync_file_range = _load_sync_file_range()
            except (OSError, ImportError):
                # Loading takes a file descriptor, and there may be one the next time.
                return
        if self._sync_file_range is not None:
            self._sync_file_range(fd, offset, size, _SYNC_FILE_RANGE_WRITE)


def _load_sync_file_range() -> Any:
    """sync_file_range(2), which only Linux has; None elsewhere. Raises OSError, ImportError."""
    # Loaded at first use: ctypes takes milliseconds to import and the start of the broker is measured.
    import ctypes

    try:
        function = ctypes.CDLL(None).sync_file_range
    except AttributeError:
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return function


class RealFile:
    """A file descriptor opened with O_APPEND, so that a write after a truncation lands at the new end."""

    __slots__ = ("_fd", "_serving", "_volume")

    def __init__(self, fd: int, volume: _Volume) -> None:
        self._fd = fd
        self._volume = volume
        self._serving = False

    def append(self, data: Buffer, /) -> int:
        return os.write(self._fd, data)

    def appendv(self, parts: Sequence[Buffer], /) -> int:
        return os.writev(self._fd, parts)

    def pread(self, size: int, offset: int, /) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size and (data := os.pread(self._fd, size - got, offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pread_reused(self, size: int, offset: int, /) -> memoryview:
        data = memoryview(self._volume.buffers.take(size))[:size]
        got = os.preadv(self._fd, (data,), offset)
        while 0 < got < size:
            more = os.preadv(self._fd, (data[got:],), offset + got)
            if not more:
                break
            got += more
        if self._serving and got == size:
            os.posix_fadvise(self._fd, offset + size, _READ_AHEAD, os.POSIX_FADV_WILLNEED)
        return data if got == size else data[:got]

    def pread_nowait(self, size: int, offset: int, /) -> memoryview | None:
        volume = self._volume
        if not volume.nowait:
            return None
        if not self._serving:
            # The system's own readahead would be started by whoever reads its mark, which is the event loop, and
            # takes milliseconds. So there is none; threads that read what is cold read ahead instead.
            self._serving = True
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)
        data = memoryview(volume.buffers.take(size))[:size]
        try:
            got = os.preadv(self._fd, (data,), offset, RWF_NOWAIT)
        except OSError as error:
            if error.errno not in _NOT_NOW:
                raise
            if error.errno != errno.EAGAIN:
                volume.nowait = False
            return None
        return data if got == size else data[:got]

    def truncate(self, size: int, /) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def fdatasync(self) -> None:
        os.fdatasync(self._fd)

    def forget_clean(self, offset: int, /) -> None:
        # Only whole pages are let go.
        os.posix_fadvise(self._fd, offset - offset % _LARGEST_PAGE, 0, os.POSIX_FADV_DONTNEED)

    def start_writeback(self, offset: int, size: int, /) -> None:
        self._volume.start_writeback(self._fd, offset, size)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class RealDisk:
    """The machine's disk. That a file system cannot read without waiting is learnt at the first such read."""

    def __init__(self, most_descriptors: int | None = None) -> None:
        """Files that would have the descriptor `most_descriptors` or a higher one are not kept open: EMFILE."""
        self._most_descriptors = most_descriptors
        self._volumes: dict[int, _Volume] = {}
        self._buffers = _ReadBuffers()

    def open(self, path: str, *, create: bool = False, write: bool = True) -> RealFile:
        flags = os.O_RDWR | os.O_APPEND if write else os.O_RDONLY
        if create:
            flags |= os.O_CREAT
        fd = os.open(path, flags | os.O_CLOEXEC, 0o644)
        if self._most_descriptors is not None and fd >= self._most_descriptors:
            os.close(fd)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        device = os.fstat(fd).st_dev
        volume = self._volumes.get(device)
        if volume is None:
            volume = self._volumes.setdefault(device, _Volume(self._buffers))
        return RealFile(fd, volume)

    def read(self, path: str) -> bytes:
        with open(path, "rb", buffering=0) as file:
            return file.read()

    def write_atomic(self, path: str, data: bytes, *, sync: bool = True) -> None:
        temporary = path + ".tmp"
        with open(temporary, "wb", buffering=0) as file:
            try:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
                if sync:
                    os.fdatasync(file.fileno())
                os.replace(temporary, path)
            except OSError:
                # What was written of it takes room that a full disk does not have.
                os.unlink(temporary)
                raise
        if sync:
            self.sync_dir(os.path.dirname(path))

    def listdir(self, path: str) -> list[str]:
        return os.listdir(path)

    def isdir(self, path: str) -> bool:
        return os.path.isdir(path)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def mtime_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def makedirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def rmtree(self, path: str) -> None:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            if os.path.exists(path):
                raise

    def sync_dir(self, path: str) -> None:
        fd = os.open(path or ".", os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def usage(self, path: str) -> tuple[int, int]:
        stat = os.statvfs(path)
        return stat.f_frsize * stat.f_blocks, stat.f_frsize * stat.f_bavail

    def lock(self, path: str) -> "RealLock":
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return RealLock(fd)


class RealLock:
    """Held until closed or until the process ends, however it ends."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
