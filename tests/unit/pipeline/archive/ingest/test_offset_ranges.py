"""What a batch brings, what it has that is archived, and what was gone before."""

import pytest

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.ingest.offset_ranges import (
    Wanted,
    gone,
    holes,
    initial_gaps,
    needs_search,
    require_whole_logs,
    resume_offset,
    resume_offsets,
    told,
    unwanted_below,
    wanted_ranges,
)
from kbroker.pipeline.archive.manifest.model import (
    ArchiveState,
    CoveredRange,
    DataFile,
    Gap,
    OffsetRange,
    PartitionStats,
)
from kbroker.pipeline.errors import PipelineError

A, B, C = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def test_an_archive_goes_on_after_what_it_has_and_what_it_knows_to_be_gone():
    gaps = (Gap("t", 0, 0, 5, "retention"), Gap("t", 1, 8, 12, "retention"), Gap("u", 0, 0, 3, "retention"))
    state = ArchiveState(covered={A: (OffsetRange(5, 9),), B: (OffsetRange(0, 8),)}, gaps=gaps)
    assert resume_offsets(state) == {A: 9, B: 12, C: 3}
    assert [resume_offset(state, one) for one in (A, B, C, TopicPartition("u", 1))] == [9, 12, 3, None]


def test_a_batch_is_wanted_from_where_the_archive_goes_on():
    ranges = wanted_ranges({A: 0, B: 10}, {A: 20, B: 10, C: 4}, {A: 7, B: 10}, {})
    assert ranges == [Wanted(A, 7, 20), Wanted(C, 0, 4)]


def test_what_is_archived_already_is_left_out_also_of_partitions_that_are_not_wanted():
    assert unwanted_below({A: 0, B: 0}, {A: 20, B: 5, C: 4}, {A: 7, B: 5, C: 2}, {}) == {A: 7, B: 5, C: 2}
    assert wanted_ranges({A: 0, B: 0}, {A: 20, B: 5}, {A: 7, B: 5}, {}) == [Wanted(A, 7, 20)]


def test_what_is_before_the_beginning_is_left_out_where_spark_goes_back_to_the_last_stable_offset():
    starts = {A: 15, B: 15}
    assert wanted_ranges({A: 15}, {A: 10}, {}, starts) == []
    assert wanted_ranges({A: 10, B: 15}, {A: 30, B: 30}, {}, starts) == [Wanted(A, 15, 30), Wanted(B, 15, 30)]
    assert unwanted_below({A: 10, B: 15}, {A: 30, B: 30}, {}, starts) == {A: 15}


def test_a_query_may_be_told_to_begin_late_and_nothing_else_may():
    assert wanted_ranges({A: 30}, {A: 40}, {}, {A: 30}) == [Wanted(A, 30, 40)]
    with pytest.raises(PipelineError, match="offset 30 of t-0 and the archive at 0"):
        wanted_ranges({A: 30}, {A: 40}, {}, {})
    with pytest.raises(PipelineError, match="offset 30 of t-0 and the archive at 20"):
        wanted_ranges({A: 30}, {A: 40}, {A: 20}, {A: 0})


def test_gaps_at_the_start():
    gaps = initial_gaps({A: 5, B: 5, C: 0}, {A: 7, B: 5, C: 3})
    assert gaps == [Gap("t", 0, 5, 7, "retention"), Gap("u", 0, 0, 3, "retention")]


def test_a_log_that_is_shorter_than_it_was_is_refused():
    require_whole_logs({A: 5, C: 9}, {A: 5, B: 0})
    with pytest.raises(PipelineError, match="t-0 ends at offset 4, but had offsets up to 5"):
        require_whole_logs({A: 5}, {A: 4})


def part(partition, first, last):
    return PartitionStats(partition, first, last, 1, 1, 0, 0, 0)


def file(*parts, topic="t"):
    return DataFile(f"topic={topic}/date=2026-01-01/x.parquet", topic, "2026-01-01", 1, "", parts)


def test_rows_are_searched_only_where_some_below_the_logs_start_were_read():
    wanted = Wanted(A, 10, 50)
    assert not needs_search(wanted, 10, [file(part(0, 10, 49))])
    assert not needs_search(wanted, 20, [file(part(0, 20, 49), part(1, 5, 6)), file(part(0, 1, 2), topic="u")])
    assert needs_search(wanted, 20, [file(part(0, 30, 49)), file(part(0, 12, 15))])


def test_where_nothing_below_the_start_was_read_it_is_all_gone():
    assert gone(Wanted(A, 10, 50), 30) == [OffsetRange(10, 30)]
    assert gone(Wanted(A, 10, 50), 90) == [OffsetRange(10, 50)]
    assert gone(Wanted(A, 10, 50), 10) == []


def test_holes_in_what_was_read_end_at_the_logs_start():
    jumps = [OffsetRange(9, 12), OffsetRange(15, 40), OffsetRange(44, 50)]
    assert holes(Wanted(A, 10, 50), 40, jumps) == [OffsetRange(10, 12), OffsetRange(16, 40)]
    assert holes(Wanted(A, 10, 50), 20, jumps) == [OffsetRange(10, 12), OffsetRange(16, 20)]
    assert holes(Wanted(A, 10, 50), 99, jumps) == [OffsetRange(10, 12), OffsetRange(16, 40), OffsetRange(45, 50)]


def test_a_commit_says_what_it_covers_and_what_was_lost_in_between():
    wanted = [Wanted(A, 10, 50), Wanted(B, 0, 4), Wanted(C, 0, 3)]
    covered, gaps = told(wanted, {A: [OffsetRange(10, 12), OffsetRange(20, 30)], C: [OffsetRange(0, 3)], B: []})
    assert covered == [CoveredRange("t", 0, 12, 20), CoveredRange("t", 0, 30, 50), CoveredRange("t", 1, 0, 4)]
    assert [(gap.topic, gap.partition, gap.start, gap.end) for gap in gaps] == [
        ("t", 0, 10, 12),
        ("t", 0, 20, 30),
        ("u", 0, 0, 3),
    ]
