"""How much of a file is in the page cache, and can be read or sent by sendfile(2) without waiting for the disk.

Reads have a flag for that, RWF_NOWAIT, but not on tmpfs and overlayfs; sendfile has none. mincore(2) reports which
pages of a mapping are in memory. So a file is mapped, without access: no page is ever read through the mapping, and the
mapping takes no memory.
(cachestat(2) needs no mapping, but it also counts pages that are still being read, and exists only since Linux 6.5.)
"""

import mmap
from typing import Any

_MAPPING_STEP = 16 << 20
_MAX_PAGES = 513
# Linux allows a process 65,530 mappings by default (vm.max_map_count). Its allocator and its threads need some.
_MAX_MAPPINGS = 16_384
_NO_ACCESS = 0
_MAP_FAILED = (1 << 64) - 1


class FileMapping:
    """A mapping of the first `size` bytes of a file, which may be shorter."""

    __slots__ = ("_address", "_page_cache", "size")

    def __init__(self, page_cache: "PageCache", address: int, size: int) -> None:
        self._page_cache = page_cache
        self._address = address
        self.size = size

    def resident_bytes(self, size: int, offset: int) -> int:
        """Return how many of the `size` bytes at `offset` are in memory, up to the first page that is not."""
        return self._page_cache.resident_bytes(self._address, size, offset)

    def __del__(self) -> None:
        self._page_cache.unmap(self._address, self.size)


class PageCache:
    """Calls mincore(2); only the event loop may use it.

    The constructor raises OSError, AttributeError or ImportError if mincore is not available.
    """

    def __init__(self) -> None:
        # ctypes takes milliseconds to import; the broker starts without it.
        import ctypes

        # PyDLL does not release the GIL: after a call of a microsecond, other threads could delay the event loop.
        libc: Any = ctypes.PyDLL(None)
        self._mmap, self._munmap, self._mincore = libc.mmap, libc.munmap, libc.mincore
        self._mmap.restype = ctypes.c_uint64
        self._mmap.argtypes = (
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
        )  # fmt: skip
        self._munmap.argtypes = (ctypes.c_uint64, ctypes.c_size_t)
        self._mincore.argtypes = (ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p)
        # One byte per page: 1 if it is in memory.
        self._states = bytearray(_MAX_PAGES)
        self._states_array = (ctypes.c_char * _MAX_PAGES).from_buffer(self._states)
        self._states_address = ctypes.addressof(self._states_array)
        self._mappings = 0

    def map(self, fd: int, size: int) -> FileMapping | None:
        """Map at least `size` bytes of a file. Returns None if the system refuses, or after too many mappings."""
        if self._mappings == _MAX_MAPPINGS:
            return None
        size += -size % _MAPPING_STEP
        address = self._mmap(None, size, _NO_ACCESS, mmap.MAP_SHARED, fd, 0)
        if address == _MAP_FAILED:
            return None
        self._mappings += 1
        return FileMapping(self, address, size)

    def unmap(self, address: int, size: int) -> None:
        self._munmap(address, size)
        self._mappings -= 1

    def resident_bytes(self, address: int, size: int, offset: int) -> int:
        first = offset - offset % mmap.PAGESIZE
        pages = min((offset + size - 1 - first) // mmap.PAGESIZE + 1, _MAX_PAGES)
        if self._mincore(address + first, pages * mmap.PAGESIZE, self._states_address) != 0:
            return 0
        missing = self._states.find(0, 0, pages)
        if missing >= 0:
            pages = missing
        return max(min(first + pages * mmap.PAGESIZE - offset, size), 0)
