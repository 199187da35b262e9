"""An aggregate's results as Parquet files with one row for each window and group, and plots of them.

    DIR/date=YYYY-MM-DD/results.parquet    the windows that start on this date (UTC), as of the latest batch
    DIR/_aggregate.json                    the id of the aggregate
    DIR/_checkpoint/                       Spark's checkpoint, unless --checkpoint names another directory
    DIR/_staging/                          a batch's files before they replace the results

Readers always see complete files. For each date with changed windows, a batch writes a new file and replaces the old
one atomically. A batch that is repeated after a crash writes the same rows again.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from kbroker.archive.storage.storage import Storage, walk
from kbroker.pipeline import plot
from kbroker.pipeline.aggregate.definition import AggregateDefinition
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.plot import Points, SpanAmount
from kbroker.pipeline.security import kafka_options
from kbroker.pipeline.spark import functions as f
from kbroker.pipeline.spark import without_globs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


OWNER = "_aggregate.json"
CHECKPOINT = "_checkpoint"
STAGING = "_staging"
RESULTS = "results.parquet"
MAX_THREADS = 8
_STAGED_FILE = re.compile(rf"{STAGING}/date=([^/]+)/[^/]+\.parquet")


def claim_directory(storage: Storage, owner: str) -> None:
    """Assign the directory to the aggregate with this id. Raises PipelineError if it contains anything else."""
    if not storage.exists(OWNER):
        foreign = [entry.name for entry in storage.list_directory("") if entry.name != CHECKPOINT]
        if foreign:
            raise PipelineError(
                f"{storage.root} contains {foreign[0]}, which is not a result of an aggregate: use another directory"
            )
        storage.create(OWNER, json.dumps({"format": "kbroker-aggregate-results", "id": owner}).encode())
    if _owner(storage) != owner:
        raise PipelineError(
            f"{storage.root} has the results of an aggregate with another checkpoint: "
            "use that checkpoint, or another directory"
        )


def remove_staging(storage: Storage) -> None:
    """Delete the files of a batch that was interrupted."""
    storage.delete(STAGING, recursive=True)


def _owner(storage: Storage) -> Any:
    try:
        return json.loads(storage.read(OWNER))["id"]
    except (ValueError, KeyError, TypeError):
        raise PipelineError(f"{storage.root}/{OWNER} is damaged, or not the file of an aggregate") from None


def result_path(date: str) -> str:
    """Return the path of a date's results, relative to the directory."""
    return f"date={date}/{RESULTS}"


def merge_results(storage: Storage, definition: AggregateDefinition, changed: "DataFrame") -> int:
    """Add rows, which replace those of the same window and group. Returns the number of files that were written."""
    dated = changed.selectExpr("*", "date_format(window_start, 'yyyy-MM-dd') AS date").persist()
    try:
        dates = sorted(row.date for row in dated.select("date").distinct().collect())
        if not dates:
            return 0
        rows = _with_unchanged_rows(storage, definition, dated, dates)
        rows = rows.repartition("date").sortWithinPartitions("date", "window_start", *_key_columns(definition))
        rows.write.mode("overwrite").partitionBy("date").option("compression", "zstd").parquet(storage.uri(STAGING))
    finally:
        dated.unpersist()
    return _publish(storage, dates)


def _with_unchanged_rows(
    storage: Storage, definition: AggregateDefinition, dated: "DataFrame", dates: list[str]
) -> "DataFrame":
    existing = [result_path(date) for date in dates if storage.exists(result_path(date))]
    if not existing:
        return dated
    _require_not_empty(storage, existing)
    reader = without_globs(dated.sparkSession.read).schema(dated.drop("date").schema)
    before = reader.parquet(*(storage.uri(path) for path in existing))
    before = before.selectExpr("*", "date_format(window_start, 'yyyy-MM-dd') AS date").alias("before")
    same_row = [f.expr(f"before.{name} <=> changed.{name}") for name in ("window_start", *_key_columns(definition))]
    unchanged = before.join(dated.alias("changed"), on=same_row, how="left_anti")
    return unchanged.select("before.*").unionByName(dated)


def _require_not_empty(storage: Storage, paths: Iterable[str]) -> None:
    """Raise PipelineError for an empty file: Spark would read no rows from it without an error."""
    for path in paths:
        if storage.size(path) == 0:
            raise PipelineError(
                f"{storage.uri(path)} is empty, so its results are lost: aggregate again into another directory"
            )


def _key_columns(definition: AggregateDefinition) -> list[str]:
    return [f"`{key.name}`" for key in definition.keys]


def _publish(storage: Storage, dates: list[str]) -> int:
    """Replace the results with the staged files. Threads share the time of the disk syncs."""
    names = (entry.name for entry in walk(storage, STAGING))
    staged = {match[1]: match[0] for name in names if (match := _STAGED_FILE.fullmatch(name))}
    if sorted(staged) != dates:
        raise PipelineError(f"{storage.root}/{STAGING}: files of a batch disappeared before they were published")
    with ThreadPoolExecutor(MAX_THREADS) as pool:
        list(
            pool.map(lambda date: storage.replace(result_path(date), storage.read(staged[date], max_bytes=None)), dates)
        )
    storage.delete(STAGING, recursive=True)
    return len(staged)


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
    reader = spark.read.format("kafka").options(**kafka_options(bootstrap)).option("subscribe", topic)
    records = reader.option("startingOffsets", "earliest").option("failOnDataLoss", "false").load()
    last_values = records.groupBy("key").agg(f.max_by("value", f.struct("partition", "offset")).alias("value"))
    counts = "".join(f", `{name}` BIGINT" for name in UNITS if name in definition.compute)
    keys = "".join(f", `{key.name}` STRING" for key in definition.keys)
    schema = f"window_start TIMESTAMP{keys}{counts}"
    parsed = last_values.select(f.from_json(f.col("value").cast("string"), schema).alias("row"))
    return parsed.select("row.*").where("window_start IS NOT NULL")
