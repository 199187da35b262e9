"""Decides which data files are merged (pure).

Only neighbours are merged: files of one partition and period between which, by offset, there is no large file. So the
offset ranges of files do not overlap. A file of at least half the target size is never merged, and a merge by
maintenance makes a file several times larger: so a row is rewritten a few times at most, however often either runs.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from kbroker.archive.data_files import PERIOD_US, DataFile

TARGET_BYTES = 128 << 20
# Limits of one commit. After a failure the files of one commit are merged again.
ROUND_BYTES, ROUND_FILES = 1 << 30, 10_000
# Maintenance merges at least this many neighbours, if together they are this many times larger than the largest.
MERGED_NEIGHBOURS, GROWTH = 16, 4


class MergeBin(NamedTuple):
    """Neighbouring files of one partition and period that are merged into one."""

    partition: int
    period: int
    files: tuple[DataFile, ...]  # at least two, ascending by offset

    @property
    def size(self) -> int:
        """Bytes of the files; the merged file is smaller."""
        return sum(file.size for file in self.files)


def plan_merges(
    files: Iterable[DataFile], target_bytes: int = TARGET_BYTES, periods: Collection[int] = ()
) -> list[MergeBin]:
    """Return the merges that leave no two small neighbours in these periods (by default in all)."""
    return [
        each
        for neighbours in _by_partition_and_period(files)
        if not periods or neighbours[0].period in periods
        for run in _runs(neighbours, lambda file: file.size * 2 < target_bytes)
        for each in _fill_bins(run, target_bytes)
        if len(each.files) > 1
    ]


def plan_due_merges(files: Iterable[DataFile], target_bytes: int = TARGET_BYTES) -> list[MergeBin]:
    """Return the merges that reduce the number of files a lot while few bytes are rewritten."""
    return [
        each
        for neighbours in _by_partition_and_period(files)
        for run in _runs(neighbours, lambda file: file.size * 2 < target_bytes)
        for each in _fill_bins(_due_files(run), target_bytes)
        if len(each.files) > 1
    ]


def _due_files(run: Sequence[DataFile]) -> Sequence[DataFile]:
    """Return as many of the latest files as can be merged; the earlier ones are larger after earlier merges."""
    count = total = largest = 0
    for position, file in enumerate(reversed(run), 1):
        total += file.size
        largest = max(largest, file.size)
        if position >= MERGED_NEIGHBOURS and total >= GROWTH * largest:
            count = position
    return run[len(run) - count :]


def _by_partition_and_period(files: Iterable[DataFile]) -> Iterator[list[DataFile]]:
    groups: dict[tuple[int, int], list[DataFile]] = defaultdict(list)
    for file in files:
        groups[file.period, file.partition].append(file)
    for _, group in sorted(groups.items()):
        yield sorted(group, key=lambda file: (file.first, file.last, file.path))


def _runs(files: Iterable[DataFile], is_small: Callable[[DataFile], bool]) -> Iterator[list[DataFile]]:
    """Yield the longest sequences of small files."""
    run: list[DataFile] = []
    for file in files:
        if is_small(file):
            run.append(file)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _fill_bins(run: Iterable[DataFile], target_bytes: int) -> Iterator[MergeBin]:
    files: list[DataFile] = []
    size = 0
    for file in run:
        if files and size + file.size > target_bytes:
            yield MergeBin(files[0].partition, files[0].period, tuple(files))
            files, size = [], 0
        files.append(file)
        size += file.size
    if files:
        yield MergeBin(files[0].partition, files[0].period, tuple(files))


def split_rounds(
    bins: Iterable[MergeBin], max_bytes: int = ROUND_BYTES, max_files: int = ROUND_FILES
) -> Iterator[list[MergeBin]]:
    """Divide bins, in order, among commits. A bin that is larger than the limits gets one of its own."""
    result: list[MergeBin] = []
    size = count = 0
    for each in bins:
        if result and (size + each.size > max_bytes or count + len(each.files) > max_files):
            yield result
            result, size, count = [], 0, 0
        result.append(each)
        size += each.size
        count += len(each.files)
    if result:
        yield result


def periods_of_day(period: str, day: int) -> range:
    """Return the numbers of the periods (`day` or `hour`) of a day, which is counted from 1970."""
    count = PERIOD_US["day"] // PERIOD_US[period]
    return range(day * count, (day + 1) * count)
