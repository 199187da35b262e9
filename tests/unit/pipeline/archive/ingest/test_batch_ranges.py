"""Decisions of an ingest: ranges of batches, consistency with the archive, and the rate limit."""

import pytest

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.ingest.batch_ranges import (
    BatchRange,
    RateLimit,
    changed_topics,
    covered_and_gaps,
    initial_gaps,
    lost_ranges,
    max_batch_records,
    needs_row_search,
    new_ranges,
    require_same_topics,
    require_single_run,
    require_untruncated_logs,
    resume_offsets,
    skip_below,
)
from kbroker.pipeline.archive.layout import OffsetRange
from kbroker.pipeline.archive.manifest import ArchiveState, CoveredRange, DataFile, Gap, PartitionStats, TopicInfo
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


def test_a_truncated_log_is_rejected():
    require_untruncated_logs({A: 5, C: 9}, {A: 5, B: 0})
    with pytest.raises(PipelineError, match="t-0 ends at offset 4, but had offsets up to 5"):
        require_untruncated_logs({A: 5}, {A: 4})


def test_partitions_that_another_run_has_archived_are_rejected():
    state = ArchiveState(covered={A: (OffsetRange(0, 9),), B: (OffsetRange(0, 5),)})
    require_single_run({A: 9, B: 4}, state, [A])
    with pytest.raises(PipelineError, match="another `kbroker archive run` has archived t-1"):
        require_single_run({A: 9, B: 4}, state, [A, B])


def test_a_recreated_topic_is_rejected():
    state = ArchiveState(topics={"t": TopicInfo("old", 1, {}), "u": TopicInfo("", 1, {})})
    require_same_topics(state, {"t": TopicInfo("old", 2, {}), "u": TopicInfo("new", 1, {}), "v": TopicInfo("", 1, {})})
    with pytest.raises(PipelineError, match=r"topic t was deleted .* \(its id was old and is now new\)"):
        require_same_topics(state, {"t": TopicInfo("new", 1, {})})


def test_changed_topics():
    info = TopicInfo("id", 1, {"a": "b"})
    state = ArchiveState(topics={"t": info})
    assert changed_topics(state, {"t": info}) is None
    assert changed_topics(state, {"t": info, "u": info}) == {"u": info}
    assert changed_topics(state, {"t": info._replace(partitions=2)}) == {"t": info._replace(partitions=2)}


def test_a_batch_waits_for_the_records_before_it():
    limit = RateLimit(rate=100)
    assert limit.delay_s(5.0) == 0
    limit.record_batch(250, 5.0)
    assert limit.delay_s(5.0) == 2.5
    assert limit.delay_s(7.0) == 0.5
    assert limit.delay_s(9.0) == 0


def test_unused_time_does_not_accumulate():
    limit = RateLimit(rate=100)
    limit.record_batch(100, 0.0)
    limit.record_batch(100, 60.0)
    assert limit.delay_s(60.0) == 1.0


def test_the_average_rate_is_never_exceeded():
    limit, now_s, records = RateLimit(rate=1000), 0.0, 0
    for size in (500, 2500, 10, 990, 4000):
        now_s += limit.delay_s(now_s)
        assert records <= 1000 * now_s + 1e-6
        limit.record_batch(size, now_s)
        records += size


def test_a_batch_has_at_most_what_the_rate_allows_in_an_interval():
    assert max_batch_records(None, None, 10) is None
    assert max_batch_records(500, None, 10) == 500
    assert max_batch_records(5000, 100, 10) == 1000
    assert max_batch_records(None, 0.01, 10) == 1
