"""An archive's files in a directory of this machine. Neither Java nor Spark is needed."""

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
from kbroker.pipeline.storage.storage import MOST_BYTES, Absent, DirectoryEntry, require_size, walk

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK}
_NOWHERE = {errno.ENOENT, errno.ELOOP}
_KINDS = {stat.S_IFDIR: "directory", stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket"}


class LocalStorage:
    """See storage.Storage. What is created, replaced or renamed is on the disk when the call returns."""

    def __init__(self, location: str) -> None:
        # One directory has one name, whatever links lead to it: Spark's view of the archive holds absolute paths.
        self.root = os.path.realpath(location)

    def uri(self, path: str) -> str:
        return f"file://{self._path(path)}"

    def names(self, path: str) -> list[DirectoryEntry]:
        with _told(self._path(path)):
            try:
                with os.scandir(self._path(path)) as found:
                    return sorted(entry for one in found if (entry := _entry(one)))
            except FileNotFoundError:
                return []

    def walk(self, path: str = "") -> Iterator[DirectoryEntry]:
        return walk(self, path)

    def real_path(self, path: str) -> str:
        return os.path.realpath(self._path(path))

    def exists(self, path: str) -> bool:
        return os.path.lexists(self._path(path))

    def read(self, path: str, most: int | None = MOST_BYTES) -> bytes:
        with _told(self._path(path)), _opened(self._path(path)) as file:
            size = os.fstat(file.fileno()).st_size
            require_size(size, most, self._path(path))
            return file.read(size)

    def read_range(self, path: str, start: int, size: int) -> bytes:
        with _told(self._path(path)), _opened(self._path(path)) as file:
            file.seek(start)
            return file.read(size)

    def create(self, path: str, data: bytes) -> bool:
        target = self._path(path)
        with _told(target), self._temporary(target, data) as temporary:
            try:
                os.link(temporary, target)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno in _NO_LINKS:
                    raise PipelineError(
                        f"{target}: the file system has no hard links, which an archive needs"
                    ) from None
                raise
            os.unlink(temporary)
            _sync_directory(os.path.dirname(target))
            return True

    def replace(self, path: str, data: bytes) -> None:
        target = self._path(path)
        with _told(target), self._temporary(target, data) as temporary:
            os.replace(temporary, target)
            _sync_directory(os.path.dirname(target))

    def rename(self, source: str, target: str) -> None:
        before, after = self._path(source), self._path(target)
        with _told(after):
            self._make_directory(os.path.dirname(after))
            _sync(before)
            if os.path.lexists(after):
                raise PipelineError(f"{after}: is there already")
            os.rename(before, after)
            _sync_directory(os.path.dirname(after))

    def delete(self, path: str, recursive: bool = False) -> None:
        target = self._path(path)
        with _told(target), contextlib.suppress(FileNotFoundError):
            if recursive and os.path.isdir(target) and not os.path.islink(target):
                shutil.rmtree(target)
            else:
                os.unlink(target)

    def size(self, path: str) -> int:
        with _told(self._path(path)):
            status = os.stat(self._path(path))
            _require_regular(self._path(path), status)
            return status.st_size

    def sha256(self, path: str) -> str:
        with _told(self._path(path)), _opened(self._path(path)) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _path(self, path: str) -> str:
        return f"{self.root.rstrip('/')}/{path}" if path else self.root

    @contextlib.contextmanager
    def _temporary(self, target: str, data: bytes) -> Iterator[str]:
        """A durable file next to the target, which is gone afterwards unless it was renamed."""
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
def _told(path: str) -> Iterator[None]:
    """An OSError as one sentence that names the path."""
    try:
        yield
    except FileNotFoundError:
        raise Absent(f"{path}: no such file or directory") from None
    except OSError as error:
        if error.errno in _FULL:
            raise PipelineError(f"{path}: no space left on device; what was archived stays readable") from None
        raise PipelineError(f"{path}: {(error.strerror or str(error)).lower()}") from None


@contextlib.contextmanager
def _opened(path: str) -> Iterator[BufferedReader]:
    """Open a regular file. To open a FIFO may block for ever, and to open a device may have effects."""
    _require_regular(path, os.stat(path))
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        _require_regular(path, os.fstat(file.fileno()))
        yield file


def _require_regular(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise PipelineError(f"{path}: is a {_KINDS.get(stat.S_IFMT(status.st_mode), 'device')}")


def _entry(found: "os.DirEntry[str]") -> DirectoryEntry | None:
    try:
        status = found.stat()
    except OSError as error:
        # Gone since the directory was read, or a link to nowhere: readers find nothing there.
        if error.errno in _NOWHERE:
            return None
        status = found.stat(follow_symlinks=False)
    return DirectoryEntry(found.name, status.st_size, status.st_mtime_ns // 1_000_000, stat.S_ISDIR(status.st_mode))


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
        # Some file systems have nothing to sync in a directory, and say so.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
