"""An aggregate's results as Parquet files with one row for each window and group. Readers always see complete files.

    DIR/date=YYYY-MM-DD/results.parquet    the windows that start on this date (UTC), as of the latest batch
    DIR/_aggregate.json                    the id of the aggregate
    DIR/_checkpoint/                       Spark's checkpoint, unless --checkpoint names another directory
    DIR/_staging/                          a batch's files before they replace the results

For each date with changed windows, a batch writes a new file and replaces the old one atomically. A batch that is
repeated after a crash writes the same rows again.
"""

import json
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from kbroker.pipeline.aggregate.definition import AggregateDefinition
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.location import without_globs
from kbroker.pipeline.storage.storage import Storage
from kbroker.pipeline.storage.walk import walk

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
    from pyspark.sql import functions as F

    existing = [result_path(date) for date in dates if storage.exists(result_path(date))]
    if not existing:
        return dated
    _require_not_empty(storage, existing)
    reader = without_globs(dated.sparkSession.read).schema(dated.drop("date").schema)
    before = reader.parquet(*(storage.uri(path) for path in existing))
    before = before.selectExpr("*", "date_format(window_start, 'yyyy-MM-dd') AS date").alias("before")
    same_row = [F.expr(f"before.{name} <=> changed.{name}") for name in ("window_start", *_key_columns(definition))]
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
