"""The items that `kbroker log dump` prints: one per batch, record, index entry, line of a file, or damaged range.

Field names and units are those of Kafka's formats; times are milliseconds since the epoch.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kbroker.cli.common.values import count_text, format_timestamp
from kbroker.cli.records.formats import printable
from kbroker.runtime.disk import Disk, DiskFile
from kbroker.storage.inspect.batches import Damage

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
