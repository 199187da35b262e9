"""Repairs an archive: what is missing or damaged is read again, or recorded as lost.

For each table one commit replaces all files by those that stay and new ones with what was read again. The sources are
intact files to which the table does not refer, then the broker, then damaged files as far as they can be read. Offsets
that no source has become gaps with the reason `lost`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kbroker.archive.archive import Archive, ArchiveTable, ConflictError
from kbroker.archive.catalogs import open_archive
from kbroker.archive.data_files import DataFile, write_rows
from kbroker.archive.errors import ArchiveError
from kbroker.archive.offset_ranges import OffsetRange, intersect_ranges, merge_ranges, subtract_ranges
from kbroker.archive.repair.diagnosis import Diagnosis, diagnose
from kbroker.archive.repair.metadata import restore_metadata
from kbroker.archive.repair.replacement import replace_files
from kbroker.archive.repair.sources import Wanted, rows_of_broker, rows_of_damaged_file, rows_of_intact_file
from kbroker.archive.topic_state import Gap, TopicState
from kbroker.archive.verification.broker_comparison import ComparisonPlan, plan_comparison
from kbroker.archive.verification.findings import Finding, VerificationScope
from kbroker.archive.verification.table_files import open_table
from kbroker.client.cluster import ClusterClient
from kbroker.common import TopicPartition

ATTEMPTS = 5


@dataclass
class TopicRepair:
    """What was done, or with a dry run what there is to do, for one topic."""

    topic: str
    metadata: str = ""  # the name of the older metadata file that became the current one
    replaced: list[str] = field(default_factory=list)  # paths of files that the table no longer has
    wanted: dict[int, tuple[OffsetRange, ...]] = field(default_factory=dict)  # by partition: offsets to read again
    rows: int = 0  # that were read again
    lost: dict[int, tuple[OffsetRange, ...]] = field(default_factory=dict)
    unrepaired: list[Finding] = field(default_factory=list)
    is_changed: bool = False


def repair(
    location: str,
    topics: Sequence[str] = (),
    cluster: ClusterClient | None = None,
    *,
    dry_run: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> list[TopicRepair]:
    """Repair the tables of these topics, by default of all. Without `cluster` only files are read.

    Raises ArchiveError, and what `cluster` raises.
    """
    archive = open_archive(location)
    archived = archive.topics()
    if missing := sorted(set(topics).difference(archived)):
        raise ArchiveError(f"the archive has no topic {missing[0]}; it has {', '.join(archived) or 'none'}")
    result = []
    for topic in topics or archived:
        progress(f"{topic}: reading")
        result.append(_repair_topic(archive, topic, cluster, dry_run))
    return result


def _repair_topic(archive: Archive, topic: str, cluster: ClusterClient | None, dry_run: bool) -> TopicRepair:
    done = TopicRepair(topic)
    table, findings = open_table(archive, topic)
    if table is None:
        done.metadata, done.is_changed = restore_metadata(archive, topic, dry_run), True
        if dry_run:
            return done
        table, findings = open_table(archive, topic)
    if table is None:
        raise ArchiveError(f"{topic}: {findings[0].text}")
    for _ in range(ATTEMPTS):
        if table.state.archive != archive.settings.id:
            raise ArchiveError(f"{topic}: the table belongs to another archive")
        try:
            return _repair_table(archive, table, cluster, dry_run, done)
        except ConflictError:
            table.refresh()
    raise ArchiveError(f"{topic}: other processes have changed the table {ATTEMPTS} times during its repair")


def _repair_table(
    archive: Archive, table: ArchiveTable, cluster: ClusterClient | None, dry_run: bool, done: TopicRepair
) -> TopicRepair:
    committed_only = archive.settings.committed_only
    plan = ComparisonPlan()
    if cluster is not None:
        plan = plan_comparison(cluster, table.topic, table.state, VerificationScope(), committed_only, False)
        done.unrepaired = list(plan.findings)
    found = diagnose(table, cluster, plan, committed_only, bool(done.metadata))
    done.unrepaired += found.unrepaired
    done.replaced = [file.path for file in found.bad]
    done.wanted = _added(found.wanted, found.holes)
    if found.is_clean or dry_run:
        return done
    wanted = Wanted(done.wanted)
    files = _read_again(table, found, wanted, cluster, plan, committed_only)
    done.rows, done.is_changed = wanted.found_rows, True
    done.lost = _lost(found, wanted, plan)
    replace_files(table, _repaired_state(table.state, found, done.lost), [*found.good, *files], found.damaged_snapshots)
    return done


def _read_again(
    table: ArchiveTable,
    found: Diagnosis,
    wanted: Wanted,
    cluster: ClusterClient | None,
    plan: ComparisonPlan,
    committed_only: bool,
) -> list[DataFile]:
    """Write what is wanted as new files, one source after the other, so that the rows of a file are in order."""
    target = table.write_target()
    files = []
    for path in found.unreferenced:
        files += write_rows(target, rows_of_intact_file(table, path, wanted))
    if cluster is not None:
        for partition, log in plan.logs.items():
            ranges = intersect_ranges(wanted.ranges.get(partition, ()), [log])
            tp = TopicPartition(table.topic, partition)
            files += write_rows(target, rows_of_broker(cluster, tp, ranges, wanted, committed_only))
    for file in found.bad:
        files += write_rows(target, rows_of_damaged_file(table, file, wanted))
    return files


def _lost(found: Diagnosis, wanted: Wanted, plan: ComparisonPlan) -> dict[int, tuple[OffsetRange, ...]]:
    """Return the offsets whose records are lost.

    An offset may never have had a record. Where the broker's log has none it had none, unless compaction removed it. If
    as many rows were found as are missing, the other offsets had none.
    """
    lost = {}
    is_complete = wanted.found_rows >= found.expected_rows
    for partition, ranges in wanted.ranges.items():
        unknown = subtract_ranges(ranges, found.holes.get(partition, ())) if is_complete else ()
        remaining = subtract_ranges(ranges, unknown)
        if not plan.is_compacted and partition in plan.logs:
            remaining = subtract_ranges(remaining, [plan.logs[partition]])
        if remaining:
            lost[partition] = remaining
    return lost


def _repaired_state(state: TopicState, found: Diagnosis, lost: dict[int, tuple[OffsetRange, ...]]) -> TopicState:
    """Return the state in which holes are covered, and what is lost is a gap."""
    gaps = [Gap(partition, *offsets, "lost") for partition, ranges in sorted(lost.items()) for offsets in ranges]
    return replace(state, covered=_added(state.covered, found.holes), gaps=(*state.gaps, *gaps))


def _added(
    first: Mapping[int, tuple[OffsetRange, ...]], second: Mapping[int, tuple[OffsetRange, ...]]
) -> dict[int, tuple[OffsetRange, ...]]:
    return {
        partition: merge_ranges([*first.get(partition, ()), *second.get(partition, ())])
        for partition in sorted(first.keys() | second.keys())
    }
