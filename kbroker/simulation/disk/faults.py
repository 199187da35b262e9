"""Faults of a simulated disk, switched on and off while it runs, and the time that its operations take."""

import errno
import os
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Literal, NoReturn

from kbroker.storage.file_names import LOG

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

    def before_open(self, path: str) -> None:
        if self._planned or self.open:
            self._maybe_fail("open", path, self.open, errno.EMFILE)

    def before_read(self, path: str) -> None:
        if self._planned or self.read:
            self._maybe_fail("read", path, self.read)

    def before_write(self, path: str) -> None:
        if self._planned or self.write:
            self._maybe_fail("write", path, self.write)

    def before_sync(self, path: str) -> None:
        if self._planned or self.sync:
            self._maybe_fail("sync", path, self.sync)

    def _maybe_fail(self, operation: Operation, path: str, chance: float, code: int = errno.EIO) -> None:
        for plan in self._planned:
            if plan[0] == operation and plan[1](path):
                self._planned.remove(plan)
                self.injected[f"{operation} error"] += 1
                raise_os_error(plan[2], path)
        if chance and self._random.random() < chance:
            self.injected[f"{operation} error"] += 1
            raise_os_error(code, path)

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
