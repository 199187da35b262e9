"""The state that a simulated disk shares with its open files: capacity, faults, the time it is busy, its crash."""

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from random import Random
from typing import Literal, NoReturn

from kbroker.runtime.environment import Clock
from kbroker.storage.file_names import LOG


class MachineCrashed(BaseException):
    """The machine on which this code runs has crashed. Only the code that simulates the machine may catch this."""


# Faults of a simulated disk, switched on and off while it runs, and the time that its operations take.

Operation = Literal["open", "read", "write", "sync"]

MICROSECOND, MILLISECOND = 1_000, 1_000_000
# The duration of operations that wait for the disk, in nanoseconds.
READ_NS = (50 * MICROSECOND, MILLISECOND)
NAME_NS = (5 * MICROSECOND, 50 * MICROSECOND)
SYNC_NS = (100 * MICROSECOND, 5 * MILLISECOND)


class DiskFaults:
    """Injects faults.

    - `read`, `write`, `sync`: the probability that such an operation fails with EIO. Writes are those of file content,
      syncs those of files and directories.
    - `open`: the probability that an operation that needs a file descriptor fails with EMFILE.
    - `short_write`: the probability that a write writes only a part.
    - `slow_sync_ns`: the additional duration of each sync; 0 while the disk is not slow.
    - `leftover`: the probability that a log file that is created is already there, with old content.
    - `injected` counts the injected faults by name.
    """

    def __init__(self, random: Random) -> None:
        self.open = 0.0
        self.read = 0.0
        self.write = 0.0
        self.sync = 0.0
        self.short_write = 0.0
        self.slow_sync_ns = 0
        self.leftover = 0.0
        self.injected: Counter[str] = Counter()
        self._random = random
        self._planned: list[tuple[Operation, Callable[[str], bool], int]] = []

    def fail_next(
        self, operation: Operation, matching: Callable[[str], bool] = lambda path: True, code: int = errno.EIO
    ) -> None:
        """Fail the next such operation on a matching path, once."""
        self._planned.append((operation, matching, code))

    def stop(self) -> None:
        """Inject no more faults."""
        self.open = self.read = self.write = self.sync = self.short_write = 0.0
        self.slow_sync_ns = 0
        self.leftover = 0.0
        self._planned = []

    def before(self, operation: Operation, path: str) -> None:
        """Raise the OSError of an operation that fails."""
        for plan in self._planned:
            if plan[0] == operation and plan[1](path):
                self._planned.remove(plan)
                self.injected[f"{operation} error"] += 1
                raise_os_error(plan[2], path)
        chance: float = getattr(self, operation)
        if chance and self._random.random() < chance:
            self.injected[f"{operation} error"] += 1
            raise_os_error(errno.EMFILE if operation == "open" else errno.EIO, path)

    def part_of(self, size: int) -> int:
        """Return how many bytes of a write of `size` bytes are written."""
        if self.short_write and size > 1 and self._random.random() < self.short_write:
            self.injected["short write"] += 1
            return self._random.randint(1, size - 1)
        return size

    def leftover_of(self, path: str) -> bytes:
        """Return the content that a file has when it is created."""
        if self.leftover and path.endswith(LOG) and self._random.random() < self.leftover:
            self.injected["leftover"] += 1
            return self._random.randbytes(self._random.randint(1, 5_000))
        return b""

    def read_ns(self) -> int:
        return self._random.randint(*READ_NS)

    def name_ns(self) -> int:
        return self._random.randint(*NAME_NS)

    def sync_ns(self) -> int:
        return self._random.randint(*SYNC_NS)


def raise_os_error(code: int, path: str | None = None) -> NoReturn:
    raise OSError(code, os.strerror(code), path)


# Called with each change: operation, path, size.
Trace = Callable[[str, str, int], None]


class Device:
    """A disk without its files.

    - `cold`: the probability that a read misses the page cache.
    - `capacity`, `used`: in bytes; a capacity of None means unlimited.
    - `syncs`: the number of syncs of each file, by path.
    - `changes`: the number of changes in each directory, of its entries and of what its files contain.
    - `busy_ns`: the time that operations have taken since the last `take_busy_ns`, without what a slow disk adds.
      Operations return at once. `slow_syncs`: the number of syncs since then to which it adds.
    - `read_only`: changes, syncs and opening for writing fail with EROFS.
    - `dead`: the machine has crashed; every operation raises MachineCrashed.
    """

    def __init__(self, clock: Clock, random: Random, faults: DiskFaults | None = None) -> None:
        self.clock = clock
        self.random = random
        self.faults = faults or DiskFaults(Random(random.getrandbits(64)))
        self.trace: Trace | None = None
        self.capacity: int | None = None
        self.cold = 0.0
        self.used = 0
        self.syncs: Counter[str] = Counter()
        self.changes: Counter[str] = Counter()
        self.busy_ns = 0
        self.slow_syncs = 0
        self.read_only = False
        self.dead = False
        self._changes_to_crash: int | None = None
        self._on_crash: Callable[[], None] = lambda: None

    def crash_after(self, changes: int, on_crash: Callable[[], None]) -> None:
        """Crash the machine at the change after the next `changes` ones.

        Changes are writes, truncations, syncs, and changes of directories. The change is not made; a write is made in
        part. `on_crash` is called, then the operation raises MachineCrashed.
        """
        self._changes_to_crash = changes
        self._on_crash = on_crash

    def cancel_crash(self) -> None:
        """Undo `crash_after`."""
        self._changes_to_crash = None

    @property
    def crashes_next(self) -> bool:
        """Whether the machine crashes at the next change."""
        return self._changes_to_crash == 0

    def check_alive(self) -> None:
        if self.dead:
            raise MachineCrashed

    def begin_change(self, operation: str, path: str, size: int = 0) -> None:
        """Called before each change that can be made. Raises MachineCrashed, or OSError on a read-only disk."""
        self.check_alive()
        if self.read_only:
            raise_os_error(errno.EROFS, path)
        if self._changes_to_crash is not None:
            self._changes_to_crash -= 1
            if self._changes_to_crash < 0:
                self._crash()
        self.changes[path.rpartition("/")[0]] += 1
        if self.trace is not None:
            self.trace(operation, path, size)

    def _crash(self) -> None:
        self._changes_to_crash = None
        # The callback may still read the disk.
        self._on_crash()
        self.dead = True
        raise MachineCrashed

    def count_sync(self) -> None:
        self.busy_ns += self.faults.sync_ns()
        if self.faults.slow_sync_ns:
            self.faults.injected["slow sync"] += 1
            self.slow_syncs += 1

    def take_busy_ns(self) -> Iterator[int]:
        """Return the virtual nanoseconds that operations have taken since the last call, in steps.

        Wait for each step before the next: the first is without what a slow disk adds, then there is one for each slow
        sync, which is 0 if the disk is no longer slow. So a function that syncs a hundred files takes as long as the
        disk is slow, and not a hundred times as long.
        """
        busy_ns, slow_syncs = self.busy_ns, self.slow_syncs
        self.busy_ns = self.slow_syncs = 0
        return chain((busy_ns,), (self.faults.slow_sync_ns for _ in range(slow_syncs)))

    def writable_bytes(self, size: int, path: str) -> int:
        """Return how many of `size` bytes fit. Raises OSError(ENOSPC) if none does."""
        if self.capacity is not None and self.used + size > self.capacity:
            self.faults.injected["no space"] += 1
            if self.used >= self.capacity:
                raise_os_error(errno.ENOSPC, path)
            return self.capacity - self.used
        return size
