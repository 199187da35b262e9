"""The report of `kbroker log verify`: findings, totals, and what the next start would repair."""

import os
import sys
from collections import Counter
from typing import Any

from kbroker.cli.common.formatting import count_text
from kbroker.cli.common.output import print_json
from kbroker.storage.inspect.partition_check import LogFinding, LogTotals

# Findings printed per file; the others are counted. A segment under a wrong name has one per batch.
MAX_FINDINGS_PER_FILE = 20

_RED, _DIM, _OFF = "\x1b[31m", "\x1b[2m", "\x1b[0m"


class VerifyReport:
    """Collects findings, and prints them at the end: before that, the terminal may show a progress bar."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._findings: list[LogFinding] = []
        self._per_file: Counter[str] = Counter()
        self._notes = 0
        self._batches = self._bytes = self._bytes_to_recover = 0
        self.problems = 0
        # What the next start would do, one sentence each.
        self.repairs: list[str] = []
        self.partitions = 0
        self.is_running = False
        self.is_clean = False

    def add_finding(self, finding: LogFinding) -> None:
        if finding.is_problem:
            self.problems += 1
        else:
            self._notes += 1
        self._per_file[finding.path] += 1
        if self._per_file[finding.path] <= MAX_FINDINGS_PER_FILE:
            self._findings.append(finding)

    def add_note(self, path: str, text: str) -> None:
        self.add_finding(LogFinding(path, text, is_problem=False))

    def add_totals(self, totals: LogTotals) -> None:
        self._batches += totals.batches
        self._bytes += totals.bytes
        self._bytes_to_recover += totals.bytes_to_recover

    def _omitted(self) -> dict[str, int]:
        """Return the number of findings that are not printed, by file."""
        return {
            path: count - MAX_FINDINGS_PER_FILE
            for path, count in self._per_file.items()
            if count > MAX_FINDINGS_PER_FILE
        }

    def print_json(self) -> None:
        fields: dict[str, Any] = {
            "directory": self._directory,
            "running": self.is_running,
            "clean_stop": None if self.is_running else self.is_clean,
            "partitions": self.partitions,
            "batches": self._batches,
            "bytes": self._bytes,
            "bytes_to_recover": None if self.is_running or self.is_clean else self._bytes_to_recover,
            "problems": self.problems,
            "notes": self._notes,
            "findings": [finding._asdict() for finding in self._findings],
            "more_findings": self._omitted(),
            "next_start": self.repairs,
        }
        print_json(fields)

    def print_text(self) -> None:
        colors = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        for finding in self._findings:
            line = _finding_line(finding)
            color = _RED if finding.is_problem else _DIM
            print(f"{color}{line}{_OFF}" if colors else line)
        for path, count in self._omitted().items():
            print(f"and {count_text(count, 'more finding')} in {path}")
        for repair in self.repairs:
            print(f"next start: {repair}")
        if not self.is_running and not self.is_clean:
            size = count_text(self._bytes_to_recover, "byte")
            print(f"next start: the last shutdown was not clean, so up to {size} of the logs are read and checked")
        elif self.problems and not self.is_running and not self.repairs:
            print("next start: would neither detect nor repair these problems")
        verified = [
            count_text(self.partitions, "partition"),
            count_text(self._batches, "batch", "batches"),
            count_text(self._bytes, "byte"),
        ]
        print(f"{', '.join(verified)}: {count_text(self.problems, 'problem')}, {count_text(self._notes, 'note')}")


def _finding_line(finding: LogFinding) -> str:
    where = finding.path
    if finding.position is not None:
        where += f" byte {finding.position}"
    if finding.offset is not None:
        where += f" offset {finding.offset}"
    return f"{'problem' if finding.is_problem else 'note'}: {where}: {finding.what}"
