"""What the next start would do to a log, found out by doing it on a disk on which nothing happens."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kbroker.common import Buffer, KafkaError, TopicPartition
from kbroker.config.topic_config import TopicConfig
from kbroker.runtime.disk import Disk, DiskFile, DiskLock
from kbroker.storage.partition_metadata import read_topic_id
from kbroker.storage.recovery.open_log import open_log

if TYPE_CHECKING:
    from random import Random


def dry_run_recovery(
    disk: Disk,
    directory: str,
    tp: TopicPartition,
    recovery_point: int,
    log_start_offset: int,
    clean: bool,
    now_ms: int,
    random: "Random",
) -> list[str]:
    """The repairs that opening a partition's log would make, a line each. Only reads."""
    stage = OverlayDisk(disk)
    topic_id = read_topic_id(disk, directory) or bytes(16)
    try:
        log = open_log(
            stage,
            directory,
            tp,
            topic_id,
            TopicConfig.of(),
            recovery_point,
            clean,
            now_ms,
            background=lambda job, then, delay_ms=0, /: None,
            random=random,
            log_start_offset=log_start_offset,
        )
    except (KafkaError, OSError) as error:
        return [f"{directory} cannot be opened: {error}"]
    return list(log.repairs)


class _Shadow:
    """A file: the first `kept` bytes of a real one, and what was added to them."""

    __slots__ = ("added", "kept", "mtime_ms", "real")

    def __init__(self, real: DiskFile | None, kept: int, added: bytes = b"", mtime_ms: int = 0) -> None:
        self.real = real
        self.kept = kept
        self.added = bytearray(added)
        self.mtime_ms = mtime_ms


class _ShadowFile:
    def __init__(self, shadow: _Shadow) -> None:
        self._shadow = shadow

    def append(self, data: Buffer, /) -> int:
        self._shadow.added += data
        return len(data)

    def appendv(self, parts: Sequence[Buffer], /) -> int:
        return sum(self.append(part) for part in parts)

    def pread(self, size: int, offset: int, /) -> bytes:
        shadow = self._shadow
        data = b""
        if shadow.real is not None and offset < shadow.kept:
            data = shadow.real.pread(min(size, shadow.kept - offset), offset)
        start = max(offset - shadow.kept, 0)
        return data + bytes(shadow.added[start : start + size - len(data)])

    def pread_reused(self, size: int, offset: int, /) -> Buffer:
        return self.pread(size, offset)

    def pread_nowait(self, size: int, offset: int, /) -> Buffer | None:
        return self.pread(size, offset)

    def truncate(self, size: int, /) -> None:
        shadow = self._shadow
        del shadow.added[max(size - shadow.kept, 0) :]
        shadow.kept = min(shadow.kept, size)

    def size(self) -> int:
        return self._shadow.kept + len(self._shadow.added)

    def fdatasync(self) -> None:
        pass

    def start_writeback(self, offset: int, size: int, /) -> None:
        pass

    def forget_clean(self, offset: int, /) -> None:
        pass

    def close(self) -> None:
        pass


class OverlayDisk:
    """Another disk as it would be after changes, which are made in memory only. Directories stay as they are."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        # What differs, or has been opened: by path, None for what is gone.
        self._files: dict[str, _Shadow | None] = {}

    def _shadow(self, path: str) -> _Shadow:
        if path not in self._files:
            file = self._disk.open(path, write=False)
            self._files[path] = _Shadow(file, file.size(), mtime_ms=self._disk.mtime_ms(path))
        found = self._files[path]
        if found is None:
            raise FileNotFoundError(2, "No such file or directory", path)
        return found

    def open(self, path: str, *, create: bool = False, write: bool = True) -> DiskFile:
        if create and not self.exists(path):
            self._files[path] = _Shadow(None, 0)
        return _ShadowFile(self._shadow(path))

    def read(self, path: str) -> bytes:
        file = self.open(path)
        return bytes(file.pread(file.size(), 0))

    def write_atomic(self, path: str, data: bytes, *, sync: bool = True) -> None:
        self._files[path] = _Shadow(None, 0, data)

    def listdir(self, path: str) -> list[str]:
        names = set(self._disk.listdir(path))
        for other, shadow in self._files.items():
            parent, _, name = other.rpartition("/")
            if parent == path:
                (names.discard if shadow is None else names.add)(name)
        return list(names)

    def isdir(self, path: str) -> bool:
        return self._disk.isdir(path)

    def exists(self, path: str) -> bool:
        return self._files[path] is not None if path in self._files else self._disk.exists(path)

    def size(self, path: str) -> int:
        return self.open(path).size()

    def mtime_ms(self, path: str) -> int:
        return self._shadow(path).mtime_ms

    def makedirs(self, path: str) -> None:
        pass

    def rename(self, old: str, new: str) -> None:
        self._files[new] = self._shadow(old)
        self._files[old] = None

    def unlink(self, path: str) -> None:
        self._shadow(path)
        self._files[path] = None

    def rmtree(self, path: str) -> None:
        for name in self.listdir(path):
            self.unlink(f"{path}/{name}")

    def sync_dir(self, path: str) -> None:
        pass

    def usage(self, path: str) -> tuple[int, int]:
        return self._disk.usage(path)

    def lock(self, path: str) -> DiskLock:
        raise PermissionError(1, "nothing is locked here", path)
