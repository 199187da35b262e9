"""An Environment for tests: the running event loop, and a disk in memory that can fail and lose power."""

import asyncio
import errno
from collections.abc import Callable
from random import Random
from typing import Any

from kbroker.runtime.environment import Environment


class MemoryFile:
    """A file. `synced`: its contents after a power loss."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = b""


class OpenFile:
    def __init__(self, disk: "MemoryDisk", file: MemoryFile) -> None:
        self.disk = disk
        self.file = file

    def append(self, data: bytes) -> int:
        self.disk.writes += 1
        if self.disk.room is not None:
            data = data[: self.disk.room]
            self.disk.room -= len(data)
        self.file.data += data
        return len(data)

    def truncate(self, size: int) -> None:
        del self.file.data[size:]

    def size(self) -> int:
        return len(self.file.data)

    def fdatasync(self) -> None:
        if self.disk.sync_fails:
            raise OSError(errno.EIO, "Input/output error")
        self.disk.syncs += 1
        self.file.synced = bytes(self.file.data)

    def close(self) -> None:
        pass


class MemoryDisk:
    """A disk in memory. `room`: the bytes that can still be appended, None for no limit."""

    def __init__(self) -> None:
        self.files: dict[str, MemoryFile] = {}
        self.room: int | None = None
        self.sync_fails = False
        self.writes = 0
        self.syncs = 0

    def open(self, path: str, *, create: bool = False, write: bool = True) -> Any:
        if create:
            self.files.setdefault(path, MemoryFile())
        return OpenFile(self, self.files[path])

    def read(self, path: str) -> bytes:
        return bytes(self.files[path].data)

    def write_atomic(self, path: str, data: bytes | bytearray, *, sync: bool = True) -> None:
        if self.room is not None and self.room < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")
        file = MemoryFile()
        file.data[:] = data
        file.synced = bytes(data)
        self.files[path] = file

    def exists(self, path: str) -> bool:
        return path in self.files

    def makedirs(self, path: str) -> None:
        pass

    def sync_dir(self, path: str) -> None:
        pass

    def power_loss(self, torn: int = 0) -> None:
        """Remove unsynced bytes except for the first `torn` of each file."""
        for file in self.files.values():
            del file.data[len(file.synced) + torn :]


class SteadyClock:
    def now_ms(self) -> int:
        return 1_700_000_000_000

    def mono_ms(self) -> int:
        return 1_000

    def mono_ns(self) -> int:
        return 1_000_000_000


async def offload(fn: Callable[..., Any], /, *args: object) -> Any:
    await asyncio.sleep(0)
    return fn(*args)


def process_runner(*_: object) -> Any:
    raise AssertionError("no other process is needed here")


def make_environment(disk: MemoryDisk | None = None, seed: int = 1) -> Environment:
    """Return an Environment on the running event loop."""
    loop = asyncio.get_running_loop()
    return Environment(loop, SteadyClock(), disk or MemoryDisk(), Random(seed), offload, process_runner)  # type: ignore[arg-type]


async def settle() -> None:
    """Run 50 iterations of the event loop."""
    for _ in range(50):
        await asyncio.sleep(0)
