"""The files of a manifest, and the log of Spark's file sink (_spark_metadata), which is derived from it.

With that log `spark.read.parquet(DIR)` reads exactly the committed files. How Spark reads it (FileStreamSinkLog,
CompactibleFileStreamLog): it takes the highest number N and reads all files from the last compact file up to N. A
compact file (N.compact) holds the complete list; the files between hold additions. Spark derives the interval of
compact files from the two latest ones. Therefore two always exist, INTERVAL apart, and a change that removes files,
like a rewrite of a damaged log, is written at the next compact number.

The files of the log are created and deleted, but never changed. A writer reads the log before the manifest, so that a
later file never lists an earlier state.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple
from urllib.parse import quote

from kbroker.pipeline.archive.layout import MANIFEST, SPARK_METADATA, commit_path, parse_manifest_name, state_path
from kbroker.pipeline.archive.manifest import (
    DIGEST_FIELD_BYTES,
    DIGEST_PREFIX,
    DIGEST_SUFFIX,
    ArchiveState,
    Decoded,
    ManifestCommit,
    damaged,
    decode_commit,
    decode_state,
)
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.storage import MAX_READ_BYTES, FileTooLargeError, Storage, read_lines

_PIECE_BYTES = 4 << 20


class ManifestListing(NamedTuple):
    """The numbers of the commits and state files in a manifest."""

    commits: set[int]
    states: set[int]


def list_manifest(storage: Storage) -> ManifestListing:
    """Return the numbers of all commits and state files; files with other names are ignored."""
    listing = ManifestListing(set(), set())
    for entry in storage.list_directory(MANIFEST):
        parsed = parse_manifest_name(entry.name)
        if parsed is not None:
            number, is_state = parsed
            (listing.states if is_state else listing.commits).add(number)
    return listing


def read_commit(storage: Storage, number: int) -> Decoded[ManifestCommit]:
    """Read commit `number`. Raises FileMissingError if it does not exist, and PipelineError if it is damaged."""
    path = commit_path(number)
    return decode_commit(read_manifest_file(storage, path), number, storage.uri(path))


def read_state(storage: Storage, number: int) -> Decoded[ArchiveState]:
    """Read the state file of commit `number`. Raises the errors of `read_commit`."""
    path = state_path(number)
    return decode_state(read_manifest_file(storage, path), number, storage.uri(path))


def read_manifest_file(storage: Storage, path: str) -> bytes:
    """Return the bytes of a manifest file. A file of more than 64 MiB is loaded only if its checksum is correct.

    Raises FileMissingError if it does not exist, and PipelineError.
    """
    try:
        return storage.read(path, MAX_READ_BYTES)
    except FileTooLargeError:
        size = storage.size(path)
    if not _has_valid_digest(storage, path, size):
        raise damaged(storage.uri(path), f"{size} bytes, checksum mismatch")
    return storage.read(path, size)


def _has_valid_digest(storage: Storage, path: str, size: int) -> bool:
    """Return whether a file ends with the digest of its content; holds at most 4 MiB in memory."""
    end = size - DIGEST_FIELD_BYTES
    field = storage.read_range(path, end, DIGEST_FIELD_BYTES)
    if not (field.startswith(DIGEST_PREFIX) and field.endswith(DIGEST_SUFFIX)):
        return False
    digest = hashlib.sha256()
    for start in range(0, end, _PIECE_BYTES):
        digest.update(storage.read_range(path, start, min(_PIECE_BYTES, end - start)))
    return field[len(DIGEST_PREFIX) : -len(DIGEST_SUFFIX)] == digest.hexdigest().encode()


INTERVAL = 10
# Retained compact files: a reader that listed the directory before a change still finds the files it needs.
RETAINED_COMPACTS = 3

_COMPACT = ".compact"
_HEADER = "v1"
_UNQUOTED = "/-_.~!$&'()*+,;:@="  # in the path of a URI


class SparkMetadataLog:
    """The log of one archive. Not thread-safe."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._cached: tuple[int, dict[str, int]] = (-1, {})  # the latest number read or written, and its complete list

    def update(self, read_state: Callable[[], ArchiveState]) -> None:
        """Write the missing files, so that the log lists the files of the newest state. Reads the state last."""
        while True:
            numbers, misplaced = self._list_numbers()
            for name in misplaced:
                self._storage.delete(f"{SPARK_METADATA}/{name}")
            listed = self._read_if_valid(numbers)
            state = read_state()
            expected = expected_files(self._storage, state)
            if listed == expected and numbers:
                self._maintain_compacts(numbers, expected, state.time_ms)
                return
            number, files = _next_file(numbers, listed, expected)
            if self._storage.create(_path(number), encode(files, state.time_ms)):
                self._cached = (number, expected)
                self._maintain_compacts({*numbers, number}, expected, state.time_ms)
                return

    def read(self) -> dict[str, int]:
        """Return the sizes of the listed files by percent-encoded URI. Raises PipelineError if Spark cannot read it."""
        numbers, misplaced = self._list_numbers()
        if misplaced:
            raise PipelineError(
                f"{self._storage.uri(SPARK_METADATA)}/{misplaced[0]}: is not a file of Spark's metadata"
            )
        if not numbers:
            raise PipelineError(f"{self._storage.uri(SPARK_METADATA)}: has no list of files for Spark")
        return self._read(numbers)

    def _read_if_valid(self, numbers: set[int]) -> dict[str, int] | None:
        """Return the list; None if there is no log, or a damaged one."""
        if not numbers:
            return None
        if max(numbers) != self._cached[0]:
            try:
                self._cached = (max(numbers), self._read(numbers))
            except PipelineError:
                return None
        return self._cached[1]

    def _read(self, numbers: set[int]) -> dict[str, int]:
        latest = max(numbers)
        listed: dict[str, int] = {}
        for number in range(max(0, (latest + 1) // INTERVAL * INTERVAL - 1), latest + 1):
            if number not in numbers:
                raise PipelineError(f"{self._storage.uri(SPARK_METADATA)}: file {number} is missing")
            location = self._storage.uri(_path(number))
            for uri, size in decode(read_lines(self._storage, _path(number)), location):
                if uri in listed:
                    raise PipelineError(f"{location}: lists {uri} twice")
                listed[uri] = size
        return listed

    def _list_numbers(self) -> tuple[set[int], list[str]]:
        """Return the numbers of the log's files, and the names that Spark would misinterpret."""
        numbers, misplaced = set(), []
        for entry in self._storage.list_directory(SPARK_METADATA):
            stem = entry.name.removesuffix(_COMPACT)
            if not (stem.isascii() and stem.isdigit()):
                continue
            if _path(int(stem)) == f"{SPARK_METADATA}/{entry.name}":
                numbers.add(int(stem))
            else:
                misplaced.append(entry.name)
        return numbers, misplaced

    def _maintain_compacts(self, numbers: set[int], expected: Mapping[str, int], time_ms: int) -> None:
        """Create the compact file before the last one if it is missing, and delete old files."""
        last = max(filter(_is_compact, numbers))
        if last - INTERVAL not in numbers:
            # Spark uses only its number; its content is nevertheless correct.
            self._storage.create(_path(last - INTERVAL), encode(expected.items(), time_ms))
        for number in numbers:
            if number < last - (RETAINED_COMPACTS - 1) * INTERVAL:
                self._storage.delete(_path(number))


def expected_files(storage: Storage, state: ArchiveState) -> dict[str, int]:
    """Return what the log of a state lists: sizes by percent-encoded URI."""
    base = encode_uri(storage.uri(""))
    return {f"{base}/{file.path}": file.size for file in state.files.values()}


def encode_uri(uri: str) -> str:
    """Return a location as Spark writes it in the log: percent-encoded, `file:` with an empty authority."""
    scheme, _, path = uri.partition(":")
    return f"{scheme}:{quote(path, safe=_UNQUOTED)}".rstrip("/")


def encode(files: Iterable[tuple[str, int]], time_ms: int) -> bytes:
    """Return a file of the log that lists these URIs and sizes with one modification time."""
    lines = [_HEADER]
    for uri, size in files:
        line = {"path": uri, "size": size, "isDir": False, "modificationTime": time_ms}
        line |= {"blockReplication": 1, "blockSize": 33554432, "action": "add"}
        lines.append(json.dumps(line, separators=(",", ":")))
    return "\n".join(lines).encode()


def decode(lines: Iterable[bytes], location: str) -> Iterator[tuple[str, int]]:
    """Yield URI and size of each file that is added by the lines of a log file. Raises PipelineError if damaged."""
    remaining = iter(lines)
    header = next(remaining, b"")
    try:
        if header != _HEADER.encode():
            raise ValueError(f"begins with {header[:20].decode(errors='replace')!r}")
        for line in map(json.loads, remaining):
            if line["action"] != "add" or line["isDir"] or type(line["size"]) is not int:
                raise ValueError(f"{line} does not add a file")
            yield str(line["path"]), line["size"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PipelineError(f"{location}: damaged ({error})") from None


def _next_file(
    numbers: set[int], listed: Mapping[str, int] | None, expected: Mapping[str, int]
) -> tuple[int, Iterable[tuple[str, int]]]:
    """Return number and content of the file after which the log lists the expected files."""
    latest = max(numbers, default=INTERVAL - 1)
    if listed is not None and listed.items() <= expected.items() and not _is_compact(latest + 1):
        return latest + 1, [(uri, size) for uri, size in expected.items() if uri not in listed]
    return (latest + 1) // INTERVAL * INTERVAL + INTERVAL - 1, expected.items()


def _is_compact(number: int) -> bool:
    return (number + 1) % INTERVAL == 0


def _path(number: int) -> str:
    return f"{SPARK_METADATA}/{number}{_COMPACT if _is_compact(number) else ''}"
