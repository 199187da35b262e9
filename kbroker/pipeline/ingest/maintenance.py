"""Maintains the tables of a run in its quiet moments: merges small files, expires snapshots, deletes orphans."""

import time
from collections.abc import Callable

from kbroker.archive.errors import ArchiveError
from kbroker.archive.maintenance import maintain
from kbroker.archive.maintenance.expiry import ExpiryResult, expire_topic
from kbroker.pipeline.ingest.cluster_retry import StopEvent
from kbroker.pipeline.ingest.options import Reporter
from kbroker.pipeline.ingest.topic_tables import TopicTables

# A table is looked at once in this time, which takes milliseconds if nothing is due.
INTERVAL_S = 60.0


class Maintenance:
    """Maintains one table after the other."""

    def __init__(
        self,
        tables: TopicTables,
        reporter: Reporter,
        stop: StopEvent,
        keep_ms: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`keep_ms`: delete the records of days that are older."""
        self._keep_ms = keep_ms
        self._tables = tables
        self._reporter = reporter
        self._stop = stop
        self._clock = clock
        self._last_s: dict[str, float] = {}  # by topic

    def run(self, until_s: float) -> None:
        """Maintain tables until this time; a table that takes longer is finished. Failures do not end the run."""
        for table in self._tables.tables():
            now_s = self._clock()
            if self._stop.count or now_s >= until_s:
                return
            if now_s - self._last_s.get(table.topic, float("-inf")) < INTERVAL_S:
                continue
            self._last_s[table.topic] = now_s
            try:
                now_ms = time.time_ns() // 1_000_000
                if self._keep_ms is not None:
                    expire_topic(table, now_ms - self._keep_ms, ExpiryResult())
                summary = maintain(table, now_ms)
            except ArchiveError as error:
                self._reporter.warn(f"{table.topic} is not maintained this time: {error}")
                continue
            for path in summary.damaged:
                self._reporter.warn(f"{path} is damaged: kbroker archive verify")
            if summary.merged:
                self._reporter.progress(
                    f"{table.topic}: merged {summary.merged} files into {summary.written} in {summary.seconds:.1f} s"
                )
