"""Storage in a local directory. It needs neither Java nor Spark."""

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from io import BufferedReader

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.storage import MAX_READ_BYTES, DirectoryEntry, FileMissingError, require_size

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK}
_DEAD_LINK = {errno.ENOENT, errno.ELOOP}
_FILE_TYPES = {stat.S_IFDIR: "directory", stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket"}


class LocalStorage:
    """Storage in a local directory. Created, replaced and renamed files are synced when the call returns."""

    def __init__(self, location: str) -> None:
        # Links are resolved because _spark_metadata holds absolute paths: all runs must use the same ones.
        self.root = os.path.realpath(location)

    def uri(self, path: str) -> str:
        return f"file://{self._path(path)}"

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        with _pipeline_errors(self._path(path)):
            try:
                with os.scandir(self._path(path)) as entries:
                    return sorted(filter(None, map(_directory_entry, entries)))
            except FileNotFoundError:
                return []

    def real_path(self, path: str) -> str:
        return os.path.realpath(self._path(path))

    def exists(self, path: str) -> bool:
        return os.path.lexists(self._path(path))

    def read(self, path: str, max_bytes: int | None = MAX_READ_BYTES) -> bytes:
        with _pipeline_errors(self._path(path)), _open_regular(self._path(path)) as file:
            size = os.fstat(file.fileno()).st_size
            require_size(size, max_bytes, self._path(path))
            return file.read(size)

    def read_range(self, path: str, start: int, size: int) -> bytes:
        with _pipeline_errors(self._path(path)), _open_regular(self._path(path)) as file:
            file.seek(start)
            return file.read(size)

    def create(self, path: str, data: bytes) -> bool:
        target = self._path(path)
        with _pipeline_errors(target), self._temporary(target, data) as temporary:
            try:
                os.link(temporary, target)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno in _NO_HARD_LINKS:
                    raise PipelineError(f"{target}: an archive needs a file system with hard links") from None
                raise
            os.unlink(temporary)
            _sync_directory(os.path.dirname(target))
            return True

    def replace(self, path: str, data: bytes) -> None:
        target = self._path(path)
        with _pipeline_errors(target), self._temporary(target, data) as temporary:
            os.replace(temporary, target)
            _sync_directory(os.path.dirname(target))

    def rename(self, source: str, target: str) -> None:
        old, new = self._path(source), self._path(target)
        with _pipeline_errors(new):
            self._make_directory(os.path.dirname(new))
            _sync(old)
            if os.path.lexists(new):
                raise PipelineError(f"{new}: already exists")
            os.rename(old, new)
            _sync_directory(os.path.dirname(new))

    def delete(self, path: str, recursive: bool = False) -> None:
        target = self._path(path)
        with _pipeline_errors(target), contextlib.suppress(FileNotFoundError):
            if recursive and os.path.isdir(target) and not os.path.islink(target):
                shutil.rmtree(target)
            else:
                os.unlink(target)

    def size(self, path: str) -> int:
        with _pipeline_errors(self._path(path)):
            status = os.stat(self._path(path))
            _require_regular(self._path(path), status)
            return status.st_size

    def sha256(self, path: str) -> str:
        with _pipeline_errors(self._path(path)), _open_regular(self._path(path)) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _path(self, path: str) -> str:
        return f"{self.root.rstrip('/')}/{path}" if path else self.root

    @contextlib.contextmanager
    def _temporary(self, target: str, data: bytes) -> Iterator[str]:
        """Write a synced file next to the target; it is deleted afterwards unless it was renamed."""
        directory, name = os.path.split(target)
        self._make_directory(directory)
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

    def _make_directory(self, directory: str) -> None:
        if os.path.isdir(directory):
            return
        parent = os.path.dirname(directory)
        if parent != directory:
            self._make_directory(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory)
            _sync_directory(parent)


@contextlib.contextmanager
def _pipeline_errors(path: str) -> Iterator[None]:
    """Raise OSError as PipelineError with a message that begins with the path."""
    try:
        yield
    except FileNotFoundError:
        raise FileMissingError(f"{path}: no such file or directory") from None
    except OSError as error:
        if error.errno in _DISK_FULL:
            raise PipelineError(f"{path}: no space left on device; archived records stay readable") from None
        raise PipelineError(f"{path}: {(error.strerror or str(error)).lower()}") from None


@contextlib.contextmanager
def _open_regular(path: str) -> Iterator[BufferedReader]:
    """Open a regular file for reading. Opening a FIFO may block forever, and opening a device may have side effects."""
    _require_regular(path, os.stat(path))
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        _require_regular(path, os.fstat(file.fileno()))
        yield file


def _require_regular(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise PipelineError(f"{path}: is a {_FILE_TYPES.get(stat.S_IFMT(status.st_mode), 'device')}")


def _directory_entry(entry: "os.DirEntry[str]") -> DirectoryEntry | None:
    try:
        status = entry.stat()
    except OSError as error:
        # Deleted since the directory was read, or a dead link: there is no file to read.
        if error.errno in _DEAD_LINK:
            return None
        status = entry.stat(follow_symlinks=False)
    return DirectoryEntry(entry.name, status.st_size, status.st_mtime_ns // 1_000_000, stat.S_ISDIR(status.st_mode))


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_directory(path: str) -> None:
    try:
        _sync(path or ".")
    except OSError as error:
        # Some file systems do not support fsync of a directory.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
