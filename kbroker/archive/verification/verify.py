"""Verifies the tables of an archive and their files, and compares them with the records that the broker still has.

Nothing is changed. Damage never ends a verification: the report contains everything that was found.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from kbroker.archive.archive import Archive, ArchiveTable
from kbroker.archive.catalogs import open_archive
from kbroker.archive.data_files import DataFile
from kbroker.archive.errors import ArchiveError
from kbroker.archive.verification.file_checks import FileCheck, FileChecker, RowGroup
from kbroker.archive.verification.findings import Finding, VerificationReport, VerificationScope, difference
from kbroker.archive.verification.partition_rows import find_duplicates
from kbroker.archive.verification.state_checks import check_files, check_state
from kbroker.archive.verification.table_files import (
    TableFiles,
    find_unreferenced,
    list_files,
    open_table,
    read_files,
)

ATTEMPTS = 10


class _FilesRemoved(Exception):
    """A newer commit removed files of the state that is being verified."""


def verify(
    location: str,
    scope: VerificationScope | None = None,
    *,
    progress: Callable[[str], None] = lambda text: None,
    advance: Callable[[int], None] = lambda size: None,
) -> VerificationReport:
    """Verify everything in the scope.

    `progress` is called with the current step, `advance` with the bytes of files that were read. Raises ArchiveError if
    there is no archive, or if it does not have a topic of the scope.
    """
    scope = scope or VerificationScope()
    archive = open_archive(location)
    started_s = time.time()
    report = VerificationReport(archive.location, "", started_ms=int(started_s * 1000))
    for topic in _topics(archive, scope):
        _verify_topic(archive, topic, scope, report, progress, advance)
    report.findings = [_with_short_path(finding, archive.root) for finding in report.findings]
    report.seconds = time.time() - started_s
    return report


def _topics(archive: Archive, scope: VerificationScope) -> list[str]:
    archived = archive.topics()
    missing = sorted(scope.topics.difference(archived))
    if missing:
        raise ArchiveError(f"the archive has no topic {missing[0]}; it has {', '.join(archived) or 'none'}")
    return sorted(scope.topics) or archived


def _verify_topic(
    archive: Archive,
    topic: str,
    scope: VerificationScope,
    report: VerificationReport,
    progress: Callable[[str], None],
    advance: Callable[[int], None],
) -> None:
    """Verify the current state of a table, again if its files are replaced meanwhile."""
    for _ in range(ATTEMPTS):
        table, findings = open_table(archive, topic)
        if table is None:
            report.findings += findings
            return
        try:
            verified = TopicVerification(archive, table, scope)
            verified.run(progress, advance)
        except _FilesRemoved:
            progress(f"{topic}: its files are being replaced: starting again with its current state")
            continue
        report.findings += verified.findings
        report.commits[topic] = table.state.commit
        report.files += len(verified.checks)
        report.bytes += sum(check.bytes for check in verified.checks)
        report.rows += sum(check.rows for check in verified.checks)
        return
    raise ArchiveError(f"{topic}: files were replaced during the verification {ATTEMPTS} times in a row")


class TopicVerification:
    """Verifies one state of a topic's table."""

    def __init__(self, archive: Archive, table: ArchiveTable, scope: VerificationScope) -> None:
        self._archive = archive
        self._scope = scope
        self.table = table
        self.files = TableFiles([], set(), [])
        self.checks: list[FileCheck] = []
        self.findings: list[Finding] = []

    def run(self, progress: Callable[[str], None], advance: Callable[[int], None]) -> None:
        """Check metadata, files and rows."""
        table, scope = self.table, self._scope
        topic, state = table.topic, table.state
        self.files = read_files(table)
        files = [file for file in self.files.files if scope.has_file(file)]
        self.findings += self.files.findings
        if state.archive != self._archive.settings.id:
            text = f"the table belongs to another archive ({state.archive})"
            self.findings.append(difference("metadata", text, topic=topic))
        if change := table.foreign_change():
            text = f"another program has changed the table: {change}"
            self.findings.append(difference("foreign change", text, topic=topic))
        self.findings += check_state(topic, state, scope)
        self.findings += check_files(topic, state, files, table.write_target().period)
        progress(f"{topic}: reading {len(files)} files, {sum(file.size for file in files) / 1e6:.0f} MB")
        checker = FileChecker(table, self.files.files)
        for check in checker.check_all(_unique(files), advance):
            self.checks.append(check)
            self.findings += check.findings
        if any(check.is_missing for check in self.checks):
            self._require_files_exist()
        try:
            for partition, groups in sorted(self.row_groups().items()):
                self.findings += find_duplicates(table, partition, groups)
        except FileNotFoundError:
            self._require_files_exist()
            raise
        self._find_unreferenced()

    def row_groups(self) -> dict[int, list[RowGroup]]:
        """Return the row groups of readable files by partition."""
        result: dict[int, list[RowGroup]] = defaultdict(list)
        for check in self.checks:
            if check.is_readable:
                result[check.file.partition] += check.groups
        return result

    def _require_files_exist(self) -> None:
        """Raise _FilesRemoved if a newer commit has removed files of the state."""
        newer, _ = open_table(self._archive, self.table.topic)
        if newer is None or newer.iceberg.metadata_location == self.table.iceberg.metadata_location:
            return
        if self.files.paths - read_files(newer).paths:
            raise _FilesRemoved

    def _find_unreferenced(self) -> None:
        try:
            listed = list_files(self.table)
        except ArchiveError as error:
            self.findings.append(difference("foreign file", str(error), topic=self.table.topic))
            return
        newer, _ = open_table(self._archive, self.table.topic)
        self.findings += find_unreferenced(newer or self.table, listed, self.files.paths)


def _unique(files: Sequence[DataFile]) -> list[DataFile]:
    return list({file.path: file for file in files}.values())


def _with_short_path(finding: Finding, root: str | None) -> Finding:
    """Return a finding with the path of its file, and those in its text, relative to the archive."""
    if root is None:
        return finding
    base = root.rstrip("/") + "/"
    return finding._replace(file=finding.file.removeprefix(base), text=finding.text.replace(base, ""))
