"""An archive's files as they are in the directory: there, unchanged, of the right columns, and no others."""

import io
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.manifest import spark_view
from kbroker.pipeline.archive.manifest.model import ArchiveState, DataFile, OffsetRange
from kbroker.pipeline.archive.staging import owner
from kbroker.pipeline.archive.verification.findings import Finding, difference, note
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.storage import FileMissingError, Storage, message_without_path

if TYPE_CHECKING:
    import pyarrow

THREADS = 4
# Enough for the footer of most files, so that they are asked for once.
_TAIL_BYTES = 64 << 10
# Of a changed or foreign file: what is held of each column at a time, the rows of a batch, and the largest footer.
_PIECE_BYTES = 1 << 20
_ROWS = 1024
_MOST_FOOTER_BYTES = 64 << 20


@dataclass
class Files:
    """What was seen of the committed files."""

    missing: list[DataFile] = field(default_factory=list)
    intact: list[DataFile] = field(default_factory=list)
    changed: list[DataFile] = field(default_factory=list)  # and still Parquet, as far as can be seen without Spark
    broken: list[DataFile] = field(default_factory=list)  # not to be read at all
    bytes: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def lost(self) -> list[DataFile]:
        """Those whose rows nobody can read."""
        return [*self.missing, *self.broken]


def look_at(storage: Storage, state: ArchiveState, files: Iterable[DataFile], advance: Callable[[int], None]) -> Files:
    """Every file from its first byte to its last. `advance` is told the bytes that were read.

    Raises Absent for a file that vanishes while it is looked at.
    """
    names = {file.sha256: file.path for file in state.files.values()}
    sizes = {file.size for file in state.files.values()}
    seen = Files()
    with ThreadPoolExecutor(THREADS) as pool:
        for file, found in pool.map(lambda file: (file, _sized(storage, file, sizes)), list(files)):
            if isinstance(found, FileMissingError):
                what = f"was committed with {file.rows} rows, and is not there"
                seen.missing.append(file)
                seen.findings += _of_parts("missing file", what, file)
                continue
            if isinstance(found, PipelineError):
                seen.broken.append(file)
                seen.findings += _of_parts("unreadable file", message_without_path(storage, file.path, found), file)
                continue
            size, digest = found
            seen.bytes += file.size
            advance(file.size)
            if digest == file.sha256:
                seen.intact.append(file)
                seen.findings += _columns(storage, file)
            else:
                _changed(storage, file, size, names.get(digest), seen)
    return seen


def _sized(storage: Storage, file: DataFile, sizes: Container[int]) -> tuple[int, str] | PipelineError:
    """A file's size and checksum, or why it cannot be read. Where no committed file has this size, the checksum is ""
    and the file, which may be of any size, is not read.
    """
    try:
        size = storage.size(file.path)
        return size, storage.sha256(file.path) if size in sizes else ""
    except PipelineError as error:
        return error


def _changed(storage: Storage, file: DataFile, size: int, other: str | None, seen: Files) -> None:
    """Spark is kept from what is not Parquet any longer: a damaged size of a page may take all of its memory."""
    what = "its bytes are not those that were committed"
    if other is not None:
        what = f"holds what was committed as {other}"
    elif size != file.size:
        what = f"has {size} bytes instead of {file.size}"
    seen.findings += _of_parts("changed file", what, file)
    why = unreadable(storage, file.path)
    if why is None:
        seen.changed.append(file)
        return
    seen.broken.append(file)
    seen.findings += _of_parts("unreadable file", why, file)


def _of_parts(kind: str, what: str, file: DataFile) -> list[Finding]:
    """The finding, once for each partition that the file has rows of."""
    return [
        difference(
            kind,
            what,
            TopicPartition(file.topic, part.partition),
            file.path,
            [OffsetRange(part.first, part.last + 1)],
        )
        for part in file.parts
    ] or [difference(kind, what, file=file.path)]


def unreadable(storage: Storage, path: str, is_ours: bool = True) -> str | None:
    """Why a file is no Parquet file; None when every value can be read. With `is_ours` columns are looked at too.

    The file is read a piece at a time. Raises Absent.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        size = storage.size(path)
        footer = int.from_bytes(storage.read_range(path, max(0, size - 8), 4), "little")
        if _MOST_FOOTER_BYTES < footer < size:
            return f"its footer is said to have {footer} bytes"
        source = pyarrow.PythonFile(_Remote(storage, path, size), mode="r")
        with pyarrow.parquet.ParquetFile(source, buffer_size=_PIECE_BYTES, pre_buffer=False) as file:
            odd = _odd_columns(file.schema_arrow) if is_ours else None
            if odd:
                return odd
            for batch in file.iter_batches(batch_size=_ROWS):
                batch.validate(full=True)
    except FileMissingError:
        raise
    except PipelineError as error:
        return message_without_path(storage, path, error)
    except (pyarrow.ArrowException, OSError, ValueError, MemoryError) as error:
        return " ".join(str(error).split())[:200] or type(error).__name__
    return None


def _columns(storage: Storage, file: DataFile) -> Iterator[Finding]:
    import pyarrow
    import pyarrow.parquet

    try:
        source = pyarrow.PythonFile(_Remote(storage, file.path, file.size), mode="r")
        odd = _odd_columns(pyarrow.parquet.read_schema(source))
    except FileMissingError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, PipelineError) as error:
        odd = f"its footer cannot be read: {error}"
    if odd:
        yield from _of_parts("columns", odd, file)


def _odd_columns(found: "pyarrow.Schema") -> str | None:
    """What is not as an archive writes it; None when all columns and types are."""
    wanted = _types()
    there = {column.name: _plain(column.type) for column in found}
    missing = [name for name in wanted if name not in there]
    if missing:
        return f"it has no column {missing[0]}"
    for name, kind in there.items():
        if name not in wanted:
            return f"it has a column {name}, which an archive's files do not have"
        if kind != wanted[name]:
            return f"column {name} is {kind} instead of {wanted[name]}"
    return None


def _types() -> Mapping[str, str]:
    """The columns of schema.COLUMNS that are in the files themselves, as Arrow calls their types."""
    return {
        "key": "binary",
        "value": "binary",
        "headers": "list<struct<key: string, value: binary>>",
        "partition": "int32",
        "offset": "int64",
        "timestamp": "timestamp[us, tz=UTC]",
        "timestampType": "int32",
    }


def _plain(kind: "pyarrow.DataType") -> str:
    """A type's name, whatever its list's items are called and whether they may be null."""
    import pyarrow

    if pyarrow.types.is_list(kind):
        return f"list<{_plain(kind.value_type)}>"
    if pyarrow.types.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {_plain(field.type)}' for field in kind)}>"
    return str(kind)


class _Remote(io.RawIOBase):
    """A file of a storage as Arrow reads it: the end of it, where the footer is, once; the rest as it is asked for."""

    def __init__(self, storage: Storage, path: str, size: int) -> None:
        self._storage = storage
        self._path = path
        self._size = size
        self._at = 0
        self._tail = b""
        self._tail_at = max(0, size - _TAIL_BYTES)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._size, self._at + size)
        if self._at < self._tail_at:
            data = self._storage.read_range(self._path, self._at, end - self._at)
        else:
            self._tail = self._tail or self._storage.read_range(self._path, self._tail_at, _TAIL_BYTES)
            data = self._tail[self._at - self._tail_at : end - self._tail_at]
        self._at = end
        return data


def strangers(
    listed: Iterable[str], writers: set[str], state: ArchiveState, removed: set[str]
) -> tuple[list[str], list[Finding]]:
    """Files among the data that no commit names: those that are in the way of readers, and notes on what writers left.

    `listed`: what was there; `writers`: who was at work after that, or has died at it; `state` is of later still, so
    that a file of somebody who has ended meanwhile is in it. `removed`: what commits took out again.
    """
    foreign, notes = [], []
    for path in listed:
        if path in state.files or owner.writer_of(path) in writers:
            continue
        if path in removed:
            notes.append(note("leftover", "was replaced by compaction and is still there", file=path))
        else:
            foreign.append(path)
    return foreign, notes


def writers(storage: Storage) -> set[str]:
    """Who is writing, or has left its staging directory."""
    return {entry.name for entry in storage.list_directory(owner.STAGING)}


def view(storage: Storage, state: ArchiveState) -> list[Finding]:
    """What `spark.read.parquet(DIR)` sees, against the state. Nothing is changed."""
    try:
        shown = spark_view.SparkView(storage).listed()
    except PipelineError as error:
        return [difference("view", str(error).removeprefix(f"{storage.uri('')}/"), file=spark_view.DIRECTORY)]
    wanted = spark_view.wanted_files(storage, state)
    base = f"{spark_view.encoded_uri(storage.uri(''))}/"
    if shown and wanted and not any(uri.startswith(base) for uri in shown):
        what = "names files of another place, since the archive was moved or copied: `kbroker archive compact` mends it"
        return [difference("view", f"Spark's list of the files {what}", file=spark_view.DIRECTORY)]
    found = [("does not show it", uri) for uri in wanted.keys() - shown.keys()]
    found += [("shows it, and no commit names it", uri) for uri in shown.keys() - wanted.keys()]
    found += [
        (f"shows it with {shown[uri]} bytes instead of {wanted[uri]}", uri)
        for uri in wanted.keys() & shown.keys()
        if shown[uri] != wanted[uri]
    ]
    return [
        difference("view", f"Spark's list of the files ({spark_view.DIRECTORY}) {what}", file=uri.removeprefix(base))
        for what, uri in sorted(found, key=lambda one: one[1])
    ]
