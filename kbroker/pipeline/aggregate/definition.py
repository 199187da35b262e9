"""The definition of a windowed aggregate: topics, windows, group keys, functions (pure).

Durations are milliseconds. Windows are [start, end) in UTC.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from kbroker.pipeline.errors import PipelineError

RECORD_TIME = "record"
# Sources of group keys other than JSON fields, with their SQL.
RECORD_KEYS = {"key": "make_valid_utf8(CAST(key AS STRING))", "topic": "topic", "partition": "partition"}
RECORD_FUNCTIONS = ("count", "bytes")
VALUE_FUNCTIONS = ("values", "sum", "min", "max", "avg")
# The columns of every result besides group keys and computed values.
RESULT_COLUMNS = ("window_start", "window_end", "date")
MAX_DURATION_MS = 366 * 86_400_000 * 10

_PATH_STEP = re.compile(r"\.([^\W\d][\w-]*)|\['([^'\"\\\]]+)'\]|\[(\d{1,6})\]")
_COLUMN_NAME = re.compile(r"[^\W\d][\w-]*")
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d{1,4})?|100)")
# Fields that may change when an aggregate continues, because earlier results stay correct.
_MAY_CHANGE = ("watermark_ms", "max_ahead_ms")


class GroupKey(NamedTuple):
    """A column to group records by."""

    name: str  # the column of the result
    source: str  # a name in RECORD_KEYS, or a JSON path in the value


@dataclass(frozen=True)
class AggregateDefinition:
    """A windowed aggregate of topics. The field names are part of the format of checkpoints."""

    topics: tuple[str, ...]
    window_ms: int
    slide_ms: int  # the distance of window starts; window_ms if windows do not overlap
    offset_ms: int = 0  # windows start at multiples of slide_ms since 1970 plus offset_ms
    keys: tuple[GroupKey, ...] = ()
    value: str = ""  # the JSON path of a number; empty to compute RECORD_FUNCTIONS only
    time: str = RECORD_TIME  # or the JSON path of a time
    compute: tuple[str, ...] = RECORD_FUNCTIONS
    approximate: bool = False  # compute percentiles with a sketch
    watermark_ms: int = 3_600_000  # a window closes this long after its end
    max_ahead_ms: int = 86_400_000  # records that are further in the future are skipped
    committed_only: bool = False

    @property
    def needs_json(self) -> bool:
        """Whether record values must be JSON."""
        return bool(self.value) or self.time != RECORD_TIME or any(key.source.startswith("$") for key in self.keys)

    @property
    def percentiles(self) -> dict[str, float]:
        """The percentiles to compute as fractions, by their names: 0.999 for p99.9."""
        return {name: round(parse_percentile(name) / 100, 6) for name in self.compute if _PERCENTILE.fullmatch(name)}


def check_definition(definition: AggregateDefinition) -> AggregateDefinition:
    """Return the definition if it can be computed. Raises PipelineError."""
    if not definition.topics:
        raise PipelineError("an aggregate requires at least one topic")
    _check_windows(definition)
    for path in (definition.value, "" if definition.time == RECORD_TIME else definition.time):
        if path:
            canonical_path(path)
    for name in definition.compute:
        if name not in (*RECORD_FUNCTIONS, *VALUE_FUNCTIONS):
            parse_percentile(name)
        if name not in RECORD_FUNCTIONS and not definition.value:
            raise PipelineError(f"{name} requires the field of the value to compute it from")
    if not definition.compute:
        raise PipelineError("there is nothing to compute")
    _check_names(definition)
    return definition


def _check_windows(definition: AggregateDefinition) -> None:
    window, slide = definition.window_ms, definition.slide_ms
    if window < 1 or slide < 1:
        raise PipelineError("windows and slides must be at least 1 ms")
    if slide > window:
        raise PipelineError("the slide must not be longer than the window: records between two windows would be lost")
    if window // slide > 1000:
        raise PipelineError("each record would be in more than 1,000 windows: use a longer slide")
    if max(window, definition.watermark_ms) > MAX_DURATION_MS:
        raise PipelineError("windows and watermarks must be at most ten years long")


def _check_names(definition: AggregateDefinition) -> None:
    used_names = {name.lower(): name for name in (*RESULT_COLUMNS, "window")}
    for name in (*(key.name for key in definition.keys), *(column_name(name) for name in definition.compute)):
        if not _COLUMN_NAME.fullmatch(name):
            raise PipelineError(
                f"{name!r} is not a valid column name: use letters, digits, - and _, and no digit first"
            )
        if name.startswith("__"):
            raise PipelineError(f"{name!r} is not a valid column name: names that begin with __ are reserved")
        if name.lower() in used_names:
            raise PipelineError(f"two columns of the result would have the name {used_names[name.lower()]}: rename one")
        used_names[name.lower()] = name
    for key in definition.keys:
        if key.source not in RECORD_KEYS:
            canonical_path(key.source)


def parse_group_key(text: str) -> GroupKey:
    """Parse `[NAME=]SOURCE`: key, topic, partition or a JSON path, by default named by its last step."""
    name, sign, source = text.partition("=")
    if not sign or "'" in name:
        name, source = "", text
    if source in RECORD_KEYS:
        return GroupKey(name or source, source)
    if not source.startswith("$"):
        raise PipelineError(
            f"expected key, topic, partition or a field of the value such as $.carrier to group by, not {source!r}"
        )
    return GroupKey(name or _name_of_last_step(source), source)


def _name_of_last_step(path: str) -> str:
    name = ""
    for field, quoted, index in _steps(path):
        name = f"{name or 'field'}_{index}" if index else re.sub(r"[^\w-]", "_", field or quoted)
    return name if _COLUMN_NAME.fullmatch(name) else f"_{name}"


def canonical_path(path: str) -> str:
    """Return a JSON path (`$.a.b`, `$['a b']`, `$.list[0]`) in the form that Spark parses."""
    return "$" + "".join(f"[{index}]" if index else f"['{field or quoted}']" for field, quoted, index in _steps(path))


def _steps(path: str) -> list[tuple[str, str, str]]:
    if not re.fullmatch(rf"\$(?:{_PATH_STEP.pattern})+", path):
        raise PipelineError(f"{path!r} is not a JSON path such as $.field, $.outer.inner, $['any name'] or $.list[0]")
    return _PATH_STEP.findall(path)


def parse_percentile(name: str) -> float:
    """Return the percentage of a percentile: 99.9 for p99.9. Raises PipelineError for another name."""
    match = _PERCENTILE.fullmatch(name)
    if match is None:
        known = ", ".join((*RECORD_FUNCTIONS, *VALUE_FUNCTIONS))
        raise PipelineError(f"cannot compute {name!r}: expected {known}, or a percentile such as p50 or p99.9")
    return float(match[1])


def column_name(name: str) -> str:
    """Return the result column of a function: p99_9 for p99.9."""
    return name.replace(".", "_")


def default_compute(value: str) -> tuple[str, ...]:
    """Return the default of `compute`."""
    return (*RECORD_FUNCTIONS, "sum", "min", "max", "avg") if value else RECORD_FUNCTIONS


def split_names(texts: Iterable[str]) -> tuple[str, ...]:
    """Split comma-separated names, without duplicates, in their order."""
    return tuple(dict.fromkeys(name.strip() for text in texts for name in text.split(",") if name.strip()))


def incompatible_changes(now: AggregateDefinition, before: AggregateDefinition) -> list[str]:
    """Return the changes with which an aggregate cannot continue: `window_ms 60000, before 3600000`."""
    return [
        f"{field.name} {_format(getattr(now, field.name))}, before {_format(getattr(before, field.name))}"
        for field in fields(AggregateDefinition)
        if field.name not in _MAY_CHANGE and getattr(now, field.name) != getattr(before, field.name)
    ]


def _format(value: Any) -> str:
    if isinstance(value, tuple):
        return (
            ",".join(f"{item.name}={item.source}" if isinstance(item, GroupKey) else str(item) for item in value)
            or "none"
        )
    return str(value) if value != "" else "none"
