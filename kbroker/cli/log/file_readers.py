"""Readers of the files of a data directory, by file name; each yields dump items."""

import json
import os
import re
from collections.abc import Iterator

from kbroker.cli.log.coordination_files import read_journal, read_snapshot
from kbroker.cli.log.items import DumpFile, DumpItem, DumpSelection, Fields, Reader, damage_item
from kbroker.cli.log.segments import read_segment
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
