"""Finds what the next start would repair in a log, by opening it on a disk whose changes are only in memory."""

from random import Random

from kbroker.common import Buffer, KafkaError, TopicPartition
from kbroker.config.topic_config import TopicConfig
from kbroker.runtime.disk import DirectSocket, Disk, DiskFile, DiskLock
from kbroker.storage.checkpoint_files import IndexEntries
from kbroker.storage.metadata_files import read_topic_id
from kbroker.storage.recovery.open_log import open_log


class _OverlayContent:
    """The content of a file: the first `kept` bytes of a real one, and the bytes `added` to them."""

    __slots__ = ("added", "kept", "mtime_ms", "real")

    def __init__(self, real: DiskFile | None, kept: int, added: bytes = b"", mtime_ms: int = 0) -> None:
        self.real = real
        self.kept = kept
        self.added = bytearray(added)
        self.mtime_ms = mtime_ms


class _OverlayFile:
    """An open file of an OverlayDisk. Implements DiskFile."""

    def __init__(self, content: _OverlayContent) -> None:
        self._content = content

    def append(self, data: Buffer, /) -> int:
        self._content.added += data
        return len(data)

    def pread(self, size: int, offset: int, /) -> bytes:
        content = self._content
        data = b""
        if content.real is not None and offset < content.kept:
            data = content.real.pread(min(size, content.kept - offset), offset)
        start = max(offset - content.kept, 0)
        return data + bytes(content.added[start : start + size - len(data)])

    def pread_reused(self, size: int, offset: int, /) -> Buffer:
        return self.pread(size, offset)

    def pread_nowait(self, size: int, offset: int, /) -> Buffer | None:
        return self.pread(size, offset)

    def send_nowait(self, socket: DirectSocket, size: int, offset: int, /) -> int | None:
        return None

    def truncate(self, size: int, /) -> None:
        content = self._content
        del content.added[max(size - content.kept, 0) :]
        content.kept = min(content.kept, size)

    def size(self) -> int:
        return self._content.kept + len(self._content.added)

    def fdatasync(self) -> None:
        pass

    def start_writeback(self, offset: int, size: int, /) -> None:
        pass

    def drop_clean_pages(self, offset: int, /) -> None:
        pass

    def close(self) -> None:
        pass


class OverlayDisk:
    """A Disk that never changes the disk below it. Directories cannot be changed."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        # The files that were opened or changed, by path; None for removed ones.
        self._files: dict[str, _OverlayContent | None] = {}

    def _content(self, path: str) -> _OverlayContent:
        if path not in self._files:
            file = self._disk.open(path, write=False)
            self._files[path] = _OverlayContent(file, file.size(), mtime_ms=self._disk.mtime_ms(path))
        content = self._files[path]
        if content is None:
            raise FileNotFoundError(2, "No such file or directory", path)
        return content

    def open(self, path: str, *, create: bool = False, write: bool = True) -> DiskFile:
        if create and not self.exists(path):
            self._files[path] = _OverlayContent(None, 0)
        return _OverlayFile(self._content(path))

    def read(self, path: str) -> bytes:
        file = self.open(path)
        return bytes(file.pread(file.size(), 0))

    def write_atomic(self, path: str, data: bytes | bytearray, *, sync: bool = True) -> None:
        self._files[path] = _OverlayContent(None, 0, bytes(data))

    def listdir(self, path: str) -> list[str]:
        names = set(self._disk.listdir(path))
        for other, content in self._files.items():
            parent, _, name = other.rpartition("/")
            if parent == path:
                (names.discard if content is None else names.add)(name)
        return list(names)

    def isdir(self, path: str) -> bool:
        return self._disk.isdir(path)

    def exists(self, path: str) -> bool:
        return self._files[path] is not None if path in self._files else self._disk.exists(path)

    def size(self, path: str) -> int:
        return self.open(path).size()

    def mtime_ms(self, path: str) -> int:
        return self._content(path).mtime_ms

    def makedirs(self, path: str) -> None:
        pass

    def rename(self, old: str, new: str) -> None:
        self._files[new] = self._content(old)
        self._files[old] = None

    def unlink(self, path: str) -> None:
        self._content(path)
        self._files[path] = None

    def make_private(self, path: str) -> None: ...

    def rmtree(self, path: str) -> None:
        for name in self.listdir(path):
            self.unlink(f"{path}/{name}")

    def sync_dir(self, path: str) -> None:
        pass

    def usage(self, path: str) -> tuple[int, int]:
        return self._disk.usage(path)

    def lock(self, path: str) -> DiskLock:
        raise PermissionError(1, "an overlay disk has no locks", path)


def dry_run_recovery(
    disk: Disk,
    directory: str,
    tp: TopicPartition,
    recovery_point: int,
    log_start_offset: int,
    clean: bool,
    now_ms: int,
    random: "Random",
    transaction_indexes: IndexEntries | None,
) -> list[str]:
    """Return the repairs that opening the log would make, one line each. Changes nothing."""
    try:
        log = open_log(
            OverlayDisk(disk),
            directory,
            tp,
            read_topic_id(disk, directory) or bytes(16),
            TopicConfig.of(),
            recovery_point,
            clean,
            now_ms,
            background=lambda job, then, delay_ms=0, /: None,
            random=random,
            owner=None,
            log_start_offset=log_start_offset,
            transaction_indexes=transaction_indexes,
        )
    except (KafkaError, OSError) as error:
        return [f"{directory} cannot be opened: {error}"]
    return list(log.repairs)
