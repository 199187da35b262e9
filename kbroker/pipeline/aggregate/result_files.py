"""An aggregate's results as Parquet that any reader takes as it is: one row for each window and group, at any time.

    DIR/date=YYYY-MM-DD/results.parquet    the windows that begin on this date (UTC), as of the latest batch
    DIR/_aggregate.json                    whose results these are
    DIR/_checkpoint/                       Spark's checkpoint (default place)
    DIR/_staging/                          a batch's files before they are put in place

A batch brings the new rows of the windows that it changed. For each date that has one, the file is written anew and put
in the place of the old one, atomically. A batch that is done twice, after a crash, writes the same rows again.
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
AT_ONCE = 8
_STAGED = re.compile(rf"{STAGING}/date=([^/]+)/[^/]+\.parquet")


def claim_directory(storage: Storage, owner: str) -> None:
    """Makes the directory the aggregate's with this id. PipelineError where it holds something else."""
    if not storage.exists(OWNER):
        foreign = [entry.name for entry in storage.list_directory("") if entry.name != CHECKPOINT]
        if foreign:
            raise PipelineError(f"{storage.root} holds something else than results of an aggregate: {foreign[0]}")
        storage.create(OWNER, json.dumps({"format": "kbroker-aggregate-results", "id": owner}).encode())
    if _owner(storage) != owner:
        raise PipelineError(
            f"{storage.root} holds the results of an aggregate that goes on from another checkpoint: "
            "name that one, or another directory"
        )


def remove_staging(storage: Storage) -> None:
    """Removes what a batch that was cut short has left."""
    storage.delete(STAGING, recursive=True)


def _owner(storage: Storage) -> Any:
    try:
        return json.loads(storage.read(OWNER))["id"]
    except (ValueError, KeyError, TypeError):
        raise PipelineError(f"{storage.root}/{OWNER} is damaged or of something else") from None


def result_path(date: str) -> str:
    """The file of a date's results, relative to the directory."""
    return f"date={date}/{RESULTS}"


def merge_results(storage: Storage, definition: AggregateDefinition, changed: "DataFrame") -> int:
    """Puts rows in the place of those of the same window and group; gives the number of files that were written."""
    dated = changed.selectExpr("*", "date_format(window_start, 'yyyy-MM-dd') AS date").persist()
    try:
        dates = sorted(row.date for row in dated.select("date").distinct().collect())
        if not dates:
            return 0
        rows = _with_unchanged(storage, definition, dated, dates)
        rows = rows.repartition("date").sortWithinPartitions("date", "window_start", *_groups(definition))
        rows.write.mode("overwrite").partitionBy("date").option("compression", "zstd").parquet(storage.uri(STAGING))
    finally:
        dated.unpersist()
    return _publish(storage, dates)


def _with_unchanged(
    storage: Storage, definition: AggregateDefinition, dated: "DataFrame", dates: list[str]
) -> "DataFrame":
    from pyspark.sql import functions as F

    there = [result_path(date) for date in dates if storage.exists(result_path(date))]
    if not there:
        return dated
    _require_whole(storage, there)
    reader = without_globs(dated.sparkSession.read).schema(dated.drop("date").schema)
    before = reader.parquet(*(storage.uri(path) for path in there))
    before = before.selectExpr("*", "date_format(window_start, 'yyyy-MM-dd') AS date").alias("before")
    same = [F.expr(f"before.{name} <=> changed.{name}") for name in ("window_start", *_groups(definition))]
    unchanged = before.join(dated.alias("changed"), on=same, how="left_anti")
    return unchanged.select("before.*").unionByName(dated)


def _require_whole(storage: Storage, paths: Iterable[str]) -> None:
    """Raises PipelineError for an empty file: Spark would read no rows of it, and its results would be dropped."""
    for path in paths:
        if storage.size(path) == 0:
            raise PipelineError(
                f"{storage.uri(path)} is empty, so earlier results are lost: aggregate again into another directory"
            )


def _groups(definition: AggregateDefinition) -> list[str]:
    return [f"`{key.name}`" for key in definition.keys]


def _publish(storage: Storage, dates: list[str]) -> int:
    """Each file is synced to the disk, so that several at a time take little longer than one."""
    names = (entry.name for entry in walk(storage, STAGING))
    staged = {match[1]: match[0] for name in names if (match := _STAGED.fullmatch(name))}
    if sorted(staged) != dates:
        raise PipelineError(f"{storage.root}/{STAGING}: files of a batch vanished before they were in place")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(
            pool.map(lambda date: storage.replace(result_path(date), storage.read(staged[date], max_bytes=None)), dates)
        )
    storage.delete(STAGING, recursive=True)
    return len(staged)
