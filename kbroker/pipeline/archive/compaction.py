"""Merges small data files into large ones while other processes read the archive and write to it.

The merged rows are written to a staging directory, compared with the statistics of the old files, published, and
exchanged for the old files in one commit. Then Spark's metadata is updated, and the old files are deleted. If the
process is killed at any point, the archive consists of either the old or the new files, and the next writer deletes the
others as leftovers.
"""

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kbroker.pipeline.archive import schema
from kbroker.pipeline.archive.archive import Archive, archive_dataframe
from kbroker.pipeline.archive.compaction_plan import (
    ROUND_BYTES,
    TARGET_BYTES,
    MergeBin,
    assign_tasks,
    plan_merges,
    require_same_rows,
    split_rounds,
)
from kbroker.pipeline.archive.leftovers import remove_history, remove_leftovers
from kbroker.pipeline.archive.manifest import ArchiveState, DataFile, ManifestCommit
from kbroker.pipeline.archive.staging import data_file_writer
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.spark import functions as f
from kbroker.pipeline.spark.session import partition_keys
from kbroker.pipeline.storage.storage import FileMissingError, Storage, message_without_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


THREADS = 4
# The number of times that another compaction may remove the files that this one is merging.
MAX_CONFLICTS = 5


@dataclass(frozen=True)
class CompactionOptions:
    """Which files a compaction merges, and how."""

    target_bytes: int = TARGET_BYTES
    topics: Collection[str] = ()  # empty: all
    dates: Collection[str] = ()  # YYYY-MM-DD; empty: all
    keep_replaced_s: float = 0  # how long replaced files are kept for running readers
    round_bytes: int = ROUND_BYTES  # of one Spark job and one commit


@dataclass
class ArchiveCompactionResult:
    """The result of a compaction. `kbroker archive compact --json` prints these fields."""

    merged: int = 0  # files that were replaced
    written: int = 0  # files that replaced them
    rows: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    commits: int = 0
    left_over: int = 0  # leftover files and directories that were deleted
    damaged: dict[str, str] = field(default_factory=dict)  # problem by path; these files were not merged


def compact(
    spark: "SparkSession",
    archive: Archive,
    options: CompactionOptions = CompactionOptions(),
    advance: Callable[[int], None] = lambda size: None,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    sleep: Callable[[float], None] = time.sleep,
) -> ArchiveCompactionResult:
    """Merge the small files of the current state; files that are added meanwhile are left for the next compaction.

    `advance` is called with the bytes of the files that were replaced. Damaged files are not merged, but reported in
    the result. Raises PipelineError if the merged files would not have the same rows, and if other compactions keep
    removing the files; exceptions of Spark are not converted. Earlier commits remain.
    """
    return _Compaction(spark, archive, options, advance, now_ms, sleep).run()


def clean_up(archive: Archive) -> ArchiveCompactionResult:
    """Do what a compaction does without Spark: delete leftovers and old manifest files."""
    removed = remove_leftovers(archive)
    remove_history(archive)
    return ArchiveCompactionResult(left_over=len(removed))


class _Compaction:
    def __init__(
        self,
        spark: "SparkSession",
        archive: Archive,
        options: CompactionOptions,
        advance: Callable[[int], None],
        now_ms: Callable[[], int],
        sleep: Callable[[float], None],
    ) -> None:
        self._spark = spark
        self._archive = archive
        self._options = options
        self._advance = advance
        self._now_ms = now_ms
        self._sleep = sleep
        self._result = ArchiveCompactionResult()

    def run(self) -> ArchiveCompactionResult:
        self._result.left_over = len(remove_leftovers(self._archive))
        with ExitStack() as deletions:
            self._merge_all(set(self._archive.state().files), deletions)
        self._result.left_over += clean_up(self._archive).left_over
        return self._result

    def _merge_all(self, candidates: set[str], deletions: ExitStack) -> None:
        """Merge these files, and the merged ones again while they are small. Deferred deletions go to `deletions`."""
        conflicts = 0
        while bins := self._plan(candidates):
            for round_bins in split_rounds(bins, self._options.round_bytes):
                merged = self._merge_round(round_bins, candidates, deletions)
                if merged is None:
                    conflicts += 1
                    self._require_few(conflicts)
                    break
                candidates.update(file.path for file in merged)

    def _require_few(self, conflicts: int) -> None:
        if conflicts == MAX_CONFLICTS:
            raise PipelineError(
                f"{self._archive.storage.root}: another compaction removed files {conflicts} times while they were "
                f"merged; earlier merges remain; run this one again when no other one runs"
            )

    def _plan(self, candidates: Collection[str]) -> tuple[MergeBin, ...]:
        options = self._options
        return plan_merges(self._archive.state(), options.target_bytes, options.topics, options.dates, candidates)

    def _merge_round(
        self, bins: Sequence[MergeBin], candidates: set[str], deletions: ExitStack
    ) -> Sequence[DataFile] | None:
        """Run one job and one commit; return the new files, or None if others removed some of the old ones."""
        undamaged = self._exclude_damaged(bins, candidates)
        if undamaged is None:
            return None
        return self._merge(undamaged, deletions) if undamaged else ()

    def _exclude_damaged(self, bins: Sequence[MergeBin], candidates: set[str]) -> list[MergeBin] | None:
        """Return the bins without damaged files, which are no longer candidates; None if others removed a file."""
        files = [file for merge_bin in bins for file in merge_bin.files]
        with ThreadPoolExecutor(THREADS) as pool:
            problems = pool.map(lambda file: _find_damage(self._archive.storage, file), files)
            damaged = {file.path: problem for file, problem in zip(files, problems, strict=True) if problem}
        if damaged and not damaged.keys() <= self._archive.state().files.keys():
            return None
        candidates.difference_update(damaged)
        self._result.damaged |= damaged
        undamaged = (
            merge_bin._replace(files=tuple(file for file in merge_bin.files if file.path not in damaged))
            for merge_bin in bins
        )
        return [merge_bin for merge_bin in undamaged if len(merge_bin.files) > 1]

    def _merge(self, bins: Sequence[MergeBin], deletions: ExitStack) -> tuple[DataFile, ...] | None:
        """Replace the files of each bin by one; the result is that of `_merge_round`."""
        old = [file for merge_bin in bins for file in merge_bin.files]
        with ExitStack() as own:
            writer = own.enter_context(data_file_writer(self._spark, self._archive))
            new = writer.write(self._read_rows(bins), sort=True)
            require_same_rows(old, new)
            writer.publish()
            # From the commit on, another writer would delete the old files as leftovers.
            writer.keep_files(file.path for file in old)
            if not self._commit(old, new):
                return None
            self._count(old, new)
            due_ms = self._now_ms() + round(self._options.keep_replaced_s * 1000)
            if self._options.keep_replaced_s:
                # The writer stays open until the files are deleted. After an exception they are left for the next run.
                deletions.enter_context(own.pop_all())
                deletions.push(lambda kind, *_: self._delete(old, due_ms) if kind is None else None)
            else:
                self._delete(old, due_ms)
        return new

    def _read_rows(self, bins: Sequence[MergeBin]) -> "DataFrame":
        """Return the rows of the files, partitioned so that each bin is in one task."""
        numbers = assign_tasks(bins, self._options.target_bytes, self._spark.sparkContext.defaultParallelism)
        keys = partition_keys(self._spark, numbers[-1] + 1)
        assignments = [
            (merge_bin.topic, merge_bin.date, file.path.rpartition("/")[2], keys[number])
            for merge_bin, number in zip(bins, numbers, strict=True)
            for file in merge_bin.files
        ]
        columns = "file_topic string, file_date string, file string, task bigint"
        table = self._spark.createDataFrame(assignments, columns)
        state = self._archive.state()
        files = [file for merge_bin in bins for file in merge_bin.files]
        rows = archive_dataframe(self._spark, self._archive, state, files).select(*schema.NAMES, "_metadata.file_name")
        is_same_file = (
            (f.col("topic") == f.col("file_topic"))
            & (f.col("date").cast("string") == f.col("file_date"))
            & (f.col("file_name") == f.col("file"))
        )
        return rows.join(f.broadcast(table), is_same_file).repartition(len(keys), "task")

    def _commit(self, old: Sequence[DataFile], new: Sequence[DataFile]) -> bool:
        """Replace the old files by the new ones; return False if an old one is no longer in the archive."""

        def build(state: ArchiveState) -> ManifestCommit | None:
            if any(state.files.get(file.path) != file for file in old):
                return None
            removed = tuple(file.path for file in old)
            return ManifestCommit("compact", self._now_ms(), add=tuple(new), remove=removed)

        return self._archive.commit(build).files.get(new[0].path) == new[0]

    def _count(self, old: Sequence[DataFile], new: Sequence[DataFile]) -> None:
        result, bytes_before = self._result, sum(file.size for file in old)
        result.commits += 1
        result.merged += len(old)
        result.written += len(new)
        result.rows += sum(file.rows for file in new)
        result.bytes_before += bytes_before
        result.bytes_after += sum(file.size for file in new)
        self._advance(bytes_before)

    def _delete(self, files: Sequence[DataFile], due_ms: int) -> None:
        """Wait until `due_ms`, then delete replaced files."""
        while (remaining_ms := due_ms - self._now_ms()) > 0:
            self._sleep(remaining_ms / 1000)
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda file: self._archive.storage.delete(file.path), files))


def _find_damage(storage: Storage, file: DataFile) -> str:
    """Return the problem of a file, or an empty string if its bytes are those that were committed."""
    try:
        if storage.size(file.path) == file.size and storage.sha256(file.path) == file.sha256:
            return ""
        return "its bytes are not those that were committed"
    except FileMissingError:
        return "it is missing"
    except PipelineError as error:
        return f"it cannot be read ({message_without_path(storage, file.path, error)})"
