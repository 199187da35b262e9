"""The definition of a windowed aggregate (topics, windows, group keys, functions), and its Spark SQL (pure).

Durations are milliseconds. Windows are [start, end) in UTC.

The SQL parses records, then groups them by window and key. Columns that begin with two underscores are intermediate and
not in the result. A record that cannot be parsed has a name of PROBLEMS in `__problem` and is skipped, not counted as
zero. Timestamps are microseconds in UTC. The session's time zone must be UTC, because it applies to times in JSON
without a zone.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.spark import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


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
    value_format: str = "json"  # or avro, protobuf: values are decoded to JSON

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


# Why a record is skipped, with a text for users: "2 records without a value".
PROBLEMS = {
    "empty": "without a value",
    "not_json": "that could not be decoded",
    "no_time": "without a valid time",
    "ahead": "from the future",
    "not_a_number": "with a value that is not a number",
}
OBSERVATION = "kbroker"
# Smaller numbers are seconds since 1970 (up to the year 5138), others milliseconds (from the year 1973).
_FIRST_MS = "100000000000"
# The inverse of the relative error in rank.
_ACCURACY = 10_000
_TIME_FORMAT = r"yyyy-MM-dd\'T\'HH:mm:ss.SSS\'Z\'"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _field(path: str, kind: str) -> str:
    """Return the SQL of a JSON field; NULL if it is missing, null or of another type."""
    return f"try_variant_get(__document, {_quoted(canonical_path(path))}, '{kind}')"


def _time(definition: AggregateDefinition) -> str:
    """Return the SQL of a record's time; NULL before 1970, because watermarks start there."""
    if definition.time == RECORD_TIME:
        return "CASE WHEN unix_micros(timestamp) >= 0 THEN timestamp END"
    text = _field(definition.time, "string")
    number = f"try_cast({text} AS DECIMAL(20, 6))"
    return (
        f"CASE WHEN {text} RLIKE '^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}' "
        f"THEN CASE WHEN try_cast({text} AS TIMESTAMP) >= timestamp_micros(0) THEN try_cast({text} AS TIMESTAMP) END "
        f"WHEN {number} < 0 THEN NULL "
        f"WHEN {number} < {_FIRST_MS} THEN timestamp_micros(CAST({number} * 1000000 AS BIGINT)) "
        f"ELSE timestamp_micros(CAST({number} * 1000 AS BIGINT)) END"
    )


def source_columns(definition: AggregateDefinition, decode: str | None = None) -> list[str]:
    """Return the columns of the Kafka source, and the parsed JSON if the definition needs it.

    `decode` is the name of a function that decodes values to JSON, if they are not JSON themselves.
    """
    text = "CAST(value AS STRING)" if decode is None else f"{decode}(value)"
    parsed = [f"try_parse_json({text}) AS __document"] if definition.needs_json else []
    return ["key", "value", "topic", "partition", "offset", "timestamp", *parsed]


def record_columns(definition: AggregateDefinition) -> list[str]:
    """Return the columns of a parsed record: time, size, position, number, group keys."""
    groups = [
        f"{RECORD_KEYS.get(key.source) or _field(key.source, 'string')} AS `{key.name}`" for key in definition.keys
    ]
    numbers = []
    if definition.value:
        numbers = [
            f"{_field(definition.value, 'string')} AS __text",
            f"{_field(definition.value, 'double')} AS __number",
        ]
    return [
        f"{_time(definition)} AS __time",
        "coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) AS __bytes",
        "struct(topic, partition, offset) AS __position",
        "value IS NULL AS __empty",
        f"{'__document IS NULL' if definition.needs_json else 'false'} AS __broken",
        *numbers,
        *groups,
    ]


def problem_column(definition: AggregateDefinition) -> str:
    """Return the column `__problem`: why a record is skipped, or NULL."""
    whens = []
    if definition.needs_json:
        whens += ["WHEN __empty THEN 'empty'", "WHEN __broken THEN 'not_json'"]
    latest = f"unix_micros(current_timestamp()) + {definition.max_ahead_ms}000"
    whens += ["WHEN __time IS NULL THEN 'no_time'", f"WHEN unix_micros(__time) > {latest} THEN 'ahead'"]
    if definition.value:
        # Spark casts true and false to 1 and 0, and Java parses "5d" and "0x1p3". "NaN" and 1e999 would make every sum
        # NaN or infinite.
        is_number = "__text RLIKE '^ *[-+0-9.eE]+ *$' AND __number IS NOT NULL AND abs(__number) < double('Infinity')"
        whens.append(f"WHEN __text IS NOT NULL AND NOT ({is_number}) THEN 'not_a_number'")
    return f"CASE {' '.join(whens)} END AS __problem"


def aggregate_columns(definition: AggregateDefinition) -> list[str]:
    """Return the aggregate functions over the records of a window."""
    sql = {
        "count": "count(*)",
        "bytes": "sum(__bytes)",
        "values": "count(__number)",
        **{name: f"{name}(__number)" for name in ("sum", "min", "max", "avg")},
    }
    columns = [f"{sql[name]} AS `{name}`" for name in definition.compute if name in sql]
    if definition.percentiles:
        fractions = ", ".join(f"{fraction!r}D" for fraction in definition.percentiles.values())
        if definition.approximate:
            columns.append(f"percentile_approx(__number, array({fractions}), {_ACCURACY}) AS __percentiles")
        else:
            columns.append(f"percentile(__number, array({fractions})) AS __percentiles")
    return columns


def result_columns(definition: AggregateDefinition) -> list[str]:
    """Return the columns of the result in their order."""
    index_of = {name: index for index, name in enumerate(definition.percentiles)}
    return [
        "window.start AS window_start",
        "window.end AS window_end",
        *(f"`{key.name}`" for key in definition.keys),
        *(
            f"__percentiles[{index_of[name]}] AS `{column_name(name)}`" if name in index_of else f"`{name}`"
            for name in definition.compute
        ),
    ]


def message_columns(definition: AggregateDefinition) -> list[str]:
    """Return the columns of a Kafka record for a row: a JSON key of window and group, a JSON value of all columns."""
    start, end = (f"date_format({name}, '{_TIME_FORMAT}') AS {name}" for name in ("window_start", "window_end"))
    groups = [f"`{key.name}`" for key in definition.keys]
    aggregates = [f"`{column_name(name)}`" for name in definition.compute]
    return [f"{_as_json([start, *groups])} AS key", f"{_as_json([start, end, *groups, *aggregates])} AS value"]


def _as_json(columns: list[str]) -> str:
    return f"to_json(struct({', '.join(columns)}), map('ignoreNullFields', 'false'))"


def parse_records(frame: "DataFrame", definition: AggregateDefinition, decode: str | None = None) -> "DataFrame":
    """Return the records of a Kafka source with `record_columns` and `__problem`."""
    records = frame.selectExpr(*source_columns(definition, decode)).selectExpr(*record_columns(definition))
    return records.selectExpr("*", problem_column(definition))


def observe_problems(frame: "DataFrame") -> "DataFrame":
    """Return the same rows. The query's progress then has the number of records, and of each problem."""
    problems = [f.expr(f"count_if(__problem = '{name}')").alias(name) for name in PROBLEMS]
    return frame.observe(OBSERVATION, f.count(f.lit(1)).alias("records"), *problems)


def aggregate_windows(frame: "DataFrame", definition: AggregateDefinition) -> "DataFrame":
    """Return the result rows of parsed records, which may be a stream."""
    valid = frame.where("__problem IS NULL").withWatermark("__time", f"{definition.watermark_ms} milliseconds")
    groups = [f.expr(f"`{key.name}`").alias(key.name) for key in definition.keys]
    first, *others = (f.expr(text) for text in aggregate_columns(definition))
    grouped = valid.groupBy(window_column(definition), *groups).agg(first, *others)
    return grouped.selectExpr(*result_columns(definition))


def window_column(definition: AggregateDefinition) -> "Column":
    """Return the column `window`, which yields a row for each window that contains `__time`."""
    length, slide, offset = (
        f"{ms} milliseconds"
        for ms in (definition.window_ms, definition.slide_ms, definition.offset_ms % definition.slide_ms)
    )
    return f.window("__time", length, slide, offset).alias("window")
