"""The manifest in the format of Spark's own file sink, so that `spark.read.parquet(DIR)` sees what is committed.

Spark's reader (FileStreamSinkLog, CompactibleFileStreamLog) takes the highest number in _spark_metadata and reads from
the last N.compact, which holds everything, up to it; the files between hold what was added. It derives how far compact
files are apart from the two latest that it finds, so these are always INTERVAL apart, and two are there always.
A change that removes files therefore goes on at the next compact number, and so does a view that is made anew.

The view is derived: nothing of ours reads it but to bring it up to date. A view file is only ever created, never
changed. Who creates one has read the view before the manifest; so a later view never shows an earlier state.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from urllib.parse import quote

from kbroker.pipeline.archive.manifest.model import ArchiveState
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.storage import Storage, read_lines

DIRECTORY = "_spark_metadata"
INTERVAL = 10
# Compact files that stay: a reader that listed the directory before a change still finds all that it wants.
KEPT = 3

_COMPACT = ".compact"
_HEADER = "v1"
_UNQUOTED = "/-_.~!$&'()*+,;:@="  # in a URI's path


class SparkView:
    """The view of one archive. Not for several threads at once."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._known: tuple[int, dict[str, int]] = (-1, {})  # the latest number read or written, and what it shows

    def bring_up_to_date(self, state: Callable[[], ArchiveState]) -> None:
        """Makes the view show the archive's state. `state` is asked for the newest after the view was read."""
        while True:
            numbers, misplaced = self._numbers()
            for name in misplaced:
                self._storage.delete(f"{DIRECTORY}/{name}")
            shown = self._shown(numbers)
            now = state()
            wanted = wanted_files(self._storage, now)
            if shown == wanted and numbers:
                self._complete(numbers, wanted, now.time_ms)
                return
            number, read_lines = _next(numbers, shown, wanted)
            if self._storage.create(_path(number), encode(read_lines, now.time_ms)):
                self._known = (number, wanted)
                self._complete({*numbers, number}, wanted, now.time_ms)
                return

    def listed(self) -> dict[str, int]:
        """What the view shows: sizes by URI, percent-encoded. Raises PipelineError when Spark could not read it."""
        numbers, misplaced = self._numbers()
        if misplaced:
            raise PipelineError(f"{self._storage.uri(DIRECTORY)}/{misplaced[0]}: not a file that an archive's view has")
        if not numbers:
            raise PipelineError(f"{self._storage.uri(DIRECTORY)}: there is no list of the files for Spark")
        return self._read(numbers)

    def _shown(self, numbers: set[int]) -> dict[str, int] | None:
        """None where there is no view, or one that is damaged."""
        if not numbers:
            return None
        if max(numbers) != self._known[0]:
            try:
                self._known = (max(numbers), self._read(numbers))
            except PipelineError:
                return None
        return self._known[1]

    def _read(self, numbers: set[int]) -> dict[str, int]:
        latest = max(numbers)
        shown: dict[str, int] = {}
        for number in range(max(0, (latest + 1) // INTERVAL * INTERVAL - 1), latest + 1):
            if number not in numbers:
                raise PipelineError(f"{self._storage.uri(DIRECTORY)}: number {number} is not there")
            for uri, size in decode(read_lines(self._storage, _path(number)), self._storage.uri(_path(number))):
                if uri in shown:
                    raise PipelineError(f"{self._storage.uri(_path(number))}: shows {uri} twice")
                shown[uri] = size
        return shown

    def _numbers(self) -> tuple[set[int], list[str]]:
        """Of the view's files; and the names of those that do not belong in a view, and would mislead Spark."""
        numbers, misplaced = set(), []
        for entry in self._storage.list_directory(DIRECTORY):
            stem = entry.name.removesuffix(_COMPACT)
            if not (stem.isascii() and stem.isdigit()):
                continue
            if _path(int(stem)) == f"{DIRECTORY}/{entry.name}":
                numbers.add(int(stem))
            else:
                misplaced.append(entry.name)
        return numbers, misplaced

    def _complete(self, numbers: set[int], wanted: Mapping[str, int], time_ms: int) -> None:
        """Sees to the compact file before the last, and removes what no reader needs any longer."""
        compacts = sorted(number for number in numbers if _is_compact(number))
        last = compacts[-1]
        if last - INTERVAL not in numbers:
            # Its number is all that Spark takes from it; what it holds is right nevertheless.
            self._storage.create(_path(last - INTERVAL), encode(wanted.items(), time_ms))
        for number in numbers:
            if number < last - (KEPT - 1) * INTERVAL:
                self._storage.delete(_path(number))


def wanted_files(storage: Storage, state: ArchiveState) -> dict[str, int]:
    """What the view of a state shows: sizes by URI, percent-encoded."""
    base = encoded_uri(storage.uri(""))
    return {f"{base}/{file.path}": file.size for file in state.files.values()}


def encoded_uri(uri: str) -> str:
    """A location as Spark writes it in a view: percent-encoded, `file:` with an empty authority."""
    scheme, _, rest = uri.partition(":")
    return f"{scheme}:{quote(rest, safe=_UNQUOTED)}".rstrip("/")


def encode(files: Iterable[tuple[str, int]], time_ms: int) -> bytes:
    """A view's file. `files`: URI and size of each; they are all shown with the one time of modification."""
    read_lines = [_HEADER]
    for uri, size in files:
        line = {"path": uri, "size": size, "isDir": False, "modificationTime": time_ms}
        line |= {"blockReplication": 1, "blockSize": 33554432, "action": "add"}
        read_lines.append(json.dumps(line, separators=(",", ":")))
    return "\n".join(read_lines).encode()


def decode(text: Iterable[bytes], where: str) -> Iterator[tuple[str, int]]:
    """URI and size of each file that the lines of a view's file add. Raises PipelineError for anything else."""
    rows = iter(text)
    header = next(rows, b"")
    try:
        if header != _HEADER.encode():
            raise ValueError(f"it begins with {header[:20].decode(errors='replace')!r}")
        for one in map(json.loads, rows):
            if one["action"] != "add" or one["isDir"] or type(one["size"]) is not int:
                raise ValueError(f"{one} adds no file")
            yield str(one["path"]), one["size"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PipelineError(f"{where}: damaged ({error})") from None


def _next(
    numbers: set[int], shown: Mapping[str, int] | None, wanted: Mapping[str, int]
) -> tuple[int, Iterable[tuple[str, int]]]:
    """Number and content of the file that makes a view of `wanted`."""
    latest = max(numbers, default=INTERVAL - 1)
    only_more = shown is not None and shown.items() <= wanted.items()
    if only_more and shown is not None and not _is_compact(latest + 1):
        return latest + 1, [(uri, size) for uri, size in wanted.items() if uri not in shown]
    return (latest + 1) // INTERVAL * INTERVAL + INTERVAL - 1, wanted.items()


def _is_compact(number: int) -> bool:
    return (number + 1) % INTERVAL == 0


def _path(number: int) -> str:
    return f"{DIRECTORY}/{number}{_COMPACT if _is_compact(number) else ''}"
