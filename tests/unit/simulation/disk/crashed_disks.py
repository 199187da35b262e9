"""What a simulated disk has after power losses."""

import errno
import os
from collections.abc import Callable

import pytest

from kbroker.simulation.disk.disk import SimDisk
from kbroker.simulation.disk.file import SimFile

SEEDS = 200


def raises(code: int):
    return pytest.raises(OSError, match=os.strerror(code))


def outcomes(disk: SimDisk, look: Callable[[SimDisk], object]) -> set[object]:
    """Return what `look` sees after many power losses."""
    faults = disk.faults
    results = {look(disk.after_crash(True, keep_running=True)) for _ in range(SEEDS)}
    disk.faults = faults
    return results


def names(disk: SimDisk) -> tuple[str, ...]:
    return tuple(disk.find(""))


def content(disk: SimDisk) -> bytes:
    return disk.read("/d/f")


def fail_sync(disk: SimDisk, file: SimFile) -> None:
    disk.faults.fail_next("sync", lambda path: path == "/d/f")
    with raises(errno.EIO):
        file.fdatasync()


def synced_file(disk: SimDisk, data: bytes, path: str = "/d/f"):
    file = disk.open(path, create=True)
    file.append(data)
    file.fdatasync()
    disk.sync_dir("/d")
    return file


def atomic(disk: SimDisk) -> None:
    disk.write_atomic("/d/f", b"0123456789" * 100)
