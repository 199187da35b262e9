"""The Spark job that sends a replay's records, and its tasks. Each target partition belongs to one task.

A task sends the rows of its targets in the order in which it receives them. Spark may run a task again, run two copies
of it at the same time, or kill it. So rows that a target already has are skipped. A pacer limits how fast a task sends:
it returns how many of the next rows may be sent now. `due_ms` are the rows' timestamps in milliseconds, which never
decrease; clocks return seconds since 1970.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from kbroker.common import TopicPartition
from kbroker.pipeline.cluster_admin import cluster_client
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.batch_encoder import ProducerSettings, RecordColumns, read_columns, read_integers
from kbroker.pipeline.replay.producer import ReplayProducer, TargetStart
from kbroker.pipeline.replay.routing import assign_to_tasks
from kbroker.pipeline.replay.selection import SelectedRecords
from kbroker.pipeline.security import use_security_file
from kbroker.pipeline.spark import functions as f
from kbroker.pipeline.spark.session import partition_keys

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

# RatePacer sends in steps of this length.
STEP_S = 0.1
# The longest wait, so that a task uses its connection regularly and notices when the broker is gone.
MAX_WAIT_S = 5.0
# With a speed, the first record is sent this long after the rows are sorted, when all tasks have started.
SPEED_START_DELAY_S = 0.5
# The size of a batch before compression. A topic's max.message.bytes may be lower.
BATCH_BYTES = 512 << 10
# The maximum size of Arrow's batches. It bounds the memory of Spark and of its Python workers.
ARROW_CONF = {
    "spark.sql.execution.arrow.maxBytesPerBatch": str(4 << 20),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
}
# Columns of a task's result, one row for each target: how many records of the replay it has. A task that fails before
# its first row reports NO_TARGET.
RESULT_SCHEMA = "target int, sent bigint, error string"
NO_TARGET = -1


class SpeedLimit(NamedTuple):
    """How fast a replay sends. At most one of the fields is set."""

    rate: float | None = None  # records per second, of all tasks together
    speed: float | None = None  # times real time


@dataclass(frozen=True)
class Pacing:
    """The speed of tasks. At most one of `rates` and `speed` is set."""

    rates: Mapping[int, float] | None = None  # target to records per second of the task that has it
    speed: float | None = None  # times real time
    begin_s: float = 0.0  # for `speed`: when the record that is due at `origin_ms` is sent
    origin_ms: int = 0


class RatePacer:
    """At most `rate` records per second. At most two steps' unused allowance is kept."""

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._allowance = 0.0
        self._updated_at: float | None = None

    def sendable_until(self, due_ms: Sequence[int], start: int) -> int:
        """Return the end of the rows from `start` on that may be sent now; `start` if none may."""
        now = self._clock()
        if self._updated_at is not None:
            self._allowance += (now - self._updated_at) * self._rate
            self._allowance = min(self._allowance, max(1.0, 2 * STEP_S * self._rate))
        self._updated_at = now
        count = min(int(self._allowance), len(due_ms) - start)
        self._allowance -= count
        return start + count

    def wait_s(self, due_ms: Sequence[int], start: int) -> float:
        """Return how many seconds to wait before asking again."""
        step_records = max(1.0, STEP_S * self._rate)
        return min(max(0.0, (step_records - self._allowance) / self._rate), MAX_WAIT_S)


class SpeedPacer:
    """Replays time: a record due at `origin_ms` is sent at `begin_s`, later ones at `speed` times real time."""

    def __init__(self, speed: float, begin_s: float, origin_ms: int, clock: Callable[[], float]) -> None:
        self._speed = speed
        self._begin_s = begin_s
        self._origin_ms = origin_ms
        self._clock = clock

    def sendable_until(self, due_ms: Sequence[int], start: int) -> int:
        """Return the end of the rows from `start` on that may be sent now; `start` if none may."""
        now_ms = self._origin_ms + (self._clock() - self._begin_s) * 1000 * self._speed
        return bisect_right(due_ms, now_ms, lo=start)

    def wait_s(self, due_ms: Sequence[int], start: int) -> float:
        """Return how many seconds to wait before asking again."""
        send_at_s = self._begin_s + (due_ms[start] - self._origin_ms) / 1000 / self._speed
        return min(max(0.0, send_at_s - self._clock()), MAX_WAIT_S)


Pacer = RatePacer | SpeedPacer


@dataclass(frozen=True)
class SendSettings:
    """Parameters of all tasks of a replay. Spark sends them to its executors."""

    bootstrap: str
    producer: ProducerSettings
    targets: Sequence[TopicPartition]  # by target number
    starts: Mapping[TopicPartition, TargetStart]
    replay_id: str | None  # for the origin headers; None for none
    patience_s: float
    batch_bytes: int = BATCH_BYTES
    command_config: str = ""
    kafka: tuple[tuple[str, str], ...] = ()  # of --kafka
    pacing: Pacing = field(default_factory=Pacing)


def send_rows(rows: "Iterable[pa.RecordBatch]", settings: SendSettings) -> "Iterator[pa.RecordBatch]":
    """Send rows with the columns of `read_columns`. A function for Spark's `mapInArrow`; yields RESULT_SCHEMA."""
    import pyarrow as pa

    use_security_file(settings.command_config, settings.kafka)
    with cluster_client(settings.bootstrap) as cluster:
        producer = ReplayProducer(cluster, settings.producer, settings.starts, patience_s=settings.patience_s)
        task = SendTask(producer, settings)
        error = None
        try:
            for batch in rows:
                task.send(batch)
            producer.flush()
        except PipelineError as failure:
            # Returned rather than raised: Spark would run the task again, and it would fail in the same way.
            error = str(failure)
        results = [{"target": target, "sent": sent, "error": error} for target, sent in task.positions.items()]
        if error is not None and not results:
            results = [{"target": NO_TARGET, "sent": 0, "error": error}]
    if results:
        schema = pa.schema([("target", pa.int32()), ("sent", pa.int64()), ("error", pa.string())])
        yield pa.RecordBatch.from_pylist(results, schema=schema)


class SendTask:
    """Sends rows in their order. Targets are numbers, indexes of `SendSettings.targets`."""

    def __init__(
        self,
        producer: ReplayProducer,
        settings: SendSettings,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._producer = producer
        self._settings = settings
        self._clock = clock
        self._sleep = sleep
        self._pacer: Pacer | None = None
        # The number of records of the replay that each target had when the task received its first row.
        self.sent_before: dict[int, int] = {}
        # The position of each target's next row.
        self.positions: dict[int, int] = {}

    def send(self, rows: "pa.RecordBatch") -> None:
        """Send the rows that their targets do not have yet. Some may still be in flight on return."""
        rows = self._skip_sent(rows)
        if not rows.num_rows:
            return
        columns = read_columns(rows, self._settings.replay_id)
        sizes = columns.max_sizes()
        pacer = self._pacer = self._pacer or self._make_pacer(columns.targets[0])
        start = 0
        while start < len(sizes):
            end = len(sizes) if pacer is None else pacer.sendable_until(columns.due, start)
            if end > start:
                self._send(columns, sizes, start, end)
                start = end
            elif pacer is not None:
                self._producer.flush()
                self._sleep(pacer.wait_s(columns.due, start))

    def _make_pacer(self, target: int) -> Pacer | None:
        pacing = self._settings.pacing
        if pacing.rates is not None:
            return RatePacer(pacing.rates[target], self._clock)
        if pacing.speed is not None:
            return SpeedPacer(pacing.speed, pacing.begin_s, pacing.origin_ms, self._clock)
        return None

    def _skip_sent(self, rows: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return the rows that their targets do not have, and advance `positions` past the others."""
        targets = read_integers(rows.column("target"), "i")
        for target in dict.fromkeys(targets):
            if target not in self.positions:
                self.sent_before[target] = self._producer.position(self._settings.targets[target])
                self.positions[target] = 0
        if all(self.positions[target] >= self.sent_before[target] for target in set(targets)):
            return rows
        missing = []
        for row, target in enumerate(targets):
            if self.positions[target] < self.sent_before[target]:
                self.positions[target] += 1
            else:
                missing.append(row)
        return rows.take(missing) if missing else rows.slice(0, 0)

    def _send(self, columns: RecordColumns, sizes: list[int], start: int, end: int) -> None:
        for target, rows in _group_by_target(columns.targets, start, end):
            size_sums = list(accumulate(sizes[row] for row in rows))
            first = 0
            while first < len(rows):
                limit = (size_sums[first - 1] if first else 0) + self._settings.batch_bytes
                last = max(first + 1, bisect_right(size_sums, limit))
                batch_rows = rows[first:last]
                self._producer.send(columns.batch(self._settings.targets[target], self.positions[target], batch_rows))
                self.positions[target] += len(batch_rows)
                first = last


def _group_by_target(targets: list[int], start: int, end: int) -> "Iterator[tuple[int, range | list[int]]]":
    """Yield each target with its rows in [start, end): a range if they all have the same target."""
    if len(set(targets[start:end])) == 1:
        yield targets[start], range(start, end)
        return
    by_target: dict[int, list[int]] = {}
    for row in range(start, end):
        by_target.setdefault(targets[row], []).append(row)
    yield from by_target.items()


def send_records(
    records: SelectedRecords,
    settings: SendSettings,
    counts: Mapping[TopicPartition, int],
    sent: Mapping[TopicPartition, int],
    limit: SpeedLimit,
) -> dict[TopicPartition, int]:
    """Send all records that the targets do not have. Returns how many the targets of this job have afterwards.

    `counts`: how many records each target gets in total; `sent`: how many it has, at least. Raises PipelineError if a
    task fails; Spark's own exceptions are not converted.
    """
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
        return _run_at_speed(rows, settings, limit.speed, _first_due_ms(records, missing, counts))
    if limit.rate is not None:
        settings = replace(settings, pacing=Pacing(rates=_task_rates(missing, task_of, limit.rate)))
    return _run(rows, settings)


def _run_at_speed(rows: "DataFrame", settings: SendSettings, speed: float, origin_ms: int) -> dict[TopicPartition, int]:
    """Sort first, then start the clock, so that the time for sorting does not count."""
    from pyspark import StorageLevel

    rows = rows.persist(StorageLevel.DISK_ONLY)
    try:
        rows.count()
        pacing = Pacing(speed=speed, begin_s=time.time() + SPEED_START_DELAY_S, origin_ms=origin_ms)
        return _run(rows, replace(settings, pacing=pacing))
    finally:
        rows.unpersist()


def _first_due_ms(records: SelectedRecords, missing: Mapping[int, int], counts: Mapping[TopicPartition, int]) -> int:
    """Return the earliest `due` of the records that are not sent yet."""
    targets = records.routing.targets
    sent = _map_column({number: counts[targets[number]] - count for number, count in missing.items()})
    rows = records.with_positions(needs_due=True).where(f.col("target").isin(list(missing)))
    unsent = rows.where(f.col("position") >= f.element_at(sent, f.col("target")))
    row = unsent.agg(f.min("due")).first()
    if row is None or row[0] is None:
        raise PipelineError("the archive has fewer records of the replay than when it was planned")
    return int(row[0])


def _map_column(numbers: Mapping[int, int]) -> "Column":
    return f.create_map(*(f.lit(number) for pair in numbers.items() for number in pair))


def _task_rates(missing: Mapping[int, int], task_of: Mapping[int, int], rate: float) -> dict[int, float]:
    """Divide the rate among the tasks in proportion to their records, so that they finish together."""
    loads: dict[int, int] = {}
    for number, count in missing.items():
        loads[task_of[number]] = loads.get(task_of[number], 0) + count
    total = sum(loads.values())
    return {number: rate * loads[task_of[number]] / total for number in missing}


def _run(rows: "DataFrame", settings: SendSettings) -> dict[TopicPartition, int]:
    conf = rows.sparkSession.conf
    previous = {name: conf.get(name, None) for name in ARROW_CONF}
    for name, value in ARROW_CONF.items():
        conf.set(name, value)
    try:
        results = rows.mapInArrow(partial(send_rows, settings=settings), RESULT_SCHEMA).collect()
    finally:
        for name, before in previous.items():
            if before is not None:
                conf.set(name, before)
    for row in results:
        if row["error"]:
            raise PipelineError(row["error"])
    return {settings.targets[row["target"]]: row["sent"] for row in results}
