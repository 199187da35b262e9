"""Functions for all index files of a segment: non-blocking reads, appends, plausibility checks."""

import sys
from array import array
from collections.abc import Callable
from errno import ENOSPC

from kbroker.common import Buffer
from kbroker.runtime.disk import Disk

# (size, position) -> bytes: a file's `pread`, or its `pread_nowait`, which returns None when it would block.
Read = Callable[[int, int], Buffer | None]

# The number of entries that are read or checked together.
BLOCK_ENTRIES = 512
# In indexes that are too long to check all entries, one entry per disk sector is checked.
_ENTRIES_PER_SECTOR = 64


class WouldBlock(Exception):
    """A read without waiting did not find the data in memory."""


def read_exactly(read: Read, size: int, position: int) -> Buffer:
    """Read exactly `size` bytes. Raises WouldBlock, or ValueError if the file is too short."""
    data = read(size, position)
    if data is None:
        raise WouldBlock
    if len(data) != size:
        raise ValueError("the index ends early")
    return data


def extend_index_file(disk: Disk, path: str, size: int, data_from: Callable[[int], bytes], *, sync: bool) -> None:
    """Write the content after the first `size` bytes of the file, or all content if the file has lost some of these.

    `data_from` returns the content from a byte on. Raises OSError; if the disk is full, the file is truncated again.
    """
    file = disk.open(path, create=True)
    try:
        found = file.size()
        start = size if found >= size else 0
        if found != start:
            file.truncate(start)
        data = data_from(start)
        if data and file.append(data) != len(data):
            file.truncate(start)
            raise OSError(ENOSPC, "no space left for an index")
        if sync and data:
            file.fdatasync()
    finally:
        file.close()


def to_big_endian(values: "array[int]") -> "array[int]":
    """Convert an array to the byte order of the files, or back, in place."""
    if sys.byteorder == "little":
        values.byteswap()
    return values


def sample(values: "array[int]") -> "array[int]":
    """Return the entries to check: all of a short index; of a long one an entry per disk sector, and the last ones.

    A power loss leaves whole sectors of zeros. Other damage is noticed when an entry is used, since it must match the
    log.
    """
    if len(values) <= BLOCK_ENTRIES:
        return values
    return values[:-BLOCK_ENTRIES:_ENTRIES_PER_SECTOR] + values[-BLOCK_ENTRIES:]


def is_ascending(values: "array[int] | list[int]") -> bool:
    """Return whether each value is larger than the one before."""
    return all(map(int.__lt__, values, values[1:]))
