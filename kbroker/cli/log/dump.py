"""`kbroker log dump`: what is in the files of a log directory, damage included."""

import json
import os
import sys
from collections.abc import Iterator

from kbroker.cli.common.errors import CliError, exception_text, print_error, usage_error
from kbroker.cli.common.parsing import parse_integer
from kbroker.cli.common.progress import ProgressBar
from kbroker.cli.log.file_readers import Reader, find_reader
from kbroker.cli.log.formatting import line_of
from kbroker.cli.log.segments import Item, Source, Wanted
from kbroker.runtime.disk import Disk

File = tuple[str, Reader, Source]


def offset_range(text: str) -> tuple[int, int]:
    """`A..B`, `A..`, `..B` or `A`, both ends included."""
    first, dots, last = text.partition("..")
    if not first and not last:
        raise usage_error(f"--offsets must be A..B, not {text!r}")
    low = parse_integer(first, "the first offset") if first else 0
    high = parse_integer(last, "the last offset") if last else (low if not dots else 1 << 63)
    if high < low:
        raise usage_error(f"--offsets ends before it begins: {text!r}")
    return low, high


class Dump:
    """One run of the command."""

    def __init__(self, disk: Disk, wanted: Wanted, most: int | None, as_json: bool) -> None:
        self._disk = disk
        self._wanted = wanted
        self._most = most
        self._json = as_json
        self._colors = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._damaged = False

    def run(self, paths: list[str]) -> bool:
        """Print everything; gives whether anything was damaged."""
        files = [file for path in paths for file in self._files(path)]
        total = sum(self._size(source) for _, _, source in files)
        # Between the lines of a dump on the same terminal, a bar would be in the way.
        with ProgressBar("reading", total, shows_bytes=True, enabled=not sys.stdout.isatty()) as work:
            for number, (kind, reader, source) in enumerate(files):
                if number and not self._json:
                    print()
                self._one(kind, reader, source, work)
        return self._damaged

    def _files(self, path: str) -> Iterator[File]:
        """The file, or those in the directory that have a known name, in order."""
        path = path.rstrip("/") or "/"
        if self._disk.isdir(path):
            for name in sorted(self._disk.listdir(path)):
                inner = f"{path}/{name}"
                if self._disk.isdir(inner):
                    yield from self._files(inner)
                elif (found := find_reader(self._disk, inner)) is not None:
                    yield found
            return
        found = find_reader(self._disk, path)
        if not self._disk.exists(path):
            raise CliError(f"{path}: No such file or directory")
        if found is None:
            raise CliError(f"{path}: its name is not that of a file of a data directory")
        yield found

    def _size(self, source: Source) -> int:
        try:
            return self._disk.size(source.path)
        except FileNotFoundError:
            return 0

    def _one(self, kind: str, reader: Reader, source: Source, work: ProgressBar) -> None:
        size = self._size(source)
        self._head(kind, source, size)
        shown = done = 0
        try:
            for item in reader(source, self._wanted):
                if item.at > done:
                    work.advance(item.at - done)
                    done = item.at
                self._damaged = self._damaged or item.kind == "damage"
                if shown == self._most:
                    self._tell(source, Item("more", {"shown": shown}))
                    break
                shown += 1
                self._tell(source, item)
        except BrokenPipeError:
            raise
        except FileNotFoundError:
            print_error(f"{source.path} is gone: a broker runs here and has removed it")
        except OSError as error:
            print_error(f"{source.path}: {exception_text(error)}")
            self._damaged = True
        work.advance(max(size - done, 0))

    def _head(self, kind: str, source: Source, size: int) -> None:
        if not self._json:
            print(f"{source.path}: {kind}, {size} bytes")

    def _tell(self, source: Source, item: Item) -> None:
        if self._json:
            print(json.dumps({"file": source.path, "item": item.kind, **item.fields}, ensure_ascii=False))
        elif item.kind == "more":
            print("... there is more (--max)")
        else:
            print(line_of(item, self._colors))
