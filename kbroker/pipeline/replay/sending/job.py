"""The Spark job that sends a replay's records. Each target partition belongs to one task."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kbroker.common import TopicPartition
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.routing import assign_to_tasks
from kbroker.pipeline.replay.selection import SelectedRecords
from kbroker.pipeline.replay.sending.task import RESULT_SCHEMA, Pacing, SendSettings, send_rows
from kbroker.pipeline.spark.session import partition_keys

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql import Row as SparkRow

# The maximum size of Arrow's batches. It bounds the memory of Spark and of its Python workers.
ARROW_BYTES = 4 << 20
ARROW_ROWS = 10_000
ARROW_ROWS_CONF = "spark.sql.execution.arrow.maxRecordsPerBatch"
# With a speed, the first record is sent this long after the rows are sorted, when all tasks have started.
SPEED_START_DELAY_S = 0.5


class SpeedLimit(NamedTuple):
    """How fast a replay sends. At most one of the fields is set."""

    rate: float | None = None  # records per second, of all tasks together
    speed: float | None = None  # times real time


class SendResult(NamedTuple):
    """How many records of the replay the target has: before this run, and after it."""

    sent_before: int
    sent: int


def send_records(
    records: SelectedRecords,
    settings: SendSettings,
    counts: Mapping[TopicPartition, int],
    sent: Mapping[TopicPartition, int],
    limit: SpeedLimit,
    mean_size: int,
) -> dict[TopicPartition, SendResult]:
    """Send all records that the targets do not have.

    `counts`: how many records each target gets in total; `sent`: how many it has, at least. `mean_size`: bytes of a
    record. Raises PipelineError if a task fails; Spark's own exceptions are not converted.
    """
    from pyspark.sql import functions as f

    missing = {number: counts.get(target, 0) - sent.get(target, 0) for number, target in enumerate(settings.targets)}
    missing = {number: count for number, count in missing.items() if count > 0}
    if not missing:
        return {}
    task_count = min(len(missing), records.spark.sparkContext.defaultParallelism)
    task_of = assign_to_tasks(missing, task_count)
    keys = partition_keys(records.spark, task_count)
    key_of_target = _map_column({number: keys[task] for number, task in task_of.items()})
    rows = records.frame().where(f.col("target").isin(list(missing)))
    needs_due = records.by_time or limit.speed is not None
    rows = records.with_due(rows) if needs_due else rows.withColumn("due", f.col("timestamp"))
    # With a speed, a task sends its targets' records in time order, so that none of them waits for another.
    order = ["due", "target", "topic", "partition", "offset"] if limit.speed else ["target", *records.order]
    task_key = f.element_at(key_of_target, f.col("target")).cast("bigint")
    rows = rows.repartition(task_count, task_key).sortWithinPartitions(*order)
    if limit.speed is not None:
        return _run_at_speed(rows, settings, limit.speed, _first_due_ms(records, missing, counts), mean_size)
    return _run(rows, _with_rates(settings, missing, task_of, limit.rate), mean_size)


def _run_at_speed(
    rows: "DataFrame", settings: SendSettings, speed: float, origin_ms: int, mean_size: int
) -> dict[TopicPartition, SendResult]:
    """Sort first, then start the clock, so that the time for sorting does not count."""
    from pyspark import StorageLevel

    rows = rows.persist(StorageLevel.DISK_ONLY)
    try:
        rows.count()
        pacing = Pacing(speed=speed, begin_s=time.time() + SPEED_START_DELAY_S, origin_ms=origin_ms)
        return _run(rows, replace(settings, pacing=pacing), mean_size)
    finally:
        rows.unpersist()


def _first_due_ms(records: SelectedRecords, missing: Mapping[int, int], counts: Mapping[TopicPartition, int]) -> int:
    """Return the earliest `due` of the records that are not sent yet."""
    from pyspark.sql import functions as f

    targets = records.routing.targets
    sent = _map_column({number: counts[targets[number]] - count for number, count in missing.items()})
    rows = records.with_positions(needs_due=True).where(f.col("target").isin(list(missing)))
    unsent = rows.where(f.col("position") >= f.element_at(sent, f.col("target")))
    row = unsent.agg(f.min("due")).first()
    if row is None or row[0] is None:
        raise PipelineError("the archive has fewer records of the replay than when it was planned")
    return int(row[0])


def _map_column(numbers: Mapping[int, int]) -> "Column":
    from pyspark.sql import functions as f

    return f.create_map(*(f.lit(number) for pair in numbers.items() for number in pair))


def _with_rates(
    settings: SendSettings, missing: Mapping[int, int], task_of: Mapping[int, int], rate: float | None
) -> SendSettings:
    """Divide the rate among the tasks in proportion to their records, so that they finish together."""
    if rate is None:
        return settings
    loads: dict[int, int] = {}
    for number, count in missing.items():
        loads[task_of[number]] = loads.get(task_of[number], 0) + count
    total = sum(loads.values())
    rates = {number: rate * loads[task_of[number]] / total for number in missing}
    return replace(settings, pacing=Pacing(rates=rates))


def _run(rows: "DataFrame", settings: SendSettings, mean_size: int) -> dict[TopicPartition, SendResult]:
    conf = rows.sparkSession.conf
    previous = conf.get(ARROW_ROWS_CONF)
    conf.set(ARROW_ROWS_CONF, str(max(1, min(ARROW_ROWS, ARROW_BYTES // max(1, mean_size)))))
    try:
        results = rows.mapInArrow(partial(send_rows, settings=settings), RESULT_SCHEMA).collect()
    finally:
        if previous is not None:
            conf.set(ARROW_ROWS_CONF, previous)
    _raise_first_error(results)
    return {settings.targets[row["target"]]: SendResult(row["sent_before"], row["sent"]) for row in results}


def _raise_first_error(results: "Iterable[SparkRow]") -> None:
    for row in results:
        if row["error"]:
            raise PipelineError(row["error"])
