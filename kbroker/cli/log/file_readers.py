"""What the files of a data directory hold, as items: one for each batch, record, entry or line, and for each damage.

Which file it is, its name tells. An item's fields have the names and units of Kafka's formats; times are in
milliseconds since the epoch.
"""

import json
import os
import re
import struct
from collections.abc import Callable, Iterator

from kbroker.cli.log.segments import Fields, Item, Source, Wanted, damage_item, read_segment
from kbroker.cli.records.formats import bytes_to_json
from kbroker.metadata.store import journal
from kbroker.metadata.store.coordination import Create, Delete, Op, Set
from kbroker.runtime.disk import Disk
from kbroker.storage import checkpoint_files, file_names, meta_properties
from kbroker.storage.inspect.batches import Damage
from kbroker.storage.inspect.index_files import (
    IndexEntry,
    aborted_entries,
    offset_entries,
    producer_entries,
    time_entries,
)
from kbroker.storage.partition_metadata import encode_topic_id, read_topic_id

# What is added to the name of a partition's directory that is no longer one.
_ASIDE = re.compile(r"\.[0-9a-f]{32}-(delete|stray|future)$")

Reader = Callable[[Source, Wanted], Iterator[Item]]


def find_reader(disk: Disk, path: str) -> tuple[str, Reader, Source] | None:
    """What kind of file it is and how it is read; None for a name that means nothing here."""
    parent, name = os.path.split(path)
    for ending in (file_names.DELETED, file_names.CLEANED, file_names.SWAP, file_names.TEMPORARY):
        name = name.removesuffix(ending)
    tp = file_names.parse_partition_dir(_ASIDE.sub("", os.path.basename(os.path.abspath(parent))))
    topic = tp.topic if tp is not None else ""
    parsed = file_names.parse_segment_file(name)
    if parsed is not None and parsed[1] in _BY_SUFFIX:
        kind, reader = _BY_SUFFIX[parsed[1]]
        return kind, reader, Source(disk, path, parsed[0], topic)
    if name in _BY_NAME:
        kind, reader = _BY_NAME[name]
        return kind, reader, Source(disk, path, 0, topic)
    return None


# Indexes and snapshots.


def _offset_index(source: Source, wanted: Wanted) -> Iterator[Item]:
    file, size = source.open()
    for entry in offset_entries(file, size):
        if isinstance(entry, Damage):
            yield damage_item(entry)
            continue
        relative, position = entry.values
        yield from _entry(entry, {"offset": source.base_offset + relative, "position": position}, wanted)


def _time_index(source: Source, wanted: Wanted) -> Iterator[Item]:
    file, size = source.open()
    for entry in time_entries(file, size):
        if isinstance(entry, Damage):
            yield damage_item(entry)
            continue
        timestamp, relative = entry.values
        yield from _entry(entry, {"timestamp": timestamp, "offset": source.base_offset + relative}, wanted)


def _entry(entry: IndexEntry, fields: Fields, wanted: Wanted) -> Iterator[Item]:
    if wanted.has(fields["offset"], fields["offset"]):
        yield Item("entry", fields, entry.at)
    if entry.fault is not None:
        yield damage_item(Damage(entry.at, 0, fields["offset"], entry.fault))


def _aborted_index(source: Source, wanted: Wanted) -> Iterator[Item]:
    file, size = source.open()
    for entry in aborted_entries(file, size):
        if isinstance(entry, Damage):
            yield damage_item(entry)
            continue
        _, producer_id, first, last, stable = entry.values
        fields = {"producer_id": producer_id, "first_offset": first, "last_offset": last, "last_stable_offset": stable}
        if wanted.has(first, last):
            yield Item("aborted transaction", fields, entry.at)
        if entry.fault is not None:
            yield damage_item(Damage(entry.at, 0, first, entry.fault))


_PRODUCER_FIELDS = (
    "producer_id", "producer_epoch", "last_sequence", "last_offset", "offset_delta", "last_timestamp",
    "coordinator_epoch", "current_txn_start_offset",
)  # fmt: skip


def _snapshot(source: Source, wanted: Wanted) -> Iterator[Item]:
    data = source.disk.read(source.path)
    entries, fault = producer_entries(data)
    if fault is not None:
        yield damage_item(Damage(0, len(data), source.base_offset, fault))
    for entry in entries:
        yield Item("producer", dict(zip(_PRODUCER_FIELDS, entry, strict=True)))


# Small files.


def _offset_checkpoint(source: Source, wanted: Wanted) -> Iterator[Item]:
    for tp, offset in checkpoint_files.decode_offsets(source.disk.read(source.path)).items():
        yield Item("offset", {"topic": tp.topic, "partition": tp.partition, "offset": offset})


def _epochs(source: Source, wanted: Wanted) -> Iterator[Item]:
    for epoch, start in checkpoint_files.decode_epochs(source.disk.read(source.path)):
        yield Item("epoch", {"epoch": epoch, "start_offset": start})


def _partition_metadata(source: Source, wanted: Wanted) -> Iterator[Item]:
    topic_id = read_topic_id(source.disk, os.path.dirname(source.path) or ".")
    if topic_id is None:
        raise ValueError("it has no topic id")
    yield Item("topic id", {"topic_id": encode_topic_id(topic_id)})


def _meta_properties(source: Source, wanted: Wanted) -> Iterator[Item]:
    found = meta_properties.decode_meta_properties(source.disk.read(source.path))
    yield Item("identity", found._asdict())


def _clean_shutdown(source: Source, wanted: Wanted) -> Iterator[Item]:
    data = source.disk.read(source.path)
    shown = json.loads(data) if data else {}
    if not isinstance(shown, dict):
        raise ValueError("it is no JSON object")
    yield Item("clean shutdown", {"broker_epoch": shown.get("brokerEpoch")})


def _small(reader: Reader) -> Reader:
    """With what the reader cannot understand told as damage, and the lines shown as they are."""

    def read(source: Source, wanted: Wanted) -> Iterator[Item]:
        try:
            found = list(reader(source, wanted))
        except (ValueError, IndexError, RecursionError) as error:
            data = source.disk.read(source.path)
            yield damage_item(Damage(0, len(data), None, str(error)))
            for line in data.decode(errors="backslashreplace").splitlines():
                yield Item("line", {"text": line})
        else:
            yield from found

    return read


# The coordination service's own.


def _journal(source: Source, wanted: Wanted) -> Iterator[Item]:
    data = source.disk.read(source.path)
    at = 0
    while at < len(data):
        payload = journal.unframe(data, at)
        if payload is None:
            reason = "a record that is cut off or whose CRC is wrong"
            try:
                after = journal.next_record(data, at + 1)
            except ValueError as error:
                after, reason = len(data), str(error)
            yield damage_item(Damage(at, after - at, None, reason))
            at = after
            continue
        try:
            number = journal.NUMBER.unpack_from(payload)[0]
            for op in journal.decode_ops(payload, journal.NUMBER.size):
                yield Item("change", {"position": at, "number": number, **_op(op)}, at)
        except (ValueError, struct.error) as error:
            yield damage_item(Damage(at, len(payload), None, f"a record that cannot be understood: {error}"))
        at += journal.FRAME.size + len(payload)


def _op(op: Op) -> Fields:
    match op:
        case Create(path=path, data=data):
            return {"op": "create", "path": path, **bytes_to_json("data", data)}
        case Set(path=path, data=data):
            return {"op": "set", "path": path, **bytes_to_json("data", data)}
        case Delete(path=path):
            return {"op": "delete", "path": path}
    return {"op": type(op).__name__.lower(), "path": op.path}


def _coordination_snapshot(source: Source, wanted: Wanted) -> Iterator[Item]:
    from kbroker.metadata.store.data_tree import DataTree

    data = source.disk.read(source.path)
    tree = DataTree()
    try:
        number = journal.load_snapshot(data, tree)
    except (journal.JournalCorrupted, ValueError, KeyError, struct.error) as error:
        yield damage_item(Damage(0, len(data), None, str(error)))
        return
    for path, node in tree.persistent():
        yield Item(
            "node", {"number": number, "path": path, "version": node.version, **bytes_to_json("data", node.data)}
        )


_CHECKPOINT: tuple[str, Reader] = ("offset checkpoint", _small(_offset_checkpoint))
_BY_SUFFIX: dict[str, tuple[str, Reader]] = {
    file_names.LOG: ("segment", read_segment),
    file_names.INDEX: ("offset index", _offset_index),
    file_names.TIME_INDEX: ("time index", _time_index),
    file_names.TXN_INDEX: ("index of aborted transactions", _aborted_index),
    file_names.SNAPSHOT: ("producer snapshot", _snapshot),
}
_BY_NAME: dict[str, tuple[str, Reader]] = {
    file_names.RECOVERY_POINTS: _CHECKPOINT,
    file_names.LOG_START_OFFSETS: _CHECKPOINT,
    file_names.CLEANER_OFFSETS: _CHECKPOINT,
    "replication-offset-checkpoint": _CHECKPOINT,
    file_names.LEADER_EPOCHS: ("leader epochs", _small(_epochs)),
    file_names.PARTITION_METADATA: ("partition metadata", _small(_partition_metadata)),
    meta_properties.FILE: ("identity of the directory", _small(_meta_properties)),
    file_names.CLEAN_SHUTDOWN: ("mark of a clean stop", _small(_clean_shutdown)),
    "coordination.journal": ("coordination journal", _journal),
    "coordination.snapshot": ("coordination snapshot", _coordination_snapshot),
}
