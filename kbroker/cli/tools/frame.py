"""`kbroker tools frame`: print captured frames field by field, as text and as JSON.

The record batches in a Produce request or Fetch response are the items of `kbroker log dump`.
"""

import json
from collections.abc import Iterator
from typing import Any

from kbroker.cli.common.errors import usage_error
from kbroker.cli.common.output import RED, colored
from kbroker.cli.common.values import count_text
from kbroker.cli.log.items import DumpItem, batch_fields, control_item, damage_item, format_item, record_fields
from kbroker.cli.records.formats import bytes_to_json
from kbroker.cli.tools.frame_fields import ParsedFrame, ResponseType, ResponseTypes, parse_capture, response_types_of
from kbroker.common import uuid_text
from kbroker.storage.inspect.batches import BatchAt, Damage, find_header_fault
from protocol.apis import ALL_APIS, ApiKey
from protocol.errors import MalformedError, error_name
from protocol.records.batch import CRC_START, HEADER_SIZE, MAGIC, MAGIC_POS, iter_batch_records, parse_header
from protocol.records.checksum import crc32c
from protocol.records.compression import TooLargeError
from protocol.schema.grammar import ParsedField


def record_items(data: bytes, position: int, *, may_be_cut: bool) -> Iterator[DumpItem]:
    """Yield batches with their records, and damage. `position`: where the data begins in the capture.

    `may_be_cut`: the last batch may be incomplete, as in Fetch responses of Apache Kafka.
    """
    pos = 0
    while pos < len(data):
        remaining = len(data) - pos
        reason = _find_fault(data, pos)
        if reason is not None:
            if may_be_cut and pos:
                yield DumpItem("incomplete", {"position": position + pos, "size": remaining})
            else:
                yield damage_item(Damage(position + pos, remaining, None, reason))
            return
        header = parse_header(data, pos)
        content = data[pos : pos + header.size]
        fault = None if crc32c(memoryview(content)[CRC_START:]) == header.crc else "its CRC is wrong"
        batch = BatchAt(position + pos, header, fault or find_header_fault(header))
        yield DumpItem("batch", batch_fields(batch))
        reason = batch.fault
        try:
            for record in iter_batch_records(content, header) if reason is None else ():
                if header.is_log_append_time:
                    record = record._replace(timestamp=header.max_timestamp)
                yield DumpItem(
                    "record", {"offset": header.base_offset + record.offset_delta, **record_fields(record, True)}
                )
                if header.is_control:
                    yield control_item(record, batch)
        except (MalformedError, TooLargeError) as error:
            reason = str(error)
        if reason is not None:
            yield damage_item(Damage(batch.position, header.size, None, reason))
        pos += header.size


def _find_fault(data: bytes, pos: int) -> str | None:
    """Return why there is no complete batch at a position."""
    remaining = len(data) - pos
    if remaining > MAGIC_POS and data[pos + MAGIC_POS] != MAGIC:
        return f"a batch of format {data[pos + MAGIC_POS]}"
    if remaining < HEADER_SIZE:
        return f"{remaining} bytes are less than a batch header"
    size = parse_header(data, pos).size
    return None if HEADER_SIZE <= size <= remaining else f"a batch of {size} bytes where {remaining} remain"


# Passwords, and what a password could be guessed from. A captured frame may be sent to others.
# An Envelope has a whole request.
_SECRETS = ("auth_bytes", "salted_password", "request_data")
_MAX_BYTES_SHOWN = 64
_API_KEY_FIELDS = ("request_api_key", "api_key")


class FrameText:
    """Formats the frames of one capture; `found_damage`: whether one of them is damaged, or a batch in it."""

    def __init__(self) -> None:
        self.found_damage = False

    def lines(self, frame: ParsedFrame) -> Iterator[str]:
        """Yield a heading, a line for each field with its position, and damage."""
        title = [frame.kind, frame.api]
        if frame.version is not None:
            title.append(f"version {frame.version}")
        if frame.correlation_id is not None:
            title.append(f"correlation id {frame.correlation_id}")
        yield " ".join(title)
        if frame.size is not None:
            yield _line(frame.start, 1, f"size: {frame.size}")
        for part, fields in (("header", frame.header), ("body", frame.body)):
            if fields:
                yield _line(None, 1, part)
                yield from self._field_lines(frame, fields)
        if frame.damage is not None:
            field = " ".join(frame.damage.path)
            yield self._damage(f"DAMAGE at byte {frame.damage.position}, {field}: {frame.damage.reason}")

    def _field_lines(self, frame: ParsedFrame, fields: list[ParsedField]) -> Iterator[str]:
        # The structs and arrays around the last printed field, for which there are headings.
        open_path: tuple[str, ...] = ()
        for field in fields:
            parent = field.path[:-1]
            for depth, name in enumerate(parent):
                if parent[: depth + 1] != open_path[: depth + 1]:
                    yield _line(None, depth + 2, name)
            open_path = field.path if field.kind == "array" else parent
            yield _line(field.start, len(field.path) + 1, f"{field.path[-1]}: {_value_text(field)}")
            if field.kind == "records":
                for item in _items(frame, field):
                    text = format_item(item).strip()
                    depth = len(field.path) + (2 if item.kind in ("batch", "incomplete") else 3)
                    if item.kind == "damage":
                        yield self._damage(text)
                    else:
                        yield _line(None, depth, text)

    def _damage(self, text: str) -> str:
        self.found_damage = True
        return colored(text, RED)

    def to_json(self, frame: ParsedFrame) -> str:
        """Return a frame as one line of JSON."""
        fields: dict[str, Any] = {
            "position": frame.start,
            "size": frame.size,
            "kind": frame.kind,
            "api": frame.api,
            "api_key": frame.api_key,
            "version": frame.version,
            "header": self._tree(frame, frame.header),
            "body": self._tree(frame, frame.body),
        }
        if frame.damage is not None:
            self.found_damage = True
            position, path, reason = frame.damage
            fields["damage"] = {"position": position, "field": list(path), "reason": reason}
        return json.dumps(fields, ensure_ascii=False)

    def _tree(self, frame: ParsedFrame, fields: list[ParsedField]) -> dict[str, Any]:
        root: dict[str, Any] = {}
        for field in fields:
            container = _container(root, field.path[:-1])
            name = field.path[-1]
            if isinstance(container, list):
                container.append(_element_json(field))
            elif field.kind == "bytes" and name in _SECRETS:
                container[name] = None
            elif field.kind in ("bytes", "tag"):
                container.update(bytes_to_json(name, field.value))
            elif field.kind == "records":
                items = list(_items(frame, field))
                self.found_damage = self.found_damage or any(item.kind == "damage" for item in items)
                rows = [{"item": item.kind, **item.fields} for item in items]
                container[name] = None if field.value is None else rows
            else:
                container[name] = _element_json(field)
        return root


def _container(root: dict[str, Any], path: tuple[str, ...]) -> Any:
    """Return the dict or list at a path; structs are created when their first field is set."""
    container: Any = root
    for name in path:
        if not isinstance(container, list):
            container = container.setdefault(name, {})
            continue
        index = int(name[1:-1])
        if index == len(container):
            container.append({})
        container = container[index]
    return container


def _element_json(field: ParsedField) -> Any:
    if field.kind == "array":
        return None if field.value is None else []
    if field.kind == "uuid":
        return uuid_text(field.value)
    return field.value.hex() if isinstance(field.value, bytes) else field.value


def _items(frame: ParsedFrame, field: ParsedField) -> Iterator[DumpItem]:
    data = field.value or b""
    return record_items(data, field.end - len(data), may_be_cut=frame.kind == "response")


def _line(position: int | None, depth: int, text: str) -> str:
    return f"{'' if position is None else position:>6}{'  ' * depth}{text}"


def _value_text(field: ParsedField) -> str:
    value, name = field.value, field.path[-1]
    if value is None:
        return "null"
    match field.kind:
        case "array":
            return count_text(value, "element")
        case "uuid":
            return uuid_text(value)
        case "records":
            return count_text(len(value), "byte")
        case "bytes" if name in _SECRETS:
            return f"{count_text(len(value), 'byte')}, not shown"
        case "bytes" | "tag":
            shown = value[:_MAX_BYTES_SHOWN].hex() + ("..." if len(value) > _MAX_BYTES_SHOWN else "")
            return f"{count_text(len(value), 'byte')} {shown}".rstrip()
        case "string":
            return json.dumps(value, ensure_ascii=not value.isprintable())
        case "bool":
            return "true" if value else "false"
    if name.endswith("error_code"):
        return f"{value} ({error_name(value)})"
    if name in _API_KEY_FIELDS and value in ApiKey.__members__.values():
        return f"{value} ({ApiKey(value).name})"
    return str(value)


def response_source(api: str | None, version: int | None, requests: bytes | None) -> ResponseTypes | None:
    """Return where the types of responses come from; None if the frames are requests."""
    if requests is not None:
        if api is not None or version is not None:
            raise usage_error("--request excludes --response and --version")
        return response_types_of(parse_capture(requests, None)).get
    if api is None:
        if version is not None:
            raise usage_error("--version needs --response")
        return None
    if version is None:
        raise usage_error("--response needs --version")
    name = api.lower().replace("_", "")
    for known in ALL_APIS.values():
        if name in (known.name.lower(), str(known.key.value)):
            response_type = ResponseType(known.key, version)
            return lambda correlation_id: response_type
    raise usage_error(f"unknown API: {api!r}")


def print_frames(data: bytes, response_types: ResponseTypes | None, as_json: bool) -> bool:
    """Print all frames of a capture; returns whether one is damaged."""
    text = FrameText()
    for number, frame in enumerate(parse_capture(data, response_types)):
        if as_json:
            print(text.to_json(frame))
            continue
        if number:
            print()
        for line in text.lines(frame):
            print(line)
    return text.found_damage
