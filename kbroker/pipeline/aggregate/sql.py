"""A definition as Spark: records into rows with a time, a number and a group, and those into windows.

Columns that begin with two underscores are between the steps; none of them is in a result. A record that cannot be
counted has the name of its problem in `__problem` (PROBLEMS) and is left out, never taken for a zero. Timestamps are
microseconds in UTC: the session's time zone has to be UTC, for times in JSON that name no zone are in the session's.
"""

from typing import TYPE_CHECKING

from kbroker.pipeline.aggregate.definition import (
    RECORD_KEYS,
    RECORD_TIME,
    AggregateDefinition,
    canonical_path,
    column_name,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# What may be wrong with a record, and how it is told.
PROBLEMS = {
    "empty": "without a value",
    "not_json": "not JSON",
    "no_time": "without a time that can be read",
    "ahead": "from the future",
    "not_a_number": "whose value is not a number",
}
OBSERVED = "kbroker"
# Numbers from here on are milliseconds since 1970, smaller ones seconds: 1973 as the former, 5138 as the latter.
_FIRST_MS = "100000000000"
# Of 1 / relative error in rank.
_ACCURACY = 10_000
_TIME_FORMAT = r"yyyy-MM-dd\'T\'HH:mm:ss.SSS\'Z\'"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _field(path: str, kind: str) -> str:
    """NULL where the field is absent, null, or no such thing."""
    return f"try_variant_get(__document, {_quoted(canonical_path(path))}, '{kind}')"


def _time(definition: AggregateDefinition) -> str:
    """NULL before 1970, where the watermark of every aggregate begins."""
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


def document(definition: AggregateDefinition) -> list[str]:
    """What is taken of a Kafka row."""
    parsed = ["try_parse_json(CAST(value AS STRING)) AS __document"] if definition.needs_json else []
    return ["key", "value", "topic", "partition", "offset", "timestamp", *parsed]


def rows(definition: AggregateDefinition) -> list[str]:
    """What is made of it."""
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


def problem(definition: AggregateDefinition) -> str:
    """The name of what is wrong with a row, or NULL."""
    whens = []
    if definition.needs_json:
        whens += ["WHEN __empty THEN 'empty'", "WHEN __broken THEN 'not_json'"]
    latest = f"unix_micros(current_timestamp()) + {definition.max_ahead_ms}000"
    whens += ["WHEN __time IS NULL THEN 'no_time'", f"WHEN unix_micros(__time) > {latest} THEN 'ahead'"]
    if definition.value:
        # true and false would be 1 and 0, and Java reads "5d" and "0x1p3" as numbers; "NaN" and 1e999 would spoil
        # every sum
        usable = "__text RLIKE '^ *[-+0-9.eE]+ *$' AND __number IS NOT NULL AND abs(__number) < double('Infinity')"
        whens.append(f"WHEN __text IS NOT NULL AND NOT ({usable}) THEN 'not_a_number'")
    return f"CASE {' '.join(whens)} END AS __problem"


def computed(definition: AggregateDefinition) -> list[str]:
    """The aggregates over a window's rows."""
    sql = {
        "count": "count(*)",
        "bytes": "sum(__bytes)",
        "values": "count(__number)",
        **{name: f"{name}(__number)" for name in ("sum", "min", "max", "avg")},
    }
    listed = [f"{sql[name]} AS `{name}`" for name in definition.compute if name in sql]
    if definition.percentiles:
        fractions = ", ".join(f"{fraction!r}D" for fraction in definition.percentiles.values())
        if definition.approximate:
            listed.append(f"percentile_approx(__number, array({fractions}), {_ACCURACY}) AS __percentiles")
        else:
            listed.append(f"percentile(__number, array({fractions})) AS __percentiles")
    return listed


def result(definition: AggregateDefinition) -> list[str]:
    """The columns of a result, in order."""
    place = {name: index for index, name in enumerate(definition.percentiles)}
    return [
        "window.start AS window_start",
        "window.end AS window_end",
        *(f"`{key.name}`" for key in definition.keys),
        *(
            f"__percentiles[{place[name]}] AS `{column_name(name)}`" if name in place else f"`{name}`"
            for name in definition.compute
        ),
    ]


def message(definition: AggregateDefinition) -> list[str]:
    """A result's row as a Kafka record: its window and group as the key, all of it as the value, both JSON."""
    start, end = (f"date_format({name}, '{_TIME_FORMAT}') AS {name}" for name in ("window_start", "window_end"))
    groups = [f"`{key.name}`" for key in definition.keys]
    aggregates = [f"`{column_name(name)}`" for name in definition.compute]
    return [f"{_as_json([start, *groups])} AS key", f"{_as_json([start, end, *groups, *aggregates])} AS value"]


def _as_json(columns: list[str]) -> str:
    return f"to_json(struct({', '.join(columns)}), map('ignoreNullFields', 'false'))"


def read(frame: "DataFrame", definition: AggregateDefinition) -> "DataFrame":
    """Rows of Kafka's connector as rows to be counted, and those that cannot be, with `__problem`."""
    made = frame.selectExpr(*document(definition)).selectExpr(*rows(definition))
    return made.selectExpr("*", problem(definition))


def observed(frame: "DataFrame") -> "DataFrame":
    """The same rows; how many there are, and how many have which problem, comes with the query's progress."""
    from pyspark.sql import functions as F

    problems = [F.expr(f"count_if(__problem = '{name}')").alias(name) for name in PROBLEMS]
    return frame.observe(OBSERVED, F.count(F.lit(1)).alias("records"), *problems)


def aggregated(frame: "DataFrame", definition: AggregateDefinition) -> "DataFrame":
    """The windows of rows that `read` made, streaming or not."""
    from pyspark.sql import functions as F

    kept = frame.where("__problem IS NULL").withWatermark("__time", f"{definition.watermark_ms} milliseconds")
    groups = [F.expr(f"`{key.name}`").alias(key.name) for key in definition.keys]
    first, *others = (F.expr(text) for text in computed(definition))
    return kept.groupBy(windows(definition), *groups).agg(first, *others).selectExpr(*result(definition))


def windows(definition: AggregateDefinition):  # type: ignore[no-untyped-def]  # pyspark's Column is imported late
    """The column `window`: a row for each window that `__time` is in."""
    from pyspark.sql import functions as F

    length, slide, offset = (
        f"{ms} milliseconds"
        for ms in (definition.window_ms, definition.slide_ms, definition.offset_ms % definition.slide_ms)
    )
    return F.window("__time", length, slide, offset).alias("window")
