"""Verifies an archive's manifest, files and rows, and compares them with the records that the broker still has.

Nothing is changed. Damage never ends a verification: the report contains everything that was found.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.layout import STAGING, OffsetRange, subtract_ranges
from kbroker.pipeline.archive.leftovers import list_data_files
from kbroker.pipeline.archive.manifest import ArchiveState, DataFile, PartitionStats
from kbroker.pipeline.archive.manifest_files import list_manifest
from kbroker.pipeline.archive.verification.broker_comparison import BrokerComparison, ComparisonPlan, plan_comparison
from kbroker.pipeline.archive.verification.commit_chain import read_chain
from kbroker.pipeline.archive.verification.file_checks import (
    FileCheckResult,
    check_files,
    check_spark_metadata,
    find_read_problem,
    split_uncommitted,
)
from kbroker.pipeline.archive.verification.findings import (
    CountedRows,
    Finding,
    VerificationReport,
    VerificationScope,
    check_dates,
    check_manifest,
    check_rows,
    difference,
    lost_offsets,
    may_be_uncovered,
)
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
        try:
            verification = _Verification(spark, storage, cluster, scope or VerificationScope(), progress)
            report = verification.run(require_broker, advance)
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
        progress: Callable[[str], None],
    ) -> None:
        self._spark = spark
        self._storage = storage
        self._cluster = cluster
        self._scope = scope
        self._progress = progress
        self._chain = read_chain(storage)
        self._state = self._chain.state
        self._scan = RowScan(spark, Archive(storage), self._state)
        bootstrap = cluster.bootstrap if cluster is not None else ""
        self._report = VerificationReport(storage.root, bootstrap, self._state.commit_number)

    def run(self, require_broker: bool, advance: Callable[[int], None]) -> VerificationReport:
        _require_topics(self._state, self._scope)
        plan = ComparisonPlan()
        if self._cluster is not None:
            plan = plan_comparison(self._cluster, self._state, self._scope, require_broker)
        findings = self._report.findings
        findings += self._chain.findings
        findings += check_manifest(self._state, self._scope)
        checked = self._check_files(advance)
        findings += checked.findings
        self._progress("counting the rows")
        # Changed files are read separately, so that none of them can make the pass over the intact files fail.
        counted = self._scan.count(checked.intact, self._require_files_exist)
        counted += self._scan.count(checked.changed, self._require_files_exist)
        scanned, rejected = [*checked.intact, *checked.changed], self._scan.unreadable
        readable = [file for file in scanned if file.path not in rejected]
        rejected_files = [file for file in scanned if file.path in rejected]
        findings += [
            difference("unreadable file", error_text(rejected[file.path]), file=file.path, topic=file.topic)
            for file in rejected_files
        ]
        self._report.rows = sum(rows.stats.rows for rows in counted)
        try:
            findings += self._check_rows(readable, counted)
            findings += self._find_uncommitted()
            findings += self._check_spark_metadata()
            findings += plan.findings
            if plan.ranges and self._cluster is not None:
                self._progress("comparing with the broker")
                lost = [*checked.missing, *checked.unreadable, *rejected_files]
                findings += self._compare(self._cluster, plan, readable, lost)
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

    def _check_rows(self, files: Sequence[DataFile], counted: Sequence[CountedRows]) -> list[Finding]:
        stats_by_path: dict[str, list[PartitionStats]] = defaultdict(list)
        for rows in counted:
            stats_by_path[rows.file.path].append(rows.stats)
        findings: list[Finding] = []
        for file in files:
            differences = list(check_rows(file, stats_by_path[file.path]))
            findings += differences
            changed = {finding.partition for finding in differences}
            for stats in file.partitions:
                if stats.partition in changed:
                    lost = lost_offsets(stats, self._scan.offsets(file, stats.partition))
                    tp = TopicPartition(file.topic, stats.partition)
                    findings += [difference("rows", "committed rows are missing", tp, file.path, lost)] if lost else []
        findings += check_dates(counted)
        for rows in counted:
            if may_be_uncovered(rows, self._state):
                offsets = self._scan.offsets(rows.file, rows.tp.partition)
                if uncovered := subtract_ranges(offsets, self._state.covered.get(rows.tp, ())):
                    text = "rows that no commit covers"
                    findings.append(difference("uncovered", text, rows.tp, rows.file.path, uncovered))
        return findings + (self._scan.find_duplicates(files) if files else [])

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
        self, cluster: ClusterAdmin, plan: ComparisonPlan, readable: Sequence[DataFile], lost: Sequence[DataFile]
    ) -> list[Finding]:
        committed_only = bool(self._state.settings.get("committed_only"))
        comparison = BrokerComparison(self._spark, cluster, plan, self._scan, self._scope, committed_only)
        try:
            findings, self._report.compared = comparison.run(readable, lost)
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
