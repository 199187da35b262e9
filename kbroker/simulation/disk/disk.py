"""A file system in memory: the Disk and DiskFile of storage/backend.py, that loses what a real one may lose.

Failures are the OSErrors that a kernel gives. When it is full, a write takes what fits and the next one fails.
disk_file.py is an open file. disk_content.py says what of a file survives a power loss, disk_names.py what of the
names; disk_faults.py has what goes wrong before that. Operations take no time by themselves: they add up in `busy_ns`.
"""

import errno
import os
import posixpath
from collections import Counter
from collections.abc import Callable
from random import Random

from kbroker.runtime.environment import Clock
from kbroker.simulation.disk.content import Content, Worst
from kbroker.simulation.disk.faults import Faults, fail
from kbroker.simulation.disk.file import SimFile, SimLock
from kbroker.simulation.disk.names import Change, Kind, NameJournal, parent_of
from kbroker.simulation.runtime.death import MachineDied

# What a disk without a capacity says of itself.
LARGE = 1 << 40
# Told of each change: operation, path, size.
Trace = Callable[[str, str, int], None]


class SimDisk:
    """`cold`: the chance that a read without waiting finds nothing in memory. `capacity`: in bytes, None: no limit;
    `used`: of these. `syncs` counts the syncs of files by path. `busy_ns`: how long the operations took, until it is
    taken. `read_only`: changes, syncs and opening to write fail with EROFS. `dead`: the machine is no more. `harsh`: a
    power loss takes all that it may take, else it is a matter of the seed what.
    """

    def __init__(
        self,
        clock: Clock,
        random: Random,
        *,
        capacity: int | None = None,
        cold: float = 0.0,
        faults: Faults | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.clock = clock
        self.random = random
        self.capacity = capacity
        self.cold = cold
        self.faults = faults or Faults(Random(random.getrandbits(64)))
        self.trace = trace
        self.used = 0
        self.syncs: Counter[str] = Counter()
        self.read_only = False
        self.dead = False
        self.harsh = False
        self._names = NameJournal()
        self._locked: dict[str, None] = {}
        self.busy_ns = 0
        self._fuse: int | None = None
        self._on_death: Callable[[], None] = lambda: None

    # The end of the machine.

    def die_after(self, changes: int, then: Callable[[], None]) -> None:
        """After so many more changes (writes, truncations, syncs, changes of names) the machine dies at the next one:
        it is not made, or of a write a part. `then` is called, and MachineDied raised where it was asked for."""
        self._fuse = changes
        self._on_death = then

    def disarm(self) -> None:
        """What `die_after` has planned does not come to pass."""
        self._fuse = None

    @property
    def dies_next(self) -> bool:
        """Whether the machine dies at the next change."""
        return self._fuse == 0

    def after_crash(self, power: bool = False, *, ghost: bool = False) -> "SimDisk":
        """What the next start finds: all that was written or, after a power loss, one of the states that the disk may
        be in. This one is dead from then on. With `ghost` it lives on, with its content, where nobody else sees it:
        for a broker that cannot be killed."""
        self.dead = True
        disk = SimDisk(
            self.clock, self.random, capacity=self.capacity, cold=self.cold, faults=self.faults, trace=self.trace
        )
        disk.harsh = self.harsh
        # A machine that starts anew mounts it to be written to.
        disk.read_only = self.read_only and not power
        names = self._names
        if ghost:
            self.dead = False
            self.trace = None
            self.faults = Faults(Random(0))
        if power:
            random = Worst() if self.harsh else Random(self.random.getrandbits(64))
            names = NameJournal(names.after_power_loss(random))
        elif ghost:
            names = names.copy()
        disk._names = names
        disk.used = sum(len(content.data) for content in names.current.files.values())
        return disk

    def _die(self) -> None:
        self._fuse = None
        # Whoever is told may still look at the disk.
        self._on_death()
        self.dead = True
        raise MachineDied

    def _check(self) -> None:
        if self.dead:
            raise MachineDied

    def before(self, operation: str, path: str, size: int = 0) -> None:
        """Each change begins with this, those of open files too, when it is sure that it can be made."""
        if self.dead:
            raise MachineDied
        if self.read_only:
            fail(errno.EROFS, path)
        if self._fuse is not None:
            self._fuse -= 1
            if self._fuse < 0:
                self._die()
        if self.trace is not None:
            self.trace(operation, path, size)

    # What others may know.

    def take_busy_ns(self) -> int:
        """How long the operations since the last call took, in virtual nanoseconds."""
        busy, self.busy_ns = self.busy_ns, 0
        return busy

    def durable(self, path: str, former: str = "") -> bytes:
        """What a power loss cannot take from the file of this name: its longest sure prefix. `former`: another name by
        which the next start knows it, too."""
        content, path, former = self._content(path), posixpath.normpath(path), posixpath.normpath(former)
        if self._names.is_sure(path, content) or self._names.is_sure_of_one(former, path, content):
            return content.sure()
        return b""

    def unwritten(self) -> list[str]:
        """Files of which a failed sync has declared pages clean that the disk does not have, sorted."""
        return sorted(path for path, content in self._names.current.files.items() if content.unwritten)

    def durable_names(self) -> list[str]:
        """Files and directories whose names a power loss cannot take, sorted."""
        return self._names.sure()

    def data(self, path: str) -> bytearray:
        """A file's content, to be damaged."""
        return self._content(path).data

    def find(self, ending: str) -> list[str]:
        """Paths of files that end so, sorted."""
        return sorted(path for path in self._names.current.files if path.endswith(ending))

    def rot(self, path: str, offset: int | None = None) -> int:
        """Flip a bit of a file, at a random place unless told where; gives the offset."""
        content = self._content(path)
        place = self.random.randrange(len(content.data)) if offset is None else offset
        content.damage(place, self.random.randrange(8))
        self.faults.injected["bit rot"] += 1
        return place

    # Files.

    def open(self, path: str, *, create: bool = False, write: bool = True) -> SimFile:
        self._check()
        self.faults.before_open(path)
        path = posixpath.normpath(path)
        if write and self.read_only:
            fail(errno.EROFS, path)
        content = self._names.current.files.get(path)
        if content is None:
            if path in self._names.current.directories:
                fail(errno.EISDIR, path)
            if not create:
                fail(errno.ENOENT, path)
            content = self._create(path)
        return SimFile(self, path, content, write)

    def read(self, path: str) -> bytes:
        self._check()
        content = self._content(path)
        self.faults.before_open(path)
        self.faults.before_read(path)
        self.busy_ns += self.faults.read_ns()
        return bytes(content.data)

    def write_atomic(self, path: str, data: bytes, *, sync: bool = True) -> None:
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
            self.sync_dir(parent_of(posixpath.normpath(path)))

    def size(self, path: str) -> int:
        self._check()
        return len(self._content(path).data)

    def mtime_ms(self, path: str) -> int:
        self._check()
        return self._content(path).mtime_ms

    # Names.

    def listdir(self, path: str) -> list[str]:
        """In an order of this call's own."""
        self.faults.before_open(path)
        return self.entries(path)

    def entries(self, path: str) -> list[str]:
        """As `listdir`, whatever goes wrong: for those who look at the disk from outside."""
        self._check()
        path = posixpath.normpath(path)
        entries = self._names.current.directories.get(path)
        if entries is None:
            fail(errno.ENOTDIR if path in self._names.current.files else errno.ENOENT, path)
        names = sorted(entries)
        self.random.shuffle(names)
        return names

    def isdir(self, path: str) -> bool:
        self._check()
        return posixpath.normpath(path) in self._names.current.directories

    def exists(self, path: str) -> bool:
        return self.isdir(path) or posixpath.normpath(path) in self._names.current.files

    def makedirs(self, path: str) -> None:
        self._check()
        path = posixpath.normpath(path)
        missing = []
        while path not in self._names.current.directories:
            if path in self._names.current.files:
                fail(errno.EEXIST, path)
            missing.append(path)
            path = parent_of(path)
        for each in reversed(missing):
            self._change("mkdir", each)

    def rename(self, old: str, new: str) -> None:
        self._check()
        old, new = posixpath.normpath(old), posixpath.normpath(new)
        self._check_parent(new)
        names = self._names.current
        replaced = None
        if old in names.files:
            if new in names.directories:
                fail(errno.EISDIR, new)
            replaced = names.files.get(new)
        elif old in names.directories:
            if new in names.files:
                fail(errno.ENOTDIR, new)
            if names.directories.get(new):
                fail(errno.ENOTEMPTY, new)
        else:
            fail(errno.ENOENT, old)
        if old != new:
            self._change("rename", old, new)
            self._free(replaced)

    def unlink(self, path: str) -> None:
        self._check()
        content = self._content(path)
        self._change("unlink", posixpath.normpath(path))
        self._free(content)

    def rmtree(self, path: str) -> None:
        self._check()
        path = posixpath.normpath(path)
        names = self._names.current
        if path in names.files:
            fail(errno.ENOTDIR, path)
        if path not in names.directories:
            return
        self.faults.before_open(path)
        for each in list(names.within(path)):
            if each in names.files:
                self.unlink(each)
            else:
                self._change("rmdir", each)

    def sync_dir(self, path: str) -> None:
        self._check()
        if not self.isdir(path):
            fail(errno.ENOENT, path)
        self.faults.before_open(path)
        self.before("sync_dir", path)
        self.busy_ns += self.faults.sync_ns()
        self.faults.before_sync(path)
        self._names.sync(posixpath.normpath(path))

    def _change(self, kind: Kind, path: str, target: str = "", content: Content | None = None) -> None:
        self.before(kind, path)
        self.busy_ns += self.faults.name_ns()
        self._names.change(Change(kind, path, target, content))

    def _create(self, path: str) -> Content:
        self._check_parent(path)
        content = Content(self.clock.now_ms())
        self._change("create", path, content=content)
        return content

    def _check_parent(self, path: str) -> None:
        if parent_of(path) not in self._names.current.directories:
            fail(errno.ENOENT, path)

    def _content(self, path: str) -> Content:
        path = posixpath.normpath(path)
        content = self._names.current.files.get(path)
        if content is None:
            fail(errno.EISDIR if path in self._names.current.directories else errno.ENOENT, path)
        return content

    # Room.

    def usage(self, path: str) -> tuple[int, int]:
        self._check()
        capacity = LARGE if self.capacity is None else self.capacity
        return capacity, max(0, capacity - self.used)

    def _free(self, content: Content | None) -> None:
        """It has no name any more. (A kernel would wait for the last open file.)"""
        if content is not None:
            content.linked = False
            self.used -= len(content.data)

    def room_for(self, size: int, path: str) -> int:
        """How much of `size` bytes can be written."""
        if self.capacity is not None and self.used + size > self.capacity:
            self.faults.injected["no space"] += 1
            if self.used >= self.capacity:
                fail(errno.ENOSPC, path)
            return self.capacity - self.used
        return size

    def lock(self, path: str) -> SimLock:
        self._check()
        path = posixpath.normpath(path)
        if path in self._locked:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        self.open(path, create=True)
        self._locked[path] = None
        return SimLock(self._locked, path)
