"""A picture of an aggregate's results so far: records and bytes over time, by group.

It is drawn from the results themselves, so that it shows what earlier runs have done too.
"""

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

UNITS = {"count": "records", "bytes": "bytes of keys and values"}
NO_GROUP = "all"
_LABEL = " / "


def check_plot(path: str, definition: AggregateDefinition) -> None:
    """Refuses what `draw` could not do once the work is done. Raises PipelineError."""
    plot.check_plot_path(path)
    if "count" not in definition.compute:
        raise PipelineError("a plot shows the count: compute it too")


def draw_results(path: str, definition: AggregateDefinition, rows: "DataFrame") -> None:
    """Writes a PNG of the results `rows`, which have `label`, `from_ms` and what UNITS names of them.

    Raises PipelineError where there are none, or the file cannot be written.
    """
    shown = [name for name in UNITS if name in definition.compute]
    found = rows.collect()
    if not found:
        raise PipelineError(f"{path}: there is nothing to plot yet")
    series = {name: _series(definition, name, found) for name in shown}
    length = definition.window_ms
    stacked = definition.slide_ms == length
    width = _width(definition, found) if stacked else None
    overlap = f"each window is {_length(length)} long, and a new one begins every {_span(definition.slide_ms)}"
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


def _width(definition: AggregateDefinition, found: list[Any]) -> int:
    """A window's length, or where there are too many of them to be seen, that of a longer bucket."""
    starts = [row.from_ms for row in found]
    return max(definition.window_ms, plot.bucket_length(min(starts), max(starts)).ms)


def _series(definition: AggregateDefinition, name: str, found: list[Any]) -> dict[str, Points]:
    points: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in found:
        points[row.label].append((row.from_ms, float(row[name] or 0)))
    if definition.slide_ms != definition.window_ms:
        return {label: sorted(listed) for label, listed in points.items()}
    width = _width(definition, found)
    if width == definition.window_ms:
        return {label: sorted(listed) for label, listed in points.items()}
    return {
        label: plot.sum_by_bucket((SpanAmount(at, at + definition.window_ms - 1, value) for at, value in listed), width)
        for label, listed in points.items()
    }


def _span(ms: int) -> str:
    """`hour`, `30 minutes`, `250 ms`."""
    for unit, length in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000)):
        if ms % length == 0:
            return unit if ms == length else f"{ms // length} {unit}s"
    return f"{ms} ms"


def _length(ms: int) -> str:
    text = _span(ms)
    return text if text[0].isdigit() else f"1 {text}"


def read_results(spark: "SparkSession", storage: Storage) -> "DataFrame":
    """The results in a directory. Raises PipelineError where there are none."""
    if not any(entry.name.startswith("date=") for entry in storage.list_directory("")):
        raise PipelineError(f"{storage.root}: there is nothing to plot yet")
    return without_globs(spark.read).parquet(storage.uri(""))


def labeled_rows(definition: AggregateDefinition, results: "DataFrame") -> "DataFrame":
    """What `draw` takes, of results with the columns that they have in Parquet."""
    names = ", ".join(f"coalesce(CAST(`{key.name}` AS STRING), 'null')" for key in definition.keys)
    label = f"concat_ws('{_LABEL}', {names})" if names else f"'{NO_GROUP}'"
    columns = [name for name in UNITS if name in definition.compute]
    return results.selectExpr(f"{label} AS label", "unix_millis(window_start) AS from_ms", *columns)


def read_topic_results(
    spark: "SparkSession", bootstrap: str, topic: str, definition: AggregateDefinition
) -> "DataFrame":
    """The results in a topic: the last record of each key, as columns."""
    from pyspark.sql import functions as F

    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    records = reader.option("startingOffsets", "earliest").option("failOnDataLoss", "false").load()
    last = records.groupBy("key").agg(F.max_by("value", F.struct("partition", "offset")).alias("value"))
    counts = "".join(f", `{name}` BIGINT" for name in UNITS if name in definition.compute)
    keys = "".join(f", `{key.name}` STRING" for key in definition.keys)
    schema = f"window_start TIMESTAMP{keys}{counts}"
    parsed = last.select(F.from_json(F.col("value").cast("string"), schema).alias("row"))
    return parsed.select("row.*").where("window_start IS NOT NULL")
