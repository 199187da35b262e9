"""Checks with Arrow that a file is Parquet with the columns of an archive's files. It reads one piece at a time."""

import io
from typing import TYPE_CHECKING

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.storage import FileMissingError, Storage, message_without_path

if TYPE_CHECKING:
    import pyarrow

# Enough for the footer of most files, so that it is read with one request.
_TAIL_BYTES = 64 << 10
_PIECE_BYTES = 1 << 20
_BATCH_ROWS = 1024
_MAX_FOOTER_BYTES = 64 << 20

# The columns of schema.COLUMNS that are in the files themselves, with their Arrow types.
_COLUMN_TYPES = {
    "key": "binary",
    "value": "binary",
    "headers": "list<struct<key: string, value: binary>>",
    "partition": "int32",
    "offset": "int64",
    "timestamp": "timestamp[us, tz=UTC]",
    "timestampType": "int32",
}


def find_read_problem(storage: Storage, path: str, check_columns: bool = True) -> str | None:
    """Read every value of a file; return why it cannot be read, or None. Raises FileMissingError."""
    import pyarrow
    import pyarrow.parquet

    try:
        size = storage.size(path)
        footer_bytes = int.from_bytes(storage.read_range(path, max(0, size - 8), 4), "little")
        if _MAX_FOOTER_BYTES < footer_bytes < size:
            return f"its footer claims to have {footer_bytes} bytes"
        source = pyarrow.PythonFile(_StorageFile(storage, path, size), mode="r")
        with pyarrow.parquet.ParquetFile(source, buffer_size=_PIECE_BYTES, pre_buffer=False) as file:
            problem = _find_schema_problem(file.schema_arrow) if check_columns else None
            if problem:
                return problem
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                batch.validate(full=True)
    except FileMissingError:
        raise
    except PipelineError as error:
        return message_without_path(storage, path, error)
    except (pyarrow.ArrowException, OSError, ValueError, MemoryError) as error:
        return " ".join(str(error).split())[:200] or type(error).__name__
    return None


def find_column_problem(storage: Storage, path: str, size: int) -> str | None:
    """Read a file's footer. Returns the first column that differs from an archive's files, or None.

    Raises FileMissingError."""
    import pyarrow
    import pyarrow.parquet

    try:
        source = pyarrow.PythonFile(_StorageFile(storage, path, size), mode="r")
        return _find_schema_problem(pyarrow.parquet.read_schema(source))
    except FileMissingError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, PipelineError) as error:
        return f"its footer cannot be read: {error}"


def _find_schema_problem(schema: "pyarrow.Schema") -> str | None:
    types = {column.name: _type_name(column.type) for column in schema}
    for name in _COLUMN_TYPES:
        if name not in types:
            return f"column {name} is missing"
    for name, type_name in types.items():
        expected = _COLUMN_TYPES.get(name)
        if expected is None:
            return f"column {name} is unexpected"
        if type_name != expected:
            return f"column {name} has type {type_name} instead of {expected}"
    return None


def _type_name(arrow_type: "pyarrow.DataType") -> str:
    """Return the name of a type without the name of list items and without nullability."""
    import pyarrow

    if pyarrow.types.is_list(arrow_type):
        return f"list<{_type_name(arrow_type.value_type)}>"
    if pyarrow.types.is_struct(arrow_type):
        return f"struct<{', '.join(f'{field.name}: {_type_name(field.type)}' for field in arrow_type)}>"
    return str(arrow_type)


class _StorageFile(io.RawIOBase):
    """A file of a storage for Arrow. Its end, which contains the footer, is read once and cached."""

    def __init__(self, storage: Storage, path: str, size: int) -> None:
        self._storage = storage
        self._path = path
        self._size = size
        self._position = 0
        self._tail = b""
        self._tail_start = max(0, size - _TAIL_BYTES)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._size, self._position + size)
        if self._position < self._tail_start:
            data = self._storage.read_range(self._path, self._position, end - self._position)
        else:
            self._tail = self._tail or self._storage.read_range(self._path, self._tail_start, _TAIL_BYTES)
            data = self._tail[self._position - self._tail_start : end - self._tail_start]
        self._position = end
        return data
