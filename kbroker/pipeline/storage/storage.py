"""Where an archive's files are: a directory of this machine, or of any file system that Hadoop knows.

Paths are relative to the root, with `/`; "" is the root itself. Failures are PipelineError, one sentence.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kbroker.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession

# The largest file that `read` returns by default. Manifests of more than some 100,000 files are larger.
MOST_BYTES = 64 << 20
_PIECE_BYTES = 1 << 20
# The longest line that `lines` accepts across two pieces.
_MOST_LINE_BYTES = 64 << 10

# As Hadoop reads a location: a scheme needs a slash after its colon, or else it is a file's name.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


class DirectoryEntry(NamedTuple):
    """A file or directory in a listing."""

    name: str  # of `names`: the last part; of `walk`: the whole path, relative to the root
    size: int  # bytes; of no meaning for directories
    modified_ms: int  # since 1970
    is_directory: bool


class Storage(Protocol):
    """What the pipeline asks of a file system. Safe to use from several threads."""

    root: str  # an absolute path of this machine, or a URI

    def uri(self, path: str) -> str:
        """The location with its scheme, as Spark and Hadoop take it: nothing in it is percent-encoded."""
        ...

    def names(self, path: str) -> list[DirectoryEntry]:
        """What a directory holds, by name; empty when it is not there."""
        ...

    def walk(self, path: str = "") -> Iterator[DirectoryEntry]:
        """Every file below a directory, none when it is not there; what vanishes meanwhile is left out.

        Links to directories are followed, but not a link to a directory that the walk is in, or that another link
        led to: such a link is an entry itself, with is_directory.
        """
        ...

    def real_path(self, path: str) -> str | None:
        """The absolute path of a directory without links; None where the file system has no links."""
        ...

    def exists(self, path: str) -> bool: ...

    def read(self, path: str, most: int | None = MOST_BYTES) -> bytes:
        """The whole file. Raises Absent when it is not there, and TooLarge when it has more than `most` bytes.

        Every method that reads a file raises PipelineError for a FIFO, a device, a socket or a directory: to open one
        may block for ever.
        """
        ...

    def read_range(self, path: str, start: int, size: int) -> bytes:
        """`size` bytes from position `start` on; fewer only at the end. Raises Absent when the file is not there."""
        ...

    def create(self, path: str, data: bytes) -> bool:
        """Writes a file whole and durably, or not at all, and makes its directory; False when it is there already."""
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Writes a file whole and durably, in the place of what was there; readers see the old or the new one."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Moves one file durably and makes the target's directory. Raises PipelineError when the target is there."""
        ...

    def delete(self, path: str, recursive: bool = False) -> None:
        """Removes a file, or a directory with all that it holds; nothing happens when it is not there."""
        ...

    def size(self, path: str) -> int:
        """Bytes of a file. Raises Absent when it is not there."""
        ...

    def sha256(self, path: str) -> str:
        """Of the file's bytes, 64 hexadecimal digits. Raises Absent when it is not there."""
        ...


class Absent(PipelineError):
    """A file that was asked for is not there."""


class TooLarge(PipelineError):
    """A file that was to be read whole has too many bytes."""


class _Level(NamedTuple):
    """A directory that a walk is in."""

    path: str
    real: str | None
    left: Iterator[DirectoryEntry]


def walk(
    storage: Storage, path: str, skip: Callable[[str], bool] = lambda name: False, tolerant: bool = False
) -> Iterator[DirectoryEntry]:
    """`Storage.walk`, without the names for which `skip` returns true.

    With `tolerant`, a directory that cannot be listed is an entry itself; otherwise it raises PipelineError.
    """
    levels = [_Level(path, storage.real_path(path), iter(storage.names(path)))]
    linked: set[str] = set()  # directories that were entered through a link
    while levels:
        here = levels[-1]
        entry = next(here.left, None)
        if entry is None:
            levels.pop()
        elif not skip(entry.name):
            entry = entry._replace(name=f"{here.path}/{entry.name}" if here.path else entry.name)
            below = _entered(storage, entry, levels, linked, tolerant) if entry.is_directory else None
            if below is None:
                yield entry
            else:
                levels.append(below)


def _entered(
    storage: Storage, entry: DirectoryEntry, levels: Sequence[_Level], linked: set[str], tolerant: bool
) -> _Level | None:
    """The level below an entry; None where the directory is not entered."""
    try:
        real = storage.real_path(entry.name)
        parent = levels[-1].real
        if real is not None and parent is not None and real != f"{parent.rstrip('/')}/{entry.name.rpartition('/')[2]}":
            if real in linked or any(level.real == real for level in levels):
                return None
            linked.add(real)
        return _Level(entry.name, real, iter(storage.names(entry.name)))
    except PipelineError:
        if tolerant:
            return None
        raise


def lines(storage: Storage, path: str) -> Iterator[bytes]:
    """The lines of a file without their ends; at most 1 MiB of the file is held at a time.

    Raises PipelineError for a line of more than 64 KiB.
    """
    at, rest, piece = 0, b"", bytes(_PIECE_BYTES)
    while len(piece) == _PIECE_BYTES:
        piece = storage.read_range(path, at, _PIECE_BYTES)
        at += len(piece)
        *whole, rest = (rest + piece).split(b"\n")
        if len(rest) > _MOST_LINE_BYTES:
            raise PipelineError(f"{storage.uri(path)}: has a line of more than {_MOST_LINE_BYTES} bytes")
        yield from whole
    yield rest


def reason(storage: Storage, path: str, error: PipelineError) -> str:
    """The message of an error without the path that it begins with."""
    text = str(error)
    for where in (storage.uri(path), f"{storage.root.rstrip('/')}/{path}", path):
        text = text.removeprefix(f"{where}: ")
    return text


def require_size(size: int, most: int | None, where: str) -> None:
    """Raises TooLarge for a file of more than `most` bytes."""
    if most is not None and size > most:
        raise TooLarge(f"{where}: has {size} bytes, at most {most} are read")


def literal(reader: "DataFrameReader") -> "DataFrameReader":
    """The reader with Spark's glob patterns turned off. Without it a path with `*?[]{}` names other files, or none."""
    return reader.option("__globPaths__", "false")


def open_storage(location: str, spark: "SparkSession | None" = None) -> Storage:
    """The storage at a path of this machine or a URI; nothing is read or made yet.

    `spark`: needed for every scheme but `file:`. Raises PipelineError where it is missing, or Hadoop does not
    know the scheme.
    """
    from kbroker.pipeline.storage.local import LocalStorage

    if not location:
        raise PipelineError("the directory has no name")
    scheme = _SCHEME.match(location)
    if scheme is None:
        return LocalStorage(location)
    if scheme[1].lower() == "file":
        return LocalStorage(_local_path(location))
    if spark is None:
        raise PipelineError(f"{location}: only paths of this machine and file: URIs are read without Spark")
    from kbroker.pipeline.storage.hadoop import HadoopStorage

    return HadoopStorage(location, spark)


def _local_path(uri: str) -> str:
    """The path of a file: URI; what is percent-encoded stays as it is, as in Hadoop."""
    rest = uri.partition(":")[2]
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in ("", "localhost") or not slash:
            raise PipelineError(f"{uri}: a file: URI of another host; write file:///PATH")
        return "/" + path
    return rest
