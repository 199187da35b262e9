"""Records as lines: what `produce` reads and what `consume` prints.

As JSON a record is one object a line, `{"key": "k", "value": "v", "headers": [{"key": "h", "value": "1"}],
"partition": 0, "timestamp": 1767225600000}`; `consume --json` adds topic, offset and timestamp_type. Bytes
that are no UTF-8 text stand in `key_base64` and `value_base64`: what one command prints the other can read.
"""

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from kbroker.cli.common.errors import CliError
from kbroker.cli.common.formatting import format_timestamp
from kbroker.cli.common.parsing import INT64

Header = tuple[str, bytes | None]

TIMESTAMP_TYPES = {0: "CreateTime", 1: "LogAppendTime"}


class Draft(NamedTuple):
    """A record to be produced; a partition or timestamp of None leaves the choice to the producer."""

    key: bytes | None
    value: bytes | None
    headers: list[Header]
    partition: int | None = None
    timestamp: int | None = None

    def size(self) -> int:
        """Bytes of key, value and headers, roughly what it takes in memory and on the wire."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers + 64


def from_line(line: bytes, separator: bytes | None) -> Draft:
    """A value, or key and value divided by the first separator; a line without the separator is a mistake."""
    if separator is None:
        return Draft(None, line, [])
    key, found, value = line.partition(separator)
    if not found:
        raise CliError(f"no key separator {separator.decode(errors='replace')!r}")
    return Draft(key, value, [])


def from_json(line: bytes) -> Draft:
    """The object described above. A key or value that is neither string nor null is written as JSON."""
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CliError(f"not valid JSON: {error}") from None
    if not isinstance(given, dict):
        raise CliError("not a JSON object")
    headers = given.get("headers") or []
    if isinstance(headers, dict):
        headers = [{"key": name, "value": value} for name, value in headers.items()]
    if not isinstance(headers, list) or not all(isinstance(h, dict) and isinstance(h.get("key"), str) for h in headers):
        raise CliError('headers must be [{"key": ..., "value": ...}, ...] or {key: value, ...}')
    return Draft(
        _bytes(given, "key"),
        _bytes(given, "value"),
        [(header["key"], _bytes(header, "value")) for header in headers],
        _integer(given, "partition"),
        _integer(given, "timestamp"),
    )


def _bytes(given: dict[str, Any], name: str) -> bytes | None:
    encoded = given.get(f"{name}_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise CliError(f"{name}_base64 is not base64") from None
    value = given.get(name)
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise CliError(f"{name} has half of a surrogate pair") from None


def _integer(given: dict[str, Any], name: str) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= INT64:
        raise CliError(f"{name} must be a whole number, not {value!r}")
    return value


def to_json(record: Any) -> bytes:
    """A consumed record as one line, without its end."""
    shown: dict[str, object] = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    if record.timestamp is not None and record.timestamp >= 0:
        shown["timestamp"] = record.timestamp
        shown["timestamp_type"] = TIMESTAMP_TYPES.get(record.timestamp_type, str(record.timestamp_type))
    shown.update(text_field("key", record.key))
    shown.update(text_field("value", record.value))
    shown["headers"] = [{"key": name, **text_field("value", value)} for name, value in record.headers or ()]
    return json.dumps(shown, ensure_ascii=False).encode()


def text_field(name: str, data: bytes | None) -> dict[str, str | None]:
    """Bytes as JSON has them: text under the name, or base64 under a name that says so."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def to_plain(record: Any, separator: bytes | None) -> bytes:
    """The value as it is, after the key when a separator is given; nothing for a null."""
    value: bytes = record.value or b""
    return value if separator is None else (record.key or b"") + separator + value


def to_terminal(record: Any, colors: bool) -> bytes:
    """One line for eyes: where, when, key, value, headers; control characters are escaped."""
    dim, cyan, off = ("\x1b[2m", "\x1b[36m", "\x1b[0m") if colors else ("", "", "")
    parts = [f"{dim}{record.topic}-{record.partition}@{record.offset}"]
    if record.timestamp is not None and record.timestamp >= 0:
        parts[0] += f"  {format_timestamp(record.timestamp)}"
    parts[0] += off
    if record.key is not None:
        parts.append(f"{cyan}{printable(record.key)}{off}")
    parts.append(f"{dim}null{off}" if record.value is None else printable(record.value))
    if record.headers:
        parts.append(dim + " ".join(f"{printable(n.encode())}={printable(v or b'')}" for n, v in record.headers) + off)
    return "  ".join(parts).encode()


def printable(data: bytes) -> str:
    """Text that does nothing to a terminal."""
    text = data.decode(errors="backslashreplace")
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\t" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def headers_of(texts: Sequence[str]) -> list[Header]:
    """`NAME=VALUE` each, in order; names may repeat."""
    headers: list[Header] = []
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            raise CliError(f"expected a header as NAME=VALUE, not {text!r}", status=2)
        headers.append((name, value.encode()))
    return headers
