"""Verifies the tables of an archive and their files, and compares them with the records that the broker still has.

Nothing is changed. Damage never ends a verification: the report contains everything that was found.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa

from kbroker.archive.archive import Archive, ArchiveTable
from kbroker.archive.catalogs import open_archive
from kbroker.archive.errors import ArchiveError
from kbroker.archive.verification.broker_batches import log_start_offsets
from kbroker.archive.verification.broker_comparison import PartitionComparer, plan_comparison
from kbroker.archive.verification.dead_letters import DeadLetters
from kbroker.archive.verification.file_checks import FileCheck, FileChecker, RowGroup
from kbroker.archive.verification.findings import (
    Finding,
    PartitionComparison,
    VerificationReport,
    VerificationScope,
    difference,
)
from kbroker.archive.verification.partition_rows import find_duplicates
from kbroker.archive.verification.state_checks import check_files, check_state, gap_offsets
from kbroker.archive.verification.table_files import (
    TableFiles,
    error_text,
    find_unreferenced,
    list_files,
    open_table,
    read_files,
)
from kbroker.client.cluster import ClusterClient
from kbroker.client.requests import BrokerError
from kbroker.common import TopicPartition
from protocol.errors import MalformedError

ATTEMPTS = 10


class _FilesRemoved(Exception):
    """A newer commit removed files of the state that is being verified."""


def verify(
    location: str,
    scope: VerificationScope | None = None,
    cluster: ClusterClient | None = None,
    *,
    bootstrap: str = "",
    require_broker: bool = False,
    progress: Callable[[str], None] = lambda text: None,
    advance: Callable[[int], None] = lambda size: None,
) -> VerificationReport:
    """Verify everything in the scope, and compare it with the broker if there is a `cluster`.

    `bootstrap` is its address, for the report. With `require_broker` a topic that is not at the broker is a difference.
    `progress` is called with the current step, `advance` with the bytes of files that were read. Raises ArchiveError if
    there is no archive, or if it does not have a topic of the scope, and what `cluster` raises if no broker responds.
    """
    scope = scope or VerificationScope()
    archive = open_archive(location)
    started_s = time.time()
    report = VerificationReport(archive.location, bootstrap, started_ms=int(started_s * 1000))
    for topic in _topics(archive, scope):
        verified = _verify_topic(_Run(archive, scope, cluster, require_broker, progress, advance), topic)
        report.findings += verified.findings
        report.compared += verified.compared
        report.files += len(verified.checks)
        report.bytes += sum(check.bytes for check in verified.checks)
        report.rows += sum(check.rows for check in verified.checks)
        if verified.table is not None:
            report.commits[topic] = verified.table.state.commit
    report.findings = [_with_short_path(finding, archive.root) for finding in report.findings]
    report.seconds = time.time() - started_s
    return report


def _topics(archive: Archive, scope: VerificationScope) -> list[str]:
    archived = archive.topics()
    missing = sorted(scope.topics.difference(archived))
    if missing:
        raise ArchiveError(f"the archive has no topic {missing[0]}; it has {', '.join(archived) or 'none'}")
    return sorted(scope.topics) or archived


class _Run(NamedTuple):
    """The arguments of a verification."""

    archive: Archive
    scope: VerificationScope
    cluster: ClusterClient | None
    require_broker: bool
    progress: Callable[[str], None]
    advance: Callable[[int], None]


def _verify_topic(run: _Run, topic: str) -> "TopicVerification":
    """Verify the current state of a table, again if its files are replaced meanwhile."""
    for _ in range(ATTEMPTS):
        verified = TopicVerification(run, topic)
        try:
            verified.run()
        except _FilesRemoved:
            run.progress(f"{topic}: its files are being replaced: starting again with its current state")
            continue
        return verified
    raise ArchiveError(f"{topic}: files were replaced during the verification {ATTEMPTS} times in a row")


class TopicVerification:
    """Verifies one state of a topic's table."""

    def __init__(self, run: _Run, topic: str) -> None:
        self._run = run
        self._topic = topic
        self.table, self.findings = open_table(run.archive, topic)
        self.files = TableFiles([], set(), [])
        self.checks: list[FileCheck] = []
        self.compared: list[PartitionComparison] = []

    def run(self) -> None:
        """Check metadata, files and rows. Raises _FilesRemoved."""
        if self.table is None:
            return
        self.files = read_files(self.table)
        self._check_metadata(self.table)
        self._check_files(self.table)
        try:
            for partition, groups in sorted(self.row_groups().items()):
                self.findings += find_duplicates(self.table, partition, groups)
            if self._run.cluster is not None:
                self._compare(self.table, self._run.cluster)
        except FileNotFoundError:
            self._require_files_exist(self.table)
            raise
        self._find_unreferenced(self.table)

    def _check_metadata(self, table: ArchiveTable) -> None:
        topic, state, scope = self._topic, table.state, self._run.scope
        self.findings += self.files.findings
        if state.archive != self._run.archive.settings.id:
            text = f"the table belongs to another archive ({state.archive})"
            self.findings.append(difference("metadata", text, topic=topic))
        if change := table.foreign_change():
            text = f"another program has changed the table: {change}"
            self.findings.append(difference("foreign change", text, topic=topic))
        self.findings += check_state(topic, state, scope)
        files = filter(scope.has_file, self.files.files)
        self.findings += check_files(topic, state, list(files), table.write_target().period)

    def _check_files(self, table: ArchiveTable) -> None:
        files = {file.path: file for file in self.files.files if self._run.scope.has_file(file)}
        size = sum(file.size for file in files.values())
        self._run.progress(f"{self._topic}: reading {len(files)} files, {size / 1e6:.0f} MB")
        checker = FileChecker(table, self.files.files)
        for check in checker.check_all(list(files.values()), self._run.advance):
            self.checks.append(check)
            self.findings += check.findings
        if any(check.is_missing for check in self.checks):
            self._require_files_exist(table)

    def row_groups(self) -> dict[int, list[RowGroup]]:
        """Return the row groups of readable files by partition."""
        result: dict[int, list[RowGroup]] = defaultdict(list)
        for check in self.checks:
            if check.is_readable:
                result[check.file.partition] += check.groups
        return result

    def _require_files_exist(self, table: ArchiveTable) -> None:
        """Raise _FilesRemoved if a newer commit has removed files of the state."""
        newer, _ = open_table(self._run.archive, self._topic)
        if newer is None or newer.iceberg.metadata_location == table.iceberg.metadata_location:
            return
        if self.files.paths - read_files(newer).paths:
            raise _FilesRemoved

    def _compare(self, table: ArchiveTable, cluster: ClusterClient) -> None:
        """Compare the rows with the broker's records, one partition after the other."""
        archive, state, scope = self._run.archive, table.state, self._run.scope
        committed_only = archive.settings.committed_only
        plan = plan_comparison(cluster, self._topic, state, scope, committed_only, self._run.require_broker)
        self.findings += plan.findings
        groups = self.row_groups()
        lost = [check.file for check in self.checks if not check.is_readable]
        dead = DeadLetters(archive, self._topic)
        for partition, ranges in plan.ranges.items():
            tp = TopicPartition(self._topic, partition)
            self._run.progress(f"{tp}: comparing with the broker")
            comparer = PartitionComparer(table, partition, groups.get(partition, ()), scope, committed_only)
            try:
                comparer.run(cluster, ranges)
                log_start = log_start_offsets(cluster, [tp])[tp]
                explained = gap_offsets(state, partition)
                if comparer.missing():
                    explained = (*explained, *dead.offsets(partition))
                found = comparer.findings(plan, log_start, lost, explained)
            except FileNotFoundError:
                raise
            except (BrokerError, MalformedError, OSError, ArchiveError, pa.ArrowException) as error:
                text = f"the comparison with the broker failed: {error_text(error)}"
                self.findings.append(difference("not compared", text, tp))
                continue
            self.findings += found
            is_equal = not any(finding.is_difference for finding in found)
            self.compared.append(comparer.compared(ranges, is_equal))

    def _find_unreferenced(self, table: ArchiveTable) -> None:
        try:
            listed = list_files(table)
        except ArchiveError as error:
            self.findings.append(difference("foreign file", str(error), topic=self._topic))
            return
        newer, _ = open_table(self._run.archive, self._topic)
        self.findings += find_unreferenced(newer or table, listed, self.files.paths)


def _with_short_path(finding: Finding, root: str | None) -> Finding:
    """Return a finding with the path of its file, and those in its text, relative to the archive."""
    if root is None:
        return finding
    base = root.rstrip("/") + "/"
    return finding._replace(file=finding.file.removeprefix(base), text=finding.text.replace(base, ""))
