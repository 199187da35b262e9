"""Reads the records of a topic in steps of bounded time and size, each of which goes on exactly where the last ended.

Partitions are merged by timestamp. Within a partition, records stay in the order of offsets.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import NamedTuple

from kbroker.cli.common.errors import CliError
from kbroker.cli.common.values import PartitionPosition
from kbroker.client.cluster import ClusterClient
from kbroker.client.consumer import ConsumedRecord, PartitionConsumer
from kbroker.client.offsets import EARLIEST, LATEST, READ_UNCOMMITTED, offsets_at_brokers
from kbroker.client.requests import Partition
from kbroker.common import TopicPartition

Positions = Mapping[int, int]
Matches = Callable[[ConsumedRecord], bool]

MAX_FOUND, MAX_FOUND_BYTES = 500, 8 << 20
# Records of a partition that are decoded before others are compared with them.
POLL_RECORDS = 500
PAGE_PARTITION_BYTES, SCAN_PARTITION_BYTES = 64 << 10, 1 << 20
# Offsets that are read backwards at a time, in all partitions together: more while that takes less than WINDOW_S.
FIRST_WINDOW, MAX_WINDOW, WINDOW_S = 400, 25_600, 0.1
# A leader may be being elected.
STUCK_S = 5.0


class ScanStep(NamedTuple):
    """What to read. `max_s`: a step ends after this time, or at the end. `matches`: None for all records."""

    topic: str
    matches: Matches | None
    max_found: int
    max_s: float
    isolation_level: int = READ_UNCOMMITTED


class ScanResult(NamedTuple):
    """`positions`: where the next step goes on. `remaining`: offsets to its end. `read`: records, matching or not."""

    records: list[ConsumedRecord]
    positions: Positions
    remaining: int
    read: int
    read_bytes: int


class TopicReader(NamedTuple):
    """A topic, and its leaders with their partitions; partitions without a leader are not read."""

    cluster: ClusterClient
    topic: str
    isolation_level: int
    by_leader: Mapping[int, Sequence[Partition]]

    @classmethod
    def open(cls, cluster: ClusterClient, topic: str, isolation_level: int) -> "TopicReader":
        """Raises BrokerError for a topic that does not exist."""
        by_leader: dict[int, list[Partition]] = {}
        for partition, leader in cluster.topic(topic).leaders.items():
            if leader >= 0:
                by_leader.setdefault(leader, []).append((topic, partition))
        return cls(cluster, topic, isolation_level, by_leader)

    def offsets(self, timestamp: int) -> dict[int, int]:
        """Return the offset of a time, EARLIEST or LATEST by partition; -1 if all records are older.

        Raises CliError if no leader responds.
        """
        found = offsets_at_brokers(self.cluster, self.by_leader, timestamp, isolation_level=self.isolation_level)
        if not found:
            raise CliError(f"topic {self.topic}: no leader of a partition responds")
        return {partition: offset for (_, (_, partition)), offset in found.items()}


def start_positions(
    cluster: ClusterClient, topic: str, start: PartitionPosition, isolation_level: int = READ_UNCOMMITTED
) -> dict[int, int]:
    """Return a position in each partition that has a leader. Raises as `scan_forward`."""
    reader = TopicReader.open(cluster, topic, isolation_level)
    if start.kind == "earliest":
        return reader.offsets(EARLIEST)
    ends = reader.offsets(LATEST)
    if start.kind == "time":
        return ends | {at: offset for at, offset in reader.offsets(start.value).items() if offset >= 0}
    if start.kind == "last":
        return {at: max(begin, ends[at] - start.value) for at, begin in reader.offsets(EARLIEST).items() if at in ends}
    if start.kind == "offset":
        return {at: min(start.value, end) for at, end in ends.items()}
    return ends


def scan_forward(cluster: ClusterClient, positions: Positions, step: ScanStep) -> ScanResult:
    """Read from positions on, oldest first, to the current end. Raises BrokerError, BrokerUnreachable, CliError."""
    scan = _ForwardScan(cluster, positions, step)
    scan.run()
    remaining = sum(max(0, end - scan.positions[at]) for at, end in scan.ends.items())
    return ScanResult(scan.found, scan.positions, remaining, scan.read, scan.read_bytes)


class _ForwardScan:
    """`positions`: behind the last record that was compared, of each partition."""

    def __init__(self, cluster: ClusterClient, positions: Positions, step: ScanStep) -> None:
        ends = TopicReader.open(cluster, step.topic, step.isolation_level).offsets(LATEST)
        self._first, self.positions = positions, dict(positions)
        self.ends = {partition: ends[partition] for partition in positions if partition in ends}
        self.found: list[ConsumedRecord] = []
        self.read = self.read_bytes = 0
        self._step = step
        self._found_bytes = 0
        self._deadline_s = monotonic() + step.max_s
        self._consumer = PartitionConsumer(
            cluster, {TopicPartition(step.topic, partition): positions[partition] for partition in self.ends},
            isolation_level=step.isolation_level,
            max_partition_bytes=_fetch_bytes(step),
        )  # fmt: skip
        # Fetched records by partition; none is empty.
        self._fetched: dict[int, deque[ConsumedRecord]] = {}
        # Without progress, as the records of open transactions: nothing more can be read now.
        self._stuck: set[int] = set()

    def run(self) -> None:
        while not self._is_full():
            starving = [
                partition
                for partition, end in self.ends.items()
                if partition not in self._fetched and self.positions[partition] < end and partition not in self._stuck
            ]
            if starving:
                self._fetch(starving)
            elif self._fetched:
                self._merge()
            else:
                return

    def _is_full(self) -> bool:
        return (
            len(self.found) >= self._step.max_found
            or self._found_bytes >= MAX_FOUND_BYTES
            # Each step makes progress, also if the cluster is slow.
            or (self.positions != self._first and monotonic() > self._deadline_s)
        )

    def _fetch(self, starving: Iterable[int]) -> None:
        partitions = [TopicPartition(self._step.topic, partition) for partition in starving]
        for record in self._consumer.poll_each(partitions, POLL_RECORDS):
            self._fetched.setdefault(record.partition, deque()).append(record)
        for partition in partitions:
            position = self._consumer.positions[partition]
            if partition.partition not in self._fetched:
                if position == self.positions[partition.partition]:
                    self._stuck.add(partition.partition)
                # Batches without records: control batches, and those of aborted transactions.
                self.positions[partition.partition] = position

    def _merge(self) -> None:
        """Compare fetched records, the oldest first, until those of a partition that has more are used up."""
        heads = [(records[0].timestamp, partition) for partition, records in self._fetched.items()]
        heapq.heapify(heads)
        while heads:
            partition = heads[0][1]
            records = self._fetched[partition]
            record = records.popleft()
            self.positions[partition] = record.offset + 1
            self._compare(record)
            if records:
                heapq.heapreplace(heads, (records[0].timestamp, partition))
            else:
                del self._fetched[partition]
                # Compaction may have removed the records up to there.
                self.positions[partition] = self._consumer.positions[TopicPartition(self._step.topic, partition)]
                return
            # A clock is slow beside the comparison of a small record.
            if len(self.found) >= self._step.max_found or (self.read % 64 == 0 and self._is_full()):
                return

    def _compare(self, record: ConsumedRecord) -> None:
        size = _size(record)
        self.read += 1
        self.read_bytes += size
        if self._step.matches is None or self._step.matches(record):
            self.found.append(record)
            self._found_bytes += size


def scan_backward(cluster: ClusterClient, positions: Positions, step: ScanStep) -> ScanResult:
    """Read the records before positions, newest first, to the current begin. Raises as `scan_forward`."""
    begins = TopicReader.open(cluster, step.topic, step.isolation_level).offsets(EARLIEST)
    before = {at: max(offset, begins[at]) for at, offset in positions.items() if at in begins}
    result = ScanResult([], {}, 0, 0, 0)
    found: list[ConsumedRecord] = []
    begun_s = monotonic()
    offsets = FIRST_WINDOW
    while len(found) < step.max_found and (unread := [at for at in before if before[at] > begins[at]]):
        window_s = monotonic()
        size = max(1, offsets // len(unread))
        window = _Window(step, {at: (max(begins[at], before[at] - size), before[at]) for at in unread})
        window.read_all(cluster)
        before |= window.unread_before
        for record in heapq.merge(*map(reversed, window.matching.values()), key=lambda record: -record.timestamp):
            if len(found) < step.max_found:
                found.append(record)
            else:
                # The next step begins with the newest record that is not returned.
                before[record.partition] = max(before[record.partition], record.offset + 1)
        result = result._replace(read=result.read + window.read, read_bytes=result.read_bytes + window.read_bytes)
        now_s = monotonic()
        if now_s - begun_s > step.max_s:
            break
        offsets = min(2 * offsets, MAX_WINDOW) if now_s - window_s < WINDOW_S else max(offsets // 2, FIRST_WINDOW)
    remaining = sum(before[at] - begins[at] for at in before)
    return result._replace(records=found, positions={**positions, **before}, remaining=remaining)


class _Window:
    """A range of offsets of each partition. `matching`: in order of offsets. `unread_before`: all after that is read.

    If what matches is too large, the newest records stay.
    """

    def __init__(self, step: ScanStep, ranges: Mapping[int, tuple[int, int]]) -> None:
        self.read = self.read_bytes = 0
        self.matching: dict[int, deque[ConsumedRecord]] = {partition: deque() for partition in ranges}
        self.unread_before = {partition: first for partition, (first, _) in ranges.items()}
        self._step = step
        self._ends = {partition: end for partition, (_, end) in ranges.items()}
        self._kept_bytes = 0

    def read_all(self, cluster: ClusterClient) -> None:
        left = {TopicPartition(self._step.topic, partition): first for partition, first in self.unread_before.items()}
        consumer = PartitionConsumer(
            cluster, left, isolation_level=self._step.isolation_level, max_partition_bytes=_fetch_bytes(self._step)
        )
        deadline_s = monotonic() + STUCK_S
        while left:
            for record in consumer.poll_each(left, POLL_RECORDS):
                if record.offset < self._ends[record.partition]:
                    self._add(record)
            if any(position < consumer.positions[at] for at, position in left.items()):
                deadline_s = monotonic() + STUCK_S
            elif monotonic() > deadline_s:
                raise CliError(f"{next(iter(left))} cannot be read at offset {next(iter(left.values()))}")
            left = {at: offset for at in left if (offset := consumer.positions[at]) < self._ends[at.partition]}

    def _add(self, record: ConsumedRecord) -> None:
        size = _size(record)
        self.read += 1
        self.read_bytes += size
        if self._step.matches is not None and not self._step.matches(record):
            return
        matching = self.matching[record.partition]
        matching.append(record)
        self._kept_bytes += size
        while self._kept_bytes > MAX_FOUND_BYTES and len(matching) > 1:
            oldest = matching.popleft()
            self._kept_bytes -= _size(oldest)
            self.unread_before[record.partition] = oldest.offset + 1


def _size(record: ConsumedRecord) -> int:
    return len(record.key or b"") + len(record.value or b"")


def _fetch_bytes(step: ScanStep) -> int:
    return PAGE_PARTITION_BYTES if step.matches is None else SCAN_PARTITION_BYTES
