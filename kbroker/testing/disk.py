"""The disk of a broker in a test: the machine's, which the test can fill, and which a killed broker cannot write to."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from kbroker.common import Buffer
from kbroker.runtime.real_disk import DiskFileSystem, RealDisk, RealFile, RealLock


class DiskControl:
    """What the test does to the disk of a broker. It outlives the broker's restarts."""

    def __init__(self) -> None:
        self.is_full = self.was_full = False

    def fill(self) -> None:
        """Let every write fail as on a full disk, until `free`."""
        self.is_full = self.was_full = True

    def free(self) -> None:
        """Let writes succeed again. The broker notices it with its next probes: records within a second of its clock,
        new topics a second later."""
        self.is_full = False


class ControlledFile(RealFile):
    __slots__ = ("_check",)

    def __init__(self, fd: int, file_system: DiskFileSystem, check: Callable[[], None]) -> None:
        super().__init__(fd, file_system)
        self._check = check

    def append(self, data: Buffer, /) -> int:
        self._check()
        return super().append(data)

    def fdatasync(self) -> None:
        """Nothing is synced: the data need not survive the machine."""


class ControlledDisk(RealDisk):
    """The disk of one process. `locks`: the files that it has locked."""

    def __init__(self, control: DiskControl) -> None:
        super().__init__()
        self.locks: list[RealLock] = []
        self._control = control
        self._is_dead = False

    def die(self) -> None:
        """Let the process have no further effect: a thread of it may still run."""
        self._is_dead = True
        for lock in self.locks:
            lock.close()

    def _check_write(self) -> None:
        if self._is_dead:
            raise OSError(errno.EIO, "the broker was killed")
        if self._control.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def new_file(self, fd: int, file_system: DiskFileSystem) -> RealFile:
        return ControlledFile(fd, file_system, self._check_write)

    def open(self, path: str, *, create: bool = False, write: bool = True) -> RealFile:
        if create and not self.exists(path):
            self._check_write()
        return super().open(path, create=create, write=write)

    def write_atomic(self, path: str, data: bytes | bytearray, *, sync: bool = True) -> None:
        self._check_write()
        super().write_atomic(path, data, sync=False)

    def sync_dir(self, path: str) -> None:
        """See ControlledFile.fdatasync."""

    def makedirs(self, path: str) -> None:
        if not self.exists(path):
            self._check_write()
        super().makedirs(path)

    def rename(self, old: str, new: str) -> None:
        self._check_alive()
        super().rename(old, new)

    def unlink(self, path: str) -> None:
        self._check_alive()
        super().unlink(path)

    def rmtree(self, path: str) -> None:
        self._check_alive()
        super().rmtree(path)

    def _check_alive(self) -> None:
        if self._is_dead:
            self._check_write()

    def usage(self, path: str) -> tuple[int, int]:
        total, free = super().usage(path)
        return total, 0 if self._control.is_full else free

    def lock(self, path: str) -> RealLock:
        lock = super().lock(path)
        self.locks.append(lock)
        return lock
