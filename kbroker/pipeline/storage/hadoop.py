"""Storage in any file system that Hadoop supports (HDFS, object stores), through the JVM of a Spark session."""

import hashlib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.storage import MAX_READ_BYTES, DirectoryEntry, FileMissingError, require_size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DISK_FULL = ("no space left on device", "disk quota exceeded", "DSQuotaExceeded", "file too large")
# Schemes that can lead to a local directory, where links are possible.
_SCHEMES_WITH_LINKS = ("file", "viewfs")


class HadoopStorage:
    """Storage in a Hadoop file system.

    `create` needs a rename that fails if the target exists. HDFS has one. An object store checks first and then puts
    the object, which is not atomic: there, only one process may write to an archive at a time.
    """

    def __init__(self, location: str, spark: "SparkSession") -> None:
        context: Any = spark.sparkContext
        self._jvm: Any = context._jvm
        self._gateway: Any = context._gateway
        self.root = location.rstrip("/") if not location.endswith(":///") else location
        with self._pipeline_errors(""):
            path = self._jvm.org.apache.hadoop.fs.Path(location)
            configuration = context._jsc.hadoopConfiguration()
            self._file_system: Any = path.getFileSystem(configuration)
            # The qualified name means the same location to Spark on another machine.
            self.root = self._file_system.makeQualified(path).toString()
            self._file_context: Any = self._open_file_context(configuration)

    def uri(self, path: str) -> str:
        return f"{self.root.rstrip('/')}/{path}" if path else self.root

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        with self._pipeline_errors(path):
            try:
                statuses = self._file_system.listStatus(self._path(path))
            except Exception as error:
                if _is_file_missing(error):
                    return []
                raise
            return sorted(map(_directory_entry, statuses))

    def real_path(self, path: str) -> str | None:
        if self._file_system.getUri().getScheme() not in _SCHEMES_WITH_LINKS:
            return None
        with self._pipeline_errors(path):
            try:
                resolved = self._file_system.resolvePath(self._path(path)).toUri()
            except Exception as error:
                if _is_file_missing(error):
                    return None
                raise
            if resolved.getScheme() != "file":
                return None
            return str(self._jvm.java.io.File(resolved.getPath()).getCanonicalPath())

    def exists(self, path: str) -> bool:
        with self._pipeline_errors(path):
            return bool(self._file_system.exists(self._path(path)))

    def read(self, path: str, max_bytes: int | None = MAX_READ_BYTES) -> bytes:
        size = self.size(path)
        require_size(size, max_bytes, self.uri(path))
        return self._read(path, 0, size)

    def read_range(self, path: str, start: int, size: int) -> bytes:
        return self._read(path, start, min(size, self.size(path) - start))

    def create(self, path: str, data: bytes) -> bool:
        with self._pipeline_errors(path):
            if self._file_context is None:
                return self._put(path, data, overwrite=False)
            with self._temporary(path, data) as temporary:
                return self._rename(temporary, self._path(path), "NONE")

    def replace(self, path: str, data: bytes) -> None:
        with self._pipeline_errors(path):
            if self._file_context is None:
                self._put(path, data, overwrite=True)
                return
            with self._temporary(path, data) as temporary:
                self._rename(temporary, self._path(path), "OVERWRITE")

    def rename(self, source: str, target: str) -> None:
        with self._pipeline_errors(target):
            self._file_system.mkdirs(self._path(target).getParent())
            if not self._rename(self._path(source), self._path(target), "NONE"):
                raise PipelineError(f"{self.uri(target)}: already exists")

    def delete(self, path: str, recursive: bool = False) -> None:
        with self._pipeline_errors(path):
            self._file_system.delete(self._path(path), recursive)

    def size(self, path: str) -> int:
        with self._pipeline_errors(path):
            status = self._file_system.getFileStatus(self._path(path))
            if status.isDirectory():
                raise PipelineError(f"{self.uri(path)}: is a directory")
            return int(status.getLen())

    def sha256(self, path: str) -> str:
        if self.size(path) == 0:
            return hashlib.sha256().hexdigest()
        with self._pipeline_errors(path), self._open(path) as stream:
            return str(self._jvm.org.apache.commons.codec.digest.DigestUtils.sha256Hex(stream))

    def _read(self, path: str, start: int, size: int) -> bytes:
        """Read a file. One of 0 bytes is not opened: it may be a FIFO, and opening that may block forever."""
        if size <= 0:
            return b""
        with self._pipeline_errors(path), self._open(path) as stream:
            stream.seek(start)
            bounded = self._jvm.org.apache.commons.io.input.BoundedInputStream(stream, size)
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(bounded))

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.uri(path))

    def _open_file_context(self, configuration: Any) -> Any:
        """Return Hadoop's FileContext; None for schemes without one, such as some object stores."""
        try:
            return self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(self._file_system.getUri(), configuration)
        except Exception as error:
            if "UnsupportedFileSystemException" in _java_class(error):
                return None
            raise

    @contextmanager
    def _open(self, path: str) -> Iterator[Any]:
        stream = self._file_system.open(self._path(path))
        try:
            yield stream
        finally:
            stream.close()

    @contextmanager
    def _temporary(self, path: str, data: bytes) -> Iterator[Any]:
        """Write a file next to the target; it is deleted afterwards unless it was renamed."""
        target = self._path(path)
        self._file_system.mkdirs(target.getParent())
        name = f".{target.getName()}.{uuid.uuid4().hex}.tmp"
        temporary = self._jvm.org.apache.hadoop.fs.Path(target.getParent(), name)
        try:
            self._write(temporary, data, overwrite=False)
            yield temporary
        finally:
            self._file_system.delete(temporary, False)

    def _put(self, path: str, data: bytes, overwrite: bool) -> bool:
        """Write an object, which becomes visible when it is closed; return False if it already exists."""
        try:
            self._write(self._path(path), data, overwrite)
        except Exception as error:
            if "FileAlreadyExistsException" in _java_class(error):
                return False
            raise
        return True

    def _write(self, path: Any, data: bytes, overwrite: bool) -> None:
        stream = self._file_system.create(path, overwrite)
        try:
            stream.write(bytearray(data))
            if stream.hasCapability("hsync"):
                stream.hsync()
        except Exception:
            # Closing would make a truncated object visible; a temporary file is deleted anyway.
            if self._file_context is not None:
                stream.close()
            raise
        stream.close()

    def _rename(self, source: Any, target: Any, option: str) -> bool:
        """Return False if the target exists and `option` is NONE.

        Uses FileContext if possible: the result of FileSystem.rename for an existing target depends on the file system.
        """
        if self._file_context is None:
            if self._file_system.exists(target):
                return False
            if not self._file_system.rename(source, target):
                raise PipelineError(f"{target.toString()}: cannot be renamed from {source.toString()}")
            return True
        rename_option = getattr(self._jvm, "org.apache.hadoop.fs.Options$Rename")
        options = self._gateway.new_array(rename_option, 1)
        options[0] = rename_option.valueOf(option)
        try:
            self._file_context.rename(source, target, options)
        except Exception as error:
            if "FileAlreadyExistsException" in _java_class(error):
                return False
            raise
        return True

    @contextmanager
    def _pipeline_errors(self, path: str) -> Iterator[None]:
        """Raise Java's exceptions as PipelineError with a message that begins with the location."""
        from py4j.protocol import Py4JError, Py4JJavaError

        try:
            yield
        except Py4JJavaError as error:
            location, message = self.uri(path), _first_line(error)
            if _is_file_missing(error):
                raise FileMissingError(f"{location}: no such file or directory") from None
            if any(text.lower() in message.lower() for text in _DISK_FULL):
                raise PipelineError(f"{location}: no space left on device; archived records stay readable") from None
            raise PipelineError(f"{location}: {message}") from None
        except Py4JError as error:
            raise PipelineError(f"{self.uri(path)}: Spark's JVM does not respond: {error}") from None


def _directory_entry(status: Any) -> DirectoryEntry:
    name = status.getPath().getName()
    return DirectoryEntry(name, status.getLen(), status.getModificationTime(), status.isDirectory())


def _java_class(error: Exception) -> str:
    exception = getattr(error, "java_exception", None)
    return "" if exception is None else str(exception.getClass().getName())


def _is_file_missing(error: Exception) -> bool:
    return _java_class(error) in ("java.io.FileNotFoundException", "java.nio.file.NoSuchFileException")


def _first_line(error: Any) -> str:
    """Return the exception's class and message, without further lines and the stack trace."""
    return str(error.java_exception.toString()).partition("\n")[0]
