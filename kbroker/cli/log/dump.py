"""`kbroker log dump`: print the contents of files of a data directory, damage included."""

import json
import os
import re
import struct
import sys
from collections.abc import Callable, Iterable, Iterator

from kbroker.cli.common.errors import CliError, exception_text, print_error, usage_error
from kbroker.cli.common.output import RED, ProgressBar, colored
from kbroker.cli.common.values import parse_integer
from kbroker.cli.log.items import (
    DumpFile,
    DumpItem,
    DumpSelection,
    Fields,
    Reader,
    damage_item,
    format_item,
    read_segment,
)
from kbroker.cli.records.formats import bytes_to_json
from kbroker.common import uuid_text
from kbroker.coordination import journal
from kbroker.coordination.interface import Create, Delete, Op, Set
from kbroker.runtime.disk import Disk, DiskFile
from kbroker.storage import checkpoint_files, file_names, metadata_files
from kbroker.storage.inspect.batches import Damage
from kbroker.storage.inspect.index_checks import (
    IndexEntry,
    decode_producer_entries,
    iter_offset_entries,
    iter_time_entries,
    iter_transaction_entries,
)
from kbroker.storage.metadata_files import read_topic_id


def read_journal(source: DumpFile, selection: DumpSelection) -> Iterator[DumpItem]:
    """Yield one item for each operation, and one for each damaged place."""
    data = source.read()
    position = 0
    while position < len(data):
        payload = journal.unframe(data, position)
        if payload is None:
            reason = "a record that is truncated or has a wrong CRC"
            try:
                end = journal.next_record(data, position + 1)
            except ValueError as error:
                end, reason = len(data), str(error)
            yield damage_item(Damage(position, end - position, None, reason))
            position = end
            continue
        try:
            number = journal.NUMBER.unpack_from(payload)[0]
            for op in journal.decode_ops(payload, journal.NUMBER.size):
                yield DumpItem("change", {"position": position, "number": number, **_op_fields(op)}, position)
        except (ValueError, struct.error) as error:
            yield damage_item(Damage(position, len(payload), None, f"a record that cannot be decoded: {error}"))
        position += journal.FRAME.size + len(payload)


def _op_fields(op: Op) -> Fields:
    match op:
        case Create(path=path, data=data):
            return {"op": "create", "path": path, **bytes_to_json("data", data)}
        case Set(path=path, data=data):
            return {"op": "set", "path": path, **bytes_to_json("data", data)}
        case Delete(path=path):
            return {"op": "delete", "path": path}
    return {"op": type(op).__name__.lower(), "path": op.path}


def read_snapshot(source: DumpFile, selection: DumpSelection) -> Iterator[DumpItem]:
    """Yield one item for each node, or one for the damage."""
    from kbroker.coordination.data_tree import DataTree

    data = source.read()
    tree = DataTree()
    try:
        number = journal.load_snapshot(data, tree)
    except (journal.JournalCorrupted, ValueError, KeyError, struct.error) as error:
        yield damage_item(Damage(0, len(data), None, str(error)))
        return
    for path, node in tree.persistent():
        fields = {"number": number, "path": path, "version": node.version, **bytes_to_json("data", node.data)}
        yield DumpItem("node", fields)


# Indexes and producer snapshots.

# The kind of an item, its fields, and the first and the last offset that it is about.
Description = tuple[str, Fields, int, int]


def _index_reader(
    iterate: Callable[[DiskFile, int], Iterable[IndexEntry | Damage]], describe: Callable[..., Description]
) -> Reader:
    """Return the reader of an index. `describe` is called with the base offset and the values of each entry."""

    def read(source: DumpFile, selection: DumpSelection) -> Iterator[DumpItem]:
        for entry in iterate(*source.open()):
            if isinstance(entry, Damage):
                yield damage_item(entry)
                continue
            kind, fields, first, last = describe(source.base_offset, *entry.values)
            if selection.includes(first, last):
                yield DumpItem(kind, fields, entry.position)
            if entry.fault is not None:
                yield damage_item(Damage(entry.position, 0, first, entry.fault))

    return read


def _offset_entry(base: int, relative_offset: int, position: int) -> Description:
    offset = base + relative_offset
    return "entry", {"offset": offset, "position": position}, offset, offset


def _time_entry(base: int, timestamp: int, relative_offset: int) -> Description:
    offset = base + relative_offset
    return "entry", {"timestamp": timestamp, "offset": offset}, offset, offset


def _transaction_entry(base: int, version: int, producer_id: int, first: int, last: int, stable: int) -> Description:
    fields = {"producer_id": producer_id, "first_offset": first, "last_offset": last, "last_stable_offset": stable}
    return "aborted transaction", fields, first, last


_PRODUCER_FIELDS = (
    "producer_id", "producer_epoch", "last_sequence", "last_offset", "offset_delta", "last_timestamp",
    "coordinator_epoch", "current_txn_start_offset",
)  # fmt: skip


def _read_producer_snapshot(source: DumpFile, selection: DumpSelection) -> Iterator[DumpItem]:
    data = source.read()
    entries, fault = decode_producer_entries(data)
    if fault is not None:
        yield damage_item(Damage(0, len(data), source.base_offset, fault))
    for entry in entries:
        yield DumpItem("producer", dict(zip(_PRODUCER_FIELDS, entry, strict=True)))


# Checkpoints and properties.


def _small_file_reader(kind: str, rows: Callable[[DumpFile], Iterable[Fields]]) -> Reader:
    """Return the reader of a small file: if it cannot be parsed, it yields a damage item and the lines of the file."""

    def read(source: DumpFile, selection: DumpSelection) -> Iterator[DumpItem]:
        try:
            items = [DumpItem(kind, fields) for fields in rows(source)]
        except (ValueError, IndexError, RecursionError) as error:
            data = source.read()
            yield damage_item(Damage(0, len(data), None, str(error)))
            for line in data.decode(errors="backslashreplace").splitlines():
                yield DumpItem("line", {"text": line})
        else:
            yield from items

    return read


def _offsets(source: DumpFile) -> Iterator[Fields]:
    for tp, offset in checkpoint_files.decode_offsets(source.read()).items():
        yield {"topic": tp.topic, "partition": tp.partition, "offset": offset}


def _index_entries(source: DumpFile) -> Iterator[Fields]:
    for tp, by_segment in checkpoint_files.decode_index_entries(source.read()).items():
        for base_offset, count in by_segment.items():
            yield {"topic": tp.topic, "partition": tp.partition, "base_offset": base_offset, "entries": count}


def _leader_epochs(source: DumpFile) -> Iterator[Fields]:
    for epoch, start_offset in checkpoint_files.decode_epochs(source.read()):
        yield {"epoch": epoch, "start_offset": start_offset}


def _partition_metadata(source: DumpFile) -> Iterator[Fields]:
    topic_id = read_topic_id(source.disk, os.path.dirname(source.path) or ".")
    if topic_id is None:
        raise ValueError("it has no topic id")
    yield {"topic_id": uuid_text(topic_id)}


def _meta_properties(source: DumpFile) -> Iterator[Fields]:
    yield metadata_files.decode_meta_properties(source.read())._asdict()


def _clean_shutdown(source: DumpFile) -> Iterator[Fields]:
    data = source.read()
    fields = json.loads(data) if data else {}
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object")
    yield {"broker_epoch": fields.get("brokerEpoch")}


# By the suffix or the name of a file: its description, and its reader.
_OFFSET_CHECKPOINT: tuple[str, Reader] = ("offset checkpoint", _small_file_reader("offset", _offsets))
_READERS: dict[str, tuple[str, Reader]] = {
    file_names.LOG: ("segment", read_segment),
    file_names.INDEX: ("offset index", _index_reader(iter_offset_entries, _offset_entry)),
    file_names.TIME_INDEX: ("time index", _index_reader(iter_time_entries, _time_entry)),
    file_names.TXN_INDEX: ("transaction index", _index_reader(iter_transaction_entries, _transaction_entry)),
    file_names.SNAPSHOT: ("producer snapshot", _read_producer_snapshot),
    file_names.RECOVERY_POINTS: _OFFSET_CHECKPOINT,
    file_names.LOG_START_OFFSETS: _OFFSET_CHECKPOINT,
    file_names.CLEANER_OFFSETS: _OFFSET_CHECKPOINT,
    file_names.HIGH_WATERMARKS: _OFFSET_CHECKPOINT,
    file_names.TRANSACTION_INDEXES: (
        "transaction index checkpoint",
        _small_file_reader("index entries", _index_entries),
    ),
    file_names.LEADER_EPOCHS: ("leader epoch checkpoint", _small_file_reader("epoch", _leader_epochs)),
    file_names.PARTITION_METADATA: ("partition metadata", _small_file_reader("topic id", _partition_metadata)),
    file_names.META_PROPERTIES: ("meta properties", _small_file_reader("identity", _meta_properties)),
    file_names.CLEAN_SHUTDOWN: ("clean shutdown file", _small_file_reader("clean shutdown", _clean_shutdown)),
    "coordination.journal": ("coordination journal", read_journal),
    "coordination.snapshot": ("coordination snapshot", read_snapshot),
}
# The suffix of a renamed partition directory.
_RENAMED_DIRECTORY = re.compile(r"\.[0-9a-f]{32}-(delete|stray|future)$")

FoundFile = tuple[str, Reader, DumpFile]


def find_reader(disk: Disk, path: str) -> FoundFile | None:
    """Return a description of the file, its reader and the file; None for an unknown name."""
    parent, name = os.path.split(path)
    for suffix in (file_names.DELETED, file_names.CLEANED, file_names.SWAP, file_names.TEMPORARY):
        name = name.removesuffix(suffix)
    base_offset, kind = file_names.parse_segment_file(name) or (0, name)
    if kind not in _READERS:
        return None
    tp = file_names.parse_partition_dir(_RENAMED_DIRECTORY.sub("", os.path.basename(os.path.abspath(parent))))
    return *_READERS[kind], DumpFile(disk, path, base_offset, "" if tp is None else tp.topic)


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
            line = format_item(item)
            print(colored(line, RED) if item.kind == "damage" else line)
