"""What the files of a data directory hold, as items: one for each batch, record, entry or line, and for each damage.

Which file it is, its name tells. An item's fields have the names and units of Kafka's formats; times are in
milliseconds since the epoch.
"""

import json
import os
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kbroker.cli.log_internal import decode_internal, is_internal
from kbroker.cli.records import text_field
from kbroker.cluster import journal
from kbroker.cluster.coordination import Create, Delete, Op, Set
from kbroker.storage import checkpoints, identity, names
from kbroker.storage.backend import Disk, DiskFile
from kbroker.storage.inspection import BatchAt, Damage, batches, records_of
from kbroker.storage.inspection_indexes import (
    Entry,
    aborted_entries,
    offset_entries,
    producer_entries,
    time_entries,
)
from protocol.errors import MalformedError
from protocol.records.batch import DELETE_HORIZON, BatchHeader
from protocol.records.compression import NAMES
from protocol.records.control import ABORT, COMMIT, control_type, parse_end_marker
from protocol.records.record import Record

Fields = dict[str, Any]
# What is added to the name of a partition's directory that is no longer one.
_ASIDE = re.compile(r"\.[0-9a-f]{32}-(delete|stray|future)$")


class Item(NamedTuple):
    """Something in a file. `kind` is "damage" for what is wrong; `at` is how far the file has been read."""

    kind: str
    fields: Fields
    at: int = 0


class Wanted(NamedTuple):
    """`records`: those of batches too; `values`: and what is in them. `offsets`: only what reaches these, both ends."""

    records: bool = False
    values: bool = False
    offsets: tuple[int, int] | None = None

    def has(self, first: int, last: int) -> bool:
        return self.offsets is None or (first <= self.offsets[1] and last >= self.offsets[0])


class Source(NamedTuple):
    """A file to look at. `base_offset` is the one in its name, `topic` that of its directory; 0 and "" without."""

    disk: Disk
    path: str
    base_offset: int
    topic: str

    def open(self) -> tuple[DiskFile, int]:
        file = self.disk.open(self.path, write=False)
        return file, file.size()


Reader = Callable[[Source, Wanted], Iterator[Item]]


def find_reader(disk: Disk, path: str) -> tuple[str, Reader, Source] | None:
    """What kind of file it is and how it is read; None for a name that means nothing here."""
    parent, name = os.path.split(path)
    for ending in (names.DELETED, names.CLEANED, names.SWAP, names.TEMPORARY):
        name = name.removesuffix(ending)
    tp = names.parse_partition_dir(_ASIDE.sub("", os.path.basename(os.path.abspath(parent))))
    topic = tp.topic if tp is not None else ""
    parsed = names.parse_segment_file(name)
    if parsed is not None and parsed[1] in _BY_SUFFIX:
        kind, reader = _BY_SUFFIX[parsed[1]]
        return kind, reader, Source(disk, path, parsed[0], topic)
    if name in _BY_NAME:
        kind, reader = _BY_NAME[name]
        return kind, reader, Source(disk, path, 0, topic)
    return None


# Segments.


def _segment(source: Source, wanted: Wanted) -> Iterator[Item]:
    file, size = source.open()
    for found in batches(file, size, source.base_offset):
        if isinstance(found, Damage):
            yield _damage(found)
            continue
        header = found.header
        if wanted.has(header.base_offset, header.last_offset):
            yield Item("batch", _batch(found), found.position)
            if wanted.records or wanted.values:
                yield from _records(source, file, found, wanted)
        if found.fault is not None:
            yield _damage(Damage(found.position, header.size, header.base_offset, found.fault))


def _damage(found: Damage) -> Item:
    fields: Fields = {"position": found.position, "size": found.size}
    if found.offset is not None:
        fields["offset"] = found.offset
    return Item("damage", {**fields, "reason": found.reason}, found.position)


def _batch(found: BatchAt) -> Fields:
    header = found.header
    producer = header.producer_id >= 0
    return {
        "position": found.position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.count,
        "size": header.size,
        "leader_epoch": header.leader_epoch,
        "codec": NAMES[header.codec] if header.codec < len(NAMES) else str(header.codec),
        "timestamp_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
        "delete_horizon" if header.attributes & DELETE_HORIZON else "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id if producer else None,
        "producer_epoch": header.producer_epoch if producer else None,
        "base_sequence": header.base_sequence if producer else None,
        "last_sequence": _last_sequence(header) if producer else None,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "crc": header.crc,
    }


def _last_sequence(header: BatchHeader) -> int:
    if header.base_sequence < 0:
        return header.base_sequence
    return (header.base_sequence + header.last_offset_delta) & 0x7FFFFFFF


def _records(source: Source, file: DiskFile, found: BatchAt, wanted: Wanted) -> Iterator[Item]:
    header = found.header
    try:
        for record in records_of(file, found.position, header):
            offset = header.base_offset + record.offset_delta
            if not wanted.has(offset, offset):
                continue
            yield Item("record", {"offset": offset, **_record(record, wanted.values)}, found.position)
            if header.is_control:
                yield _control(record, found)
            elif is_internal(source.topic):
                yield _internal(source.topic, record, found)
    except MalformedError as error:
        if found.fault is None:
            yield _damage(Damage(found.position, header.size, header.base_offset, str(error)))


def _record(record: Record, values: bool) -> Fields:
    fields: Fields = {
        "timestamp": record.timestamp,
        "key_size": None if record.key is None else len(record.key),
        "value_size": None if record.value is None else len(record.value),
        "header_count": len(record.headers),
    }
    if values:
        fields.update(text_field("key", record.key))
        fields.update(text_field("value", record.value))
        fields["headers"] = [
            {"key": name.decode(errors="backslashreplace"), **text_field("value", value)}
            for name, value in record.headers
        ]
    return fields


def _control(record: Record, found: BatchAt) -> Item:
    try:
        kind = control_type(record.key)
        if kind not in (ABORT, COMMIT):
            return Item("control", {"type": f"type {kind}", "coordinator_epoch": None}, found.position)
        marker = parse_end_marker(record.key, record.value)
    except MalformedError as error:
        return _damage(Damage(found.position, found.header.size, found.header.base_offset, str(error)))
    fields = {"type": "COMMIT" if marker.committed else "ABORT", "coordinator_epoch": marker.coordinator_epoch}
    return Item("control", fields, found.position)


def _internal(topic: str, record: Record, found: BatchAt) -> Item:
    try:
        return Item("decoded", decode_internal(topic, record.key, record.value), found.position)
    except MalformedError as error:
        offset = found.header.base_offset + record.offset_delta
        return _damage(Damage(found.position, found.header.size, offset, str(error)))


# Indexes and snapshots.


def _offset_index(source: Source, wanted: Wanted) -> Iterator[Item]:
    file, size = source.open()
    for entry in offset_entries(file, size):
        if isinstance(entry, Damage):
            yield _damage(entry)
            continue
        relative, position = entry.values
        yield from _entry(entry, {"offset": source.base_offset + relative, "position": position}, wanted)


def _time_index(source: Source, wanted: Wanted) -> Iterator[Item]:
    file, size = source.open()
    for entry in time_entries(file, size):
        if isinstance(entry, Damage):
            yield _damage(entry)
            continue
        timestamp, relative = entry.values
        yield from _entry(entry, {"timestamp": timestamp, "offset": source.base_offset + relative}, wanted)


def _entry(entry: Entry, fields: Fields, wanted: Wanted) -> Iterator[Item]:
    if wanted.has(fields["offset"], fields["offset"]):
        yield Item("entry", fields, entry.at)
    if entry.fault is not None:
        yield _damage(Damage(entry.at, 0, fields["offset"], entry.fault))


def _aborted_index(source: Source, wanted: Wanted) -> Iterator[Item]:
    file, size = source.open()
    for entry in aborted_entries(file, size):
        if isinstance(entry, Damage):
            yield _damage(entry)
            continue
        _, producer_id, first, last, stable = entry.values
        fields = {"producer_id": producer_id, "first_offset": first, "last_offset": last, "last_stable_offset": stable}
        if wanted.has(first, last):
            yield Item("aborted transaction", fields, entry.at)
        if entry.fault is not None:
            yield _damage(Damage(entry.at, 0, first, entry.fault))


_PRODUCER_FIELDS = (
    "producer_id", "producer_epoch", "last_sequence", "last_offset", "offset_delta", "last_timestamp",
    "coordinator_epoch", "current_txn_start_offset",
)  # fmt: skip


def _snapshot(source: Source, wanted: Wanted) -> Iterator[Item]:
    data = source.disk.read(source.path)
    entries, fault = producer_entries(data)
    if fault is not None:
        yield _damage(Damage(0, len(data), source.base_offset, fault))
    for entry in entries:
        yield Item("producer", dict(zip(_PRODUCER_FIELDS, entry, strict=True)))


# Small files.


def _offset_checkpoint(source: Source, wanted: Wanted) -> Iterator[Item]:
    for tp, offset in checkpoints.decode_offsets(source.disk.read(source.path)).items():
        yield Item("offset", {"topic": tp.topic, "partition": tp.partition, "offset": offset})


def _epochs(source: Source, wanted: Wanted) -> Iterator[Item]:
    for epoch, start in checkpoints.decode_epochs(source.disk.read(source.path)):
        yield Item("epoch", {"epoch": epoch, "start_offset": start})


def _partition_metadata(source: Source, wanted: Wanted) -> Iterator[Item]:
    topic_id = checkpoints.read_topic_id(source.disk, os.path.dirname(source.path) or ".")
    if topic_id is None:
        raise ValueError("it has no topic id")
    yield Item("topic id", {"topic_id": checkpoints.encode_topic_id(topic_id)})


def _meta_properties(source: Source, wanted: Wanted) -> Iterator[Item]:
    found = identity.decode_identity(source.disk.read(source.path))
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
        except (ValueError, IndexError) as error:
            data = source.disk.read(source.path)
            yield _damage(Damage(0, len(data), None, str(error)))
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
            sound = (later for later in range(at + 1, len(data)) if journal.unframe(data, later) is not None)
            after = next(sound, len(data))
            yield _damage(Damage(at, after - at, None, "a record that is cut off or whose CRC is wrong"))
            at = after
            continue
        try:
            number = journal.NUMBER.unpack_from(payload)[0]
            for op in journal.decode_ops(payload, journal.NUMBER.size):
                yield Item("change", {"position": at, "number": number, **_op(op)}, at)
        except (ValueError, struct.error) as error:
            yield _damage(Damage(at, len(payload), None, f"a record that cannot be understood: {error}"))
        at += journal.FRAME.size + len(payload)


def _op(op: Op) -> Fields:
    match op:
        case Create(path=path, data=data):
            return {"op": "create", "path": path, **text_field("data", data)}
        case Set(path=path, data=data):
            return {"op": "set", "path": path, **text_field("data", data)}
        case Delete(path=path):
            return {"op": "delete", "path": path}
    return {"op": type(op).__name__.lower(), "path": op.path}


def _coordination_snapshot(source: Source, wanted: Wanted) -> Iterator[Item]:
    from kbroker.cluster.tree import Tree

    data = source.disk.read(source.path)
    tree = Tree()
    try:
        number = journal.load_snapshot(data, tree)
    except (journal.Damaged, ValueError, KeyError, struct.error) as error:
        yield _damage(Damage(0, len(data), None, str(error)))
        return
    for path, node in tree.persistent():
        yield Item("node", {"number": number, "path": path, "version": node.version, **text_field("data", node.data)})


_CHECKPOINT: tuple[str, Reader] = ("offset checkpoint", _small(_offset_checkpoint))
_BY_SUFFIX: dict[str, tuple[str, Reader]] = {
    names.LOG: ("segment", _segment),
    names.INDEX: ("offset index", _offset_index),
    names.TIME_INDEX: ("time index", _time_index),
    names.TXN_INDEX: ("index of aborted transactions", _aborted_index),
    names.SNAPSHOT: ("producer snapshot", _snapshot),
}
_BY_NAME: dict[str, tuple[str, Reader]] = {
    names.RECOVERY_POINTS: _CHECKPOINT,
    names.LOG_START_OFFSETS: _CHECKPOINT,
    names.CLEANER_OFFSETS: _CHECKPOINT,
    "replication-offset-checkpoint": _CHECKPOINT,
    names.LEADER_EPOCHS: ("leader epochs", _small(_epochs)),
    names.PARTITION_METADATA: ("partition metadata", _small(_partition_metadata)),
    identity.FILE: ("identity of the directory", _small(_meta_properties)),
    names.CLEAN_SHUTDOWN: ("mark of a clean stop", _small(_clean_shutdown)),
    "coordination.journal": ("coordination journal", _journal),
    "coordination.snapshot": ("coordination snapshot", _coordination_snapshot),
}
