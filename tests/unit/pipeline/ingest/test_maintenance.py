"""What `archive run` does with its tables in quiet moments."""

import time
from pathlib import Path

from kbroker.archive.catalogs import create_archive
from kbroker.archive.topic_state import Gap
from kbroker.pipeline.ingest.cluster_retry import StopEvent
from kbroker.pipeline.ingest.maintenance import INTERVAL_S, Maintenance
from kbroker.pipeline.ingest.options import Reporter
from kbroker.pipeline.ingest.topic_tables import TopicTables
from tests.unit.support.archive_tables import DAY_MS, append_rows


def test_old_days_are_deleted(tmp_path: Path) -> None:
    """With --keep, and at most once in an interval."""
    archive = create_archive(str(tmp_path), {})
    today_ms = time.time_ns() // 1_000_000
    table = archive.create_table("t")
    append_rows(table, first=0, count=5, timestamp_ms=today_ms - 10 * DAY_MS)
    append_rows(table, first=5, count=5, timestamp_ms=today_ms)
    tables, warnings = TopicTables(archive), list[str]()
    tables.load(["t"])
    now_s = 0.0
    maintenance = Maintenance(
        tables, Reporter(lambda _: None, warnings.append), StopEvent(), keep_ms=7 * DAY_MS, clock=lambda: now_s
    )
    maintenance.run(1.0)
    kept = archive.table("t")
    assert kept.state.gaps == (Gap(0, 0, 5, "expired"),)
    assert [(file.first, file.last) for file in kept.files()] == [(5, 9)]
    append_rows(kept, first=10, count=5, timestamp_ms=today_ms - 10 * DAY_MS)
    tables.forget()
    tables.load(["t"])
    maintenance.run(1.0)
    assert len(archive.table("t").files()) == 2, "it is not due again"
    now_s = INTERVAL_S
    maintenance.run(now_s + 1.0)
    assert len(archive.table("t").files()) == 1
    assert warnings == []
