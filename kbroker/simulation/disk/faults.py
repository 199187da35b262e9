"""What a simulated disk does wrong, switched on and off while it runs."""

import errno
import os
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Literal, NoReturn

Operation = Literal["open", "read", "write", "sync"]

MICROSECOND, MILLISECOND = 1_000, 1_000_000
# How long operations take that wait for the disk, in nanoseconds.
READ_NS = (50 * MICROSECOND, MILLISECOND)
NAME_NS = (5 * MICROSECOND, 50 * MICROSECOND)
SYNC_NS = (100 * MICROSECOND, 5 * MILLISECOND)


class Faults:
    """`read`, `write`, `sync`: the chance that such an operation fails with EIO. `open`: the chance that an operation
    that needs a file descriptor fails with EMFILE. `short_write`: the chance that a write takes only a part.
    `slow_sync_ns`: what each sync takes longer. `injected` counts what was done, by name.

    Writes are those of content, syncs those of files and directories.
    """

    def __init__(self, random: Random) -> None:
        self.open = 0.0
        self.read = 0.0
        self.write = 0.0
        self.sync = 0.0
        self.short_write = 0.0
        self.slow_sync_ns = 0
        self.injected: Counter[str] = Counter()
        self._random = random
        self._planned: list[tuple[Operation, Callable[[str], bool], int]] = []

    def fail_next(
        self, operation: Operation, matching: Callable[[str], bool] = lambda path: True, code: int = errno.EIO
    ) -> None:
        """The next such operation on a path that matches fails, once."""
        self._planned.append((operation, matching, code))

    def stop(self) -> None:
        """From now on all is well."""
        self.open = self.read = self.write = self.sync = self.short_write = 0.0
        self.slow_sync_ns = 0
        self._planned = []

    def before_open(self, path: str) -> None:
        if self._planned or self.open:
            self._strike("open", path, self.open, errno.EMFILE)

    def before_read(self, path: str) -> None:
        if self._planned or self.read:
            self._strike("read", path, self.read)

    def before_write(self, path: str) -> None:
        if self._planned or self.write:
            self._strike("write", path, self.write)

    def before_sync(self, path: str) -> None:
        if self._planned or self.sync:
            self._strike("sync", path, self.sync)

    def _strike(self, operation: Operation, path: str, chance: float, code: int = errno.EIO) -> None:
        for plan in self._planned:
            if plan[0] == operation and plan[1](path):
                self._planned.remove(plan)
                self.injected[f"{operation} error"] += 1
                fail(plan[2], path)
        if chance and self._random.random() < chance:
            self.injected[f"{operation} error"] += 1
            fail(code, path)

    def part_of(self, size: int) -> int:
        """How much of a write of `size` bytes is made."""
        if self.short_write and size > 1 and self._random.random() < self.short_write:
            self.injected["short write"] += 1
            return self._random.randint(1, size - 1)
        return size

    def read_ns(self) -> int:
        return self._random.randint(*READ_NS)

    def name_ns(self) -> int:
        return self._random.randint(*NAME_NS)

    def sync_ns(self) -> int:
        if self.slow_sync_ns:
            self.injected["slow sync"] += 1
        return self._random.randint(*SYNC_NS) + self.slow_sync_ns


def fail(code: int, path: str | None = None) -> NoReturn:
    raise OSError(code, os.strerror(code), path)
