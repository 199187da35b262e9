"""What a simulated file holds: as programs see it, and as much of it as the disk has.

Writes go to the page cache and reach the disk in any order, a page of 4 KiB or only some of its sectors at a time,
until a sync makes content and size durable. A truncation that is not synced may be undone by a power loss, as a
journal's transaction that was not written; the page at which it cut is written in its place, before or after.

A failed sync is as on Linux: the pages count as clean afterwards, so the next sync succeeds and has not written them.
Only those that were written to again meanwhile reach the disk.
"""

from random import Random
from sys import maxsize

from kbroker.common import Buffer

PAGE = 4096
SECTOR = 512


class Worst(Random):
    """Of what may happen in a power loss, always the worst: nothing of what was not synced is there afterwards."""

    def random(self) -> float:
        return 0.0


class Content:
    """An inode. `data` is what is read. The disk surely has `data[:clean_to]`, but for `holes`, and after it, as
    long as no sync has said otherwise, `removed`. `linked`: it has a name and so counts as used space.
    """

    __slots__ = ("clean_to", "data", "failed_to", "holes", "linked", "mtime_ms", "redirtied", "removed")

    def __init__(self, mtime_ms: int, data: Buffer = b"") -> None:
        """`data` is durable."""
        self.data = bytearray(data)
        self.mtime_ms = mtime_ms
        self.linked = True
        self.clean_to = len(self.data)
        self.removed = b""
        # Up to here a failed sync has declared pages clean; from `redirtied` on they were dirtied again.
        self.failed_to = 0
        self.redirtied = maxsize
        # Where a sync that succeeded did not write, since one before it had failed: (offset, what the disk has).
        self.holes: list[tuple[int, bytes]] = []

    def append(self, data: Buffer) -> None:
        if self.failed_to or self.holes:
            self._dirty_page()
        self.data += data

    def truncate(self, size: int) -> None:
        """Cut, or extend by zeros."""
        data = self.data
        if size > len(data):
            self.append(bytes(size - len(data)))
            return
        if size < self.clean_to:
            kept = bytearray(memoryview(data)[size : self.clean_to])
            for start, old in self.holes:
                _overlay(kept, start - size, old)
            self.removed = bytes(kept) + self.removed
            self.clean_to = size
        del data[size:]
        if self.failed_to or self.holes:
            self.failed_to = min(self.failed_to, size)
            self._dirty_page()

    def _dirty_page(self) -> None:
        """The page in which the file ends is written to."""
        end = len(self.data)
        self.redirtied = min(self.redirtied, end - end % PAGE)

    def sync(self) -> None:
        """All of it is durable, but for what an earlier, failed sync has declared clean."""
        if self.failed_to or self.holes:
            self.holes = [(start, old[: self.redirtied - start]) for start, old in self.holes if start < self.redirtied]
            end = min(self.failed_to, self.redirtied)
            if end > self.clean_to:
                size = end - self.clean_to
                self.holes.append((self.clean_to, self.removed[:size].ljust(size, b"\0")))
            self.failed_to = 0
            self.redirtied = maxsize
        self.clean_to = len(self.data)
        self.removed = b""

    def fail_sync(self) -> None:
        self.failed_to = len(self.data)
        self.redirtied = maxsize

    @property
    def unwritten(self) -> bool:
        """Whether something counts as clean that the disk does not have."""
        return bool(self.holes) or min(self.failed_to, self.redirtied) > self.clean_to

    def forget_clean(self, offset: int) -> None:
        """Pages from this one on that count as clean are read from the disk again."""
        start = offset - offset % PAGE
        for hole, old in self.holes:
            if hole + len(old) > start:
                _overlay(self.data, max(hole, start), old[max(0, start - hole) :])
        self.holes = [(hole, old[: start - hole]) for hole, old in self.holes if hole < start]
        end = min(self.failed_to, self.redirtied, len(self.data))
        start = max(start, self.clean_to)
        if end > start:
            on_disk = self.removed[start - self.clean_to : end - self.clean_to]
            _overlay(self.data, start, on_disk.ljust(end - start, b"\0"))
            self.failed_to = start if start > self.clean_to else 0

    def sure(self) -> bytes:
        """The longest prefix that a power loss cannot take."""
        end = min([self.clean_to, *(start for start, _ in self.holes)])
        return bytes(memoryview(self.data)[:end])

    def damage(self, offset: int, bit: int) -> None:
        """A bit of the medium flips."""
        self.data[offset] ^= 1 << bit

    def copy(self) -> "Content":
        copy = Content(self.mtime_ms, self.data)
        copy.clean_to, copy.removed = self.clean_to, self.removed
        copy.failed_to, copy.redirtied, copy.holes = self.failed_to, self.redirtied, list(self.holes)
        return copy

    def after_power_loss(self, random: Random) -> "Content":
        """One of the states in which the disk may be."""
        if self.removed and random.random() < 0.5:
            left = self._with_truncation_undone(random)
        else:
            left = self._with_some_pages(random)
        for start, old in self.holes:
            for page in range(start, min(start + len(old), len(left)), PAGE):
                if random.random() < 0.75:
                    _overlay(left, page, old[page - start : page - start + PAGE])
        return Content(self.mtime_ms, left)

    def _with_truncation_undone(self, random: Random) -> bytearray:
        left = self.data[: self.clean_to] + self.removed
        if random.random() < 0.5:
            return left
        page_end = -(-self.clean_to // PAGE) * PAGE
        new = bytes(self.data[self.clean_to : page_end]).ljust(page_end - self.clean_to, b"\0")
        self._write_sectors(left, self.clean_to, new, random)
        return left

    def _with_some_pages(self, random: Random) -> bytearray:
        start, end = self.clean_to, len(self.data)
        chance = random.random()
        if chance < 0.25 or start == end:
            return self.data[:start]
        if chance < 0.5:
            return self.data[:]
        end = random.randint(start, end)
        left = self.data[:start] + bytes(end - start)
        while start < end:
            page_end = min(end, start - start % PAGE + PAGE)
            fate = random.random()
            if fate < 0.75:
                left[start:page_end] = self.data[start:page_end]
            elif fate < 0.875:
                self._write_sectors(left, start, bytes(self.data[start:page_end]), random)
            start = page_end
        return left

    @staticmethod
    def _write_sectors(left: bytearray, start: int, new: bytes, random: Random) -> None:
        """Some sectors of a page are written, the others not."""
        position = start
        while position < start + len(new):
            sector_end = position - position % SECTOR + SECTOR
            if random.random() < 0.5:
                _overlay(left, position, new[position - start : sector_end - start])
            position = sector_end


def _overlay(left: bytearray, start: int, new: bytes) -> None:
    """Put `new` at `start`, as far as it lies within; the size stays."""
    if start < 0:
        new, start = new[-start:], 0
    new = new[: max(0, len(left) - start)]
    left[start : start + len(new)] = new
