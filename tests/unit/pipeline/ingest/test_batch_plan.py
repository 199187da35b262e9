"""Decisions of an ingest: ranges of batches, consistency with the archive, and the rate limit."""

import pytest

from kbroker.archive.offset_ranges import OffsetRange
from kbroker.archive.topic_state import Gap, TopicInfo, TopicState
from kbroker.common import TopicPartition
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.ingest.batch_plan import (
    BatchRange,
    LogBounds,
    RateLimit,
    WrittenOffsets,
    gaps_of,
    lost_ranges,
    max_batch_records,
    missing_offsets,
    needs_row_search,
    plan_batch,
    require_same_topic,
    require_single_run,
    require_untruncated_logs,
    require_within,
    resume_offsets,
)

A, B, C = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def logs(*offsets: tuple[TopicPartition, int, int]) -> LogBounds:
    return LogBounds({tp: start for tp, start, _ in offsets}, {tp: end for tp, _, end in offsets})


def test_an_archive_continues_after_covered_offsets_and_gaps() -> None:
    gaps = (Gap(0, 0, 5, "retention"), Gap(1, 8, 12, "retention"))
    t = TopicState(covered={0: (OffsetRange(5, 9),), 1: (OffsetRange(0, 8),)}, gaps=gaps)
    u = TopicState(covered={0: (OffsetRange(7, 7),)})  # the archive of the topic starts there
    assert resume_offsets({"t": t, "u": u}) == {A: 9, B: 12, C: 7}


def test_a_batch_adds_offsets_from_where_the_archive_continues() -> None:
    ranges = plan_batch({A: 7, B: 10}, logs((A, 0, 20), (B, 0, 10), (C, 0, 4)), None)
    assert ranges == [BatchRange(A, 7, 7, 20), BatchRange(C, 0, 0, 4)]


def test_offsets_below_the_log_start_are_part_of_the_batch_and_not_read() -> None:
    assert plan_batch({A: 7}, logs((A, 12, 20), (B, 5, 5)), None) == [BatchRange(A, 7, 12, 20), BatchRange(B, 0, 5, 5)]


def test_a_large_batch_takes_a_share_of_each_partition() -> None:
    assert plan_batch({}, logs((A, 0, 900), (B, 0, 100), (C, 0, 1)), 100) == [
        BatchRange(A, 0, 0, 89),
        BatchRange(B, 0, 0, 9),
        BatchRange(C, 0, 0, 1),
    ]
    # Lost offsets do not count.
    assert plan_batch({}, logs((A, 10_000, 10_090)), 50) == [BatchRange(A, 0, 10_000, 10_050)]


def test_offsets_that_are_not_archived_are_counted_by_topic() -> None:
    assert missing_offsets({A: 7, B: 10}, logs((A, 12, 20), (B, 0, 10), (C, 0, 4))) == {"t": 8, "u": 4}


def test_rows_outside_the_batch_are_rejected() -> None:
    ranges = [BatchRange(A, 10, 10, 50)]
    require_within([WrittenOffsets(A, 10, 30), WrittenOffsets(A, 31, 49)], ranges)
    for written in (WrittenOffsets(A, 9, 20), WrittenOffsets(A, 20, 50), WrittenOffsets(B, 20, 30)):
        with pytest.raises(PipelineError, match="which are outside the batch"):
            require_within([written], ranges)


def test_rows_are_searched_only_if_some_below_the_log_start_were_read() -> None:
    planned = BatchRange(A, 10, 10, 50)
    assert not needs_row_search(planned, 10, [WrittenOffsets(A, 10, 49)])
    others = [WrittenOffsets(A, 20, 49), WrittenOffsets(B, 5, 6), WrittenOffsets(C, 1, 2)]
    assert not needs_row_search(planned, 20, others)
    assert needs_row_search(planned, 20, [WrittenOffsets(A, 30, 49), WrittenOffsets(A, 12, 15)])


def test_all_offsets_below_the_log_start_are_lost_if_none_was_read() -> None:
    planned = BatchRange(A, 10, 10, 50)
    assert lost_ranges(planned, 30) == (OffsetRange(10, 30),)
    assert lost_ranges(planned, 90) == (OffsetRange(10, 50),)
    assert lost_ranges(planned, 10) == ()


def test_missing_offsets_below_the_log_start_are_lost() -> None:
    planned = BatchRange(A, 10, 10, 50)
    missing = [OffsetRange(10, 12), OffsetRange(16, 40), OffsetRange(45, 50)]
    assert lost_ranges(planned, 40, missing) == (OffsetRange(10, 12), OffsetRange(16, 40))
    assert lost_ranges(planned, 20, missing) == (OffsetRange(10, 12), OffsetRange(16, 20))
    assert lost_ranges(planned, 99, missing) == tuple(missing)
    assert lost_ranges(planned, 99, [OffsetRange(50, 50)]) == ()
    assert gaps_of(3, [OffsetRange(10, 12)]) == [Gap(3, 10, 12, "retention")]


def test_a_truncated_log_is_rejected() -> None:
    require_untruncated_logs({A: 5, C: 9}, {A: 5, B: 0})
    with pytest.raises(PipelineError, match="t-0 ends at offset 4, but had offsets up to 5"):
        require_untruncated_logs({A: 5}, {A: 4})


def test_partitions_that_another_run_has_archived_are_rejected() -> None:
    before = TopicState(covered={0: (OffsetRange(0, 9),), 1: (OffsetRange(0, 4),)})
    now = TopicState(covered={0: (OffsetRange(0, 9),), 1: (OffsetRange(0, 5),)})
    require_single_run("t", before, now, [0])
    with pytest.raises(PipelineError, match="another `kbroker archive run` has archived t-1"):
        require_single_run("t", before, now, [0, 1])


def test_a_recreated_topic_is_rejected() -> None:
    old = TopicInfo("old", 1, {})
    require_same_topic("t", old, old._replace(partitions=2))
    require_same_topic("t", TopicInfo("", 1, {}), TopicInfo("new", 1, {}))
    require_same_topic("t", None, old)
    with pytest.raises(PipelineError, match=r"topic t was deleted .* \(its id was old and is now new\)"):
        require_same_topic("t", old, TopicInfo("new", 1, {}))


def test_a_batch_waits_for_the_records_before_it() -> None:
    limit = RateLimit(rate=100)
    assert limit.delay_s(5.0) == 0
    limit.record_batch(250, 5.0)
    assert limit.delay_s(5.0) == 2.5
    assert limit.delay_s(7.0) == 0.5
    assert limit.delay_s(9.0) == 0


def test_unused_time_does_not_accumulate() -> None:
    limit = RateLimit(rate=100)
    limit.record_batch(100, 0.0)
    limit.record_batch(100, 60.0)
    assert limit.delay_s(60.0) == 1.0


def test_the_average_rate_is_never_exceeded() -> None:
    limit, now_s, records = RateLimit(rate=1000), 0.0, 0
    for size in (500, 2500, 10, 990, 4000):
        now_s += limit.delay_s(now_s)
        assert records <= 1000 * now_s + 1e-6
        limit.record_batch(size, now_s)
        records += size


def test_a_batch_has_at_most_what_the_rate_allows_in_an_interval() -> None:
    assert max_batch_records(None, None, 10) is None
    assert max_batch_records(500, None, 10) == 500
    assert max_batch_records(5000, 100, 10) == 1000
    assert max_batch_records(None, 0.01, 10) == 1
