"""One Spark task of a replay: sends the rows of its target partitions in the order in which it receives them.

Spark may run a task again, run two copies of it at the same time, or kill it. So rows that a target already has are
skipped. A pacer limits how fast a task sends: it returns how many of the next rows may be sent now. `due_ms` are the
rows' timestamps in milliseconds, which never decrease; clocks return seconds since 1970.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

from kbroker.common import TopicPartition
from kbroker.pipeline.cluster_admin import cluster_client
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.progress import TargetStart
from kbroker.pipeline.replay.sending.batch_encoder import ProducerSettings, RecordColumns, read_columns, read_integers
from kbroker.pipeline.replay.sending.producer import ReplayProducer

if TYPE_CHECKING:
    import pyarrow as pa


# RatePacer sends in steps of this length.
STEP_S = 0.1
# The longest wait, so that a task uses its connection regularly and notices when the broker is gone.
MAX_WAIT_S = 5.0


class Pacer(Protocol):
    def sendable_until(self, due_ms: Sequence[int], start: int) -> int:
        """Return the end of the rows from `start` on that may be sent now; `start` if none may."""

    def wait_s(self, due_ms: Sequence[int], start: int) -> float:
        """Return how many seconds to wait before asking again."""


class UnlimitedPacer:
    """No limit."""

    def sendable_until(self, due_ms: Sequence[int], start: int) -> int:
        return len(due_ms)

    def wait_s(self, due_ms: Sequence[int], start: int) -> float:
        return 0.0


class RatePacer:
    """At most `rate` records per second. At most two steps' unused allowance is kept."""

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._allowance = 0.0
        self._updated_at: float | None = None

    def sendable_until(self, due_ms: Sequence[int], start: int) -> int:
        now = self._clock()
        if self._updated_at is not None:
            self._allowance += (now - self._updated_at) * self._rate
            self._allowance = min(self._allowance, max(1.0, 2 * STEP_S * self._rate))
        self._updated_at = now
        count = min(int(self._allowance), len(due_ms) - start)
        self._allowance -= count
        return start + count

    def wait_s(self, due_ms: Sequence[int], start: int) -> float:
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
        now_ms = self._origin_ms + (self._clock() - self._begin_s) * 1000 * self._speed
        return bisect_right(due_ms, now_ms, lo=start)

    def wait_s(self, due_ms: Sequence[int], start: int) -> float:
        send_at_s = self._begin_s + (due_ms[start] - self._origin_ms) / 1000 / self._speed
        return min(max(0.0, send_at_s - self._clock()), MAX_WAIT_S)


# The size of a batch before compression. A topic's max.message.bytes may be lower.
BATCH_BYTES = 512 << 10
# Columns of a task's result, one row for each target.
RESULT_SCHEMA = "target int, sent_before bigint, sent bigint, error string"
NO_TARGET = -1


@dataclass(frozen=True)
class Pacing:
    """The speed of tasks. At most one of `rates` and `speed` is set."""

    rates: Mapping[int, float] | None = None  # target to records per second of the task that has it
    speed: float | None = None  # times real time
    begin_s: float = 0.0  # for `speed`: when the record that is due at `origin_ms` is sent
    origin_ms: int = 0


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
    pacing: Pacing = field(default_factory=Pacing)


def send_rows(rows: "Iterable[pa.RecordBatch]", settings: SendSettings) -> "Iterator[pa.RecordBatch]":
    """Send rows with the columns of `read_columns`. A function for Spark's `mapInArrow`; yields RESULT_SCHEMA."""
    import pyarrow as pa

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
        results = [
            {"target": target, "sent_before": before, "sent": task.positions[target], "error": error}
            for target, before in task.sent_before.items()
        ]
        if error is not None and not results:
            results = [{"target": NO_TARGET, "sent_before": 0, "sent": 0, "error": error}]
    types = [("target", pa.int32()), ("sent_before", pa.int64()), ("sent", pa.int64()), ("error", pa.string())]
    if results:
        yield pa.RecordBatch.from_pylist(results, schema=pa.schema(types))


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
        pacer = self._pacer or self._make_pacer(columns.targets[0])
        start = 0
        while start < len(sizes):
            end = pacer.sendable_until(columns.due, start)
            if end > start:
                self._send(columns, sizes, start, end)
                start = end
            else:
                self._producer.flush()
                self._sleep(pacer.wait_s(columns.due, start))

    def _make_pacer(self, target: int) -> Pacer:
        pacing = self._settings.pacing
        if pacing.rates is not None:
            self._pacer = RatePacer(pacing.rates[target], self._clock)
        elif pacing.speed is not None:
            self._pacer = SpeedPacer(pacing.speed, pacing.begin_s, pacing.origin_ms, self._clock)
        else:
            self._pacer = UnlimitedPacer()
        return self._pacer

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
