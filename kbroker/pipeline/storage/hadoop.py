"""An archive's files in any file system that Hadoop knows (HDFS, object stores), through Spark's own Java."""

import hashlib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.storage import MOST_BYTES, Absent, DirectoryEntry, require_size, walk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FULL = ("no space left on device", "disk quota exceeded", "DSQuotaExceeded", "file too large")
# File systems that may be a directory of this machine, which may have links.
_MAY_BE_LOCAL = ("file", "viewfs")


class HadoopStorage:
    """See storage.Storage. `create` is as atomic as the file system's own rename that refuses an existing target: on
    HDFS wholly. An object store has no such thing, it looks first and then puts: there only one process may write to an
    archive at a time.
    """

    def __init__(self, location: str, spark: "SparkSession") -> None:
        context: Any = spark.sparkContext
        self._jvm: Any = context._jvm
        self._gateway: Any = context._gateway
        self.root = location.rstrip("/") if not location.endswith(":///") else location
        with self._told(""):
            path = self._jvm.org.apache.hadoop.fs.Path(location)
            configuration = context._jsc.hadoopConfiguration()
            self._files: Any = path.getFileSystem(configuration)
            # The whole name, so that Spark on another machine takes it for the same place.
            self.root = self._files.makeQualified(path).toString()
            self._context: Any = self._file_context(configuration)

    def uri(self, path: str) -> str:
        return f"{self.root.rstrip('/')}/{path}" if path else self.root

    def names(self, path: str) -> list[DirectoryEntry]:
        with self._told(path):
            try:
                found = self._files.listStatus(self._path(path))
            except Exception as error:
                if _is_absent(error):
                    return []
                raise
            return sorted(_entry(status, status.getPath().getName()) for status in found)

    def walk(self, path: str = "") -> Iterator[DirectoryEntry]:
        return walk(self, path)

    def real_path(self, path: str) -> str | None:
        if self._files.getUri().getScheme() not in _MAY_BE_LOCAL:
            return None
        with self._told(path):
            try:
                resolved = self._files.resolvePath(self._path(path)).toUri()
            except Exception as error:
                if _is_absent(error):
                    return None
                raise
            if resolved.getScheme() != "file":
                return None
            return str(self._jvm.java.io.File(resolved.getPath()).getCanonicalPath())

    def exists(self, path: str) -> bool:
        with self._told(path):
            return bool(self._files.exists(self._path(path)))

    def read(self, path: str, most: int | None = MOST_BYTES) -> bytes:
        size = self.size(path)
        require_size(size, most, self.uri(path))
        return self._bytes(path, 0, size)

    def read_range(self, path: str, start: int, size: int) -> bytes:
        return self._bytes(path, start, min(size, self.size(path) - start))

    def create(self, path: str, data: bytes) -> bool:
        with self._told(path):
            if self._context is None:
                return self._put(path, data, overwrite=False)
            with self._temporary(path, data) as temporary:
                return self._rename(temporary, self._path(path), "NONE")

    def replace(self, path: str, data: bytes) -> None:
        with self._told(path):
            if self._context is None:
                self._put(path, data, overwrite=True)
                return
            with self._temporary(path, data) as temporary:
                self._rename(temporary, self._path(path), "OVERWRITE")

    def rename(self, source: str, target: str) -> None:
        with self._told(target):
            self._files.mkdirs(self._path(target).getParent())
            if not self._rename(self._path(source), self._path(target), "NONE"):
                raise PipelineError(f"{self.uri(target)}: is there already")

    def delete(self, path: str, recursive: bool = False) -> None:
        with self._told(path):
            self._files.delete(self._path(path), recursive)

    def size(self, path: str) -> int:
        with self._told(path):
            status = self._files.getFileStatus(self._path(path))
            if status.isDirectory():
                raise PipelineError(f"{self.uri(path)}: is a directory")
            return int(status.getLen())

    def sha256(self, path: str) -> str:
        if self.size(path) == 0:
            return hashlib.sha256().hexdigest()
        with self._told(path), self._opened(path) as stream:
            return str(self._jvm.org.apache.commons.codec.digest.DigestUtils.sha256Hex(stream))

    def _bytes(self, path: str, start: int, size: int) -> bytes:
        """A file of 0 bytes is not opened: Hadoop reports that size for a FIFO, and to open one may block for ever."""
        if size <= 0:
            return b""
        with self._told(path), self._opened(path) as stream:
            stream.seek(start)
            part = self._jvm.org.apache.commons.io.input.BoundedInputStream(stream, size)
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(part))

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.uri(path))

    def _file_context(self, configuration: Any) -> Any:
        """None where Hadoop has none for the scheme, as for some object stores."""
        try:
            return self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(self._files.getUri(), configuration)
        except Exception as error:
            if "UnsupportedFileSystemException" in _java_class(error):
                return None
            raise

    @contextmanager
    def _opened(self, path: str) -> Iterator[Any]:
        stream = self._files.open(self._path(path))
        try:
            yield stream
        finally:
            stream.close()

    @contextmanager
    def _temporary(self, path: str, data: bytes) -> Iterator[Any]:
        """A whole file next to the target, which is gone afterwards unless it was renamed."""
        target = self._path(path)
        self._files.mkdirs(target.getParent())
        name = f".{target.getName()}.{uuid.uuid4().hex}.tmp"
        temporary = self._jvm.org.apache.hadoop.fs.Path(target.getParent(), name)
        try:
            self._write(temporary, data, overwrite=False)
            yield temporary
        finally:
            self._files.delete(temporary, False)

    def _put(self, path: str, data: bytes, overwrite: bool) -> bool:
        """A file of an object store, which is there when it is closed, and not before."""
        try:
            self._write(self._path(path), data, overwrite)
        except Exception as error:
            if "FileAlreadyExistsException" in _java_class(error):
                return False
            raise
        return True

    def _write(self, path: Any, data: bytes, overwrite: bool) -> None:
        stream = self._files.create(path, overwrite)
        try:
            stream.write(bytearray(data))
            if stream.hasCapability("hsync"):
                stream.hsync()
        except Exception:
            # An object that is closed is there, cut short; a temporary file is removed.
            if self._context is not None:
                stream.close()
            raise
        stream.close()

    def _rename(self, source: Any, target: Any, option: str) -> bool:
        """By FileContext, whose rename refuses an existing target or replaces it; FileSystem's does as it likes."""
        if self._context is None:
            if self._files.exists(target):
                return False
            if not self._files.rename(source, target):
                raise PipelineError(f"{target.toString()}: could not be renamed from {source.toString()}")
            return True
        choice = getattr(self._jvm, "org.apache.hadoop.fs.Options$Rename")
        options = self._gateway.new_array(choice, 1)
        options[0] = choice.valueOf(option)
        try:
            self._context.rename(source, target, options)
        except Exception as error:
            if "FileAlreadyExistsException" in _java_class(error):
                return False
            raise
        return True

    @contextmanager
    def _told(self, path: str) -> Iterator[None]:
        """A failure of Java's as one sentence that names the location."""
        from py4j.protocol import Py4JError, Py4JJavaError

        try:
            yield
        except Py4JJavaError as error:
            where, reason = self.uri(path), _reason(error)
            if _is_absent(error):
                raise Absent(f"{where}: no such file or directory") from None
            if any(sign.lower() in reason.lower() for sign in _FULL):
                raise PipelineError(f"{where}: no space left on device; what was archived stays readable") from None
            raise PipelineError(f"{where}: {reason}") from None
        except Py4JError as error:
            raise PipelineError(f"{self.uri(path)}: Spark's Java did not answer: {error}") from None


def _entry(status: Any, name: str) -> DirectoryEntry:
    return DirectoryEntry(name, status.getLen(), status.getModificationTime(), status.isDirectory())


def _java_class(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    return "" if java is None else str(java.getClass().getName())


def _is_absent(error: Exception) -> bool:
    return _java_class(error) in ("java.io.FileNotFoundException", "java.nio.file.NoSuchFileException")


def _reason(error: Any) -> str:
    """Class and message of the exception, without the stack; the first line alone."""
    return str(error.java_exception.toString()).partition("\n")[0]
