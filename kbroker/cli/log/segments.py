"""What a segment holds, as items: one for each batch, record, and damage.

An item's fields have the names and units of Kafka's formats; times are in milliseconds since the epoch.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from kbroker.cli.log.internal_topics import decode_internal, is_internal
from kbroker.cli.records.formats import bytes_to_json
from kbroker.runtime.disk import Disk, DiskFile
from kbroker.storage.inspect.batches import BatchAt, Damage, batches, records_of
from protocol.errors import MalformedError
from protocol.records.batch import DELETE_HORIZON
from protocol.records.compression import NAMES
from protocol.records.control import ABORT, COMMIT, control_type, parse_end_marker
from protocol.records.record import Record

Fields = dict[str, Any]


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


def read_segment(source: Source, wanted: Wanted) -> Iterator[Item]:
    file, size = source.open()
    for found in batches(file, size, source.base_offset):
        if isinstance(found, Damage):
            yield damage_item(found)
            continue
        header = found.header
        if wanted.has(header.base_offset, header.last_offset):
            yield Item("batch", _batch(found), found.position)
            if wanted.records or wanted.values:
                yield from _records(source, file, found, wanted)
        if found.fault is not None:
            yield damage_item(Damage(found.position, header.size, header.base_offset, found.fault))


def damage_item(found: Damage) -> Item:
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
        "last_sequence": header.last_sequence if producer else None,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "crc": header.crc,
        "valid": found.fault is None,
    }


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
            yield damage_item(Damage(found.position, header.size, header.base_offset, str(error)))


def _record(record: Record, values: bool) -> Fields:
    fields: Fields = {
        "timestamp": record.timestamp,
        "key_size": None if record.key is None else len(record.key),
        "value_size": None if record.value is None else len(record.value),
        "header_count": len(record.headers),
    }
    if values:
        fields.update(bytes_to_json("key", record.key))
        fields.update(bytes_to_json("value", record.value))
        fields["headers"] = [
            {"key": name.decode(errors="backslashreplace"), **bytes_to_json("value", value)}
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
        return damage_item(Damage(found.position, found.header.size, found.header.base_offset, str(error)))
    fields = {"type": "COMMIT" if marker.committed else "ABORT", "coordinator_epoch": marker.coordinator_epoch}
    return Item("control", fields, found.position)


def _internal(topic: str, record: Record, found: BatchAt) -> Item:
    try:
        decoded = decode_internal(topic, record.key, record.value)
        if found.header.is_transactional:
            # It counts when its producer's transaction has committed.
            decoded["kind"] = f"transactional {decoded['kind']}"
        return Item("decoded", decoded, found.position)
    except MalformedError as error:
        offset = found.header.base_offset + record.offset_delta
        return damage_item(Damage(found.position, found.header.size, offset, str(error)))
