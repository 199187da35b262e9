"""Batches and records of a segment as dump items."""

from collections.abc import Iterator

from kbroker.cli.log.internal_topics import decode_internal, is_internal
from kbroker.cli.log.items import DumpFile, DumpItem, DumpSelection, Fields, damage_item
from kbroker.cli.records.formats import bytes_to_json
from kbroker.runtime.disk import DiskFile
from kbroker.storage.inspect.batches import BatchAt, Damage, iter_batches, read_records
from protocol.errors import MalformedError
from protocol.records.batch import DELETE_HORIZON
from protocol.records.compression import CODEC_NAMES
from protocol.records.control import ABORT, COMMIT, parse_control_type, parse_end_marker
from protocol.records.record import Record


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
