"""Decides which small data files are merged (pure).

A file of at least half the target size is never merged, so that a compaction that runs every hour does not rewrite the
same rows again and again. The smaller files of a topic and date are filled into bins of the target size, ordered by
partition and offset, so that the offset ranges of merged files do not overlap.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from kbroker.pipeline.archive.manifest import ArchiveState, DataFile, PartitionStats
from kbroker.pipeline.errors import PipelineError

TARGET_BYTES = 128 * 1024 * 1024
# Limits of one Spark job. While it runs, its rows are on disk three times: in the old files, shuffled, and merged.
ROUND_BYTES = 8 * 1024 * 1024 * 1024
ROUND_FILES = 20_000  # the driver keeps one row of a table for each

_NO_ROWS = PartitionStats(0, 0, 0, 0, 0, 0, 0, 0)


class MergeBin(NamedTuple):
    """Files of one topic and date that are merged into one."""

    topic: str
    date: str
    files: tuple[DataFile, ...]  # at least two

    @property
    def size(self) -> int:
        """Bytes of the files; the merged file is smaller."""
        return sum(file.size for file in self.files)


def plan_merges(
    state: ArchiveState,
    target_bytes: int = TARGET_BYTES,
    topics: Collection[str] = (),
    dates: Collection[str] = (),
    candidates: Collection[str] | None = None,
) -> tuple[MergeBin, ...]:
    """Return the bins of these topics and dates, in order; empty collections stand for all.

    `candidates` limits the result to these paths. Raises PipelineError if the archive has no rows of a given topic or
    date.
    """
    _require_present("topic", topics, {file.topic for file in state.files.values()})
    _require_present("date", dates, {file.date for file in state.files.values()})
    small: dict[tuple[str, str], list[DataFile]] = defaultdict(list)
    for file in state.files.values():
        is_selected = (not topics or file.topic in topics) and (not dates or file.date in dates)
        if is_selected and file.size * 2 < target_bytes and (candidates is None or file.path in candidates):
            small[file.topic, file.date].append(file)
    return tuple(
        MergeBin(topic, date, files)
        for (topic, date), listed in sorted(small.items())
        for files in _fill_bins(listed, target_bytes)
        if len(files) > 1
    )


def _require_present(kind: str, requested: Collection[str], present: Collection[str]) -> None:
    for missing in sorted(set(requested) - set(present)):
        raise PipelineError(f"the archive has no rows of {kind} {missing}")


def _fill_bins(files: Iterable[DataFile], target_bytes: int) -> list[tuple[DataFile, ...]]:
    bins: list[list[DataFile]] = [[]]
    size = 0
    for file in sorted(files, key=_first_offset):
        if bins[-1] and size + file.size > target_bytes:
            bins.append([])
            size = 0
        bins[-1].append(file)
        size += file.size
    return list(map(tuple, bins))


def _first_offset(file: DataFile) -> tuple[int, int, str]:
    partition, offset = min(((stats.partition, stats.first) for stats in file.partitions), default=(0, 0))
    return partition, offset, file.path


def split_rounds(
    bins: Iterable[MergeBin], max_bytes: int = ROUND_BYTES, max_files: int = ROUND_FILES
) -> list[tuple[MergeBin, ...]]:
    """Split the bins into the rounds that one Spark job and one commit each process; a round has at least one bin."""
    rounds: list[list[MergeBin]] = []
    free_bytes = free_files = 0
    for merge_bin in bins:
        if not rounds or merge_bin.size > free_bytes or len(merge_bin.files) > free_files:
            rounds.append([])
            free_bytes, free_files = max_bytes, max_files
        rounds[-1].append(merge_bin)
        free_bytes -= merge_bin.size
        free_files -= len(merge_bin.files)
    return list(map(tuple, rounds))


def assign_tasks(bins: Iterable[MergeBin], target_bytes: int, parallelism: int) -> list[int]:
    """Return the number of the Spark task that writes each bin, ascending from 0.

    A task writes one file per topic and date, so it gets at most one bin of each. Small bins share a task up to the
    target size, because a task costs more time than they do, but at least `parallelism` tasks are used.
    """
    bins = list(bins)
    task_bytes = min(target_bytes, sum(merge_bin.size for merge_bin in bins) // parallelism)
    result: list[int] = []
    size = 0
    for i, merge_bin in enumerate(bins):
        is_next = i > 0 and (
            (merge_bin.topic, merge_bin.date) == (bins[i - 1].topic, bins[i - 1].date)
            or size + merge_bin.size > task_bytes
        )
        size = merge_bin.size if is_next else size + merge_bin.size
        result.append(result[-1] + is_next if result else 0)
    return result


def merged_stats(files: Iterable[DataFile]) -> Mapping[tuple[str, str, int], PartitionStats]:
    """Return the statistics of all files together, by topic, date and partition."""
    result: dict[tuple[str, str, int], PartitionStats] = {}
    for file in files:
        for stats in file.partitions:
            key = (file.topic, file.date, stats.partition)
            result[key] = result[key].merge(stats) if key in result else stats
    return result


def require_same_rows(before: Iterable[DataFile], after: Iterable[DataFile]) -> None:
    """Raise PipelineError unless both sets of files have the same statistics: row counts, checksums and others."""
    old, new = merged_stats(before), merged_stats(after)
    for topic, date, partition in sorted({*old, *new}):
        old_stats, new_stats = old.get((topic, date, partition)), new.get((topic, date, partition))
        if old_stats != new_stats:
            changes = [
                f"{name} {new_value} instead of {old_value}"
                for name, new_value, old_value in zip(
                    PartitionStats._fields, new_stats or _NO_ROWS, old_stats or _NO_ROWS, strict=True
                )
                if new_value != old_value
            ]
            raise PipelineError(
                f"{topic}-{partition} of {date} would not be the same after compaction ({', '.join(changes)}): "
                f"nothing was changed; find out more with: kbroker archive verify"
            )
