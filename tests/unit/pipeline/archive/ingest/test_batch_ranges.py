"""Which offsets of a batch are new, and which were lost before they were read."""

import pytest

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.ingest.batch_ranges import (
    BatchRange,
    covered_and_gaps,
    initial_gaps,
    lost_ranges,
    needs_row_search,
    new_ranges,
    resume_offsets,
    skip_below,
)
from kbroker.pipeline.archive.manifest.model import ArchiveState, CoveredRange, DataFile, Gap, PartitionStats
from kbroker.pipeline.archive.offset_ranges import OffsetRange
from kbroker.pipeline.errors import PipelineError

A, B, C = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def test_an_archive_continues_after_covered_offsets_and_gaps():
    gaps = (Gap("t", 0, 0, 5, "retention"), Gap("t", 1, 8, 12, "retention"), Gap("u", 0, 0, 3, "retention"))
    state = ArchiveState(covered={A: (OffsetRange(5, 9),), B: (OffsetRange(0, 8),)}, gaps=gaps)
    assert resume_offsets(state) == {A: 9, B: 12, C: 3}


def test_a_batch_adds_offsets_from_where_the_archive_continues():
    ranges = new_ranges({A: 0, B: 10}, {A: 20, B: 10, C: 4}, {A: 7, B: 10}, {})
    assert ranges == [BatchRange(A, 7, 20), BatchRange(C, 0, 4)]


def test_archived_offsets_are_skipped_also_in_partitions_without_new_offsets():
    assert skip_below({A: 0, B: 0}, {A: 20, B: 5, C: 4}, {A: 7, B: 5, C: 2}, {}) == {A: 7, B: 5, C: 2}
    assert new_ranges({A: 0, B: 0}, {A: 20, B: 5}, {A: 7, B: 5}, {}) == [BatchRange(A, 7, 20)]


def test_offsets_before_the_start_are_skipped_if_spark_reads_from_the_last_stable_offset():
    starts = {A: 15, B: 15}
    assert new_ranges({A: 15}, {A: 10}, {}, starts) == []
    assert new_ranges({A: 10, B: 15}, {A: 30, B: 30}, {}, starts) == [BatchRange(A, 15, 30), BatchRange(B, 15, 30)]
    assert skip_below({A: 10, B: 15}, {A: 30, B: 30}, {}, starts) == {A: 15}


def test_a_batch_may_begin_later_only_at_the_start_of_the_query():
    assert new_ranges({A: 30}, {A: 40}, {}, {A: 30}) == [BatchRange(A, 30, 40)]
    with pytest.raises(PipelineError, match="offset 30 of t-0 and the archive at 0"):
        new_ranges({A: 30}, {A: 40}, {}, {})
    with pytest.raises(PipelineError, match="offset 30 of t-0 and the archive at 20"):
        new_ranges({A: 30}, {A: 40}, {A: 20}, {A: 0})


def test_gaps_at_the_start():
    gaps = initial_gaps({A: 5, B: 5, C: 0}, {A: 7, B: 5, C: 3})
    assert gaps == [Gap("t", 0, 5, 7, "retention"), Gap("u", 0, 0, 3, "retention")]


def make_stats(partition, first, last):
    return PartitionStats(partition, first, last, 1, 1, 0, 0, 0)


def make_file(*partitions, topic="t"):
    return DataFile(f"topic={topic}/date=2026-01-01/x.parquet", topic, "2026-01-01", 1, "", partitions)


def test_rows_are_searched_only_if_some_below_the_log_start_were_read():
    batch_range = BatchRange(A, 10, 50)
    assert not needs_row_search(batch_range, 10, [make_file(make_stats(0, 10, 49))])
    other_partitions = [
        make_file(make_stats(0, 20, 49), make_stats(1, 5, 6)),
        make_file(make_stats(0, 1, 2), topic="u"),
    ]
    assert not needs_row_search(batch_range, 20, other_partitions)
    assert needs_row_search(batch_range, 20, [make_file(make_stats(0, 30, 49)), make_file(make_stats(0, 12, 15))])


def test_all_offsets_below_the_log_start_are_lost_if_none_was_read():
    assert lost_ranges(BatchRange(A, 10, 50), 30) == (OffsetRange(10, 30),)
    assert lost_ranges(BatchRange(A, 10, 50), 90) == (OffsetRange(10, 50),)
    assert lost_ranges(BatchRange(A, 10, 50), 10) == ()


def test_missing_offsets_below_the_log_start_are_lost():
    missing = [OffsetRange(10, 12), OffsetRange(16, 40), OffsetRange(45, 50)]
    assert lost_ranges(BatchRange(A, 10, 50), 40, missing) == (OffsetRange(10, 12), OffsetRange(16, 40))
    assert lost_ranges(BatchRange(A, 10, 50), 20, missing) == (OffsetRange(10, 12), OffsetRange(16, 20))
    assert lost_ranges(BatchRange(A, 10, 50), 99, missing) == tuple(missing)
    assert lost_ranges(BatchRange(A, 10, 50), 99, [OffsetRange(50, 50)]) == ()


def test_a_commit_covers_what_was_not_lost():
    ranges = [BatchRange(A, 10, 50), BatchRange(B, 0, 4), BatchRange(C, 0, 3)]
    lost = {A: [OffsetRange(10, 12), OffsetRange(20, 30)], C: [OffsetRange(0, 3)], B: []}
    covered, gaps = covered_and_gaps(ranges, lost)
    assert covered == [CoveredRange("t", 0, 12, 20), CoveredRange("t", 0, 30, 50), CoveredRange("t", 1, 0, 4)]
    assert [(gap.topic, gap.partition, gap.start, gap.end) for gap in gaps] == [
        ("t", 0, 10, 12),
        ("t", 0, 20, 30),
        ("u", 0, 0, 3),
    ]
