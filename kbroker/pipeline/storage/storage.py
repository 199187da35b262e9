"""The interface of file systems for the pipeline, and recursive listing on any arrangement of symbolic links.

Paths are relative to the storage's root and separated by `/`; "" is the root itself. Failures are raised as
PipelineError with a message of one sentence.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from kbroker.pipeline.errors import PipelineError

# The largest file that `read` returns by default. Manifest files exceed it from some 100,000 data files on.
MAX_READ_BYTES = 64 << 20
_PIECE_BYTES = 1 << 20
# The longest line that `read_lines` accepts across two pieces.
_MAX_LINE_BYTES = 64 << 10


class DirectoryEntry(NamedTuple):
    """A file or directory in a listing."""

    name: str  # from `list_directory`: the last path component; from `walk`: the path relative to the root
    size: int  # bytes; meaningless for directories
    modified_ms: int  # since the epoch
    is_directory: bool


class Storage(Protocol):
    """A directory tree. All methods are thread-safe."""

    root: str  # an absolute local path, or a URI

    def uri(self, path: str) -> str:
        """Return the location with its scheme, as Spark and Hadoop expect it: without percent-encoding."""
        ...

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """Return the entries of a directory, sorted by name; an empty list if it does not exist."""
        ...

    def real_path(self, path: str) -> str | None:
        """Return the absolute path of a directory with all links resolved; None if the file system has no links."""
        ...

    def exists(self, path: str) -> bool: ...

    def read(self, path: str, max_bytes: int | None = MAX_READ_BYTES) -> bytes:
        """Return the whole file. Raises FileMissingError, and FileTooLargeError above `max_bytes`.

        Every method that reads a file raises PipelineError for a FIFO, a device, a socket or a directory, because
        opening one may block forever.
        """
        ...

    def read_range(self, path: str, start: int, size: int) -> bytes:
        """Return `size` bytes from position `start`, fewer at the end of the file. Raises FileMissingError."""
        ...

    def create(self, path: str, data: bytes) -> bool:
        """Write a new file atomically and durably; return False if it already exists. Creates its directory."""
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Write a file atomically and durably; readers see either the old or the new content."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Move one file durably and create the target's directory. Raises PipelineError if the target exists."""
        ...

    def delete(self, path: str, recursive: bool = False) -> None:
        """Delete a file, or a directory with its content; a path that does not exist is ignored."""
        ...

    def size(self, path: str) -> int:
        """Return the size of a file in bytes. Raises FileMissingError."""
        ...

    def sha256(self, path: str) -> str:
        """Return the SHA-256 of a file's content as 64 hexadecimal digits. Raises FileMissingError."""
        ...


class FileMissingError(PipelineError):
    """A file that does not exist was read."""


class FileTooLargeError(PipelineError):
    """A file is larger than the caller allows."""


def read_lines(storage: Storage, path: str) -> Iterator[bytes]:
    """Yield the lines of a file without line ends, while holding at most 1 MiB of it.

    Raises PipelineError for a line of more than 64 KiB.
    """
    position, incomplete, piece = 0, b"", bytes(_PIECE_BYTES)
    while len(piece) == _PIECE_BYTES:
        piece = storage.read_range(path, position, _PIECE_BYTES)
        position += len(piece)
        *complete, incomplete = (incomplete + piece).split(b"\n")
        if len(incomplete) > _MAX_LINE_BYTES:
            raise PipelineError(f"{storage.uri(path)}: has a line of more than {_MAX_LINE_BYTES} bytes")
        yield from complete
    yield incomplete


def message_without_path(storage: Storage, path: str, error: PipelineError) -> str:
    """Return an error's message without the path at its beginning."""
    text = str(error)
    for prefix in (storage.uri(path), f"{storage.root.rstrip('/')}/{path}", path):
        text = text.removeprefix(f"{prefix}: ")
    return text


def require_size(size: int, max_bytes: int | None, location: str) -> None:
    """Raise FileTooLargeError if a file has more than `max_bytes` bytes."""
    if max_bytes is not None and size > max_bytes:
        raise FileTooLargeError(f"{location}: has {size} bytes, at most {max_bytes} are read")


class _Level(NamedTuple):
    """A directory on the path from the start of the walk to the current entry."""

    path: str
    real_path: str | None
    remaining: Iterator[DirectoryEntry]


def walk(
    storage: Storage, path: str = "", *, skip: Callable[[str], bool] = lambda name: False, tolerant: bool = False
) -> Iterator[DirectoryEntry]:
    """Yield every file below a directory, without the names for which `skip` returns True.

    Yields nothing if the directory does not exist, and omits what disappears during the walk. Links to directories are
    followed, except links to a directory on the current path and links to a directory that another link has led to:
    such a link is yielded as an entry with is_directory. With `tolerant`, a directory that cannot be listed is yielded
    as an entry; otherwise it raises PipelineError.
    """
    levels = [_Level(path, storage.real_path(path), iter(storage.list_directory(path)))]
    link_targets: set[str] = set()  # directories that were entered through a link
    while levels:
        level = levels[-1]
        entry = next(level.remaining, None)
        if entry is None:
            levels.pop()
        elif not skip(entry.name):
            entry = entry._replace(name=f"{level.path}/{entry.name}" if level.path else entry.name)
            child = _enter(storage, entry, levels, link_targets, tolerant) if entry.is_directory else None
            if child is None:
                yield entry
            else:
                levels.append(child)


def _enter(
    storage: Storage, entry: DirectoryEntry, levels: Sequence[_Level], link_targets: set[str], tolerant: bool
) -> _Level | None:
    """Return the level of a directory entry, or None if the directory is not entered."""
    try:
        real_path = storage.real_path(entry.name)
        parent = levels[-1].real_path
        is_link = (
            real_path is not None
            and parent is not None
            and real_path != f"{parent.rstrip('/')}/{entry.name.rpartition('/')[2]}"
        )
        if is_link and real_path is not None:
            if real_path in link_targets or any(level.real_path == real_path for level in levels):
                return None
            link_targets.add(real_path)
        return _Level(entry.name, real_path, iter(storage.list_directory(entry.name)))
    except PipelineError:
        if tolerant:
            return None
        raise
