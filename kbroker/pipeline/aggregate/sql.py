"""An aggregate's definition as Spark SQL: parses records, then groups them by window and key.

Columns that begin with two underscores are intermediate and not in the result. A record that cannot be parsed has a
name of PROBLEMS in `__problem` and is skipped, not counted as zero. Timestamps are microseconds in UTC. The session's
time zone must be UTC, because it applies to times in JSON without a zone.
"""

from typing import TYPE_CHECKING

from kbroker.pipeline.aggregate.definition import (
    RECORD_KEYS,
    RECORD_TIME,
    AggregateDefinition,
    canonical_path,
    column_name,
)
from kbroker.pipeline.spark import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Why a record is skipped, with a text for users: "2 records without a value".
PROBLEMS = {
    "empty": "without a value",
    "not_json": "not JSON",
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


def source_columns(definition: AggregateDefinition) -> list[str]:
    """Return the columns of the Kafka source, and the parsed JSON if the definition needs it."""
    parsed = ["try_parse_json(CAST(value AS STRING)) AS __document"] if definition.needs_json else []
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


def parse_records(frame: "DataFrame", definition: AggregateDefinition) -> "DataFrame":
    """Return the records of a Kafka source with `record_columns` and `__problem`."""
    records = frame.selectExpr(*source_columns(definition)).selectExpr(*record_columns(definition))
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
