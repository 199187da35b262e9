"""The disk of the machine."""

import errno
import fcntl
import os
import shutil
import sys
from contextlib import suppress
from threading import Lock
from typing import Any

from kbroker.common import Buffer
from kbroker.runtime.disk import DirectSocket
from kbroker.runtime.page_cache import FileMapping, PageCache

# After a read in a thread the kernel is asked to read ahead by this many bytes.
_READ_AHEAD_BYTES = 8 << 20
RWF_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
# Errors of a read that is not in the page cache (EAGAIN), or of a file system without RWF_NOWAIT.
_NOT_NOW = (errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
# The file system or the socket does not support sendfile.
_NOT_SUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_SYNC_FILE_RANGE_WRITE = 2
_MAX_PAGE_BYTES = 1 << 16


class _ReadBuffers:
    """Reused buffers for large reads: zeroing and page faults of a new MiB cost more than reading it.

    A buffer is free when there is no reference to it outside; readers do not return it.
    """

    SIZE = 1 << 20
    # The allocator itself reuses smaller buffers.
    MIN_SIZE = 1 << 15
    MAX_BUFFERS = 8
    # The references to a free buffer: one from the list, one from the argument of getrefcount.
    _FREE_REFERENCES = 2

    def __init__(self) -> None:
        self._buffers: list[bytearray] = []
        self._lock = Lock()

    def get(self, size: int) -> bytearray:
        """Return at least `size` bytes of any content."""
        if not self.MIN_SIZE <= size <= self.SIZE:
            return bytearray(size)
        buffers = self._buffers
        with self._lock:
            for number in range(len(buffers)):
                if sys.getrefcount(buffers[number]) == self._FREE_REFERENCES:
                    return buffers[number]
            if len(buffers) < self.MAX_BUFFERS:
                buffers.append(bytearray(self.SIZE))
                return buffers[-1]
        return bytearray(size)


class FileSystem:
    """The features of one mounted file system: reads with RWF_NOWAIT, and sendfile."""

    __slots__ = ("_can_map", "_page_cache", "_sync_file_range", "buffers", "nowait", "sendfile")

    def __init__(self, buffers: _ReadBuffers) -> None:
        self.buffers = buffers
        self.nowait = RWF_NOWAIT != 0
        self._sync_file_range: Any = _load_sync_file_range
        # Loaded by the first use.
        self._page_cache: PageCache | None = None
        self._can_map = True
        self.sendfile = hasattr(os, "sendfile")

    def start_writeback(self, fd: int, offset: int, size: int) -> None:
        if self._sync_file_range is _load_sync_file_range:
            try:
                self._sync_file_range = _load_sync_file_range()
            except (OSError, ImportError):
                # Loading needs a file descriptor. One may be free the next time.
                return
        if self._sync_file_range is not None:
            self._sync_file_range(fd, offset, size, _SYNC_FILE_RANGE_WRITE)

    def map_file(self, fd: int, size: int) -> FileMapping | None:
        """Map at least `size` bytes of a file. Returns None if that is not possible."""
        if self._page_cache is None and self._can_map:
            try:
                self._page_cache = PageCache()
            except AttributeError:
                self._can_map = False
            except (OSError, ImportError):
                # Loading needs a file descriptor; there may be one the next time.
                pass
        return self._page_cache.map(fd, size) if self._page_cache is not None else None


def _load_sync_file_range() -> Any:
    """Return sync_file_range(2), or None: only Linux has it. Raises OSError, ImportError."""
    # ctypes takes milliseconds to import; the broker starts without it.
    import ctypes

    try:
        function = ctypes.CDLL(None).sync_file_range
    except AttributeError:
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return function


class RealFile:
    """A file descriptor opened with O_APPEND: a write after a truncation goes to the new end."""

    __slots__ = ("_fd", "_file_system", "_mapping", "_readahead_disabled")

    def __init__(self, fd: int, file_system: FileSystem) -> None:
        self._fd = fd
        self._file_system = file_system
        self._mapping: FileMapping | None = None
        self._readahead_disabled = False

    def append(self, data: Buffer, /) -> int:
        return os.write(self._fd, data)

    def pread(self, size: int, offset: int, /) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        count = len(data)
        while count < size and (data := os.pread(self._fd, size - count, offset + count)):
            parts.append(data)
            count += len(data)
        return b"".join(parts)

    def pread_reused(self, size: int, offset: int, /) -> memoryview:
        data = memoryview(self._file_system.buffers.get(size))[:size]
        count = os.preadv(self._fd, (data,), offset)
        while 0 < count < size:
            more = os.preadv(self._fd, (data[count:],), offset + count)
            if not more:
                break
            count += more
        if self._readahead_disabled and count == size:
            os.posix_fadvise(self._fd, offset + size, _READ_AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
        return data if count == size else data[:count]

    def pread_nowait(self, size: int, offset: int, /) -> Buffer | None:
        file_system = self._file_system
        flags = RWF_NOWAIT
        if not file_system.nowait:
            size, flags = self._resident_bytes(size, offset), 0
            if not size:
                return None
        elif not self._readahead_disabled:
            self._disable_readahead()
        data = bytearray(size) if size < _ReadBuffers.MIN_SIZE else memoryview(file_system.buffers.get(size))[:size]
        try:
            count = os.preadv(self._fd, (data,), offset, flags)
        except OSError as error:
            if not flags or error.errno not in _NOT_NOW:
                raise
            if error.errno == errno.EAGAIN:
                return None
            file_system.nowait = False
            return self.pread_nowait(size, offset)
        return data if count == size else memoryview(data)[:count]

    def send_nowait(self, socket: DirectSocket, size: int, offset: int, /) -> int | None:
        if not self._file_system.sendfile:
            return None
        resident = self._resident_bytes(size, offset)
        if not resident:
            return None
        try:
            # 0 at the end of the file, which a read reports.
            return os.sendfile(socket.fileno(), self._fd, offset, resident) or None
        except BlockingIOError:
            return 0
        except OSError as error:
            # A read, or a write to the socket, reports other errors.
            if error.errno in _NOT_SUPPORTED:
                self._file_system.sendfile = False
            return None

    def _resident_bytes(self, size: int, offset: int) -> int:
        """Return how many of the `size` bytes at `offset` are in the page cache; 0 if that is unknown."""
        mapping = self._mapping
        if mapping is None or mapping.size < offset + size:
            self._disable_readahead()
            mapping = self._mapping = self._file_system.map_file(self._fd, offset + size)
            if mapping is None:
                return 0
        return mapping.resident_bytes(size, offset)

    def _disable_readahead(self) -> None:
        """Disable the kernel's readahead; threads that read from the disk read ahead instead (`pread_reused`).

        The kernel's readahead runs in the thread that reads a marked page, here the event loop's, and takes
        milliseconds.
        """
        self._readahead_disabled = True
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)

    def truncate(self, size: int, /) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def fdatasync(self) -> None:
        os.fdatasync(self._fd)

    def drop_clean_pages(self, offset: int, /) -> None:
        # Only whole pages are dropped.
        os.posix_fadvise(self._fd, offset - offset % _MAX_PAGE_BYTES, 0, os.POSIX_FADV_DONTNEED)

    def start_writeback(self, offset: int, size: int, /) -> None:
        self._file_system.start_writeback(self._fd, offset, size)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        self._mapping = None
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def _mode(path: str) -> int:
    """Return the permissions of a new file. Only the broker may read the metadata: they have its secret, and keys."""
    return 0o600 if os.path.basename(path).startswith("coordination.") else 0o644


class RealDisk:
    def __init__(self, max_descriptors: int | None = None) -> None:
        """`max_descriptors`: `open` fails with EMFILE if the file would have this descriptor or a higher one."""
        self._max_descriptors = max_descriptors
        self._file_systems: dict[int, FileSystem] = {}
        self._buffers = _ReadBuffers()

    def open(self, path: str, *, create: bool = False, write: bool = True) -> RealFile:
        flags = os.O_RDWR | os.O_APPEND if write else os.O_RDONLY
        if create:
            flags |= os.O_CREAT
        fd = os.open(path, flags | os.O_CLOEXEC, _mode(path))
        if self._max_descriptors is not None and fd >= self._max_descriptors:
            os.close(fd)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        device = os.fstat(fd).st_dev
        file_system = self._file_systems.get(device)
        if file_system is None:
            file_system = self._file_systems.setdefault(device, FileSystem(self._buffers))
        return self.new_file(fd, file_system)

    def new_file(self, fd: int, file_system: FileSystem) -> RealFile:
        """Return the file of a descriptor that `open` has opened."""
        return RealFile(fd, file_system)

    def read(self, path: str) -> bytes:
        with open(path, "rb", buffering=0) as file:
            return file.read()

    def write_atomic(self, path: str, data: bytes | bytearray, *, sync: bool = True) -> None:
        temporary = path + ".tmp"
        with open(temporary, "wb", buffering=0, opener=lambda name, flags: os.open(name, flags, _mode(path))) as file:
            try:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
                if sync:
                    os.fdatasync(file.fileno())
                os.replace(temporary, path)
            except OSError:
                # On a full disk, the partial file would occupy space that other writes need.
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

    def make_private(self, path: str) -> None:
        os.chmod(path, 0o600)

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
        with suppress(OSError):  # the disk may be full
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d %d\n" % (os.getpid(), _start_ticks(os.getpid())), 0)
        return RealLock(fd)


def lock_owner(path: str) -> tuple[int, int] | None:
    """Return the process that has locked a file last, by its id and its start; None if it has ended, or is unknown."""
    try:
        with open(path, "rb") as file:
            pid, start_ticks = map(int, file.read(64).split())
        return (pid, start_ticks) if _start_ticks(pid) == start_ticks else None
    except (OSError, ValueError):
        return None


def _start_ticks(pid: int) -> int:
    """Return when a process has started, in clock ticks since the start of the machine. Raises OSError."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


class RealLock:
    """A lock that is held until it is closed or the process ends."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
