"""Where an archive's files are: a directory of this machine, or of any file system that Hadoop knows.

Paths are relative to the root, with `/`; "" is the root itself. Failures are PipelineError, one sentence.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kbroker.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
        """Every file below a directory, none when it is not there; what vanishes meanwhile is left out."""
        ...

    def exists(self, path: str) -> bool: ...

    def read(self, path: str) -> bytes:
        """The whole file. Raises Absent when it is not there."""
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


def walk(storage: Storage, path: str) -> Iterator[DirectoryEntry]:
    """`Storage.walk` where listing one directory at a time is all there is to it."""
    for entry in storage.names(path):
        whole = f"{path}/{entry.name}" if path else entry.name
        if entry.is_directory:
            yield from walk(storage, whole)
        else:
            yield entry._replace(name=whole)


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
