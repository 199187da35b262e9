"""`kbroker log dump`: print the contents of files of a data directory, damage included."""

import json
import os
import re
import struct
import sys
from collections.abc import Iterator

from kbroker.cli.common.errors import CliError, exception_text, print_error, usage_error
from kbroker.cli.common.output import RED, ProgressBar, colored
from kbroker.cli.common.values import parse_integer
from kbroker.cli.log.items import DumpFile, DumpItem, DumpSelection, Fields, Reader, damage_item, format_item
from kbroker.cli.log.segments import read_segment
from kbroker.cli.records.formats import bytes_to_json
from kbroker.coordination import journal
from kbroker.coordination.interface import Create, Delete, Op, Set
from kbroker.runtime.disk import Disk
from kbroker.storage import checkpoint_files, file_names, metadata_files
from kbroker.storage.inspect.batches import Damage
from kbroker.storage.inspect.index_checks import (
    IndexEntry,
    decode_producer_entries,
    iter_offset_entries,
    iter_time_entries,
    iter_transaction_entries,
)
from kbroker.storage.metadata_files import encode_topic_id, read_topic_id


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


# The suffix of a renamed partition directory.
_RENAMED_DIRECTORY = re.compile(r"\.[0-9a-f]{32}-(delete|stray|future)$")


def find_reader(disk: Disk, path: str) -> tuple[str, Reader, DumpFile] | None:
    """Return a description of the file, its reader and the file; None for an unknown name."""
    parent, name = os.path.split(path)
    for suffix in (file_names.DELETED, file_names.CLEANED, file_names.SWAP, file_names.TEMPORARY):
        name = name.removesuffix(suffix)
    tp = file_names.parse_partition_dir(_RENAMED_DIRECTORY.sub("", os.path.basename(os.path.abspath(parent))))
    topic = tp.topic if tp is not None else ""
    parsed = file_names.parse_segment_file(name)
    if parsed is not None and parsed[1] in _BY_SUFFIX:
        description, reader = _BY_SUFFIX[parsed[1]]
        return description, reader, DumpFile(disk, path, parsed[0], topic)
    if name in _BY_NAME:
        description, reader = _BY_NAME[name]
        return description, reader, DumpFile(disk, path, 0, topic)
    return None


# Indexes and producer snapshots.


def _read_offset_index(source: DumpFile, selection: DumpSelection) -> Iterator[DumpItem]:
    file, size = source.open()
    for entry in iter_offset_entries(file, size):
        if isinstance(entry, Damage):
            yield damage_item(entry)
            continue
        relative_offset, position = entry.values
        fields = {"offset": source.base_offset + relative_offset, "position": position}
        yield from _entry_items(entry, fields, selection)


def _read_time_index(source: DumpFile, selection: DumpSelection) -> Iterator[DumpItem]:
    file, size = source.open()
    for entry in iter_time_entries(file, size):
        if isinstance(entry, Damage):
            yield damage_item(entry)
            continue
        timestamp, relative_offset = entry.values
        fields = {"timestamp": timestamp, "offset": source.base_offset + relative_offset}
        yield from _entry_items(entry, fields, selection)


def _entry_items(entry: IndexEntry, fields: Fields, selection: DumpSelection) -> Iterator[DumpItem]:
    if selection.includes(fields["offset"], fields["offset"]):
        yield DumpItem("entry", fields, entry.position)
    if entry.fault is not None:
        yield damage_item(Damage(entry.position, 0, fields["offset"], entry.fault))


def _read_transaction_index(source: DumpFile, selection: DumpSelection) -> Iterator[DumpItem]:
    file, size = source.open()
    for entry in iter_transaction_entries(file, size):
        if isinstance(entry, Damage):
            yield damage_item(entry)
            continue
        _, producer_id, first, last, stable = entry.values
        fields = {"producer_id": producer_id, "first_offset": first, "last_offset": last, "last_stable_offset": stable}
        if selection.includes(first, last):
            yield DumpItem("aborted transaction", fields, entry.position)
        if entry.fault is not None:
            yield damage_item(Damage(entry.position, 0, first, entry.fault))


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


def _read_offset_checkpoint(source: DumpFile, selection: DumpSelection) -> Iterator[DumpItem]:
    for tp, offset in checkpoint_files.decode_offsets(source.read()).items():
        yield DumpItem("offset", {"topic": tp.topic, "partition": tp.partition, "offset": offset})


def _read_index_entries(source: DumpFile, selection: DumpSelection) -> Iterator[DumpItem]:
    for tp, by_segment in checkpoint_files.decode_index_entries(source.read()).items():
        for base_offset, count in by_segment.items():
            fields = {"topic": tp.topic, "partition": tp.partition, "base_offset": base_offset, "entries": count}
            yield DumpItem("index entries", fields)


def _read_leader_epochs(source: DumpFile, selection: DumpSelection) -> Iterator[DumpItem]:
    for epoch, start_offset in checkpoint_files.decode_epochs(source.read()):
        yield DumpItem("epoch", {"epoch": epoch, "start_offset": start_offset})


def _read_partition_metadata(source: DumpFile, selection: DumpSelection) -> Iterator[DumpItem]:
    topic_id = read_topic_id(source.disk, os.path.dirname(source.path) or ".")
    if topic_id is None:
        raise ValueError("it has no topic id")
    yield DumpItem("topic id", {"topic_id": encode_topic_id(topic_id)})


def _read_meta_properties(source: DumpFile, selection: DumpSelection) -> Iterator[DumpItem]:
    properties = metadata_files.decode_meta_properties(source.read())
    yield DumpItem("identity", properties._asdict())


def _read_clean_shutdown(source: DumpFile, selection: DumpSelection) -> Iterator[DumpItem]:
    data = source.read()
    fields = json.loads(data) if data else {}
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object")
    yield DumpItem("clean shutdown", {"broker_epoch": fields.get("brokerEpoch")})


def _or_lines(reader: Reader) -> Reader:
    """Wrap the reader of a small file: if it cannot be parsed, yield a damage item and the lines of the file."""

    def read(source: DumpFile, selection: DumpSelection) -> Iterator[DumpItem]:
        try:
            items = list(reader(source, selection))
        except (ValueError, IndexError, RecursionError) as error:
            data = source.read()
            yield damage_item(Damage(0, len(data), None, str(error)))
            for line in data.decode(errors="backslashreplace").splitlines():
                yield DumpItem("line", {"text": line})
        else:
            yield from items

    return read


_OFFSET_CHECKPOINT: tuple[str, Reader] = ("offset checkpoint", _or_lines(_read_offset_checkpoint))
_BY_SUFFIX: dict[str, tuple[str, Reader]] = {
    file_names.LOG: ("segment", read_segment),
    file_names.INDEX: ("offset index", _read_offset_index),
    file_names.TIME_INDEX: ("time index", _read_time_index),
    file_names.TXN_INDEX: ("transaction index", _read_transaction_index),
    file_names.SNAPSHOT: ("producer snapshot", _read_producer_snapshot),
}
_BY_NAME: dict[str, tuple[str, Reader]] = {
    file_names.RECOVERY_POINTS: _OFFSET_CHECKPOINT,
    file_names.LOG_START_OFFSETS: _OFFSET_CHECKPOINT,
    file_names.CLEANER_OFFSETS: _OFFSET_CHECKPOINT,
    file_names.HIGH_WATERMARKS: _OFFSET_CHECKPOINT,
    file_names.TRANSACTION_INDEXES: ("transaction index checkpoint", _or_lines(_read_index_entries)),
    file_names.LEADER_EPOCHS: ("leader epoch checkpoint", _or_lines(_read_leader_epochs)),
    file_names.PARTITION_METADATA: ("partition metadata", _or_lines(_read_partition_metadata)),
    file_names.META_PROPERTIES: ("meta properties", _or_lines(_read_meta_properties)),
    file_names.CLEAN_SHUTDOWN: ("clean shutdown file", _or_lines(_read_clean_shutdown)),
    "coordination.journal": ("coordination journal", read_journal),
    "coordination.snapshot": ("coordination snapshot", read_snapshot),
}


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
