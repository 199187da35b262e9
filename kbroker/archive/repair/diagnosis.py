"""Finds what a table has lost, and which of its files stay."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from kbroker.archive.archive import COMMIT, ArchiveTable
from kbroker.archive.data_files import DataFile
from kbroker.archive.offset_ranges import OffsetRange, intersect_ranges, merge_ranges, ranges_of, subtract_ranges
from kbroker.archive.repair.sources import last_offsets
from kbroker.archive.verification.broker_comparison import ComparisonPlan, PartitionComparer
from kbroker.archive.verification.file_checks import FileChecker, RowGroup
from kbroker.archive.verification.findings import Finding, VerificationScope
from kbroker.archive.verification.partition_rows import PartitionRows, find_duplicates, windows
from kbroker.archive.verification.state_checks import check_files, gap_offsets
from kbroker.archive.verification.table_files import list_files, read_snapshots
from kbroker.client.cluster import ClusterClient

Ranges = tuple[OffsetRange, ...]


@dataclass
class Diagnosis:
    """What is wrong with a table."""

    good: list[DataFile] = field(default_factory=list)
    bad: list[DataFile] = field(default_factory=list)  # missing, damaged, or with rows that must not be there
    is_incomplete: bool = False  # manifests cannot be read, or another program has changed the table
    damaged_snapshots: list[int] = field(default_factory=list)
    expected_rows: int = 0  # that are lost with bad files and manifests, as far as that is known
    # By partition: offsets that should have their records, and offsets between covered ones that no commit covers.
    wanted: dict[int, Ranges] = field(default_factory=dict)
    holes: dict[int, Ranges] = field(default_factory=dict)
    # Data files in the table's directory that the table does not refer to; they may have what is wanted.
    unreferenced: list[str] = field(default_factory=list)
    # Records that differ from the broker's, which are not repaired.
    unrepaired: list[Finding] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not (self.bad or self.is_incomplete or self.damaged_snapshots or self.wanted or self.holes)


def diagnose(
    table: ArchiveTable, cluster: ClusterClient | None, plan: ComparisonPlan, committed_only: bool, is_restored: bool
) -> Diagnosis:
    """Check all files of a table, and compare them with the broker where `plan` says.

    `is_restored`: the state is older than the last commit. Files of later commits show which offsets those covered.
    """
    result = Diagnosis()
    files = _intended_files(table, result)
    groups = _check(table, files, result)
    base: dict[int, list[OffsetRange]] = defaultdict(list)
    for file in result.bad:
        base[file.partition].append(file.offsets)
    for partition, covered in table.state.covered.items():
        if result.is_incomplete:
            base[partition] = list(covered)
        between = [OffsetRange(each.end, following.start) for each, following in pairwise(covered)]
        if holes := subtract_ranges(between, gap_offsets(table.state, partition)):
            result.holes[partition] = holes
    for partition, comparable in plan.ranges.items():
        assert cluster is not None
        comparer = PartitionComparer(table, partition, groups[partition], VerificationScope(), committed_only)
        comparer.run(cluster, comparable)
        base[partition] += comparer.missing()
        found = comparer.findings(plan, 0, (), [])
        result.unrepaired += [each for each in found if each.is_difference and each.kind != "missing record"]
    for partition, ranges in base.items():
        wanted = intersect_ranges(ranges, table.state.covered.get(partition, ()))
        wanted = subtract_ranges(wanted, gap_offsets(table.state, partition))
        if wanted := subtract_ranges(wanted, _present(table, groups[partition], wanted)):
            result.wanted[partition] = wanted
    known = {file.path for file in files}
    if result.wanted or is_restored:
        result.unreferenced = [
            file.path for file in list_files(table) if file.path.endswith(".parquet") and file.path not in known
        ]
    resume_offsets = table.state.resume_offsets()
    for partition, end in last_offsets(table, result.unreferenced).items() if is_restored else ():
        if partition in plan.logs and end > (start := resume_offsets.get(partition, 0)):
            result.holes[partition] = (*result.holes.get(partition, ()), OffsetRange(start, end))
    return result


def _intended_files(table: ArchiveTable, result: Diagnosis) -> list[DataFile]:
    """Return the files of the state that kbroker committed last, as far as they can be read."""
    snapshot = table.iceberg.current_snapshot()
    if snapshot is None:
        return []
    snapshots = read_snapshots(table)
    result.damaged_snapshots = [number for number, read in snapshots.items() if read.findings]
    if table.foreign_change():
        result.is_incomplete = True
        own = [
            each
            for each in table.iceberg.metadata.snapshots
            if each.summary and COMMIT in each.summary.additional_properties
        ]
        snapshot = max(own, key=lambda each: each.sequence_number or 0, default=snapshot)
    read = snapshots[snapshot.snapshot_id]
    files = {file.path: file for file in read.files}
    if len(files) < len(read.files) or read.findings:
        result.is_incomplete = True
    if read.findings and snapshot.summary is not None:
        total = int(snapshot.summary.additional_properties.get("total-records") or 0)
        result.expected_rows += max(0, total - sum(file.rows for file in files.values()))
    return list(files.values())


def _check(table: ArchiveTable, files: list[DataFile], result: Diagnosis) -> Mapping[int, list[RowGroup]]:
    """Divide the files into good and bad ones, and return the row groups of the good ones by partition."""
    bad = {
        finding.file
        for finding in check_files(table.topic, table.state, files, table.write_target().period)
        if finding.is_difference
    }
    groups: dict[int, list[RowGroup]] = defaultdict(list)
    for check in FileChecker(table, files).check_all(files, lambda size: None):
        if not check.is_readable or any(finding.is_difference for finding in check.findings):
            bad.add(check.file.path)
        else:
            groups[check.file.partition] += check.groups
    for partition, listed in groups.items():
        doubled = [each for finding in find_duplicates(table, partition, listed) for each in finding.offsets]
        for group in listed:
            if intersect_ranges([group.file.offsets], doubled):
                bad.add(group.file.path)
    for file in files:
        (result.bad if file.path in bad else result.good).append(file)
    result.expected_rows += sum(file.rows for file in result.bad)
    return defaultdict(
        list, {p: [each for each in listed if each.file.path not in bad] for p, listed in groups.items()}
    )


def _present(table: ArchiveTable, groups: Iterable[RowGroup], wanted: Ranges) -> Ranges:
    """Return those of the wanted offsets that have a row."""
    near = [group for group in groups if intersect_ranges([OffsetRange(group.first, group.last + 1)], wanted)]
    rows = PartitionRows(table, near, [])
    result: Ranges = ()
    for start, end in windows(rows):
        found = rows.take(start, end)
        if found is not None:
            result = merge_ranges([*result, *ranges_of(found.column("offset").to_pylist())])
    return result
