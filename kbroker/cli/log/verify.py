"""`kbroker log verify`: whether a data directory is sound, and what the next start would do about what is not."""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from random import Random
from struct import error as StructError
from typing import Any, NamedTuple

from kbroker.cli.common.errors import CliError, print_error
from kbroker.cli.common.formatting import count_text
from kbroker.cli.common.locks import is_locked
from kbroker.cli.common.output import print_json
from kbroker.cli.common.progress import ProgressBar
from kbroker.cli.log.file_readers import find_reader
from kbroker.cli.log.segments import Wanted
from kbroker.common import TopicPartition
from kbroker.metadata.store.coordination import CoordinationError
from kbroker.metadata.store.journal import Journal
from kbroker.runtime.disk import Disk
from kbroker.storage import checkpoint_files, file_names, meta_properties
from kbroker.storage.inspect.partition_check import CheckpointedState, LogFinding, PartitionCheck
from kbroker.storage.inspect.recovery_dry_run import OverlayDisk, dry_run_recovery

COORDINATION = "coordination"
MARK_FILES = (file_names.RECOVERY_POINTS, file_names.LOG_START_OFFSETS, file_names.CLEANER_OFFSETS)
# Of one file; the rest is counted. A segment under the wrong name has as many as batches.
TOLD_PER_FILE = 20

_RED, _DIM, _OFF = "\x1b[31m", "\x1b[2m", "\x1b[0m"
# What a directory that is no partition's (any more) is waiting for.
_ASIDE = {
    "-delete": "a deleted partition; the next start removes it",
    "-stray": "a partition of no known topic, put aside; nobody removes it but you",
    "-future": "a replica that was being moved by Apache Kafka",
}


class Marks(NamedTuple):
    """What the data directory says of its partitions."""

    points: dict[TopicPartition, int]
    starts: dict[TopicPartition, int]
    cleaned: dict[TopicPartition, int]


class Verification:
    """One run of the command."""

    def __init__(self, disk: Disk, path: str, as_json: bool) -> None:
        self._disk = disk
        self._path = path
        self._json = as_json
        self._colors = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._told: list[dict[str, Any]] = []
        # Printed at the end: before that, the terminal may show a bar.
        self._lines: list[str] = []
        self._per_file: Counter[str] = Counter()
        self.problems = 0
        self._notes = 0
        self._repairs: list[str] = []
        self._batches = self._bytes = self._unchecked = 0

    def run(self) -> int:
        """Check everything and tell it; gives the number of problems. Raises CliError for what is no directory."""
        if not self._disk.isdir(self._path):
            raise CliError(f"{self._path}: there is no such directory")
        partitions = self._partitions()
        data_dir = self._path if self._path not in partitions else os.path.dirname(os.path.abspath(self._path))
        used = is_locked(f"{data_dir}/{file_names.LOCK}")
        clean = self._disk.exists(f"{data_dir}/{file_names.CLEAN_SHUTDOWN}")
        if used:
            print_error(f"a broker runs on {data_dir}: the ends of its logs move, and what is amiss there is not told")
        marks, damaged = self._marks(data_dir)
        if self._path not in partitions:
            self._directory(used, marks, set(partitions.values()))
        clean = clean and not damaged
        total = sum(self._size(path) for path in partitions)
        with ProgressBar("checking", total, shows_bytes=True) as work:
            for path, tp in partitions.items():
                known = CheckpointedState(
                    marks.points.get(tp, 0), marks.starts.get(tp, 0), marks.cleaned.get(tp, 0), clean or used, used
                )
                self._partition(path, tp, known, work)
        self._summarise(len(partitions), clean, used)
        return self.problems

    def _partitions(self) -> dict[str, TopicPartition]:
        """By path: the directory itself if it is one, else those in it."""
        if any(
            name.endswith(file_names.LOG) and file_names.parse_segment_file(name)
            for name in self._disk.listdir(self._path)
        ):
            own = file_names.parse_partition_dir(os.path.basename(os.path.abspath(self._path)))
            return {self._path: own or TopicPartition(os.path.basename(self._path), 0)}
        found = {}
        for name in sorted(self._disk.listdir(self._path)):
            tp = file_names.parse_partition_dir(name)
            if tp is not None and not name.endswith(tuple(_ASIDE)) and self._disk.isdir(f"{self._path}/{name}"):
                found[f"{self._path}/{name}"] = tp
        return found

    def _size(self, partition: str) -> int:
        logs = [name for name in self._disk.listdir(partition) if name.endswith(file_names.LOG)]
        return sum(self._disk.size(f"{partition}/{name}") for name in logs if self._disk.exists(f"{partition}/{name}"))

    # The directory as a whole.

    def _marks(self, data_dir: str) -> tuple[Marks, bool]:
        """The checkpoints, and whether one of them is damaged."""
        marks = []
        damaged = False
        for name in MARK_FILES:
            try:
                marks.append(checkpoint_files.read_offsets(self._disk, data_dir, name))
            except (ValueError, IndexError) as error:
                damaged = True
                marks.append({})
                self._tell(LogFinding(f"{data_dir}/{name}", str(error)))
                self._repairs.append(f"{data_dir}/{name}: logs are read from their start")
        return Marks(*marks), damaged

    def _directory(self, used: bool, marks: Marks, present: set[TopicPartition]) -> None:
        try:
            if meta_properties.read_meta_properties(self._disk, self._path) is None:
                what = "missing; the broker of the next start takes the directory for its own"
                self._tell(LogFinding(f"{self._path}/{meta_properties.FILE}", what, is_problem=False))
        except ValueError as error:
            self._tell(LogFinding(f"{self._path}/{meta_properties.FILE}", str(error)))
            self._repairs.append(f"{self._path}: the broker does not start, for it cannot tell whose data this is")
        for name in sorted(self._disk.listdir(self._path)):
            for ending, what in _ASIDE.items():
                if name.endswith(ending):
                    self._tell(LogFinding(f"{self._path}/{name}", what, is_problem=False))
        for offsets, name in zip(marks, MARK_FILES, strict=True):
            for tp, offset in offsets.items():
                if offset < 0:
                    self._tell(LogFinding(f"{self._path}/{name}", f"{tp} has offset {offset}"))
                if tp not in present and not used:
                    what = f"names {tp}, which has no directory"
                    self._tell(LogFinding(f"{self._path}/{name}", what, is_problem=False))
        if not used:
            self._coordination(f"{self._path}/{COORDINATION}")

    def _coordination(self, directory: str) -> None:
        if not self._disk.isdir(directory):
            return
        for name in sorted(self._disk.listdir(directory)):
            found = find_reader(self._disk, f"{directory}/{name}")
            if found is None:
                continue
            for item in found[1](found[2], Wanted()):
                if item.kind == "damage":
                    self._tell(LogFinding(f"{directory}/{name}", item.fields["reason"], item.fields["position"]))
        stage = OverlayDisk(self._disk)
        try:
            Journal(stage, directory).load()
        except (CoordinationError, ValueError, KeyError, StructError) as error:
            self._repairs.append(f"{directory}: the broker does not start: {error}")

    # One partition.

    def _partition(self, path: str, tp: TopicPartition, known: CheckpointedState, work: ProgressBar) -> None:
        check = PartitionCheck(self._disk, path, known, work.advance)
        before = self.problems
        try:
            for finding in check.findings():
                self._tell(finding)
        except OSError as error:
            if not (known.moving and isinstance(error, FileNotFoundError)):
                self._tell(LogFinding(error.filename or path, f"cannot be read: {error.strerror}"))
        seen = check.seen
        self._batches += seen.batches
        self._bytes += seen.bytes
        self._unchecked += seen.unchecked
        if known.moving or (self.problems == before and known.clean):
            return
        now_ms = time.time_ns() // 1_000_000
        point, start = known.recovery_point, known.log_start_offset
        self._repairs += dry_run_recovery(self._disk, path, tp, point, start, known.clean, now_ms, Random(0))

    # Telling.

    def _tell(self, finding: LogFinding) -> None:
        if finding.is_problem:
            self.problems += 1
        else:
            self._notes += 1
        self._per_file[finding.path] += 1
        if self._per_file[finding.path] > TOLD_PER_FILE:
            return
        if self._json:
            self._told.append(finding._asdict())
            return
        kind = "problem" if finding.is_problem else "note"
        color = _RED if finding.is_problem else _DIM
        line = f"{kind}: {finding.path}{''.join(self._place(finding))}: {finding.what}"
        self._lines.append(f"{color}{line}{_OFF}" if self._colors else line)

    def _place(self, finding: LogFinding) -> Iterator[str]:
        if finding.position is not None:
            yield f" byte {finding.position}"
        if finding.offset is not None:
            yield f" offset {finding.offset}"

    def _summarise(self, partitions: int, clean: bool, used: bool) -> None:
        untold = {path: count - TOLD_PER_FILE for path, count in self._per_file.items() if count > TOLD_PER_FILE}
        if self._json:
            print_json(
                {
                    "directory": self._path,
                    "running": used,
                    "clean_stop": None if used else clean,
                    "partitions": partitions,
                    "batches": self._batches,
                    "bytes": self._bytes,
                    "bytes_to_recover": None if used or clean else self._unchecked,
                    "problems": self.problems,
                    "notes": self._notes,
                    "findings": self._told,
                    "more_findings": untold,
                    "next_start": self._repairs,
                }
            )
            return
        for line in self._lines:
            print(line)
        for path, count in untold.items():
            print(f"and {count_text(count, 'more finding')} in {path}")
        for line in self._repairs:
            print(f"next start: {line}")
        if not used and not clean:
            size = count_text(self._unchecked, "byte")
            print(f"next start: the last stop was not clean, so up to {size} of the logs are read and checked")
        elif self.problems and not used and not self._repairs:
            print("next start: it would not notice any of this, and repair nothing")
        checked = f"{count_text(partitions, 'partition')}, {self._batches} batches, {count_text(self._bytes, 'byte')}"
        print(f"{checked}: {count_text(self.problems, 'problem')}, {count_text(self._notes, 'note')}")
