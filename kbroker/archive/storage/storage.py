"""The interface of storages, and recursive listing.

Paths are relative to the storage's root and separated by `/`; "" is the root itself. Failures are raised as
ArchiveError with a message of one sentence, which begins with the location.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from kbroker.archive.errors import ArchiveError

# The largest file that `read` returns by default.
MAX_READ_BYTES = 64 << 20


class DirectoryEntry(NamedTuple):
    """A file or directory in a listing."""

    name: str  # from `list_directory`: the last path component; from `walk`: the path relative to the root
    size: int  # bytes; meaningless for directories
    modified_ms: int  # since the epoch; 0 for directories of object stores
    is_directory: bool


class FileMissingError(ArchiveError):
    """A file that does not exist was read."""


class Storage(Protocol):
    """A directory tree. All methods are thread-safe."""

    root: str  # an absolute local path, or a URI

    def uri(self, path: str) -> str:
        """Return the location with its scheme, as Iceberg, Spark and Hadoop expect it: without percent-encoding."""
        ...

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """Return the entries of a directory, sorted by name; an empty list if it does not exist."""
        ...

    def exists(self, path: str) -> bool:
        """Return whether there is a file. A local directory exists, too."""
        ...

    def read(self, path: str, max_bytes: int | None = MAX_READ_BYTES) -> bytes:
        """Return the whole file. Raises FileMissingError, and ArchiveError above `max_bytes` or for a FIFO."""
        ...

    def create(self, path: str, data: bytes) -> bool:
        """Write a new file atomically and durably; return False if it already exists. Creates its directory.

        Returns True, too, if an object store already has the object with these bytes: a request that was repeated
        because its response was lost is no conflict.
        """
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Write a file atomically and durably; readers see either the old or the new content."""
        ...

    def delete(self, path: str, recursive: bool = False) -> None:
        """Delete a file, or a directory with its content; a path that does not exist is ignored."""
        ...

    def size(self, path: str) -> int:
        """Return the size of a file in bytes. Raises FileMissingError."""
        ...


def require_size(size: int, max_bytes: int | None, location: str) -> None:
    """Raise ArchiveError if a file has more than `max_bytes` bytes."""
    if max_bytes is not None and size > max_bytes:
        raise ArchiveError(f"{location}: has {size} bytes, at most {max_bytes} are read")


def walk(storage: Storage, path: str = "") -> Iterator[DirectoryEntry]:
    """Yield every file below a directory; none if it does not exist. Links to directories are not followed."""
    for entry in storage.list_directory(path):
        entry = entry._replace(name=f"{path}/{entry.name}" if path else entry.name)
        if entry.is_directory:
            yield from walk(storage, entry.name)
        else:
            yield entry
