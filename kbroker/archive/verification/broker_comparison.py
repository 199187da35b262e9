"""Compares the rows of a table with the broker's records, where the broker still has them.

The rows are encoded as the records of the broker's batches, and compared as bytes. Only a batch that differs is decoded
and compared record by record. It may be equal nevertheless, because other encodings of a record are possible.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kbroker.archive.archive import ArchiveTable
from kbroker.archive.data_files import DataFile
from kbroker.archive.decoding.settings import decode_settings
from kbroker.archive.history.batches import encode_records, repeat
from kbroker.archive.history.blocks import make_block
from kbroker.archive.offset_ranges import OffsetRange, intersect_ranges, merge_ranges, subtract_ranges
from kbroker.archive.topic_state import TopicState
from kbroker.archive.verification.broker_batches import Batch, FetchedBatches, fetch_batches, log_start_offsets
from kbroker.archive.verification.file_checks import RowGroup
from kbroker.archive.verification.findings import (
    Finding,
    PartitionComparison,
    VerificationScope,
    difference,
    note,
)
from kbroker.archive.verification.partition_rows import MAX_REPORTED, PartitionRows, note_omitted, offsets_of
from kbroker.client.admin import describe_topics, topic_configs
from kbroker.client.cluster import ClusterClient
from kbroker.client.offsets import LATEST, READ_COMMITTED, READ_UNCOMMITTED, list_offsets
from kbroker.client.requests import BrokerError
from kbroker.common import TopicPartition, uuid_text
from protocol.errors import ErrorCode
from protocol.records.batch import iter_batch_records

COLUMNS = ("offset", "timestamp", "timestampType", "key", "value", "headers")
_TEXTS = {
    "missing record": "at the broker, but not in the archive",
    "unknown record": "in the archive, but not at the broker",
    "different record": "different at the broker",
}
_END = 1 << 63  # above all offsets
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


@dataclass
class ComparisonPlan:
    """The offsets to compare, and findings on those that cannot be compared."""

    ranges: dict[int, tuple[OffsetRange, ...]] = field(default_factory=dict)
    logs: dict[int, OffsetRange] = field(default_factory=dict)  # the offsets that the broker has, by partition
    is_compacted: bool = False  # the broker may have removed records
    findings: list[Finding] = field(default_factory=list)


def plan_comparison(
    cluster: ClusterClient,
    topic: str,
    state: TopicState,
    scope: VerificationScope,
    committed_only: bool,
    required: bool,
) -> ComparisonPlan:
    """Plan the comparison. If it is `required`, a topic that is not at the broker is a difference."""
    plan = ComparisonPlan()
    [described] = describe_topics(cluster, [topic])
    problem = ""
    if described.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        problem = "the topic does not exist at the broker"
    elif described.error_code:
        raise BrokerError(described.error_code, topic)
    elif any(described.topic_id) and state.topic is not None and state.topic.topic_id:
        topic_id = uuid_text(described.topic_id)
        if topic_id != state.topic.topic_id:
            problem = f"the broker's topic was created again (its id is {topic_id} instead of {state.topic.topic_id})"
    if problem:
        plan.findings.append(
            (difference if required else note)("not compared", f"{problem}: not compared", topic=topic)
        )
        return plan
    count = len(described.partitions)
    for partition in sorted(partition for partition in state.covered if partition >= count):
        text = f"archived, but the broker's topic has {count} partitions"
        plan.findings.append(difference("unknown record", text, TopicPartition(topic, partition)))
    tps = [TopicPartition(topic, partition) for partition in sorted(state.covered) if partition < count]
    log_starts = log_start_offsets(cluster, tps)
    isolation_level = READ_COMMITTED if committed_only else READ_UNCOMMITTED
    log_ends = list_offsets(cluster, dict.fromkeys(tps, LATEST), isolation_level)
    for tp in tps:
        plan.logs[tp.partition] = OffsetRange(log_starts[tp], log_ends[tp])
        selected = scope.limit(state.covered[tp.partition])
        if beyond_end := subtract_ranges(selected, [OffsetRange(0, log_ends[tp])]):
            text = f"archived, but the broker's log ends at {log_ends[tp]}"
            plan.findings.append(difference("unknown record", text, tp, offsets=beyond_end))
        if comparable := intersect_ranges(selected, [OffsetRange(log_starts[tp], log_ends[tp])]):
            plan.ranges[tp.partition] = comparable
    policies = topic_configs(cluster, [topic], ["cleanup.policy"]).get(topic, {})
    archived = state.topic.configs if state.topic is not None else {}
    plan.is_compacted = any("compact" in configs.get("cleanup.policy", "") for configs in (policies, archived))
    return plan


class _DifferenceKey(NamedTuple):
    kind: str
    columns: str  # comma-separated; of different records
    file: str  # URI; empty for missing records


_MISSING = _DifferenceKey("missing record", "", "")


class PartitionComparer:
    """Compares one partition."""

    def __init__(
        self,
        table: ArchiveTable,
        partition: int,
        groups: Iterable[RowGroup],
        scope: VerificationScope,
        committed_only: bool,
    ) -> None:
        self._tp = TopicPartition(table.topic, partition)
        # Without raw bytes only values that were not decoded are there.
        keeps_values = decode_settings(table.iceberg.properties, table.location).keep_raw
        self._columns = [name for name in COLUMNS if keeps_values or name != "value"]
        self._rows = PartitionRows(table, groups, self._columns)
        self._scope = scope
        self._committed_only = committed_only
        self._differences: dict[_DifferenceKey, list[OffsetRange]] = {}
        self.archive_rows = self.broker_rows = 0

    def run(self, cluster: ClusterClient, ranges: Sequence[OffsetRange]) -> None:
        """Compare the rows at these offsets. Raises BrokerError, MalformedError, OSError, pa.ArrowException."""
        for start, end in ranges:
            for fetched in fetch_batches(cluster, self._tp, start, end, committed_only=self._committed_only):
                self._compare(fetched, min(fetched.end, end))

    def missing(self) -> tuple[OffsetRange, ...]:
        """Return ranges with all offsets at which the broker has a record, and the archive has none."""
        ranges = self._differences.get(_MISSING, [])
        rest = [OffsetRange(ranges[-1].start, _END)] if len(ranges) > MAX_REPORTED else []
        return merge_ranges([*ranges, *rest])

    def findings(
        self, plan: ComparisonPlan, log_start: int, lost: Iterable[DataFile], explained: Sequence[OffsetRange]
    ) -> list[Finding]:
        """Return the differences, and the reasons of those that have one.

        `log_start` is that of the log after the comparison, `lost` the files whose rows cannot be read, `explained` the
        offsets whose records the archive says that it does not have.
        """
        findings, count = [], 0
        for key, ranges in sorted(self._differences.items(), key=lambda item: item[1][0]):
            count += len(ranges)
            text = _TEXTS[key.kind] + (f" ({key.columns})" if key.columns else "")
            offsets = merge_ranges(ranges[:MAX_REPORTED])
            if key == _MISSING:
                offsets = subtract_ranges(offsets, explained)
            found = difference(key.kind, text, self._tp, key.file, offsets)
            findings += _explain(found, plan.is_compacted, log_start, lost)
        return findings + note_omitted(count, "ranges of differing records")

    def compared(self, ranges: tuple[OffsetRange, ...], is_equal: bool) -> PartitionComparison:
        return PartitionComparison(*self._tp, ranges, self.archive_rows, self.broker_rows, is_equal)

    def _compare(self, fetched: FetchedBatches, end: int) -> None:
        """Compare the batches with the rows in their place."""
        rows = self._rows.take(fetched.start, end)
        position, bounds = 0, []
        column = memoryview(b"").cast("q") if rows is None else offsets_of(rows)
        for batch in fetched.batches:
            low = bisect_left(column, max(batch.header.base_offset, fetched.start), position)
            position = bisect_left(column, min(batch.header.next_offset, end), low)
            bounds.append((low, position))
        equal = self._equal_batches(fetched.batches, rows, bounds)
        previous = 0
        for batch, (low, high), is_equal in zip(fetched.batches, bounds, equal, strict=True):
            if rows is not None and low > previous:
                self._compare_records({}, rows.slice(previous, low - previous))
            previous = high
            if is_equal:
                self.archive_rows += high - low
                self.broker_rows += high - low
            else:
                records = self._records(batch, fetched.start, end)
                self._compare_records(records, None if rows is None else rows.slice(low, high - low))
        if rows is not None and len(rows) > previous:
            self._compare_records({}, rows.slice(previous))

    def _equal_batches(
        self, batches: Sequence[Batch], rows: pa.Table | None, bounds: Sequence[tuple[int, int]]
    ) -> list[bool]:
        """Return for each batch whether its bytes are those of its rows."""
        if rows is None or not bounds or len(self._columns) < len(COLUMNS) or self._scope.selects_by_time:
            return [False] * len(bounds)
        start, stop = bounds[0][0], bounds[-1][1]
        counts = [high - low for low, high in bounds]
        types = pc.min_max(rows.column("timestampType")).as_py()
        if types != {"min": 0, "max": 0} or sum(counts) != stop - start:  # rows between batches shift the others
            return [False] * len(bounds)
        headers = [batch.header for batch in batches]
        encoded = encode_records(
            make_block(rows.slice(start, stop - start)),
            repeat([header.base_offset for header in headers], counts),
            repeat([header.base_timestamp for header in headers], counts),
        )
        starts = memoryview(encoded.buffers()[1]).cast("q")[encoded.offset :]
        data = encoded.buffers()[2] or pa.py_buffer(b"")
        result = []
        for batch, (low, high) in zip(batches, bounds, strict=True):
            first, last = starts[low - start], starts[high - start]
            result.append(
                batch.header.count == high - low
                and not batch.header.is_log_append_time
                and data.slice(first, last - first).equals(pa.py_buffer(batch.body()))
            )
        return result

    def _records(self, batch: Batch, start: int, end: int) -> dict[int, tuple[object, ...]]:
        """Return the records of a batch by offset, as the values of COLUMNS without the offset."""
        batch.check_crc()
        header = batch.header
        result: dict[int, tuple[object, ...]] = {}
        for record in iter_batch_records(batch.view, header):
            offset = header.base_offset + record.offset_delta
            timestamp = header.max_timestamp if header.is_log_append_time else record.timestamp
            if start <= offset < end and self._scope.has_time(timestamp):
                headers = [(name.decode(errors="replace"), value) for name, value in record.headers]
                kind = int(header.is_log_append_time)
                result[offset] = (timestamp, kind, record.key, record.value, headers)
        return result

    def _compare_records(self, records: dict[int, tuple[object, ...]], rows: pa.Table | None) -> None:
        """Compare single records. The first row of an offset counts: verification reports the others as doubled."""
        archived: set[int] = set()
        for row in [] if rows is None else rows.to_pylist():
            offset, timestamp = row["offset"], (row["timestamp"] - _EPOCH) // _MS
            if offset in archived or not self._scope.has_time(timestamp):
                continue
            archived.add(offset)
            path = self._rows.paths[row["file"]]
            record = records.get(offset)
            if record is None:
                self._add(_DifferenceKey("unknown record", "", path), offset)
                continue
            row["timestamp"] = timestamp
            row["headers"] = [(header["key"], header["value"]) for header in row.get("headers") or []]
            differing = [
                name
                for name, value in zip(COLUMNS[1:], record, strict=True)
                if name in self._columns and row[name] != value
            ]
            if differing:
                self._add(_DifferenceKey("different record", ", ".join(differing), path), offset)
        for offset in sorted(records.keys() - archived):
            self._add(_MISSING, offset)
        self.archive_rows += len(archived)
        self.broker_rows += len(records)

    def _add(self, key: _DifferenceKey, offset: int) -> None:
        ranges = self._differences.setdefault(key, [])
        if ranges and ranges[-1].end == offset:
            ranges[-1] = OffsetRange(ranges[-1].start, offset + 1)
        elif len(ranges) <= MAX_REPORTED:  # one more, as a sign that there are more
            ranges.append(OffsetRange(offset, offset + 1))


def _explain(found: Finding, is_compacted: bool, log_start: int, lost: Iterable[DataFile]) -> list[Finding]:
    """Separate what the broker has deleted meanwhile, and what was in an unreadable file."""
    assert found.partition is not None
    tp, result, remaining = TopicPartition(found.topic, found.partition), [], found.offsets
    if found.kind == "unknown record":
        if deleted := intersect_ranges(remaining, [OffsetRange(0, log_start)]):
            result.append(note("retention", "deleted from the broker's log while it was read", tp, offsets=deleted))
            remaining = subtract_ranges(remaining, deleted)
        if remaining and is_compacted:
            count = sum(end - start for start, end in remaining)
            text = f"{count} archived records were removed at the broker by log compaction"
            return [*result, note("compacted", text, tp, found.file)]
    elif found.kind == "missing record":
        for file in lost:
            if file.partition == found.partition and (held := intersect_ranges(remaining, [file.offsets])):
                text = "at the broker; the archive lost it with this file"
                result.append(found._replace(text=text, file=file.path, offsets=held))
                remaining = subtract_ranges(remaining, held)
    return [*result, *([found._replace(offsets=remaining)] if remaining else [])]
