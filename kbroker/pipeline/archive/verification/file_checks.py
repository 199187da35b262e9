"""Checks the committed files, finds files that are not committed, and checks Spark's metadata."""

from collections.abc import Callable, Collection, Container, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.layout import SPARK_METADATA, writer_id_of
from kbroker.pipeline.archive.manifest import spark_metadata
from kbroker.pipeline.archive.manifest.model import ArchiveState, DataFile
from kbroker.pipeline.archive.offset_ranges import OffsetRange
from kbroker.pipeline.archive.verification.findings import Finding, difference, note
from kbroker.pipeline.archive.verification.parquet_checks import find_column_problem, find_read_problem
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.storage import FileMissingError, Storage, message_without_path

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
    findings = []
    for stats in file.partitions:
        tp, offsets = TopicPartition(file.topic, stats.partition), OffsetRange(stats.first, stats.last + 1)
        findings.append(difference(kind, text, tp, file.path, [offsets]))
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
        listed = spark_metadata.SparkMetadataLog(storage).read()
    except PipelineError as error:
        return [difference("view", str(error).removeprefix(f"{storage.uri('')}/"), file=SPARK_METADATA)]
    expected = spark_metadata.expected_files(storage, state)
    base = f"{spark_metadata.encode_uri(storage.uri(''))}/"
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
