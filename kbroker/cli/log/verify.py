"""`kbroker log verify`: check a data directory, and dry-run what the next start would repair."""

import os
import time
from collections import Counter
from collections.abc import Iterable
from random import Random
from struct import error as StructError
from typing import Any, NamedTuple

from kbroker.cli.common.errors import CliError, print_error, usage_error
from kbroker.cli.common.output import DIM, RED, ProgressBar, colored, print_json
from kbroker.cli.common.values import count_text
from kbroker.cli.log.dump import find_reader
from kbroker.cli.log.items import DumpSelection
from kbroker.cli.start.directories import is_cluster_directory, is_locked
from kbroker.common import TopicPartition
from kbroker.coordination.interface import CoordinationError
from kbroker.coordination.journal import Journal
from kbroker.runtime.disk import Disk
from kbroker.storage import checkpoint_files, file_names, metadata_files
from kbroker.storage.inspect.partition_check import CheckpointedState, LogFinding, LogTotals, PartitionCheck
from kbroker.storage.inspect.recovery_dry_run import OverlayDisk, dry_run_recovery

# Findings printed per file; the others are counted. A segment under a wrong name has one per batch.
MAX_FINDINGS_PER_FILE = 20


class VerifyReport:
    """Collects findings, and prints them at the end: before that, the terminal may show a progress bar."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._findings: list[LogFinding] = []
        self._per_file: Counter[str] = Counter()
        self._notes = 0
        self.problems = 0
        # What the next start would do, one sentence each.
        self.repairs: list[str] = []
        # Of each partition.
        self.totals: list[LogTotals] = []
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

    def _sum(self, name: str) -> int:
        return sum(getattr(totals, name) for totals in self.totals)

    def _omitted(self) -> dict[str, int]:
        """Return the number of findings that are not printed, by file."""
        limit = MAX_FINDINGS_PER_FILE
        return {path: count - limit for path, count in self._per_file.items() if count > limit}

    def print_json(self) -> None:
        fields: dict[str, Any] = {
            "directory": self._directory,
            "running": self.is_running,
            "clean_stop": None if self.is_running else self.is_clean,
            "partition_count": len(self.totals),
            "batches": self._sum("batches"),
            "bytes": self._sum("bytes"),
            "bytes_to_recover": None if self.is_running or self.is_clean else self._sum("bytes_to_recover"),
            "problems": self.problems,
            "notes": self._notes,
            "findings": [finding._asdict() for finding in self._findings],
            "more_findings": self._omitted(),
            "next_start": self.repairs,
        }
        print_json(fields)

    def print_text(self) -> None:
        for finding in self._findings:
            position = "" if finding.position is None else f" byte {finding.position}"
            offset = "" if finding.offset is None else f" offset {finding.offset}"
            kind, color = ("problem", RED) if finding.is_problem else ("note", DIM)
            print(colored(f"{kind}: {finding.path}{position}{offset}: {finding.what}", color))
        for path, count in self._omitted().items():
            print(f"and {count_text(count, 'more finding')} in {path}")
        for repair in self.repairs:
            print(f"next start: {repair}")
        if not self.is_running and not self.is_clean:
            size = count_text(self._sum("bytes_to_recover"), "byte")
            print(f"next start: the last shutdown was not clean, so up to {size} of the logs are read and checked")
        elif self.problems and not self.is_running and not self.repairs:
            print("next start: would neither detect nor repair these problems")
        verified = [
            count_text(len(self.totals), "partition"),
            count_text(self._sum("batches"), "batch", "batches"),
            count_text(self._sum("bytes"), "byte"),
        ]
        print(f"{', '.join(verified)}: {count_text(self.problems, 'problem')}, {count_text(self._notes, 'note')}")


COORDINATION = "coordination"
CHECKPOINT_FILES = (file_names.RECOVERY_POINTS, file_names.LOG_START_OFFSETS, file_names.CLEANER_OFFSETS)
# Files that only a broker writes into a data directory or a partition's directory.
BROKER_FILES = (
    file_names.META_PROPERTIES,
    *CHECKPOINT_FILES,
    file_names.HIGH_WATERMARKS,
    file_names.TRANSACTION_INDEXES,
    file_names.CLEAN_SHUTDOWN,
    COORDINATION,
    file_names.PARTITION_METADATA,
)
# Renamed partition directories, by suffix.
_RENAMED_DIRECTORIES = {
    "-delete": "a deleted partition; the next start removes it",
    "-stray": "a log that is set aside; it is used again if its topic is assigned to the broker again",
    "-future": "a replica that Apache Kafka was moving",
}


class OffsetCheckpoints(NamedTuple):
    """The offset checkpoints of a data directory."""

    recovery_points: dict[TopicPartition, int]
    log_start_offsets: dict[TopicPartition, int]
    cleaner_offsets: dict[TopicPartition, int]
    transaction_indexes: dict[TopicPartition, checkpoint_files.IndexEntries] | None


class DirectoryVerifier:
    """One run of the command."""

    def __init__(self, disk: Disk, path: str, as_json: bool) -> None:
        self._disk = disk
        self._path = path
        self._as_json = as_json
        self._report = VerifyReport(path)

    def run(self) -> int:
        """Verify and print the report; returns the number of problems. Raises CliError if the directory has no logs."""
        if not self._disk.isdir(self._path):
            raise CliError(f"{self._path}: no such directory")
        if is_cluster_directory(self._path):
            raise usage_error(
                f"{self._path} has the data of several brokers: verify {self._path}/broker-1 and the others"
            )
        partitions = self._find_partitions()
        if not self._has_broker_files(partitions):
            raise usage_error(f"{self._path} is neither a broker's data directory nor a partition's directory")
        data_dir = self._path if self._path not in partitions else os.path.dirname(os.path.abspath(self._path))
        is_running = is_locked(f"{data_dir}/{file_names.LOCK}")
        is_clean = self._disk.exists(f"{data_dir}/{file_names.CLEAN_SHUTDOWN}")
        if is_running:
            print_error(f"a broker is running on {data_dir}: the ends of its logs are not verified")
        checkpoints, are_damaged = self._read_checkpoints(data_dir)
        if self._path not in partitions:
            self._verify_data_dir(is_running, checkpoints, set(partitions.values()))
        is_clean = is_clean and not are_damaged
        total = sum(self._size(path) for path in partitions)
        with ProgressBar("verifying", total, shows_bytes=True) as progress:
            for path, tp in partitions.items():
                state = CheckpointedState(
                    checkpoints.recovery_points.get(tp, 0),
                    checkpoints.log_start_offsets.get(tp, 0),
                    checkpoints.cleaner_offsets.get(tp, 0),
                    is_clean or is_running,
                    is_running,
                )
                known = checkpoints.transaction_indexes
                self._verify_partition(path, tp, state, None if known is None else known.get(tp, {}), progress)
        self._report.is_running, self._report.is_clean = is_running, is_clean
        if self._as_json:
            self._report.print_json()
        else:
            self._report.print_text()
        return self._report.problems

    def _find_partitions(self) -> dict[str, TopicPartition]:
        """Return partitions by path: the directory itself if it has segments, else the directories in it."""
        names = self._disk.listdir(self._path)
        if any(name.endswith(file_names.LOG) and file_names.parse_segment_file(name) for name in names):
            tp = file_names.parse_partition_dir(os.path.basename(os.path.abspath(self._path)))
            return {self._path: tp or TopicPartition(os.path.basename(self._path), 0)}
        partitions = {}
        for name in sorted(names):
            tp = file_names.parse_partition_dir(name)
            is_renamed = name.endswith(tuple(_RENAMED_DIRECTORIES))
            if tp is not None and not is_renamed and self._disk.isdir(f"{self._path}/{name}"):
                partitions[f"{self._path}/{name}"] = tp
        return partitions

    def _has_broker_files(self, partitions: Iterable[str]) -> bool:
        """Return whether a broker has written here. Other programs may have directories named like partitions."""
        return any(self._disk.exists(f"{self._path}/{name}") for name in BROKER_FILES) or any(
            name == file_names.PARTITION_METADATA or file_names.parse_segment_file(name) is not None
            for path in partitions
            for name in self._disk.listdir(path)
        )

    def _size(self, partition: str) -> int:
        logs = [name for name in self._disk.listdir(partition) if name.endswith(file_names.LOG)]
        return sum(self._disk.size(f"{partition}/{name}") for name in logs if self._disk.exists(f"{partition}/{name}"))

    # The data directory.

    def _read_checkpoints(self, data_dir: str) -> tuple[OffsetCheckpoints, bool]:
        """Return the checkpoints, and whether one of them is damaged."""
        checkpoints = []
        are_damaged = False
        for name in CHECKPOINT_FILES:
            try:
                checkpoints.append(checkpoint_files.read_offsets(self._disk, data_dir, name))
            except (ValueError, IndexError) as error:
                are_damaged = True
                checkpoints.append({})
                self._report.add_finding(LogFinding(f"{data_dir}/{name}", str(error)))
                self._report.repairs.append(f"{data_dir}/{name}: logs are read from their start")
        recovery_points, log_starts, cleaned = checkpoints
        transaction_indexes = self._read_transaction_indexes(data_dir)
        return OffsetCheckpoints(recovery_points, log_starts, cleaned, transaction_indexes), are_damaged

    def _read_transaction_indexes(self, data_dir: str) -> dict[TopicPartition, checkpoint_files.IndexEntries] | None:
        """Return None if they are not known."""
        path = f"{data_dir}/{file_names.TRANSACTION_INDEXES}"
        try:
            return checkpoint_files.decode_index_entries(self._disk.read(path))
        except FileNotFoundError:
            return None
        except (ValueError, IndexError) as error:
            self._report.add_finding(LogFinding(path, str(error)))
            self._report.repairs.append(f"{path}: the transaction indexes are checked")
            return None

    def _verify_data_dir(self, is_running: bool, checkpoints: OffsetCheckpoints, present: set[TopicPartition]) -> None:
        report = self._report
        path = f"{self._path}/{file_names.META_PROPERTIES}"
        try:
            if metadata_files.read_meta_properties(self._disk, self._path) is None:
                report.add_note(path, "missing; the next broker that starts here writes its own")
        except ValueError as error:
            report.add_finding(LogFinding(path, str(error)))
            report.repairs.append(
                f"{self._path}: the broker does not start: it is unknown which broker the data belongs to"
            )
        for name in sorted(self._disk.listdir(self._path)):
            for suffix, text in _RENAMED_DIRECTORIES.items():
                if name.endswith(suffix):
                    report.add_note(f"{self._path}/{name}", text)
        by_file = (checkpoints.recovery_points, checkpoints.log_start_offsets, checkpoints.cleaner_offsets)
        for offsets, name in zip(by_file, CHECKPOINT_FILES, strict=True):
            for tp, offset in offsets.items():
                if offset < 0:
                    report.add_finding(LogFinding(f"{self._path}/{name}", f"{tp} has offset {offset}"))
                if tp not in present and not is_running:
                    report.add_note(f"{self._path}/{name}", f"contains {tp}, which has no directory")
        if not is_running:
            self._verify_coordination(f"{self._path}/{COORDINATION}")

    def _verify_coordination(self, directory: str) -> None:
        if not self._disk.isdir(directory):
            return
        problems_before = self._report.problems
        for name in sorted(self._disk.listdir(directory)):
            path = f"{directory}/{name}"
            found = find_reader(self._disk, path)
            if found is None:
                continue
            _, reader, source = found
            for item in reader(source, DumpSelection()):
                if item.kind == "damage":
                    self._report.add_finding(LogFinding(path, item.fields["reason"], item.fields["position"]))
        try:
            tree = Journal(OverlayDisk(self._disk), directory).load()
            is_used = self._disk.exists(f"{self._path}/{file_names.META_PROPERTIES}")
            fault = "the topics' metadata is missing" if tree.is_empty and is_used else None
        except (CoordinationError, ValueError, KeyError, StructError) as error:
            fault = str(error)
        if fault is not None:
            if self._report.problems == problems_before:
                self._report.add_finding(LogFinding(directory, fault))
            self._report.repairs.append(f"{directory}: the broker does not start: {fault}")

    # One partition.

    def _verify_partition(
        self,
        path: str,
        tp: TopicPartition,
        state: CheckpointedState,
        index_entries: checkpoint_files.IndexEntries | None,
        progress: ProgressBar,
    ) -> None:
        report = self._report
        check = PartitionCheck(self._disk, path, state, progress.advance)
        problems_before = report.problems
        try:
            for finding in check.findings():
                report.add_finding(finding)
        except OSError as error:
            # A running broker may remove a file at any time.
            if not (state.is_running and isinstance(error, FileNotFoundError)):
                report.add_finding(LogFinding(error.filename or path, f"cannot be read: {error.strerror}"))
        report.totals.append(check.totals)
        if state.is_running or (report.problems == problems_before and state.is_clean):
            return
        report.repairs += dry_run_recovery(
            self._disk,
            path,
            tp,
            state.recovery_point,
            state.log_start_offset,
            state.is_clean,
            time.time_ns() // 1_000_000,
            Random(0),
            index_entries,
        )
