"""Which files are merged."""

import random
from typing import Any, cast

import pytest

from kbroker.archive.data_files import DataFile
from kbroker.archive.maintenance.compaction_plan import (
    MergeBin,
    periods_of_day,
    plan_due_merges,
    plan_merges,
    split_rounds,
)

MIB = 1 << 20


class Entry:
    """Of an entry of a manifest, what DataFile.period needs."""

    def __init__(self, period: int) -> None:
        self.partition = [period]


def make_file(size: int, first: int = 0, partition: int = 0, period: int = 0, rows: int = 10) -> DataFile:
    entry = cast(Any, Entry(period))
    return DataFile(f"{period}-{partition}-{first}", partition, first, first + rows - 1, rows, size, 0, 0, entry)


def firsts(bins: list[MergeBin]) -> list[list[int]]:
    return [[file.first for file in each.files] for each in bins]


def test_small_neighbours_are_merged_up_to_the_target() -> None:
    files = [make_file(40 * MIB, 10 * number) for number in range(7)]
    random.Random(1).shuffle(files)
    assert firsts(plan_merges(files, 128 * MIB)) == [[0, 10, 20], [30, 40, 50]]
    assert firsts(plan_merges(files, 90 * MIB)) == [[0, 10], [20, 30], [40, 50]]


def test_large_files_divide_neighbours() -> None:
    """So the offset ranges of files do not overlap."""
    sizes = [1, 64 * MIB, 1, 64 * MIB - 1, 1]
    files = [make_file(size, 10 * number) for number, size in enumerate(sizes)]
    assert firsts(plan_merges(files, 128 * MIB)) == [[20, 30, 40]]


def test_partitions_and_periods_stay_apart() -> None:
    files = [make_file(1, 10 * n, partition=n % 2, period=n // 4) for n in range(8)]
    bins = plan_merges(files)
    assert [(each.period, each.partition) for each in bins] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert plan_merges(files, periods=[1]) == bins[2:]
    assert list(periods_of_day("day", 3)) == [3]
    assert list(periods_of_day("hour", 3)) == list(range(72, 96))


def test_commits_are_limited_by_bytes_and_files() -> None:
    bins = plan_merges([make_file(MIB, 10 * number, partition=number // 2) for number in range(8)])
    assert list(map(len, split_rounds(bins, 4 * MIB))) == [2, 2]
    assert list(map(len, split_rounds(bins, MIB))) == [1, 1, 1, 1]
    assert list(map(len, split_rounds(bins, max_files=6))) == [3, 1]
    assert list(split_rounds([])) == []


@pytest.mark.parametrize("sizes", [[100_000], [1], [900_000, 1_100_000], [5_000_000, 1000, 1000]])
def test_maintenance_rewrites_each_row_a_few_times(sizes: list[int]) -> None:
    """Thousands of files of a partition become few, and the work does not grow with their number."""
    files: list[DataFile] = []
    rewritten = written = most = 0
    for number in range(2000):
        files.append(make_file(sizes[number % len(sizes)], 10 * number))
        written += files[-1].size
        for each in plan_due_merges(files):
            rewritten += each.size
            paths = {file.path for file in each.files}
            rows = sum(file.rows for file in each.files)
            files = [file for file in files if file.path not in paths]
            files.append(make_file(each.size, each.files[0].first, rows=rows))
        most = max(most, sum(file.size < 64 * MIB for file in files))
    assert rewritten <= 6 * written
    assert most < 60
    assert sum(file.rows for file in files) == 20_000
