"""Checks the committed files, finds files that are not committed, and checks Spark's metadata.

Arrow checks that a file is Parquet with the columns of an archive's files. It reads one piece at a time.
"""

import io
from collections.abc import Callable, Collection, Container, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kbroker.common import TopicPartition
from kbroker.pipeline.archive import manifest_files
from kbroker.pipeline.archive.layout import SPARK_METADATA, writer_id_of
from kbroker.pipeline.archive.manifest import ArchiveState, DataFile
from kbroker.pipeline.archive.verification.findings import Finding, difference, note
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


THREADS = 4


@dataclass
class FileCheckResult:
    """The committed files by their condition."""

    missing: list[DataFile] = field(default_factory=list)
    intact: list[DataFile] = field(default_factory=list)
    changed: list[DataFile] = field(default_factory=list)  # other bytes, but readable as Parquet
    unreadable: list[DataFile] = field(default_factory=list)
    bytes: int = 0
    findings: list[Finding] = field(default_factory=list)


def check_files(
    storage: Storage, state: ArchiveState, files: Iterable[DataFile], advance: Callable[[int], None]
) -> FileCheckResult:
    """Read every file completely. `advance` is called with the bytes that were read.

    Raises FileMissingError for a file that is deleted while it is read.
    """
    paths_by_digest = {file.sha256: file.path for file in state.files.values()}
    sizes = {file.size for file in state.files.values()}
    result = FileCheckResult()
    with ThreadPoolExecutor(THREADS) as pool:
        for file, read in pool.map(lambda file: (file, _read_file(storage, file, sizes)), list(files)):
            if isinstance(read, FileMissingError):
                result.missing.append(file)
                text = f"was committed with {file.rows} rows, and is missing"
                result.findings += _per_partition("missing file", text, file)
            elif isinstance(read, PipelineError):
                result.unreadable.append(file)
                text = message_without_path(storage, file.path, read)
                result.findings += _per_partition("unreadable file", text, file)
            else:
                size, digest = read
                result.bytes += file.size
                advance(file.size)
                if digest == file.sha256:
                    result.intact.append(file)
                    problem = find_column_problem(storage, file.path, file.size)
                    result.findings += _per_partition("columns", problem, file) if problem else []
                else:
                    _check_changed(storage, file, size, paths_by_digest.get(digest), result)
    return result


def _read_file(storage: Storage, file: DataFile, sizes: Container[int]) -> tuple[int, str] | PipelineError:
    """Return a file's size and digest, or the error.

    The digest is empty if no committed file has this size: such a file may be huge, and is not read.
    """
    try:
        size = storage.size(file.path)
        return size, storage.sha256(file.path) if size in sizes else ""
    except PipelineError as error:
        return error


def _check_changed(
    storage: Storage, file: DataFile, size: int, same_content: str | None, result: FileCheckResult
) -> None:
    """Decide whether Spark may read a changed file: a damaged page size can make Spark run out of memory."""
    text = "its bytes are not those that were committed"
    if same_content is not None:
        text = f"has the content of {same_content}"
    elif size != file.size:
        text = f"has {size} bytes instead of {file.size}"
    result.findings += _per_partition("changed file", text, file)
    problem = find_read_problem(storage, file.path)
    if problem is None:
        result.changed.append(file)
        return
    result.unreadable.append(file)
    result.findings += _per_partition("unreadable file", problem, file)


def _per_partition(kind: str, text: str, file: DataFile) -> list[Finding]:
    """Return one difference per partition that the file has rows of."""
    findings = [
        difference(kind, text, TopicPartition(file.topic, stats.partition), file.path, [stats.offsets])
        for stats in file.partitions
    ]
    return findings or [difference(kind, text, file=file.path)]


def split_uncommitted(
    listed: Iterable[str], writer_ids: Collection[str], state: ArchiveState, removed: Collection[str]
) -> tuple[list[str], list[Finding]]:
    """Return the foreign files among the listed data files, and notes on leftovers.

    The arguments must be read in this order: the listed files, the ids of writers alive or dead, and the state with the
    files that commits removed. Then a file of a writer that finished meanwhile is in the state.
    """
    foreign, notes = [], []
    for path in listed:
        if path in state.files or writer_id_of(path) in writer_ids:
            continue
        if path in removed:
            notes.append(note("leftover", "was replaced by compaction, and is not deleted yet", file=path))
        else:
            foreign.append(path)
    return foreign, notes


def check_spark_metadata(storage: Storage, state: ArchiveState) -> list[Finding]:
    """Compare the files that `spark.read.parquet(DIR)` reads with the state."""
    try:
        listed = manifest_files.SparkMetadataLog(storage).read()
    except PipelineError as error:
        return [difference("view", str(error).removeprefix(f"{storage.uri('')}/"), file=SPARK_METADATA)]
    expected = manifest_files.expected_files(storage, state)
    base = f"{manifest_files.encode_uri(storage.uri(''))}/"
    if listed and expected and not any(uri.startswith(base) for uri in listed):
        text = (
            "Spark's metadata lists files at another location, because the archive was moved or copied; "
            "`kbroker archive compact` corrects it"
        )
        return [difference("view", text, file=SPARK_METADATA)]
    problems = dict.fromkeys(expected.keys() - listed.keys(), "does not list it")
    problems |= dict.fromkeys(listed.keys() - expected.keys(), "lists it, but no commit contains it")
    problems |= {
        uri: f"lists it with {listed[uri]} bytes instead of {expected[uri]}"
        for uri in expected.keys() & listed.keys()
        if listed[uri] != expected[uri]
    }
    return [
        difference("view", f"Spark's metadata ({SPARK_METADATA}) {text}", file=uri.removeprefix(base))
        for uri, text in sorted(problems.items())
    ]
