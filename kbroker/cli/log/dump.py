"""`kbroker log dump`: print the contents of files of a data directory, damage included."""

import json
import os
import sys
from collections.abc import Iterator

from kbroker.cli.common.errors import CliError, exception_text, print_error, usage_error
from kbroker.cli.common.parsing import parse_integer
from kbroker.cli.common.progress import ProgressBar
from kbroker.cli.log.file_readers import find_reader
from kbroker.cli.log.formatting import format_item
from kbroker.cli.log.items import DumpFile, DumpItem, DumpSelection, Reader
from kbroker.runtime.disk import Disk

FoundFile = tuple[str, Reader, DumpFile]


def parse_offset_range(text: str) -> tuple[int, int]:
    """Parse `A..B`, `A..`, `..B` or `A`, inclusive."""
    first, dots, last = text.partition("..")
    if not first and not last:
        raise usage_error(f"--offsets must be A..B, not {text!r}")
    low = parse_integer(first, "the first offset") if first else 0
    high = parse_integer(last, "the last offset") if last else (low if not dots else 1 << 63)
    if high < low:
        raise usage_error(f"--offsets ends before it begins: {text!r}")
    return low, high


class Dump:
    """One run of the command; `max_items` limits the items of each file."""

    def __init__(self, disk: Disk, selection: DumpSelection, max_items: int | None, as_json: bool) -> None:
        self._disk = disk
        self._selection = selection
        self._max_items = max_items
        self._as_json = as_json
        self._colors = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._found_damage = False

    def run(self, paths: list[str]) -> bool:
        """Print all files; returns whether any of them is damaged."""
        files = [file for path in paths for file in self._find_files(path)]
        total = sum(self._size(source) for _, _, source in files)
        # A progress bar would be drawn between the lines of the dump if both went to the terminal.
        with ProgressBar("reading", total, shows_bytes=True, enabled=not sys.stdout.isatty()) as progress:
            for index, (description, reader, source) in enumerate(files):
                if index and not self._as_json:
                    print()
                self._dump_file(description, reader, source, progress)
        return self._found_damage

    def _find_files(self, path: str) -> Iterator[FoundFile]:
        """Yield a file, or all files of a directory with a known name, in order."""
        path = path.rstrip("/") or "/"
        if self._disk.isdir(path):
            for name in sorted(self._disk.listdir(path)):
                inner = f"{path}/{name}"
                if self._disk.isdir(inner):
                    yield from self._find_files(inner)
                elif (found := find_reader(self._disk, inner)) is not None:
                    yield found
            return
        found = find_reader(self._disk, path)
        if not self._disk.exists(path):
            raise CliError(f"{path}: No such file or directory")
        if found is None:
            raise CliError(f"{path}: not the name of a file of a data directory")
        yield found

    def _size(self, source: DumpFile) -> int:
        try:
            return self._disk.size(source.path)
        except FileNotFoundError:
            return 0

    def _dump_file(self, description: str, reader: Reader, source: DumpFile, progress: ProgressBar) -> None:
        size = self._size(source)
        if not self._as_json:
            print(f"{source.path}: {description}, {size} bytes")
        printed = bytes_read = 0
        try:
            for item in reader(source, self._selection):
                if item.bytes_read > bytes_read:
                    progress.advance(item.bytes_read - bytes_read)
                    bytes_read = item.bytes_read
                self._found_damage = self._found_damage or item.kind == "damage"
                if printed == self._max_items:
                    self._print_item(source, DumpItem("more", {"shown": printed}))
                    break
                printed += 1
                self._print_item(source, item)
        except BrokenPipeError:
            raise
        except FileNotFoundError:
            print_error(f"{source.path} no longer exists: a running broker has removed it")
        except OSError as error:
            print_error(f"{source.path}: {exception_text(error)}")
            self._found_damage = True
        progress.advance(max(size - bytes_read, 0))

    def _print_item(self, source: DumpFile, item: DumpItem) -> None:
        if self._as_json:
            print(json.dumps({"file": source.path, "item": item.kind, **item.fields}, ensure_ascii=False))
        elif item.kind == "more":
            print("... more items are not shown (--max)")
        else:
            print(format_item(item, self._colors))
