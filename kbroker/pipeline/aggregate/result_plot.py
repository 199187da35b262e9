"""Plots the results of an aggregate, including those of earlier runs: records and bytes over time, by group."""

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from kbroker.pipeline import plot
from kbroker.pipeline.aggregate.definition import AggregateDefinition
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.plot import Points, SpanAmount
from kbroker.pipeline.storage.location import without_globs
from kbroker.pipeline.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The plotted columns and their units.
UNITS = {"count": "records", "bytes": "bytes of keys and values"}
NO_GROUP = "all"
_KEY_SEPARATOR = " / "


def check_plot(path: str, definition: AggregateDefinition) -> None:
    """Raise PipelineError if the results of this definition could not be plotted to this path."""
    plot.check_plot_path(path)
    if "count" not in definition.compute:
        raise PipelineError("a plot requires the count: add it to --compute")


def draw_results(path: str, definition: AggregateDefinition, rows: "DataFrame") -> None:
    """Write a PNG of the rows of `labeled_rows`.

    Raises PipelineError if there are no rows or the file cannot be written.
    """
    results = rows.collect()
    if not results:
        raise PipelineError(f"{path}: there is nothing to plot yet")
    series = {name: _series(definition, name, results) for name in UNITS if name in definition.compute}
    length = definition.window_ms
    stacked = definition.slide_ms == length
    width = _bucket_ms(definition, results) if stacked else None
    overlap = f"each window is {_length(length)} long, and a new one starts every {_span(definition.slide_ms)}"
    plot.plot_over_time(
        path,
        f"{', '.join(definition.topics)}, by {' and '.join(key.name for key in definition.keys) or 'time'}",
        plot.largest_series(series["count"]),
        f"{UNITS['count']} per {_span(width or length)}",
        lower=plot.largest_series(series["bytes"]) if "bytes" in series else None,
        lower_unit=f"{UNITS['bytes']} per {_span(width or length)}",
        width_ms=width,
        note="" if stacked else overlap,
    )


def _bucket_ms(definition: AggregateDefinition, results: list[Any]) -> int:
    """Return the length of a window, or of a longer bucket if there are too many windows for a plot."""
    starts = [row.from_ms for row in results]
    return max(definition.window_ms, plot.bucket_length(min(starts), max(starts)).ms)


def _series(definition: AggregateDefinition, name: str, results: list[Any]) -> dict[str, Points]:
    points: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in results:
        points[row.label].append((row.from_ms, float(row[name] or 0)))
    bucket_ms = _bucket_ms(definition, results)
    if definition.slide_ms != definition.window_ms or bucket_ms == definition.window_ms:
        return {label: sorted(listed) for label, listed in points.items()}
    return {
        label: plot.sum_by_bucket(
            (SpanAmount(start, start + definition.window_ms - 1, value) for start, value in listed), bucket_ms
        )
        for label, listed in points.items()
    }


def _span(ms: int) -> str:
    """Format a duration after "per" or "every": `hour`, `30 minutes`, `250 ms`."""
    for unit, length in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000)):
        if ms % length == 0:
            return unit if ms == length else f"{ms // length} {unit}s"
    return f"{ms} ms"


def _length(ms: int) -> str:
    text = _span(ms)
    return text if text[0].isdigit() else f"1 {text}"


def read_results(spark: "SparkSession", storage: Storage) -> "DataFrame":
    """Return the results in a directory. Raises PipelineError if there are none."""
    if not any(entry.name.startswith("date=") for entry in storage.list_directory("")):
        raise PipelineError(f"{storage.root}: there is nothing to plot yet")
    return without_globs(spark.read).parquet(storage.uri(""))


def labeled_rows(definition: AggregateDefinition, results: "DataFrame") -> "DataFrame":
    """Return the columns of a plot: `label` of the group, `from_ms` of the window, and those of UNITS."""
    names = ", ".join(f"coalesce(CAST(`{key.name}` AS STRING), 'null')" for key in definition.keys)
    label = f"concat_ws('{_KEY_SEPARATOR}', {names})" if names else f"'{NO_GROUP}'"
    columns = [name for name in UNITS if name in definition.compute]
    return results.selectExpr(f"{label} AS label", "unix_millis(window_start) AS from_ms", *columns)


def read_topic_results(
    spark: "SparkSession", bootstrap: str, topic: str, definition: AggregateDefinition
) -> "DataFrame":
    """Return the results in a topic: the last record of each key, as columns."""
    from pyspark.sql import functions as F

    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    records = reader.option("startingOffsets", "earliest").option("failOnDataLoss", "false").load()
    last_values = records.groupBy("key").agg(F.max_by("value", F.struct("partition", "offset")).alias("value"))
    counts = "".join(f", `{name}` BIGINT" for name in UNITS if name in definition.compute)
    keys = "".join(f", `{key.name}` STRING" for key in definition.keys)
    schema = f"window_start TIMESTAMP{keys}{counts}"
    parsed = last_values.select(F.from_json(F.col("value").cast("string"), schema).alias("row"))
    return parsed.select("row.*").where("window_start IS NOT NULL")
