"""Which files are merged with which, how they are shared out, and what must be equal before and after."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.pipeline.archive.compaction.plan import Bin, plan, require_same, rounds, sums, tasks
from kbroker.pipeline.archive.manifest.model import ArchiveState, DataFile, PartitionStats
from kbroker.pipeline.errors import PipelineError

MIB = 1024 * 1024


def a_file(
    name: str,
    size: int,
    *parts: PartitionStats,
    topic: str = "t",
    date: str = "2025-10-09",
    partition: int = 0,
    first: int = 0,
) -> DataFile:
    parts = parts or (PartitionStats(partition, first, first + 9, 10, 100, 0, 9, hash(name) & 0xFFFF),)
    return DataFile(f"topic={topic}/date={date}/{name}.parquet", topic, date, size, "", parts)


def state(*files: DataFile) -> ArchiveState:
    return ArchiveState(files={file.path: file for file in files})


def names(bins: tuple[Bin, ...]) -> list[str]:
    return ["+".join(file.path.rpartition("/")[2].removesuffix(".parquet") for file in one.files) for one in bins]


def test_small_files_of_one_topic_and_date_are_merged_up_to_the_target() -> None:
    files = [a_file(f"{n}", 40 * MIB, first=n * 10) for n in range(7)]
    assert names(plan(state(*files), 128 * MIB)) == ["0+1+2", "3+4+5"]
    assert names(plan(state(*files), 90 * MIB)) == ["0+1", "2+3", "4+5"]


def test_a_file_half_as_large_as_the_target_stays_for_good() -> None:
    files = [a_file("half", 64 * MIB), a_file("less", 64 * MIB - 1), a_file("small", 1)]
    assert names(plan(state(*files), 128 * MIB)) == ["less+small"]


def test_a_single_small_file_gains_nothing() -> None:
    assert plan(state(a_file("a", 1), a_file("b", 200 * MIB)), 128 * MIB) == ()
    assert plan(state(), 128 * MIB) == ()


def test_files_follow_each_other_by_partition_and_offset() -> None:
    files = [
        a_file("d", 10, partition=1, first=50),
        a_file("a", 10, partition=0, first=900),
        a_file("c", 10, partition=1, first=0),
        a_file("b", 10, PartitionStats(2, 5, 6, 2, 1, 0, 0, 0), PartitionStats(0, 1000, 1001, 2, 1, 0, 0, 0)),
    ]
    assert names(plan(state(*files), 21)) == ["a+b", "c+d"]


def test_topics_and_dates_are_never_mixed_and_can_be_chosen() -> None:
    files = [
        a_file(f"{topic}{day}{n}", 10, topic=topic, date=f"2025-10-0{day}")
        for topic in "ab"
        for day in (8, 9)
        for n in (1, 2)
    ]
    whole = state(*files)
    assert names(plan(whole, 100)) == ["a81+a82", "a91+a92", "b81+b82", "b91+b92"]
    assert names(plan(whole, 100, topics=["b"], dates=["2025-10-09"])) == ["b91+b92"]
    assert names(plan(whole, 100, among=[files[0].path, files[1].path, files[2].path])) == ["a81+a82"]


def test_a_topic_or_date_that_is_not_there_is_told() -> None:
    with pytest.raises(PipelineError, match=r"^the archive has no rows of topic u$"):
        plan(state(a_file("a", 1)), topics=["t", "u"])
    with pytest.raises(PipelineError, match=r"^the archive has no rows of date yesterday$"):
        plan(state(a_file("a", 1)), dates=["yesterday"])


SIZES = st.lists(st.integers(1, 100), max_size=40)


@given(SIZES, st.integers(1, 100))
def test_every_small_file_is_in_at_most_one_bin_and_no_bin_is_larger_than_the_target(
    sizes: list[int], target: int
) -> None:
    files = [a_file(f"{n}", size, first=n) for n, size in enumerate(sizes)]
    bins = plan(state(*files), target)
    merged = [file for one in bins for file in one.files]
    assert len(merged) == len(set(merged))
    assert all(one.size <= target and len(one.files) > 1 for one in bins)
    assert all(file.size * 2 < target for file in merged)
    # bins that follow each other do not fit into one
    assert all(a.size + b.files[0].size > target for a, b in pairwise(bins) if follow(a, b))


def follow(one: Bin, other: Bin) -> bool:
    return one.files[-1].parts[0].first + 1 == other.files[0].parts[0].first


def a_bin(topic: str, *sizes: int) -> Bin:
    return Bin(topic, "2025-10-09", tuple(a_file(f"{topic}{n}", size, topic=topic) for n, size in enumerate(sizes)))


def test_a_round_takes_so_many_bytes_and_files_and_one_bin_at_least() -> None:
    bins = [a_bin("a", 50, 50), a_bin("b", 5, 5), a_bin("c", 2, 2, 2), a_bin("d", 1, 1)]
    assert [len(one) for one in rounds(bins, 16, 100)] == [1, 2, 1]
    assert [len(one) for one in rounds(bins, 1000, 4)] == [2, 1, 1]
    assert [len(one) for one in rounds(bins)] == [4]
    assert rounds([]) == []


def test_small_bins_share_a_task_but_never_two_of_one_topic_and_date() -> None:
    bins = [a_bin("a", 100, 20), a_bin("a", 60, 60), a_bin("b", 4, 4), a_bin("c", 4, 4), a_bin("d", 60, 60)]
    assert tasks(bins, 128, 1) == [0, 1, 1, 2, 2]
    assert tasks(bins, 256, 1) == [0, 1, 1, 1, 1]
    # as many as can run at once, if there is enough for them
    assert tasks([a_bin(name, 5, 5) for name in "abcd"], 1000, 2) == [0, 0, 1, 1]
    assert tasks([a_bin("a", 5, 5)], 1000, 2) == [0]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50)), max_size=30), st.integers(1, 200))
def test_each_bin_is_alone_with_its_topic_and_date_in_its_task(wanted: list[tuple[str, int]], target: int) -> None:
    bins = [a_bin(topic, size, size) for topic, size in sorted(wanted)]
    numbers = tasks(bins, target, 2)
    assert len({(number, one.topic, one.date) for number, one in zip(numbers, bins, strict=True)}) == len(bins)
    assert sorted(set(numbers)) == list(range(len(set(numbers))))


def test_files_together_hold_what_their_parts_hold() -> None:
    files = [
        a_file("a", 1, PartitionStats(0, 10, 19, 10, 100, 5, 50, 0b1100), PartitionStats(1, 0, 0, 1, 1, 1, 1, 1)),
        a_file("b", 1, PartitionStats(0, 0, 9, 7, 30, 9, 99, 0b1010)),
        a_file("c", 1, PartitionStats(0, 3, 3, 1, 1, 1, 1, 7), date="2025-10-10"),
    ]
    assert sums(files) == {
        ("t", "2025-10-09", 0): PartitionStats(0, 0, 19, 17, 130, 5, 99, 0b0110),
        ("t", "2025-10-09", 1): PartitionStats(1, 0, 0, 1, 1, 1, 1, 1),
        ("t", "2025-10-10", 0): PartitionStats(0, 3, 3, 1, 1, 1, 1, 7),
    }


OLD = (
    a_file("a", 1, PartitionStats(0, 0, 9, 10, 100, 0, 9, 5)),
    a_file("b", 1, PartitionStats(0, 10, 19, 10, 100, 10, 19, 6)),
)
SAME = PartitionStats(0, 0, 19, 20, 200, 0, 19, 3)


def test_the_same_rows_are_the_same() -> None:
    require_same(OLD, [a_file("new", 1, SAME)])


@pytest.mark.parametrize(
    ("new", "told"),
    [
        (SAME._replace(rows=21), "rows 21 and not 20"),
        (SAME._replace(last=18), "last 18 and not 19"),
        (SAME._replace(checksum=4, bytes=199), "bytes 199 and not 200, checksum 4 and not 3"),
        (SAME._replace(to_ms=20), "to_ms 20 and not 19"),
    ],
)
def test_other_rows_are_refused(new: PartitionStats, told: str) -> None:
    with pytest.raises(PipelineError, match=rf"^t-0 of 2025-10-09 would not be the same after compaction \({told}\)"):
        require_same(OLD, [a_file("new", 1, new)])


def test_rows_of_another_partition_date_or_topic_are_refused() -> None:
    with pytest.raises(PipelineError, match="rows 0 and not 20"):
        require_same(OLD, [])
    with pytest.raises(PipelineError, match="t-1 of 2025-10-09"):
        require_same(OLD, [a_file("new", 1, SAME, PartitionStats(1, 0, 0, 1, 1, 0, 0, 0))])
    with pytest.raises(PipelineError, match="would not be the same"):
        require_same(OLD, [a_file("new", 1, SAME, date="2025-10-10")])
