"""Verifies an archive's manifest, files and rows, and compares them with the records that the broker still has.

Nothing is changed. Damage never ends a verification: the report contains everything that was found.
"""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.layout import STAGING, OffsetRange, subtract_ranges
from kbroker.pipeline.archive.leftovers import list_data_files
from kbroker.pipeline.archive.manifest.files import list_manifest
from kbroker.pipeline.archive.manifest.model import ArchiveState, DataFile
from kbroker.pipeline.archive.verification.broker_comparison import (
    BrokerComparison,
    BrokerRecords,
    ComparisonPlan,
    plan_comparison,
)
from kbroker.pipeline.archive.verification.checks import (
    BucketStats,
    check_dates,
    check_manifest,
    check_rows,
    lost_offsets,
    possibly_uncovered,
    stats_by_file,
)
from kbroker.pipeline.archive.verification.commit_chain import read_chain
from kbroker.pipeline.archive.verification.file_checks import (
    FileCheckResult,
    check_files,
    check_spark_metadata,
    find_read_problem,
    split_uncommitted,
)
from kbroker.pipeline.archive.verification.findings import Finding, VerificationReport, VerificationScope, difference
from kbroker.pipeline.archive.verification.row_scan import RowScan
from kbroker.pipeline.cluster_admin import ClusterAdmin
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.spark.error_text import error_text, is_spark_error
from kbroker.pipeline.storage.storage import FileMissingError, Storage, message_without_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ATTEMPTS = 10
METADATA_ATTEMPTS = 10
METADATA_PAUSE_S = 0.3


class _FilesRemoved(Exception):
    """A newer commit removed files of the state that is being verified."""


def verify(
    spark: "SparkSession",
    storage: Storage,
    bootstrap: str = "",
    scope: VerificationScope | None = None,
    *,
    require_broker: bool = False,
    progress: Callable[[str], None] = lambda text: None,
    advance: Callable[[int], None] = lambda size: None,
) -> VerificationReport:
    """Verify everything in the scope, and compare it with the broker unless `bootstrap` is empty.

    With `require_broker` a topic that is not at the broker is a difference. `progress` is called with the current step,
    `advance` with the bytes of files that were read. Raises PipelineError if there is no archive, if it does not have a
    topic of the scope, and if no broker responds.
    """
    require_archive(storage)
    started_s = time.time()
    for _ in range(ATTEMPTS):
        cluster = ClusterAdmin(bootstrap) if bootstrap else None
        verification = _Verification(spark, storage, cluster, scope or VerificationScope(), require_broker, progress)
        try:
            report = verification.run(advance)
        except _FilesRemoved:
            progress("the archive is being compacted: starting again with its current state")
            continue
        finally:
            if cluster is not None:
                cluster.close()
        report.started_ms = int(started_s * 1000)
        report.seconds = time.time() - started_s
        return report
    raise PipelineError(f"{storage.root}: files were replaced during the verification {ATTEMPTS} times in a row")


def require_archive(storage: Storage) -> None:
    """Raise PipelineError if there is no archive; a damaged one is accepted."""
    if not any(list_manifest(storage)):
        Archive.open(storage)


class _Verification:
    """Verifies one state."""

    def __init__(
        self,
        spark: "SparkSession",
        storage: Storage,
        cluster: ClusterAdmin | None,
        scope: VerificationScope,
        require_broker: bool,
        progress: Callable[[str], None],
    ) -> None:
        self._spark = spark
        self._storage = storage
        self._cluster = cluster
        self._scope = scope
        self._require_broker = require_broker
        self._progress = progress
        self._chain = read_chain(storage)
        self._state = self._chain.state
        self._scan = RowScan(spark, Archive(storage), self._state, scope)
        bootstrap = cluster.bootstrap if cluster is not None else ""
        self._report = VerificationReport(storage.root, bootstrap, self._state.commit_number)

    def run(self, advance: Callable[[int], None]) -> VerificationReport:
        _require_topics(self._state, self._scope)
        plan = ComparisonPlan()
        if self._cluster is not None:
            plan = plan_comparison(self._cluster, self._state, self._scope, self._require_broker)
        findings = self._report.findings
        findings += self._chain.findings
        findings += check_manifest(self._state, self._scope)
        checked = self._check_files(advance)
        findings += checked.findings
        self._progress("counting the rows")
        # Changed files are read separately, so that none of them can make the pass over the intact files fail.
        buckets = self._scan.bucket_stats(checked.intact, plan.bounds, self._require_files_exist)
        buckets += self._scan.bucket_stats(checked.changed, plan.bounds, self._require_files_exist)
        scanned, rejected = [*checked.intact, *checked.changed], self._scan.unreadable
        readable = [file for file in scanned if file.path not in rejected]
        rejected_files = [file for file in scanned if file.path in rejected]
        lost = [*checked.missing, *checked.unreadable, *rejected_files]
        findings += [
            difference("unreadable file", error_text(rejected[file.path]), file=file.path, topic=file.topic)
            for file in rejected_files
        ]
        self._report.rows = sum(bucket.rows for bucket in buckets)
        try:
            findings += self._check_rows(readable, buckets)
            findings += self._find_uncommitted()
            findings += self._check_spark_metadata()
            findings += plan.findings
            if plan.ranges and self._cluster is not None:
                self._progress("comparing with the broker")
                findings += self._compare(self._cluster, plan, readable, lost, buckets)
        except Exception as error:
            if is_spark_error(error):
                self._require_files_exist()
            raise
        return self._report

    def _require_files_exist(self) -> None:
        """Raise _FilesRemoved if a newer commit has removed files of the state."""
        if set(self._state.files) - set(read_chain(self._storage).state.files):
            raise _FilesRemoved

    def _check_files(self, advance: Callable[[int], None]) -> FileCheckResult:
        files = [file for file in self._state.files.values() if self._scope.has_file(file)]
        self._progress(f"reading {len(files)} files, {sum(file.size for file in files) / 1e6:.0f} MB")
        try:
            result = check_files(self._storage, self._state, files, advance)
        except FileMissingError:
            self._require_files_exist()
            raise
        if result.missing:
            self._require_files_exist()
        self._report.files, self._report.bytes = len(files), result.bytes
        return result

    def _check_rows(self, files: Sequence[DataFile], buckets: Sequence[BucketStats]) -> list[Finding]:
        counted = stats_by_file(buckets)
        findings: list[Finding] = []
        for file in files:
            differences = list(check_rows(file, counted.get(file.path, ())))
            findings += differences
            for partition in {finding.partition for finding in differences if finding.partition is not None}:
                findings += self._find_lost_rows(file, partition)
        findings += check_dates(buckets, self._state)
        suspects = {(bucket.file, bucket.partition) for bucket in possibly_uncovered(buckets, self._state)}
        for path, partition in sorted(suspects):
            findings += self._find_uncovered_rows(self._state.files[path], partition)
        return findings + (self._scan.find_duplicates(files) if files else [])

    def _find_lost_rows(self, file: DataFile, partition: int) -> list[Finding]:
        tp = TopicPartition(file.topic, partition)
        found = self._scan.offsets(file, partition)
        lost = [
            offsets
            for stats in file.partitions
            if stats.partition == partition
            for offsets in lost_offsets(stats, found)
        ]
        return [difference("rows", "committed rows are missing", tp, file.path, lost)] if lost else []

    def _find_uncovered_rows(self, file: DataFile, partition: int) -> list[Finding]:
        tp = TopicPartition(file.topic, partition)
        uncovered = subtract_ranges(self._scan.offsets(file, partition), self._state.covered.get(tp, ()))
        return [difference("uncovered", "rows that no commit covers", tp, file.path, uncovered)] if uncovered else []

    def _find_uncommitted(self) -> list[Finding]:
        """Find files that readers may read as data and that no commit contains."""
        entries = {entry.name: entry for entry in list_data_files(self._storage)}
        unknown = {path: entry for path, entry in entries.items() if path not in self._state.files}
        writer_ids, findings = self._list_writers()
        if not unknown:
            return findings
        current = read_chain(self._storage)
        foreign, notes = split_uncommitted(unknown, writer_ids, current.state, current.removed_files)
        findings += notes
        for path in foreign:
            if self._scope.has_topic(path.split("/")[0].removeprefix("topic=")):
                check = self._describe_directory if unknown[path].is_directory else self._describe_foreign_file
                findings += check(path)
        return findings

    def _list_writers(self) -> tuple[set[str], list[Finding]]:
        """Return the ids of all writers, alive or dead."""
        try:
            return {entry.name for entry in self._storage.list_directory(STAGING)}, []
        except PipelineError as error:
            problem = message_without_path(self._storage, STAGING, error)
            text = f"it takes the place of the staging directory ({problem})"
            return set(), [difference("foreign file", text, file=STAGING)]

    def _describe_foreign_file(self, path: str) -> list[Finding]:
        text = "no commit contains it; readers that use neither the manifest nor Spark's metadata read its rows"
        held: list[tuple[TopicPartition, tuple[OffsetRange, ...]]] = []
        try:
            problem = find_read_problem(self._storage, path, check_columns=False)
            if problem is None and path.startswith("topic="):
                held = self._scan.foreign_offsets(path)
        except FileMissingError:
            return []
        except Exception as error:
            if not is_spark_error(error):
                raise
            problem = error_text(error)
        if problem is not None:
            text = f"no commit contains it; readers that read every file as Parquet may fail ({problem})"
        if not held:
            return [difference("foreign file", text, file=path)]
        return [difference("foreign file", text, tp, path, ranges) for tp, ranges in held]

    def _describe_directory(self, path: str) -> list[Finding]:
        """Describe a directory that `walk` did not enter."""
        text = "it is a link to a directory that also has another path; readers may read rows twice, or endlessly"
        try:
            self._storage.list_directory(path)
        except PipelineError as error:
            problem = message_without_path(self._storage, path, error)
            text = f"it is a directory that cannot be listed ({problem}); readers may fail"
        return [difference("foreign file", text, file=path)]

    def _check_spark_metadata(self) -> list[Finding]:
        """Check Spark's metadata, again if a writer may be about to update it after its commit."""
        state = self._state
        findings: list[Finding] = []
        for attempt in range(METADATA_ATTEMPTS):
            findings = check_spark_metadata(self._storage, state)
            if not findings or (attempt and not self._is_changing(state)):
                break
            time.sleep(METADATA_PAUSE_S)
            state = read_chain(self._storage).state
        return findings

    def _is_changing(self, state: ArchiveState) -> bool:
        return state.commit_number != self._state.commit_number or bool(self._list_writers()[0])

    def _compare(
        self,
        cluster: ClusterAdmin,
        plan: ComparisonPlan,
        readable: Sequence[DataFile],
        lost: Sequence[DataFile],
        buckets: Sequence[BucketStats],
    ) -> list[Finding]:
        committed_only = bool(self._state.settings.get("committed_only"))
        records = BrokerRecords(self._spark, cluster.bootstrap, committed_only, self._scope)
        comparison = BrokerComparison(cluster, records, plan, self._scan, readable, lost)
        try:
            findings, self._report.compared = comparison.run(buckets, self._state)
        except Exception as error:
            if not isinstance(error, PipelineError) and not is_spark_error(error):
                raise
            self._require_files_exist()
            return [difference("not compared", f"the comparison with the broker failed: {error_text(error)}")]
        return findings


def _require_topics(state: ArchiveState, scope: VerificationScope) -> None:
    archived = {tp.topic for tp in state.covered} | {file.topic for file in state.files.values()} | set(state.topics)
    missing = sorted(scope.topics - archived)
    if missing:
        raise PipelineError(f"the archive has no topic {missing[0]}; it has {', '.join(sorted(archived)) or 'none'}")
