"""The interface to a disk. RealDisk (real_disk.py) implements it; the simulation has its own.

All calls may block, except `pread_nowait` and `send_nowait`; `append` blocks only when the kernel throttles writers,
which early writeback avoids. Every implementation fails with OSError and an errno (ENOSPC, EIO, ENOENT, ...).
"""

from typing import Protocol

from kbroker.common import Buffer


class DirectSocket(Protocol):
    """The socket of a connection. Files are sent to it directly, bypassing the write buffer of its transport.

    It may be used while the transport is open and its write buffer is empty. It does not block.
    """

    def fileno(self) -> int: ...

    def send(self, data: Buffer, flags: int, /) -> int:
        """Send bytes, and return how many were sent. `flags`: 0 or MSG_MORE.

        Raises BlockingIOError if the socket's buffer is full.
        """
        ...

    def end_stream(self) -> None:
        """Send the end of the stream (FIN), unless the connection is broken."""
        ...


class DiskFile(Protocol):
    """An open file. It is closed when its last reference is dropped, so a thread can finish reading it."""

    def append(self, data: Buffer, /) -> int:
        """Append with one write(2). Returns the number of bytes written: fewer than requested if the disk is full."""
        ...

    def pread(self, size: int, offset: int, /) -> bytes:
        """Read `size` bytes at `offset`, fewer only at the end of the file."""
        ...

    def pread_reused(self, size: int, offset: int, /) -> Buffer:
        """Like pread. The memory of the result may be reused once there is no reference to it."""
        ...

    def pread_nowait(self, size: int, offset: int, /) -> Buffer | None:
        """Read at most `size` bytes from the page cache. Returns None if there are none, or if that is unknown."""
        ...

    def send_nowait(self, socket: DirectSocket, size: int, offset: int, /) -> int | None:
        """Send `size` bytes at `offset` from the page cache to a socket, without copying them.

        Returns how many were sent: fewer if the socket's buffer is full, or if only the first ones are in the page
        cache. Returns None if the bytes must be read instead; the read returns them or raises the error.
        """
        ...

    def truncate(self, size: int, /) -> None: ...

    def size(self) -> int: ...

    def fdatasync(self) -> None:
        """Make the content and the size durable. After a failure the state of the unsynced bytes is unknown."""
        ...

    def start_writeback(self, offset: int, size: int, /) -> None:
        """Ask the kernel to start to write these dirty bytes. It does not make them durable, and never fails."""
        ...

    def drop_clean_pages(self, offset: int, /) -> None:
        """Drop the clean pages from `offset` on from the page cache, so that they are read from the disk again.

        After a failed sync they may differ from the disk: Linux marks pages that it could not write as clean. Never
        fails.
        """
        ...

    def close(self) -> None: ...


class DiskLock(Protocol):
    def close(self) -> None: ...


class Disk(Protocol):
    """A file system. Paths are absolute or relative to the process, with forward slashes."""

    def open(self, path: str, *, create: bool = False, write: bool = True) -> DiskFile:
        """Open an existing file; with `create`, create an empty one if there is none. Writes always append."""
        ...

    def read(self, path: str) -> bytes:
        """Return the content. Raises FileNotFoundError."""
        ...

    def write_atomic(self, path: str, data: bytes | bytearray, *, sync: bool = True) -> None:
        """Replace a file by writing `path + ".tmp"` and renaming it; with `sync`, both are durable afterwards.

        After a failure there is either the old file, or the new one whose name is not durable.
        """
        ...

    def listdir(self, path: str) -> list[str]:
        """Return the names of files and directories, in any order."""
        ...

    def isdir(self, path: str) -> bool: ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def mtime_ms(self, path: str) -> int: ...

    def makedirs(self, path: str) -> None:
        """Create the directory and its parents. No error if it exists."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file or directory, replacing a file of the new name."""
        ...

    def unlink(self, path: str) -> None: ...

    def make_private(self, path: str) -> None:
        """Let only the user of the broker read and write a file."""
        ...

    def rmtree(self, path: str) -> None:
        """Remove a directory and its content. No error if it does not exist."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make the directory's entries durable."""
        ...

    def usage(self, path: str) -> tuple[int, int]:
        """Return the (total, free) bytes of the file system of `path`."""
        ...

    def lock(self, path: str) -> DiskLock:
        """Lock this file exclusively; create it if needed. Raises BlockingIOError if another process has locked it."""
        ...
