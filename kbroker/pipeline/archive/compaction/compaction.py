"""Merges an archive's small files into large ones, while others read it and write to it.

The rows are written aside, compared with what the manifest says of the files that they come from, given their names,
and exchanged for those files in one commit. Only then, and when Spark's view is up to date, the old files go. Whatever
ends the process in between leaves an archive of the old files or of the new ones, and leftovers that the next one
removes.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kbroker.pipeline.archive import schema
from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.compaction.plan import (
    ROUND_SIZE,
    TARGET_SIZE,
    Bin,
    plan,
    require_same,
    rounds,
    tasks,
)
from kbroker.pipeline.archive.dataframe import archive_dataframe
from kbroker.pipeline.archive.manifest.model import ArchiveState, DataFile, ManifestCommit
from kbroker.pipeline.archive.staging.data_file_writer import staged
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.spark.tasks import task_keys
from kbroker.pipeline.storage.storage import FileMissingError, Storage, message_without_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

THREADS = 4
# Others that compact at the same time take files away under this one; it plans anew so often.
CONFLICTS = 5


@dataclass(frozen=True)
class Wanted:
    """What to compact, and how. Sizes are bytes."""

    target_size: int = TARGET_SIZE
    topics: Collection[str] = ()  # none: all
    dates: Collection[str] = ()  # YYYY-MM-DD; none: all
    keep_s: float = 0  # seconds that replaced files stay for those who read them
    round_size: int = ROUND_SIZE  # of one Spark job and one commit


@dataclass
class Outcome:
    """What was done."""

    merged: int = 0  # files that are no more
    written: int = 0  # files in their place
    rows: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    commits: int = 0
    left_over: int = 0  # files and directories of dead writers that were removed
    damaged: dict[str, str] = field(default_factory=dict)  # by path, what is wrong; these stay as they are


@dataclass(frozen=True)
class World:
    """What compaction asks of the machine, so that tests need not wait."""

    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    sleep: Callable[[float], None] = time.sleep


def compact(
    spark: "SparkSession",
    archive: Archive,
    wanted: Wanted = Wanted(),
    advance: Callable[[int], None] = lambda size: None,
    world: World = World(),
) -> Outcome:
    """Merges what `plan` finds among the files of now; what others add meanwhile is for the next time.

    `advance` is told the bytes of the files that are done. Damaged files are left as they are and told in the outcome.
    Raises PipelineError when the merged files would not hold the same rows, and when others kept taking the files
    away; what Spark raises goes through. What was committed before stays.
    """
    return _Compaction(spark, archive, wanted, advance, world).run()


def tidy(archive: Archive) -> Outcome:
    """What compaction does besides merging, without Spark: removes what dead writers left and old manifest files."""
    removed = archive.remove_leftovers()
    archive.forget_history()
    return Outcome(left_over=len(removed))


class _Compaction:
    def __init__(
        self,
        spark: "SparkSession",
        archive: Archive,
        wanted: Wanted,
        advance: Callable[[int], None],
        world: World,
    ) -> None:
        self._spark = spark
        self._archive = archive
        self._wanted = wanted
        self._advance = advance
        self._world = world
        self._outcome = Outcome()

    def run(self) -> Outcome:
        outcome = self._outcome
        outcome.left_over = len(self._archive.remove_leftovers())
        with ExitStack() as kept:
            self._merge_all(set(self._archive.state().files), kept)
        outcome.left_over += tidy(self._archive).left_over
        return outcome

    def _merge_all(self, among: set[str], kept: ExitStack) -> None:
        """Merges these files, and what came of them as long as that is still small."""
        conflicts = 0
        while bins := self._plan(among):
            for some in rounds(bins, self._wanted.round_size):
                files = self._round(some, among, kept)
                if files is None:
                    conflicts += 1
                    self._require_few(conflicts)
                    break
                among.update(file.path for file in files)

    def _require_few(self, conflicts: int) -> None:
        if conflicts == CONFLICTS:
            raise PipelineError(
                f"{self._archive.storage.root}: others took files away {conflicts} times while they were merged; "
                f"what was merged before is in place, run it again when no other compaction runs"
            )

    def _plan(self, among: Collection[str]) -> tuple[Bin, ...]:
        wanted = self._wanted
        return plan(self._archive.state(), wanted.target_size, wanted.topics, wanted.dates, among)

    def _round(self, bins: Sequence[Bin], among: set[str], kept: ExitStack) -> Sequence[DataFile] | None:
        """What one job and one commit do: the new files, or None where others took some of the old ones away."""
        sound = self._sound(bins, among)
        if sound is None:
            return None
        return self._merge(sound, kept) if sound else ()

    def _sound(self, bins: Iterable[Bin], among: set[str]) -> list[Bin] | None:
        """The bins without damaged files, which are noted and left out from now on; None where others took one away."""
        bins = list(bins)
        files = [file for one in bins for file in one.files]
        with ThreadPoolExecutor(THREADS) as pool:
            found = dict(zip(files, pool.map(lambda file: _damage(self._archive.storage, file), files), strict=True))
        damaged = {file.path: what for file, what in found.items() if what}
        if damaged and not damaged.keys() <= self._archive.state().files.keys():
            return None
        among.difference_update(damaged)
        self._outcome.damaged |= damaged
        sound = (one._replace(files=tuple(f for f in one.files if f.path not in damaged)) for one in bins)
        return [one for one in sound if len(one.files) > 1]

    def _merge(self, bins: Sequence[Bin], kept: ExitStack) -> tuple[DataFile, ...] | None:
        """The files of these bins exchanged for one of each; the rest is as in `_round`."""
        old = [file for one in bins for file in one.files]
        with ExitStack() as own:
            writer = own.enter_context(staged(self._spark, self._archive))
            new = writer.write(self._rows(bins), sort=True)
            require_same(old, new)
            writer.publish()
            # Others must not take the old files for leftovers before their time has come.
            writer.keep(file.path for file in old)
            if not self._exchange(old, new):
                return None
            self._count(old, new)
            due_ms = self._world.now_ms() + round(self._wanted.keep_s * 1000)
            if self._wanted.keep_s:
                kept.enter_context(own.pop_all())
                kept.push(lambda kind, *_: self._remove(old, due_ms) if kind is None else None)
            else:
                self._remove(old, due_ms)
        return new

    def _rows(self, bins: Sequence[Bin]) -> "DataFrame":
        """The rows of the files, those of each bin in one task."""
        from pyspark.sql import functions as f

        numbers = tasks(bins, self._wanted.target_size, self._spark.sparkContext.defaultParallelism)
        keys = task_keys(self._spark, numbers[-1] + 1)
        places = [
            (one.topic, one.date, file.path.rpartition("/")[2], keys[number])
            for one, number in zip(bins, numbers, strict=True)
            for file in one.files
        ]
        place = self._spark.createDataFrame(places, "in_topic string, in_date string, in_file string, task bigint")
        state = self._archive.state()
        rows = archive_dataframe(self._spark, self._archive, state, [file for one in bins for file in one.files])
        named = rows.select(*schema.NAMES, "_metadata.file_name")
        same = (
            (f.col("topic") == f.col("in_topic"))
            & (f.col("date").cast("string") == f.col("in_date"))
            & (f.col("file_name") == f.col("in_file"))
        )
        return named.join(f.broadcast(place), same).repartition(len(keys), "task")

    def _exchange(self, old: Sequence[DataFile], new: Sequence[DataFile]) -> bool:
        """The commit; False where the old files are not all there any longer."""

        def build(state: ArchiveState) -> ManifestCommit | None:
            if any(state.files.get(file.path) != file for file in old):
                return None
            return ManifestCommit(
                "compact", self._world.now_ms(), add=tuple(new), remove=tuple(file.path for file in old)
            )

        return self._archive.commit(build).files.get(new[0].path) == new[0]

    def _count(self, old: Sequence[DataFile], new: Sequence[DataFile]) -> None:
        outcome, before = self._outcome, sum(file.size for file in old)
        outcome.commits += 1
        outcome.merged += len(old)
        outcome.written += len(new)
        outcome.rows += sum(file.rows for file in new)
        outcome.bytes_before += before
        outcome.bytes_after += sum(file.size for file in new)
        self._advance(before)

    def _remove(self, files: Sequence[DataFile], due_ms: int) -> None:
        """Removes replaced files when their time has come."""
        while (left_ms := due_ms - self._world.now_ms()) > 0:
            self._world.sleep(left_ms / 1000)
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda file: self._archive.storage.delete(file.path), files))


def _damage(storage: Storage, file: DataFile) -> str:
    """What is wrong with a file; empty where its bytes are those that were committed."""
    try:
        if storage.size(file.path) == file.size and storage.sha256(file.path) == file.sha256:
            return ""
        return "its bytes are not those that were committed"
    except FileMissingError:
        return "it is not there"
    except PipelineError as error:
        return f"it cannot be read ({message_without_path(storage, file.path, error)})"
