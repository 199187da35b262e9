"""Which files are merged, in which rounds and tasks, and what must be equal before and after."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.pipeline.archive.compaction_plan import (
    MergeBin,
    assign_tasks,
    merged_stats,
    plan_merges,
    require_same_rows,
    split_rounds,
)
from kbroker.pipeline.archive.manifest import ArchiveState, DataFile, PartitionStats
from kbroker.pipeline.errors import PipelineError

MIB = 1024 * 1024


def make_file(
    name: str,
    size: int,
    *partitions: PartitionStats,
    topic: str = "t",
    date: str = "2025-10-09",
    partition: int = 0,
    first: int = 0,
) -> DataFile:
    partitions = partitions or (PartitionStats(partition, first, first + 9, 10, 100, 0, 9, hash(name) & 0xFFFF),)
    return DataFile(f"topic={topic}/date={date}/{name}.parquet", topic, date, size, "", partitions)


def make_state(*files: DataFile) -> ArchiveState:
    return ArchiveState(files={file.path: file for file in files})


def names(bins: tuple[MergeBin, ...]) -> list[str]:
    return [
        "+".join(file.path.rpartition("/")[2].removesuffix(".parquet") for file in merge_bin.files)
        for merge_bin in bins
    ]


def test_small_files_of_one_topic_and_date_are_merged_up_to_the_target() -> None:
    files = [make_file(f"{n}", 40 * MIB, first=n * 10) for n in range(7)]
    assert names(plan_merges(make_state(*files), 128 * MIB)) == ["0+1+2", "3+4+5"]
    assert names(plan_merges(make_state(*files), 90 * MIB)) == ["0+1", "2+3", "4+5"]


def test_a_file_of_half_the_target_size_is_never_merged() -> None:
    files = [make_file("half", 64 * MIB), make_file("less", 64 * MIB - 1), make_file("small", 1)]
    assert names(plan_merges(make_state(*files), 128 * MIB)) == ["less+small"]


def test_a_single_small_file_is_not_merged() -> None:
    assert plan_merges(make_state(make_file("a", 1), make_file("b", 200 * MIB)), 128 * MIB) == ()
    assert plan_merges(make_state(), 128 * MIB) == ()


def test_files_are_ordered_by_partition_and_offset() -> None:
    files = [
        make_file("d", 10, partition=1, first=50),
        make_file("a", 10, partition=0, first=900),
        make_file("c", 10, partition=1, first=0),
        make_file("b", 10, PartitionStats(2, 5, 6, 2, 1, 0, 0, 0), PartitionStats(0, 1000, 1001, 2, 1, 0, 0, 0)),
    ]
    assert names(plan_merges(make_state(*files), 21)) == ["a+b", "c+d"]


def test_topics_and_dates_are_not_mixed_and_can_be_selected() -> None:
    files = [
        make_file(f"{topic}{day}{n}", 10, topic=topic, date=f"2025-10-0{day}")
        for topic in "ab"
        for day in (8, 9)
        for n in (1, 2)
    ]
    state = make_state(*files)
    assert names(plan_merges(state, 100)) == ["a81+a82", "a91+a92", "b81+b82", "b91+b92"]
    assert names(plan_merges(state, 100, topics=["b"], dates=["2025-10-09"])) == ["b91+b92"]
    assert names(plan_merges(state, 100, candidates=[files[0].path, files[1].path, files[2].path])) == ["a81+a82"]


def test_an_unknown_topic_or_date_is_rejected() -> None:
    with pytest.raises(PipelineError, match=r"^the archive has no rows of topic u$"):
        plan_merges(make_state(make_file("a", 1)), topics=["t", "u"])
    with pytest.raises(PipelineError, match=r"^the archive has no rows of date yesterday$"):
        plan_merges(make_state(make_file("a", 1)), dates=["yesterday"])


SIZES = st.lists(st.integers(1, 100), max_size=40)


@given(SIZES, st.integers(1, 100))
def test_every_small_file_is_in_at_most_one_bin_and_no_bin_is_larger_than_the_target(
    sizes: list[int], target: int
) -> None:
    files = [make_file(f"{n}", size, first=n) for n, size in enumerate(sizes)]
    bins = plan_merges(make_state(*files), target)
    merged = [file for merge_bin in bins for file in merge_bin.files]
    assert len(merged) == len(set(merged))
    assert all(merge_bin.size <= target and len(merge_bin.files) > 1 for merge_bin in bins)
    assert all(file.size * 2 < target for file in merged)
    # Adjacent bins do not fit into one.
    assert all(a.size + b.files[0].size > target for a, b in pairwise(bins) if are_adjacent(a, b))


def are_adjacent(first: MergeBin, second: MergeBin) -> bool:
    return first.files[-1].partitions[0].first + 1 == second.files[0].partitions[0].first


def make_bin(topic: str, *sizes: int) -> MergeBin:
    return MergeBin(
        topic, "2025-10-09", tuple(make_file(f"{topic}{n}", size, topic=topic) for n, size in enumerate(sizes))
    )


def test_a_round_is_limited_in_bytes_and_files_and_has_at_least_one_bin() -> None:
    bins = [make_bin("a", 50, 50), make_bin("b", 5, 5), make_bin("c", 2, 2, 2), make_bin("d", 1, 1)]
    assert [len(round_bins) for round_bins in split_rounds(bins, 16, 100)] == [1, 2, 1]
    assert [len(round_bins) for round_bins in split_rounds(bins, 1000, 4)] == [2, 1, 1]
    assert [len(round_bins) for round_bins in split_rounds(bins)] == [4]
    assert split_rounds([]) == []


def test_small_bins_share_a_task_unless_they_have_the_same_topic_and_date() -> None:
    bins = [
        make_bin("a", 100, 20),
        make_bin("a", 60, 60),
        make_bin("b", 4, 4),
        make_bin("c", 4, 4),
        make_bin("d", 60, 60),
    ]
    assert assign_tasks(bins, 128, 1) == [0, 1, 1, 2, 2]
    assert assign_tasks(bins, 256, 1) == [0, 1, 1, 1, 1]
    # At least as many tasks as the parallelism, if there are enough bins.
    assert assign_tasks([make_bin(name, 5, 5) for name in "abcd"], 1000, 2) == [0, 0, 1, 1]
    assert assign_tasks([make_bin("a", 5, 5)], 1000, 2) == [0]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50)), max_size=30), st.integers(1, 200))
def test_no_task_has_two_bins_of_the_same_topic_and_date(topics: list[tuple[str, int]], target: int) -> None:
    bins = [make_bin(topic, size, size) for topic, size in sorted(topics)]
    numbers = assign_tasks(bins, target, 2)
    assert len(
        {(number, merge_bin.topic, merge_bin.date) for number, merge_bin in zip(numbers, bins, strict=True)}
    ) == len(bins)
    assert sorted(set(numbers)) == list(range(len(set(numbers))))


def test_statistics_of_files_are_merged_by_topic_date_and_partition() -> None:
    files = [
        make_file("a", 1, PartitionStats(0, 10, 19, 10, 100, 5, 50, 0b1100), PartitionStats(1, 0, 0, 1, 1, 1, 1, 1)),
        make_file("b", 1, PartitionStats(0, 0, 9, 7, 30, 9, 99, 0b1010)),
        make_file("c", 1, PartitionStats(0, 3, 3, 1, 1, 1, 1, 7), date="2025-10-10"),
    ]
    assert merged_stats(files) == {
        ("t", "2025-10-09", 0): PartitionStats(0, 0, 19, 17, 130, 5, 99, 0b0110),
        ("t", "2025-10-09", 1): PartitionStats(1, 0, 0, 1, 1, 1, 1, 1),
        ("t", "2025-10-10", 0): PartitionStats(0, 3, 3, 1, 1, 1, 1, 7),
    }


OLD = (
    make_file("a", 1, PartitionStats(0, 0, 9, 10, 100, 0, 9, 5)),
    make_file("b", 1, PartitionStats(0, 10, 19, 10, 100, 10, 19, 6)),
)
SAME = PartitionStats(0, 0, 19, 20, 200, 0, 19, 3)


def test_merged_files_with_the_same_rows_are_accepted() -> None:
    require_same_rows(OLD, [make_file("new", 1, SAME)])


@pytest.mark.parametrize(
    ("new", "changes"),
    [
        (SAME._replace(rows=21), "rows 21 instead of 20"),
        (SAME._replace(last=18), "last 18 instead of 19"),
        (SAME._replace(checksum=4, bytes=199), "bytes 199 instead of 200, checksum 4 instead of 3"),
        (SAME._replace(to_ms=20), "to_ms 20 instead of 19"),
    ],
)
def test_merged_files_with_other_rows_are_rejected(new: PartitionStats, changes: str) -> None:
    with pytest.raises(
        PipelineError, match=rf"^t-0 of 2025-10-09 would not be the same after compaction \({changes}\)"
    ):
        require_same_rows(OLD, [make_file("new", 1, new)])


def test_missing_and_additional_rows_are_rejected() -> None:
    with pytest.raises(PipelineError, match="rows 0 instead of 20"):
        require_same_rows(OLD, [])
    with pytest.raises(PipelineError, match="t-1 of 2025-10-09"):
        require_same_rows(OLD, [make_file("new", 1, SAME, PartitionStats(1, 0, 0, 1, 1, 0, 0, 0))])
    with pytest.raises(PipelineError, match="would not be the same"):
        require_same_rows(OLD, [make_file("new", 1, SAME, date="2025-10-10")])
