"""Storage in a local directory, and what makes local files durable."""

import contextlib
import errno
import os
import shutil
import stat
import uuid
from collections.abc import Iterator

from kbroker.archive.errors import ArchiveError
from kbroker.archive.storage.storage import MAX_READ_BYTES, DirectoryEntry, FileMissingError, require_size

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK}


class LocalStorage:
    """Storage in a local directory. Files that were created and replaced are synced when the call returns."""

    def __init__(self, location: str) -> None:
        # Links are resolved because tables and checkpoints hold absolute paths: all runs must use the same ones.
        self.root = os.path.realpath(location)

    def uri(self, path: str) -> str:
        return f"file://{self._path(path)}"

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        with _archive_errors(self._path(path)):
            try:
                with os.scandir(self._path(path)) as entries:
                    return sorted(filter(None, map(_directory_entry, entries)))
            except FileNotFoundError:
                return []

    def exists(self, path: str) -> bool:
        return os.path.lexists(self._path(path))

    def read(self, path: str, max_bytes: int | None = MAX_READ_BYTES) -> bytes:
        location = self._path(path)
        with _archive_errors(location):
            # Opening a FIFO may block forever, and opening a device may have side effects.
            _require_regular(location, os.stat(location))
            with open(location, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
                status = os.fstat(file.fileno())
                _require_regular(location, status)
                require_size(status.st_size, max_bytes, location)
                return file.read(status.st_size)

    def create(self, path: str, data: bytes) -> bool:
        target = self._path(path)
        with _archive_errors(target), _temporary(target, data) as temporary:
            try:
                os.link(temporary, target)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno in _NO_HARD_LINKS:
                    raise ArchiveError(f"{target}: an archive needs a file system with hard links") from None
                raise
            sync_directory(os.path.dirname(target))
            return True

    def replace(self, path: str, data: bytes) -> None:
        target = self._path(path)
        with _archive_errors(target), _temporary(target, data) as temporary:
            os.replace(temporary, target)
            sync_directory(os.path.dirname(target))

    def delete(self, path: str, recursive: bool = False) -> None:
        target = self._path(path)
        with _archive_errors(target), contextlib.suppress(FileNotFoundError):
            if recursive and os.path.isdir(target) and not os.path.islink(target):
                shutil.rmtree(target)
            else:
                os.unlink(target)

    def size(self, path: str) -> int:
        with _archive_errors(self._path(path)):
            status = os.stat(self._path(path))
            _require_regular(self._path(path), status)
            return status.st_size

    def _path(self, path: str) -> str:
        return f"{self.root.rstrip('/')}/{path}" if path else self.root


def make_directory(directory: str) -> None:
    """Create a local directory and its parents durably, if it does not exist. Raises OSError."""
    if os.path.isdir(directory):
        return
    parent = os.path.dirname(directory)
    if parent != directory:
        make_directory(parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory)
        sync_directory(parent)


def sync_directory(path: str) -> None:
    """Make the names in a local directory durable. Raises OSError."""
    descriptor = os.open(path or ".", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems do not support fsync of a directory.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _temporary(target: str, data: bytes) -> Iterator[str]:
    """Write a synced file next to the target; it is deleted afterwards unless it was renamed."""
    directory, name = os.path.split(target)
    make_directory(directory)
    temporary = os.path.join(directory, f".{name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


@contextlib.contextmanager
def _archive_errors(path: str) -> Iterator[None]:
    """Raise OSError as ArchiveError with a message that begins with the path."""
    try:
        yield
    except FileNotFoundError:
        raise FileMissingError(f"{path}: no such file or directory") from None
    except OSError as error:
        if error.errno in _DISK_FULL:
            raise ArchiveError(f"{path}: no space left on device; archived records stay readable") from None
        raise ArchiveError(f"{path}: {(error.strerror or str(error)).lower()}") from None


def _require_regular(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ArchiveError(f"{path}: is not a file")


def _directory_entry(entry: "os.DirEntry[str]") -> DirectoryEntry | None:
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:  # deleted since the directory was read
        return None
    return DirectoryEntry(entry.name, status.st_size, status.st_mtime_ns // 1_000_000, stat.S_ISDIR(status.st_mode))
