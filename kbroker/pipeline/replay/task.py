"""One task of a replay: rows in the order in which they are to be sent, and what came of each target.

It may be run again, twice at a time, or be killed: what a target has already is skipped.
"""

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.connection import Brokers
from kbroker.pipeline.replay.encoding import Columns, Target, Writer, columns, integers
from kbroker.pipeline.replay.pacing import Pacer, Rate, Speed, Unpaced
from kbroker.pipeline.replay.positions import Start
from kbroker.pipeline.replay.producer import Sender

if TYPE_CHECKING:
    import pyarrow as pa

# Of a batch before compression; a partition's max.message.bytes may ask for less.
BATCH_BYTES = 512 << 10
OUTCOME = "target int, had bigint, has bigint, error string"


@dataclass(frozen=True)
class Paced:
    """How quickly. `rates`: records/s of the task that has this target; `speed` begins at `begin_s` with
    `origin_ms`."""

    rates: Mapping[int, float] | None = None
    speed: float | None = None
    begin_s: float = 0.0
    origin_ms: int = 0


@dataclass(frozen=True)
class Settings:
    """What every task is given; it travels to other machines."""

    bootstrap: str
    writer: Writer
    targets: Sequence[Target]  # by number
    starts: Mapping[Target, Start]
    replay: str | None  # the id for the records' headers, None for no such headers
    patience_s: float
    batch_bytes: int = BATCH_BYTES
    paced: Paced = field(default_factory=Paced)


def send(rows: "Iterable[pa.RecordBatch]", settings: Settings) -> "Iterator[pa.RecordBatch]":
    """For `mapInArrow`: rows as `encoding.columns` takes them; gives a row of OUTCOME for each target."""
    import pyarrow as pa

    with Brokers(settings.bootstrap) as brokers:
        sender = Sender(brokers, settings.writer, settings.starts, patience_s=settings.patience_s)
        task = Task(sender, settings)
        error = None
        try:
            for batch in rows:
                task.take(batch)
            sender.flush()
        except PipelineError as failure:
            # It would be no other on a second try, so Spark is not to make one.
            error = str(failure)
        outcome = [{"target": t, "had": task.had[t], "has": task.next[t], "error": error} for t in task.had]
        if error is not None and not outcome:
            outcome = [{"target": -1, "had": 0, "has": 0, "error": error}]
    types = [("target", pa.int32()), ("had", pa.int64()), ("has", pa.int64()), ("error", pa.string())]
    if outcome:
        yield pa.RecordBatch.from_pylist(outcome, schema=pa.schema(types))


class Task:
    """Sends rows as they come. `had`: how many each target had at first; `next`: the position of its next row."""

    def __init__(
        self,
        sender: Sender,
        settings: Settings,
        clock: Callable[[], float] = time.time,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._sender = sender
        self._settings = settings
        self._clock = clock
        self._pause = pause
        self._pacer: Pacer | None = None
        self.had: dict[int, int] = {}
        self.next: dict[int, int] = {}

    def take(self, rows: "pa.RecordBatch") -> None:
        """Sends what of the rows their targets do not have yet; returns while some of it is in flight."""
        rows = self._missing(rows)
        if not rows.num_rows:
            return
        found = columns(rows, self._settings.replay)
        sizes = found.sizes()
        pacer = self._pacer or self._make_pacer(found.targets[0])
        start = 0
        while start < len(sizes):
            end = pacer.allowed(found.dues, start)
            if end > start:
                self._send(found, sizes, start, end)
                start = end
            else:
                self._sender.flush()
                self._pause(pacer.wait_s(found.dues, start))

    def _make_pacer(self, target: int) -> Pacer:
        paced = self._settings.paced
        if paced.rates is not None:
            self._pacer = Rate(paced.rates[target], self._clock)
        elif paced.speed is not None:
            self._pacer = Speed(paced.speed, paced.begin_s, paced.origin_ms, self._clock)
        else:
            self._pacer = Unpaced()
        return self._pacer

    def _missing(self, rows: "pa.RecordBatch") -> "pa.RecordBatch":
        """The rows that their targets have not got; `next` stands at the first of them then."""
        targets = integers(rows.column("target"), "i")
        for target in dict.fromkeys(targets):
            if target not in self.next:
                self.had[target] = self._sender.position(self._settings.targets[target])
                self.next[target] = 0
        behind = {target for target in Counter(targets) if self.next[target] < self.had[target]}
        if not behind:
            return rows
        kept = []
        for row, target in enumerate(targets):
            if target in behind and self.next[target] < self.had[target]:
                self.next[target] += 1
            else:
                kept.append(row)
        return rows.take(kept) if kept else rows.slice(0, 0)

    def _send(self, found: Columns, sizes: list[int], start: int, end: int) -> None:
        for target, rows in _grouped(found.targets, start, end):
            totals = list(accumulate(sizes[row] for row in rows))
            first = 0
            while first < len(rows):
                limit = (totals[first - 1] if first else 0) + self._settings.batch_bytes
                last = max(first + 1, bisect_right(totals, limit))
                some = rows[first:last]
                self._sender.send(found.batch(self._settings.targets[target], self.next[target], some))
                self.next[target] += len(some)
                first = last


def _grouped(targets: list[int], start: int, end: int) -> "Iterator[tuple[int, range | list[int]]]":
    """The rows of each target; a range where they follow one another."""
    if len(set(targets[start:end])) == 1:
        yield targets[start], range(start, end)
        return
    by_target: dict[int, list[int]] = {}
    for row in range(start, end):
        by_target.setdefault(targets[row], []).append(row)
    yield from by_target.items()
