"""Records as lines: the formats that `kbroker produce` reads and `kbroker consume` prints.

In JSON a record is one object per line, `{"key": "k", "value": "v", "headers": [{"key": "h", "value": "1"}],
"partition": 0, "timestamp": 1767225600000}`; `consume --json` adds topic, offset and timestamp_type. Bytes that are
not UTF-8 are in `key_base64` and `value_base64`, so that `produce` reads everything that `consume` prints.
"""

import base64
import binascii
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.values import INT64, format_timestamp
from kbroker.client.consumer import CREATE_TIME, LOG_APPEND_TIME, ConsumedRecord

Header = tuple[str, bytes | None]

TIMESTAMP_TYPES = {CREATE_TIME: "CreateTime", LOG_APPEND_TIME: "LogAppendTime"}
# With characters beyond ASCII as they are; of the json module, which has it in C if it can.
_quote = json.encoder.encode_basestring


class ProducerRecord(NamedTuple):
    """A record to produce; the producer chooses a partition or timestamp that is None."""

    key: bytes | None
    value: bytes | None
    headers: list[Header]
    partition: int | None = None
    timestamp: int | None = None


def record_from_line(line: bytes, separator: bytes | None) -> ProducerRecord:
    """Parse a value, or a key and a value split at the first separator; raises CliError without a separator."""
    if separator is None:
        return ProducerRecord(None, line, [])
    key, found, value = line.partition(separator)
    if not found:
        raise CliError(f"no key separator {separator.decode(errors='replace')!r}")
    return ProducerRecord(key, value, [])


def record_from_json(line: bytes) -> ProducerRecord:
    """Parse the JSON format. A key or value that is neither a string nor null is produced as JSON text."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CliError(f"not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise CliError("not a JSON object")
    headers = fields.get("headers") or []
    if isinstance(headers, dict):
        headers = [{"key": name, "value": value} for name, value in headers.items()]
    if not isinstance(headers, list) or not all(isinstance(h, dict) and isinstance(h.get("key"), str) for h in headers):
        raise CliError('headers must be [{"key": ..., "value": ...}, ...] or {key: value, ...}')
    return ProducerRecord(
        _bytes_field(fields, "key"),
        _bytes_field(fields, "value"),
        [(header["key"], _bytes_field(header, "value")) for header in headers],
        _integer_field(fields, "partition"),
        _integer_field(fields, "timestamp"),
    )


def _bytes_field(fields: dict[str, Any], name: str) -> bytes | None:
    encoded = fields.get(f"{name}_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise CliError(f"{name}_base64 is not base64") from None
    value = fields.get(name)
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise CliError(f"{name} has half of a surrogate pair") from None


def _integer_field(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= INT64:
        raise CliError(f"{name} must be a whole number, not {value!r}")
    return value


def parse_headers(texts: Sequence[str]) -> list[Header]:
    """Parse `NAME=VALUE` texts in order; names may repeat."""
    headers: list[Header] = []
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            raise usage_error(f"expected a header as NAME=VALUE, not {text!r}")
        headers.append((name, value.encode()))
    return headers


def to_json(record: ConsumedRecord) -> bytes:
    """Return a consumed record as one line of JSON, without the line end."""
    # By hand: json.dumps of a dict takes most of the time of `consume --json`.
    topic, partition, offset, timestamp, _, key, value, headers = record
    when = (
        f', "timestamp": {timestamp}, "timestamp_type": "{TIMESTAMP_TYPES[record.timestamp_type]}"'
        if timestamp >= 0
        else ""
    )
    key_field = '"key": null' if key is None else _json_field("key", key)
    listed = ""
    if headers:
        listed = ", ".join(f'{{"key": {_quote(name)}, {_json_field("value", content)}}}' for name, content in headers)
    return (
        f'{{"topic": {_quote(topic)}, "partition": {partition}, "offset": {offset}{when}, {key_field}, '
        f'{_json_field("value", value)}, "headers": [{listed}]}}'
    ).encode()


def _json_field(name: str, data: bytes | None) -> str:
    """Return a field with bytes as text, or as base64 with `_base64` after the name if they are not UTF-8."""
    if data is None:
        return f'"{name}": null'
    try:
        return f'"{name}": {_quote(data.decode())}'
    except UnicodeDecodeError:
        return f'"{name}_base64": "{base64.b64encode(data).decode()}"'


def bytes_to_json(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return a JSON field with bytes as text, or as base64 with `_base64` after the name if they are not UTF-8."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def to_plain(record: ConsumedRecord, separator: bytes | None) -> bytes:
    """Return the value, after the key if there is a separator; null is printed as nothing."""
    value: bytes = record.value or b""
    return value if separator is None else (record.key or b"") + separator + value


# The fields of --format, with kcat's letters.
_FIELDS: dict[str, Callable[[ConsumedRecord], bytes]] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp,
    "k": lambda record: record.key or b"",
    "s": lambda record: record.value or b"",
    "K": lambda record: b"%d" % (-1 if record.key is None else len(record.key)),
    "S": lambda record: b"%d" % (-1 if record.value is None else len(record.value)),
    "h": lambda record: b",".join(
        [name.encode() + b"=" + (b"NULL" if content is None else content) for name, content in record.headers]
    ),
    "%": lambda record: b"%",
}
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\"}
_FORMAT_PART = re.compile(r"(?P<text>[^%\\]+)|%(?P<field>.?)|\\(?P<escape>x[0-9a-fA-F]{2}|.?)", re.DOTALL)


def parse_format(text: str) -> Callable[[ConsumedRecord], bytes]:
    """Return the function that formats a record as --format says. Raises CliError for another letter than kcat's."""
    template = b""
    fields: list[Callable[[ConsumedRecord], bytes]] = []
    for part in _FORMAT_PART.finditer(text):
        escape, field = part["escape"], part["field"]
        if part["text"] is not None:
            template += part["text"].encode()
        elif field in _FIELDS:
            template += b"%b"
            fields.append(_FIELDS[field])
        elif escape is not None and (escape in _ESCAPES or len(escape) == 3):
            template += (_ESCAPES.get(escape) or bytes.fromhex(escape[1:])).replace(b"%", b"%%")
        else:
            raise usage_error(f"--format: {part[0]!r} is none of %{' %'.join(_FIELDS)} \\n \\r \\t \\\\ \\xHH")
    return lambda record: template % tuple([field(record) for field in fields])


def to_terminal(record: ConsumedRecord, colors: bool) -> bytes:
    """Return a line for people: position, time, key, value and headers, with control characters escaped."""
    dim, cyan, off = ("\x1b[2m", "\x1b[36m", "\x1b[0m") if colors else ("", "", "")
    parts = [f"{dim}{record.topic}-{record.partition}@{record.offset}"]
    if record.timestamp >= 0:
        parts[0] += f"  {format_timestamp(record.timestamp)}"
    parts[0] += off
    if record.key is not None:
        parts.append(f"{cyan}{printable(record.key)}{off}")
    parts.append(f"{dim}null{off}" if record.value is None else printable(record.value))
    if record.headers:
        headers = (f"{printable(name.encode())}={printable(value or b'')}" for name, value in record.headers)
        parts.append(dim + " ".join(headers) + off)
    return "  ".join(parts).encode()


def printable(data: bytes) -> str:
    """Return text in which every character that could control a terminal is escaped."""
    text = data.decode(errors="backslashreplace")
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\t" else _escape(c) for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
