"""Which small files of an archive are merged into which large ones. Pure.

A file at least half as large as the target stays as it is for good, so that a compaction that runs every hour does
not write the same rows again and again. The smaller ones of a topic and date are filled into bins of the target's
size in the order of their partitions and offsets, so that each merged file has ranges of offsets of its own.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from kbroker.pipeline.archive.manifest.model import ArchiveState, DataFile, PartitionStats
from kbroker.pipeline.errors import PipelineError

TARGET_SIZE = 128 * 1024 * 1024
# What one Spark job takes: while it runs, so much is on the disk three times (as it was, shuffled, and merged).
ROUND_SIZE = 8 * 1024 * 1024 * 1024
ROUND_FILES = 20_000  # the driver holds a line for each


class Bin(NamedTuple):
    """Files of one topic and one date that become one file."""

    topic: str
    date: str
    files: tuple[DataFile, ...]  # two at least

    @property
    def size(self) -> int:
        """Bytes of the files as they are; the merged one is smaller."""
        return sum(file.size for file in self.files)


def plan(
    state: ArchiveState,
    target_size: int = TARGET_SIZE,
    topics: Collection[str] = (),
    dates: Collection[str] = (),
    among: Collection[str] | None = None,
) -> tuple[Bin, ...]:
    """What there is to merge, by topic and date: where more than one file is small. `among`: only of these paths.

    Raises PipelineError for a wanted topic or date that no file is of.
    """
    _require("topic", topics, {file.topic for file in state.files.values()})
    _require("date", dates, {file.date for file in state.files.values()})
    small: dict[tuple[str, str], list[DataFile]] = defaultdict(list)
    for file in state.files.values():
        wanted = (not topics or file.topic in topics) and (not dates or file.date in dates)
        if wanted and file.size * 2 < target_size and (among is None or file.path in among):
            small[file.topic, file.date].append(file)
    return tuple(
        Bin(topic, date, files)
        for (topic, date), found in sorted(small.items())
        for files in _filled(found, target_size)
        if len(files) > 1
    )


def _require(what: str, wanted: Collection[str], present: Collection[str]) -> None:
    for absent in sorted(set(wanted) - set(present)):
        raise PipelineError(f"the archive has no rows of {what} {absent}")


def _filled(files: Iterable[DataFile], target_size: int) -> list[tuple[DataFile, ...]]:
    """The files in order, so many together as fit into the target."""
    bins: list[list[DataFile]] = [[]]
    size = 0
    for file in sorted(files, key=lambda file: (min((part[:2] for part in file.parts), default=(0, 0)), file.path)):
        if bins[-1] and size + file.size > target_size:
            bins.append([])
            size = 0
        bins[-1].append(file)
        size += file.size
    return [tuple(one) for one in bins]


def rounds(bins: Iterable[Bin], size: int = ROUND_SIZE, files: int = ROUND_FILES) -> list[tuple[Bin, ...]]:
    """The bins in their order, so many at a time as one job takes; one at least."""
    result: list[list[Bin]] = []
    left_size = left_files = 0
    for one in bins:
        if not result or one.size > left_size or len(one.files) > left_files:
            result.append([])
            left_size, left_files = size, files
        result[-1].append(one)
        left_size -= one.size
        left_files -= len(one.files)
    return [tuple(one) for one in result]


def tasks(bins: Iterable[Bin], target_size: int, at_least: int) -> list[int]:
    """Which task of a job writes each bin, from 0 on. `at_least`: tasks that can run at once.

    A task writes one file for each topic and date that it has, so it never has two bins of the same; small bins share
    one, up to the target's size, for a task of its own costs more than they do.
    """
    bins = list(bins)
    most = min(target_size, sum(one.size for one in bins) // at_least)
    result: list[int] = []
    size = 0
    for i, one in enumerate(bins):
        alone = i > 0 and ((one.topic, one.date) == (bins[i - 1].topic, bins[i - 1].date) or size + one.size > most)
        size = one.size if alone else size + one.size
        result.append(result[-1] + alone if result else 0)
    return result


Sums = Mapping[tuple[str, str, int], PartitionStats]  # by topic, date, partition


def sums(files: Iterable[DataFile]) -> Sums:
    """What files hold together, by topic, date and partition: counts added, ranges joined, checksums by XOR."""
    result: dict[tuple[str, str, int], PartitionStats] = {}
    for file in files:
        for part in file.parts:
            key = (file.topic, file.date, part.partition)
            result[key] = result[key].joined(part) if key in result else part
    return result


def require_same(before: Iterable[DataFile], after: Iterable[DataFile]) -> None:
    """PipelineError unless both hold the same rows, as far as counts, ranges and checksums can tell."""
    old, new = sums(before), sums(after)
    for topic, date, partition in sorted({*old, *new}):
        was, now = old.get((topic, date, partition)), new.get((topic, date, partition))
        if was != now:
            told = [
                f"{name} {a} and not {b}"
                for name, a, b in zip(PartitionStats._fields, now or _NOTHING, was or _NOTHING, strict=True)
                if a != b
            ]
            raise PipelineError(
                f"{topic}-{partition} of {date} would not be the same after compaction ({', '.join(told)}): "
                f"nothing was changed; find out more with: kbroker archive verify"
            )


_NOTHING = PartitionStats(0, 0, 0, 0, 0, 0, 0, 0)
