"""What a live aggregate computes: groups, windows, values, and how it is written down. Pure: no Spark, no files.

Durations are milliseconds. Windows are [start, end) in UTC.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, Self

from kbroker.pipeline.errors import PipelineError

RECORD_TIME = "record"
# What a group can be made of besides JSON fields, and the SQL for it.
RECORD_KEYS = {"key": "make_valid_utf8(CAST(key AS STRING))", "topic": "topic", "partition": "partition"}
OF_RECORDS = ("count", "bytes")
OF_VALUES = ("values", "sum", "min", "max", "avg")
# What every result has besides groups and what is computed.
RESULT_COLUMNS = ("window_start", "window_end", "date")
MOST_MS = 366 * 86_400_000 * 10

_STEP = re.compile(r"\.([^\W\d][\w-]*)|\['([^'\"\\\]]+)'\]|\[(\d{1,6})\]")
_NAME = re.compile(r"[^\W\d][\w-]*")
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d{1,4})?|100)")
# These may be different when an aggregate goes on: the results of what came before stay right.
_MAY_CHANGE = ("watermark_ms", "max_ahead_ms")


class GroupKey(NamedTuple):
    """One part of the group that a record belongs to."""

    name: str  # of the result's column
    source: str  # a name of RECORD_KEYS, or a path into the value's JSON


@dataclass(frozen=True)
class AggregateDefinition:
    """A windowed aggregate of topics. `check` says what is wrong with one."""

    topics: tuple[str, ...]
    window_ms: int
    slide_ms: int  # the same as window_ms where windows do not overlap
    offset_ms: int = 0  # windows begin at multiples of slide_ms since 1970, and so much later
    keys: tuple[GroupKey, ...] = ()
    value: str = ""  # a path to a number; empty where only records are counted
    time: str = RECORD_TIME  # or a path to a time
    compute: tuple[str, ...] = ("count", "bytes")
    approximate: bool = False  # percentiles by a sketch instead of exactly
    watermark_ms: int = 3_600_000
    max_ahead_ms: int = 86_400_000
    committed_only: bool = False

    @property
    def needs_json(self) -> bool:
        """Whether values have to be JSON."""
        return bool(self.value) or self.time != RECORD_TIME or any(key.source.startswith("$") for key in self.keys)

    @property
    def percentiles(self) -> dict[str, float]:
        """Those that are computed, by the name of their column, as fractions."""
        return {name: round(parse_percentile(name) / 100, 6) for name in self.compute if _PERCENTILE.fullmatch(name)}

    def as_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return asdict(self) | {"keys": [list(key) for key in self.keys]}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Raises PipelineError where `found` is not what `as_json` gives."""
        try:
            values = {field.name: found[field.name] for field in fields(cls)}
            values["keys"] = tuple(GroupKey(*key) for key in values["keys"])
            return cls(**values | {name: tuple(values[name]) for name in ("topics", "compute")})
        except (KeyError, TypeError) as error:
            raise PipelineError(f"a definition of an aggregate cannot be read: {error}") from None


def check_definition(definition: AggregateDefinition) -> AggregateDefinition:
    """The same definition; raises PipelineError, one sentence, for one that cannot be computed."""
    if not definition.topics:
        raise PipelineError("an aggregate needs at least one topic")
    _check_windows(definition)
    for path in (definition.value, "" if definition.time == RECORD_TIME else definition.time):
        if path:
            canonical_path(path)
    for name in definition.compute:
        if name not in (*OF_RECORDS, *OF_VALUES):
            parse_percentile(name)
        if name not in OF_RECORDS and not definition.value:
            raise PipelineError(f"{name} needs a value to be computed of: say which field of the value it is")
    if not definition.compute:
        raise PipelineError("nothing is to be computed")
    _check_names(definition)
    return definition


def _check_windows(definition: AggregateDefinition) -> None:
    window, slide = definition.window_ms, definition.slide_ms
    if window < 1 or slide < 1:
        raise PipelineError("a window and its slide are 1 ms or longer")
    if slide > window:
        raise PipelineError("the slide is longer than the window: records between two windows would be left out")
    if window // slide > 1000:
        raise PipelineError("every record would be in more than 1,000 windows: choose a longer slide")
    if max(window, definition.watermark_ms) > MOST_MS:
        raise PipelineError("windows and watermarks are at most ten years long")


def _check_names(definition: AggregateDefinition) -> None:
    taken = {name.lower(): name for name in (*RESULT_COLUMNS, "window")}
    for name in (*(key.name for key in definition.keys), *(column_name(name) for name in definition.compute)):
        if not _NAME.fullmatch(name):
            raise PipelineError(f"{name!r} is no name of a column: letters, digits, - and _, and no digit first")
        if name.startswith("__"):
            raise PipelineError(f"{name!r} is no name of a column: one that begins with __ would not be told from ours")
        if name.lower() in taken:
            raise PipelineError(f"two columns of the result would have the name {taken[name.lower()]}: rename one")
        taken[name.lower()] = name
    for key in definition.keys:
        if key.source not in RECORD_KEYS:
            canonical_path(key.source)


def parse_group_key(text: str) -> GroupKey:
    """`key`, `topic`, `partition` or a path, `NAME=` before it names the column; else a path's last step does."""
    name, sign, source = text.partition("=")
    if not sign or "'" in name:
        name, source = "", text
    if source in RECORD_KEYS:
        return GroupKey(name or source, source)
    if not source.startswith("$"):
        raise PipelineError(
            f"a group is made of key, topic, partition or a field of the value such as $.carrier, not {source!r}"
        )
    return GroupKey(name or _last_name(source), source)


def _last_name(path: str) -> str:
    name = ""
    for field, quoted, index in _steps(path):
        name = f"{name or 'field'}_{index}" if index else re.sub(r"[^\w-]", "_", field or quoted)
    return name if _NAME.fullmatch(name) else f"_{name}"


def canonical_path(path: str) -> str:
    """A path into JSON (`$.a.b`, `$['a b']`, `$.list[0]`) in the form that Spark takes."""
    return "$" + "".join(f"[{index}]" if index else f"['{field or quoted}']" for field, quoted, index in _steps(path))


def _steps(path: str) -> list[tuple[str, str, str]]:
    if not re.fullmatch(rf"\$(?:{_STEP.pattern})+", path):
        raise PipelineError(f"{path!r} is no path into JSON: $.field, $.outer.inner, $['any name'] or $.list[0]")
    return _STEP.findall(path)


def parse_percentile(name: str) -> float:
    """The percent of a percentile's name: 99.9 of p99.9."""
    match = _PERCENTILE.fullmatch(name)
    if match is None:
        known = ", ".join((*OF_RECORDS, *OF_VALUES))
        raise PipelineError(f"{name!r} is not known: {known} and percentiles such as p50 or p99.9 can be computed")
    return float(match[1])


def column_name(name: str) -> str:
    """The result's column of what is computed: p99_9 of p99.9."""
    return name.replace(".", "_")


def default_compute(value: str) -> tuple[str, ...]:
    """What is computed when nobody says it."""
    return ("count", "bytes", "sum", "min", "max", "avg") if value else ("count", "bytes")


def split_names(texts: Iterable[str]) -> tuple[str, ...]:
    """Words between commas, each once, in their order."""
    return tuple(dict.fromkeys(word.strip() for text in texts for word in text.split(",") if word.strip()))


def differences(now: AggregateDefinition, before: AggregateDefinition) -> list[str]:
    """What of a definition has changed in a way that its state cannot follow: `window_ms 60000, before 3600000`."""
    return [
        f"{field.name} {_shown(getattr(now, field.name))}, before {_shown(getattr(before, field.name))}"
        for field in fields(AggregateDefinition)
        if field.name not in _MAY_CHANGE and getattr(now, field.name) != getattr(before, field.name)
    ]


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return (
            ",".join(f"{one.name}={one.source}" if isinstance(one, GroupKey) else str(one) for one in value) or "none"
        )
    return str(value) if value != "" else "none"
