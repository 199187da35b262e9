"""A file system in memory that implements Disk and loses in a power loss what a real one may lose.

Operations raise the OSErrors that a kernel returns. On a full disk a write is cut to the bytes that fit, and the next
one fails. file.py is an open file; inode.py models how much of a file survives a power loss, directory_journal.py
which names do; faults.py injects other faults.
"""

import errno
import os
import posixpath
from functools import lru_cache
from random import Random

from kbroker.runtime.environment import Clock
from kbroker.simulation.disk.device import Device, DiskFaults, raise_os_error
from kbroker.simulation.disk.directory_journal import DirectoryChange, DirectoryJournal, Kind, parent_of
from kbroker.simulation.disk.file import Inode, SimFile, SimLock, WorstCase

# The reported size of a disk without a capacity.
UNLIMITED_BYTES = 1 << 40

# Each operation normalizes its paths; there are some thousand different ones in a run.
normalized = lru_cache(maxsize=10_000)(posixpath.normpath)


class SimDisk(Device):
    """The disk of a machine. If `worst_case`, a power loss takes everything that it can; otherwise the seed decides."""

    def __init__(self, clock: Clock, random: Random, faults: DiskFaults | None = None) -> None:
        super().__init__(clock, random, faults)
        self.worst_case = False
        self._journal = DirectoryJournal()
        self._locked: dict[str, None] = {}

    def after_crash(self, power: bool = False, *, keep_running: bool = False) -> "SimDisk":
        """Return the disk as the next start finds it. This one is dead.

        A killed process leaves everything that it has written; a power loss leaves one of the states in which the disk
        may be. With `keep_running` this disk stays usable, independent of the returned one, for a broker that cannot be
        killed.
        """
        self.dead = True
        disk = SimDisk(self.clock, self.random, self.faults)
        disk.capacity, disk.cold, disk.trace = self.capacity, self.cold, self.trace
        disk.worst_case = self.worst_case
        # A machine that boots mounts its disk for writing.
        disk.read_only = self.read_only and not power
        journal = self._journal
        if keep_running:
            self.dead = False
            self.trace = None
            self.faults = DiskFaults(Random(0))
        if power:
            random = WorstCase() if self.worst_case else Random(self.random.getrandbits(64))
            journal = DirectoryJournal(journal.after_power_loss(random))
        elif keep_running:
            journal = journal.copy()
        disk._journal = journal
        disk.used = sum(len(inode.data) for inode in journal.current.files.values())
        return disk

    # What tests and oracles look at.

    def durable(self, path: str, former: str = "") -> bytes:
        """Return the longest prefix of a file that survives any power loss.

        `former` is a former name of the file by which the next start finds it, too.
        """
        inode, path, former = self._inode(path), normalized(path), normalized(former)
        if self._journal.is_durable(path, inode) or self._journal.is_durable_as_either(former, path, inode):
            return inode.durable_prefix()
        return b""

    def unwritten(self) -> list[str]:
        """Return the files with pages that a failed sync has marked clean although the disk lacks them, sorted."""
        return sorted(path for path, inode in self._journal.current.files.items() if inode.has_unwritten_clean_pages)

    def removed_files(self) -> list[str]:
        """Return the former names of files that a power loss may bring back, sorted."""
        return self._journal.removed_files()

    def data(self, path: str) -> bytearray:
        """Return a file's content, which the caller may damage."""
        return self._inode(path).data

    def find(self, ending: str) -> list[str]:
        """Return the paths of the files that end with `ending`, sorted."""
        return sorted(path for path in self._journal.current.files if path.endswith(ending))

    def flip_bit(self, path: str, offset: int | None = None) -> int:
        """Flip a bit of a file (bit rot), by default at a random offset; return the offset."""
        inode = self._inode(path)
        position = self.random.randrange(len(inode.data)) if offset is None else offset
        inode.flip_bit(position, self.random.randrange(8))
        self.changes[parent_of(normalized(path))] += 1
        self.faults.injected["bit rot"] += 1
        return position

    # Files.

    def open(self, path: str, *, create: bool = False, write: bool = True) -> SimFile:
        self.check_alive()
        self.faults.before("open", path)
        path = normalized(path)
        if write and self.read_only:
            raise_os_error(errno.EROFS, path)
        inode = self._journal.current.files.get(path)
        if inode is None:
            if path in self._journal.current.directories:
                raise_os_error(errno.EISDIR, path)
            if not create:
                raise_os_error(errno.ENOENT, path)
            inode = self._create(path)
        return SimFile(self, path, inode, write)

    def read(self, path: str) -> bytes:
        self.check_alive()
        inode = self._inode(path)
        self.faults.before("open", path)
        self.faults.before("read", path)
        self.busy_ns += self.faults.read_ns()
        return bytes(inode.data)

    def write_atomic(self, path: str, data: bytes | bytearray, *, sync: bool = True) -> None:
        temporary = path + ".tmp"
        file = self.open(temporary, create=True)
        if file.size():
            file.truncate(0)
        view = memoryview(data)
        try:
            while view:
                view = view[file.append(view) :]
            if sync:
                file.fdatasync()
            self.rename(temporary, path)
        except OSError:
            self.unlink(temporary)
            raise
        if sync:
            self.sync_dir(parent_of(normalized(path)))

    def size(self, path: str) -> int:
        self.check_alive()
        return len(self._inode(path).data)

    def mtime_ms(self, path: str) -> int:
        self.check_alive()
        return self._inode(path).mtime_ms

    # Directories.

    def listdir(self, path: str) -> list[str]:
        """Return the names in a random order."""
        self.faults.before("open", path)
        return self.entries(path)

    def entries(self, path: str) -> list[str]:
        """Like `listdir`, but without faults: for oracles that read the disk."""
        self.check_alive()
        path = normalized(path)
        entries = self._journal.current.directories.get(path)
        if entries is None:
            raise_os_error(errno.ENOTDIR if path in self._journal.current.files else errno.ENOENT, path)
        names = sorted(entries)
        self.random.shuffle(names)
        return names

    def isdir(self, path: str) -> bool:
        self.check_alive()
        return normalized(path) in self._journal.current.directories

    def exists(self, path: str) -> bool:
        return self.isdir(path) or normalized(path) in self._journal.current.files

    def makedirs(self, path: str) -> None:
        self.check_alive()
        path = normalized(path)
        missing = []
        while path not in self._journal.current.directories:
            if path in self._journal.current.files:
                raise_os_error(errno.EEXIST, path)
            missing.append(path)
            path = parent_of(path)
        for each in reversed(missing):
            self._change("mkdir", each)

    def rename(self, old: str, new: str) -> None:
        self.check_alive()
        old, new = normalized(old), normalized(new)
        self._check_parent(new)
        tree = self._journal.current
        replaced = None
        if old in tree.files:
            if new in tree.directories:
                raise_os_error(errno.EISDIR, new)
            replaced = tree.files.get(new)
        elif old in tree.directories:
            if new in tree.files:
                raise_os_error(errno.ENOTDIR, new)
            if tree.directories.get(new):
                raise_os_error(errno.ENOTEMPTY, new)
        else:
            raise_os_error(errno.ENOENT, old)
        if old != new:
            self._change("rename", old, new)
            self._free(replaced)

    def unlink(self, path: str) -> None:
        self.check_alive()
        inode = self._inode(path)
        self._change("unlink", normalized(path))
        self._free(inode)

    def make_private(self, path: str) -> None: ...

    def rmtree(self, path: str) -> None:
        self.check_alive()
        path = normalized(path)
        tree = self._journal.current
        if path in tree.files:
            raise_os_error(errno.ENOTDIR, path)
        if path not in tree.directories:
            return
        self.faults.before("open", path)
        for each in list(tree.walk_bottom_up(path)):
            if each in tree.files:
                self.unlink(each)
            else:
                self._change("rmdir", each)

    def sync_dir(self, path: str) -> None:
        self.check_alive()
        if not self.isdir(path):
            raise_os_error(errno.ENOENT, path)
        self.faults.before("open", path)
        self.begin_change("sync_dir", path)
        self.count_sync()
        self.faults.before("sync", path)
        self._journal.sync(normalized(path))

    def _change(self, kind: Kind, path: str, target: str = "", inode: Inode | None = None) -> None:
        self.begin_change(kind, path)
        if kind == "rename":
            # The directory of the new name, and the names if these are directories.
            self.changes.update((path, target, parent_of(target)))
        self.busy_ns += self.faults.name_ns()
        self._journal.change(DirectoryChange(kind, path, target, inode))

    def _create(self, path: str) -> Inode:
        self._check_parent(path)
        inode = Inode(self.clock.now_ms(), self.faults.leftover_of(path))
        self._change("create", path, inode=inode)
        self.used += len(inode.data)
        return inode

    def _check_parent(self, path: str) -> None:
        if parent_of(path) not in self._journal.current.directories:
            raise_os_error(errno.ENOENT, path)

    def _inode(self, path: str) -> Inode:
        path = normalized(path)
        inode = self._journal.current.files.get(path)
        if inode is None:
            raise_os_error(errno.EISDIR if path in self._journal.current.directories else errno.ENOENT, path)
        return inode

    # Space.

    def usage(self, path: str) -> tuple[int, int]:
        self.check_alive()
        capacity = UNLIMITED_BYTES if self.capacity is None else self.capacity
        return capacity, max(0, capacity - self.used)

    def _free(self, inode: Inode | None) -> None:
        """Free the space of a file that lost its name. (A kernel waits until the last open file is closed.)"""
        if inode is not None:
            inode.linked = False
            self.used -= len(inode.data)

    def lock(self, path: str) -> SimLock:
        self.check_alive()
        path = normalized(path)
        if path in self._locked:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        self.open(path, create=True)
        self._locked[path] = None
        return SimLock(self._locked, path)
