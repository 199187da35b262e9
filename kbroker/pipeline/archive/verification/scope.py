"""The part of an archive that is verified (pure)."""

from collections.abc import Iterable
from dataclasses import dataclass

from kbroker.pipeline.archive import schema
from kbroker.pipeline.archive.manifest.model import DataFile, PartitionStats
from kbroker.pipeline.archive.offset_ranges import OffsetRange, intersect_ranges, merge_ranges


@dataclass(frozen=True)
class VerificationScope:
    """Selects what is verified; by default everything."""

    topics: frozenset[str] = frozenset()
    dates: frozenset[str] = frozenset()  # YYYY-MM-DD
    offsets: OffsetRange | None = None
    times_ms: tuple[int, int] | None = None  # timestamps of the records: [start, end)

    def has_topic(self, topic: str) -> bool:
        return not self.topics or topic in self.topics

    def has_file(self, file: DataFile) -> bool:
        """Return whether the file may have rows in the scope."""
        if not self.has_topic(file.topic) or (self.dates and file.date not in self.dates):
            return False
        return any(map(self._has_partition, file.partitions))

    def _has_partition(self, stats: PartitionStats) -> bool:
        if self.offsets is not None and (stats.last < self.offsets.start or stats.first >= self.offsets.end):
            return False
        return self.times_ms is None or (stats.to_ms >= self.times_ms[0] and stats.from_ms < self.times_ms[1])

    def limit(self, ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
        """Return the part of offset ranges that is in the scope."""
        return merge_ranges(ranges) if self.offsets is None else intersect_ranges(ranges, [self.offsets])

    def timestamp_condition(self) -> str:
        """Return the SQL condition that a row's timestamp is in the scope."""
        conditions = ["true"]
        if self.times_ms is not None:
            start, end = self.times_ms
            conditions.append(f"unix_millis(timestamp) >= {start} AND unix_millis(timestamp) < {end}")
        if self.dates:
            dates = ", ".join(f"DATE'{date}'" for date in sorted(self.dates))
            conditions.append(f"{schema.DATE} IN ({dates})")
        return " AND ".join(conditions)
