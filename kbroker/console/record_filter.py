"""Which records a user looks for: by partition, key, header, text, and a value inside JSON."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kbroker.cli.common.errors import CliError, usage_error
from kbroker.client.consumer import ConsumedRecord

# `.name`, `[0]` or `["any name"]`.
_STEP = re.compile(r'\.?([^\s.\[\]="]+)|\[(\d+)\]|\["((?:[^"\\]|\\.)*)"\]')
_COMPARISON = re.compile(r"\s*(!=|=|$)\s*")
# Larger values are not parsed as JSON.
MAX_JSON_BYTES = 4 << 20

Path = tuple[str | int, ...]


class JsonCondition(NamedTuple):
    """`equals`: None if the path has to exist only. `value`: as JSON; a word that is not JSON is a string."""

    path: Path
    equals: bool | None
    value: Any

    def matches(self, data: bytes | None) -> bool:
        if data is None or len(data) > MAX_JSON_BYTES:
            return False
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            return False
        for step in self.path:
            try:
                found = found[step]
            except (LookupError, TypeError):
                # Not equal to anything.
                return self.equals is False
        return self.equals is None or (_same(found, self.value) == self.equals)


def _same(found: Any, value: Any) -> bool:
    # True == 1 in Python.
    return found == value and isinstance(found, bool) == isinstance(value, bool)


def parse_json_condition(text: str) -> JsonCondition:
    """Parse `$.items[0].id = 42`, `status != done` or `error`, a path that has to exist. Raises CliError."""
    rest = text.strip().removeprefix("$")
    path: list[str | int] = []
    while (step := _STEP.match(rest)) is not None:
        name, index, quoted = step.groups()
        path.append(int(index) if index else name if name is not None else json.loads(f'"{quoted}"'))
        rest = rest[step.end() :]
    comparison = _COMPARISON.match(rest)
    if not path or comparison is None:
        raise usage_error(f"expected a JSON path such as $.items[0].id = 42, not {text[:80]!r}")
    if not comparison[1]:
        return JsonCondition(tuple(path), None, None)
    value = rest[comparison.end() :].strip()
    try:
        return JsonCondition(tuple(path), comparison[1] == "=", json.loads(value))
    except ValueError:
        return JsonCondition(tuple(path), comparison[1] == "=", value)


def parse_filter(parameters: Mapping[str, str]) -> Callable[[ConsumedRecord], bool] | None:
    """Return what a record must match by `key`, `header`, `text` and `json` of a query; None without any of them.

    key: the whole key. header: NAME, or NAME=VALUE. text: a part of the key, the value or a header. Raises CliError.
    """
    conditions: list[Callable[[ConsumedRecord], bool]] = []
    if key := parameters.get("key"):
        key_bytes = key.encode()
        conditions.append(lambda record: record.key == key_bytes)
    if header := parameters.get("header"):
        name, sign, value = header.partition("=")
        wanted = value.encode() if sign else None
        conditions.append(
            lambda record: any(each == name and wanted in (None, content) for each, content in record.headers)
        )
    if text := parameters.get("text"):
        part = text.encode()
        conditions.append(lambda record: _has_text(record, part))
    if path := parameters.get("json"):
        condition = parse_json_condition(path)
        conditions.append(lambda record: condition.matches(record.value))
    if not conditions:
        return None
    return conditions[0] if len(conditions) == 1 else lambda record: all(matches(record) for matches in conditions)


def _has_text(record: ConsumedRecord, part: bytes) -> bool:
    if (record.value is not None and part in record.value) or (record.key is not None and part in record.key):
        return True
    return any(part in name.encode() or (content is not None and part in content) for name, content in record.headers)


# Positions in a query: `0:123,1:456`, an offset for each partition.

MAX_POSITIONS_CHARACTERS = 60_000


def parse_positions(text: str) -> dict[int, int]:
    """Raises CliError."""
    if len(text) > MAX_POSITIONS_CHARACTERS or not re.fullmatch(
        r"(?a:\d{1,10}:\d{1,19})(,(?a:\d{1,10}:\d{1,19}))*", text
    ):
        raise CliError(f"expected positions such as 0:123,1:456, not {text[:80]!r}", status=2)
    return {int(partition): int(offset) for partition, _, offset in (each.partition(":") for each in text.split(","))}


def positions_text(positions: Mapping[int, int]) -> str:
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(positions.items()))
