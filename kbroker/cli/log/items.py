"""The items that `kbroker log dump` prints: one per batch, record, index entry, line of a file, or damaged range.

Field names and units are those of Kafka's formats; times are milliseconds since the epoch. Records of
__consumer_offsets and __transaction_state are decoded, with Kafka's field names.
"""

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kbroker.cli.common.values import count_text, format_timestamp
from kbroker.cli.records.formats import bytes_to_json, printable
from kbroker.common import uuid_text
from kbroker.runtime.disk import Disk, DiskFile
from kbroker.storage.inspect.batches import BatchAt, Damage, iter_batches, read_records
from protocol.errors import MalformedError
from protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from protocol.messages.group_records import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from protocol.messages.transaction_records import TransactionLogKey, TransactionLogValue
from protocol.records.batch import DELETE_HORIZON
from protocol.records.compression import CODEC_NAMES
from protocol.records.control import ABORT, COMMIT, parse_control_type, parse_end_marker
from protocol.records.record import Record
from protocol.schema.codec import decode
from protocol.schema.message import Message, Struct, message_info

Fields = dict[str, Any]


class DumpItem(NamedTuple):
    """One item of a file. `kind` is "damage" for damaged bytes; `bytes_read` is for the progress bar."""

    kind: str
    fields: Fields
    bytes_read: int = 0


class DumpSelection(NamedTuple):
    """The parts to dump: records, their keys, values and headers; only items within `offsets` (inclusive)."""

    records: bool = False
    values: bool = False
    offsets: tuple[int, int] | None = None

    def includes(self, first: int, last: int) -> bool:
        """Return whether offsets from `first` to `last` overlap the selected offsets."""
        return self.offsets is None or (first <= self.offsets[1] and last >= self.offsets[0])


class DumpFile(NamedTuple):
    """A file to dump. `base_offset` is from its name, `topic` from its directory's name; 0 and "" without."""

    disk: Disk
    path: str
    base_offset: int
    topic: str

    def open(self) -> tuple[DiskFile, int]:
        """Open the file for reading; returns it with its size in bytes."""
        file = self.disk.open(self.path, write=False)
        return file, file.size()

    def read(self) -> bytes:
        return self.disk.read(self.path)


Reader = Callable[[DumpFile, DumpSelection], Iterator[DumpItem]]


def damage_item(damage: Damage) -> DumpItem:
    """Return the item for damaged bytes."""
    fields: Fields = {"position": damage.position, "size": damage.size}
    if damage.offset is not None:
        fields["offset"] = damage.offset
    return DumpItem("damage", {**fields, "reason": damage.reason}, damage.position)


def format_item(item: DumpItem) -> str:
    """Return an item as one line, without the line end."""
    fields = item.fields
    match item.kind:
        case "batch":
            return _batch(fields)
        case "record":
            return _record(fields)
        case "decoded":
            key, value = _json(fields["key"]), _json(fields["value"])
            return f"      {fields['kind']}  {key}  {'removed' if value == 'null' else value}"
        case "control":
            return f"      {fields['type']}  coordinator epoch {fields['coordinator_epoch']}"
        case "damage":
            return _damage(fields)
        case "incomplete":
            return f"@{fields['position']}  {count_text(fields['size'], 'byte')} of an incomplete batch"
        case "line":
            return f"  {_escaped(fields['text'])}"
        case "change":
            operation = f"{fields['op']} {_escaped(fields['path'])}{_data(fields)}"
            return f"@{fields['position']}  change {fields['number']}  {operation}"
        case "node":
            return f"{_escaped(fields['path'])}  version {fields['version']}{_data(fields)}"
        case "entry":
            timestamp = f"{_time(fields['timestamp'])}  " if "timestamp" in fields else ""
            position = f"  @{fields['position']}" if "position" in fields else ""
            return f"{timestamp}offset {fields['offset']}{position}"
    pairs = (f"{name.replace('_', ' ')} {_value(name, value)}" for name, value in fields.items())
    return "  ".join(pairs)


def _batch(fields: Fields) -> str:
    parts = [
        f"@{fields['position']}",
        f"offsets {fields['base_offset']}..{fields['last_offset']}",
        count_text(fields["count"], "record"),
        count_text(fields["size"], "byte"),
        f"epoch {fields['leader_epoch']}",
        _time(fields["max_timestamp"]) + (" (append time)" if fields["timestamp_type"] == "LogAppendTime" else ""),
        fields["codec"],
    ]
    if fields["producer_id"] is not None:
        sequences = f"{fields['base_sequence']}..{fields['last_sequence']}"
        parts.append(f"producer {fields['producer_id']} epoch {fields['producer_epoch']} sequences {sequences}")
    parts += [name for name in ("transactional", "control") if fields[name]]
    if "delete_horizon" in fields:
        parts.append(f"tombstones until {_time(fields['delete_horizon'])}")
    return "  ".join(parts)


def _record(fields: Fields) -> str:
    parts = [f"    {fields['offset']}", _time(fields["timestamp"])]
    if "headers" not in fields:
        parts += [f"{name} {_size(fields[f'{name}_size'])}" for name in ("key", "value")]
        if fields["header_count"]:
            parts.append(count_text(fields["header_count"], "header"))
        return "  ".join(parts)
    parts += [f"{name} {_bytes(fields, name)}" for name in ("key", "value")]
    parts += [f"{_escaped(header['key'])}={_bytes(header, 'value')}" for header in fields["headers"]]
    return "  ".join(parts)


def _size(size: int | None) -> str:
    return "null" if size is None else count_text(size, "byte")


def _bytes(fields: Fields, name: str) -> str:
    """Return the text of a field that bytes_to_json has written."""
    if f"{name}_base64" in fields:
        return f"base64:{fields[f'{name}_base64']}"
    text = fields[name]
    return "null" if text is None else _escaped(text)


def _data(fields: Fields) -> str:
    return f"  {_bytes(fields, 'data')}" if "data" in fields or "data_base64" in fields else ""


def _damage(fields: Fields) -> str:
    where = f"byte {fields['position']}"
    if fields["size"]:
        where += f" to {fields['position'] + fields['size'] - 1}"
    if "offset" in fields:
        where += f", offset {fields['offset']}"
    return f"DAMAGE at {where}: {_escaped(fields['reason'])}"


def _json(value: object) -> str:
    return _escaped(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _escaped(text: str) -> str:
    return printable(text.encode(errors="backslashreplace"))


def _time(timestamp: int) -> str:
    return "no time" if timestamp < 0 else format_timestamp(timestamp)


def _value(name: str, value: object) -> str:
    if isinstance(value, int) and name.endswith("timestamp"):
        return _time(value)
    return "-" if value is None else _escaped(str(value))


CONSUMER_OFFSETS, TRANSACTION_STATE = "__consumer_offsets", "__transaction_state"

# By the version of the key: the kind of record, the message of the key, the message of the value.
_RECORD_TYPES: dict[str, dict[int, tuple[str, type[Message], type[Message]]]] = {
    CONSUMER_OFFSETS: {
        0: ("offset commit", OffsetCommitKey, OffsetCommitValue),
        1: ("offset commit", OffsetCommitKey, OffsetCommitValue),
        2: ("group metadata", GroupMetadataKey, GroupMetadataValue),
    },
    TRANSACTION_STATE: {0: ("transaction", TransactionLogKey, TransactionLogValue)},
}
# Records of consumer (KIP-848), share and streams groups in Kafka's CoordinatorRecordType, which are not decoded.
_NEWER_GROUP_RECORDS = range(3, 24)
# Kafka's TransactionState by number.
_TRANSACTION_STATES = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead", "PrepareEpochFence",
)  # fmt: skip

Decoded = dict[str, Any]


def is_internal(topic: str) -> bool:
    return topic in _RECORD_TYPES


def decode_internal(topic: str, key: bytes | None, value: bytes | None) -> Decoded:
    """Return {"kind", "key", "value"}, with None as the value of a tombstone. Raises MalformedError."""
    version, position = _read_version(key)
    record_type = _RECORD_TYPES[topic].get(version)
    if record_type is None:
        if topic == CONSUMER_OFFSETS and version in _NEWER_GROUP_RECORDS:
            return {"kind": f"record of a newer group type {version}", "key": None, "value": None}
        raise MalformedError(f"a key of unknown version {version} in {topic}")
    kind, key_message, value_message = record_type
    decoded_key = _struct_to_json(decode(key_message, key or b"", version, position))
    return {"kind": kind, "key": decoded_key, "value": None if value is None else _decode_value(value_message, value)}


def _decode_value(message: type[Message], value: bytes) -> Decoded:
    version, position = _read_version(value)
    if not message_info(message).min_version <= version <= message_info(message).max_version:
        raise MalformedError(f"{message.__name__} of version {version}")
    decoded: Decoded = {"version": version, **_struct_to_json(decode(message, value, version, position), version)}
    if message is TransactionLogValue:
        status = decoded["transaction_status"]
        is_known = 0 <= status < len(_TRANSACTION_STATES)
        decoded["transaction_status"] = _TRANSACTION_STATES[status] if is_known else status
    elif decoded.get("protocol_type") == "consumer":
        for member in decoded["members"]:
            member["subscription"] = _decode_consumer_protocol(ConsumerProtocolSubscription, member["subscription"])
            member["assignment"] = _decode_consumer_protocol(ConsumerProtocolAssignment, member["assignment"])
    return decoded


def _decode_consumer_protocol(message: type[Message], encoded: str) -> Decoded | str:
    """Decode base64 of the consumer protocol; returned unchanged if it is something else."""
    data = base64.b64decode(encoded)
    try:
        version, position = _read_version(data)
        if version < 0:
            return encoded
        version = min(version, message_info(message).max_version)
        return {"version": version, **_struct_to_json(decode(message, data, version, position), version)}
    except MalformedError:
        return encoded


def _read_version(data: bytes | None) -> tuple[int, int]:
    """Return the version in the first two bytes, and the position after it."""
    if data is None or len(data) < 2:
        raise MalformedError(f"a record's key or value of {len(data or b'')} bytes")
    return int.from_bytes(data[:2], "big", signed=True), 2


def _struct_to_json(struct: Struct, version: int | None = None) -> Decoded:
    """Return the fields that `version` has (None: all fields), with bytes as base64."""
    rows = type(struct).__rows__.items()
    return {
        name: uuid_text(getattr(struct, name)) if row.type == "uuid" else _to_json(getattr(struct, name), version)
        for name, row in rows
        if version is None or row.is_in(version)
    }


def _to_json(value: Any, version: int | None) -> Any:
    if isinstance(value, Struct):
        return _struct_to_json(value, version)
    if isinstance(value, list):
        return [_to_json(item, version) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    return value


def read_segment(source: DumpFile, selection: DumpSelection) -> Iterator[DumpItem]:
    """Yield the batches of a segment, its records if they are selected, and damage."""
    file, size = source.open()
    for batch in iter_batches(file, size, source.base_offset):
        if isinstance(batch, Damage):
            yield damage_item(batch)
            continue
        header = batch.header
        if selection.includes(header.base_offset, header.last_offset):
            yield DumpItem("batch", batch_fields(batch), batch.position)
            if selection.records or selection.values:
                yield from _record_items(source, file, batch, selection)
        if batch.fault is not None:
            yield damage_item(Damage(batch.position, header.size, header.base_offset, batch.fault))


def batch_fields(batch: BatchAt) -> Fields:
    """Return the fields of a "batch" item."""
    header = batch.header
    has_producer = header.producer_id >= 0
    return {
        "position": batch.position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.count,
        "size": header.size,
        "leader_epoch": header.leader_epoch,
        "codec": CODEC_NAMES[header.codec] if header.codec < len(CODEC_NAMES) else str(header.codec),
        "timestamp_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
        "delete_horizon" if header.attributes & DELETE_HORIZON else "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id if has_producer else None,
        "producer_epoch": header.producer_epoch if has_producer else None,
        "base_sequence": header.base_sequence if has_producer else None,
        "last_sequence": header.last_sequence if has_producer else None,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "crc": header.crc,
        "valid": batch.fault is None,
    }


def _record_items(source: DumpFile, file: DiskFile, batch: BatchAt, selection: DumpSelection) -> Iterator[DumpItem]:
    header = batch.header
    try:
        for record in read_records(file, batch.position, header):
            offset = header.base_offset + record.offset_delta
            if not selection.includes(offset, offset):
                continue
            yield DumpItem("record", {"offset": offset, **record_fields(record, selection.values)}, batch.position)
            if header.is_control:
                yield control_item(record, batch)
            elif is_internal(source.topic):
                yield _internal_item(source.topic, record, batch)
    except MalformedError as error:
        if batch.fault is None:
            yield damage_item(Damage(batch.position, header.size, header.base_offset, str(error)))


def record_fields(record: Record, values: bool) -> Fields:
    """Return the fields of a "record" item, except for its offset."""
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


def control_item(record: Record, batch: BatchAt) -> DumpItem:
    """Return the "control" item of a control record."""
    try:
        kind = parse_control_type(record.key)
        if kind not in (ABORT, COMMIT):
            return DumpItem("control", {"type": f"type {kind}", "coordinator_epoch": None}, batch.position)
        marker = parse_end_marker(record.key, record.value)
    except MalformedError as error:
        return damage_item(Damage(batch.position, batch.header.size, batch.header.base_offset, str(error)))
    fields = {"type": "COMMIT" if marker.committed else "ABORT", "coordinator_epoch": marker.coordinator_epoch}
    return DumpItem("control", fields, batch.position)


def _internal_item(topic: str, record: Record, batch: BatchAt) -> DumpItem:
    try:
        decoded = decode_internal(topic, record.key, record.value)
        if batch.header.is_transactional:
            # It takes effect when the transaction commits.
            decoded["kind"] = f"transactional {decoded['kind']}"
        return DumpItem("decoded", decoded, batch.position)
    except MalformedError as error:
        offset = batch.header.base_offset + record.offset_delta
        return damage_item(Damage(batch.position, batch.header.size, offset, str(error)))
