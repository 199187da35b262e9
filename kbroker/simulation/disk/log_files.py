"""Reads the log files on a disk without the broker: batches, which records and committed offsets survive a crash."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from kbroker.coordinator.group.kinds import RECORD_CODEC
from kbroker.coordinator.group.records import OffsetRecord
from kbroker.coordinator.transaction.transaction_metadata import (
    TransactionMetadata,
    TransactionState,
    TransactionTombstone,
)
from kbroker.coordinator.transaction.transaction_metadata import decode_record as decode_transaction_record
from kbroker.simulation.checker.history import TopicPartition
from kbroker.simulation.disk.disk import SimDisk
from kbroker.storage.file_names import LOG, SWAP, parse_partition_dir, parse_segment_file
from protocol.errors import MalformedError
from protocol.records.batch import CRC_START, HEADER_SIZE, BatchHeader, body_of, parse_header
from protocol.records.checksum import crc32c
from protocol.records.compression import decompress
from protocol.records.control import COMMIT, parse_control_type
from protocol.records.record import Record, iter_records

Commits = dict[tuple[str, TopicPartition], int]
# A group, topic and partition.
OffsetKey = tuple[str, str, int]

GROUPS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
# Topics that only brokers read and write; both are compacted.
INTERNAL = (GROUPS_TOPIC, TRANSACTIONS_TOPIC)
# The largest decompressed batch of a simulation.
_MAX_RECORDS_BYTES = 1 << 26


class StoredBatch(NamedTuple):
    """A complete batch with a valid CRC, and its position in its file."""

    header: BatchHeader
    start: int
    end: int


def read_batches(data: bytes | bytearray, position: int = 0) -> Iterator[StoredBatch]:
    """Yield the valid batches from `position` on, up to the first invalid one."""
    view = memoryview(data)
    while len(view) - position >= HEADER_SIZE:
        header = parse_header(view, position)
        end = position + header.size
        if header.size < HEADER_SIZE or end > len(view) or crc32c(view[position + CRC_START : end]) != header.crc:
            return
        yield StoredBatch(header, position, end)
        position = end


def records_of(data: bytes | bytearray, batch: StoredBatch) -> list[Record]:
    header = batch.header
    body = decompress(header.codec, body_of(data, batch.start, header.size), _MAX_RECORDS_BYTES)
    return list(iter_records(body, header.count, header.base_timestamp))


def partition_directories(disk: SimDisk, directory: str) -> dict[TopicPartition, str]:
    """Return the directory of each partition that is not being deleted."""
    directories = {}
    for name in sorted(disk.entries(directory)):
        tp = parse_partition_dir(name)
        path = f"{directory}/{name}"
        if tp is not None and disk.isdir(path):
            directories[tp.topic, tp.partition] = path
    return directories


def segment_files(disk: SimDisk, path: str) -> list[tuple[int, str]]:
    """Return (base offset, path) of a partition's segments, in order."""
    found = []
    for name in disk.entries(path):
        parsed = parse_segment_file(name)
        if parsed is not None and parsed[1] == LOG:
            found.append((parsed[0], f"{path}/{name}"))
    return sorted(found)


def durable_end(disk: SimDisk, path: str) -> int:
    """Return the first offset of a partition that a power loss now may lose."""
    return _end(disk, path, lambda segment: _durable(disk, segment))


def _durable(disk: SimDisk, segment: str) -> bytes:
    """Return the durable bytes of a segment. A `.swap` file counts: the next start renames it to the segment."""
    return disk.durable(segment, segment + SWAP)


def _end(disk: SimDisk, path: str, read: Callable[[str], bytes | bytearray]) -> int:
    end = 0
    for base, segment in segment_files(disk, path):
        last = None
        for last in read_batches(read(segment)):
            end = last.header.next_offset
        if last is None:
            end = max(end, base) if end else 0
        if (last.end if last is not None else 0) < disk.size(segment):
            break
    return end


def durable_ends(disk: SimDisk, directory: str) -> dict[TopicPartition, int]:
    """Return `durable_end` of each partition, without those of internal topics."""
    ends = {tp: durable_end(disk, path) for tp, path in partition_directories(disk, directory).items()}
    return {tp: end for tp, end in ends.items() if tp[0] not in INTERNAL}


def durable_commits(disk: SimDisk, directory: str) -> Commits:
    """Return the committed offsets that survive any power loss, by group and partition; -1 if none does."""
    return {
        **dict.fromkeys(readable_commits(disk, directory), -1),
        **_commits(disk, directory, lambda path: _durable(disk, path)),
    }


def readable_commits(disk: SimDisk, directory: str) -> Commits:
    """Return the committed offsets before the first damaged batch."""
    return _commits(disk, directory, disk.data)


def _commits(disk: SimDisk, directory: str, read: Callable[[str], bytes | bytearray]) -> Commits:
    commits: Commits = {}
    transactions = ReplayedTransactions()
    for path in _paths(disk, directory, TRANSACTIONS_TOPIC):
        for header, records in _batches_of(disk, path, read):
            transactions.add(header, records)
    for path in _paths(disk, directory, GROUPS_TOPIC):
        offsets = ReplayedOffsets()
        for header, records in _batches_of(disk, path, read):
            offsets.add(header, records)
        for metadata in transactions.last.values():
            if metadata.state is TransactionState.PREPARE_COMMIT:
                offsets.end_transaction(metadata.producer_id, committed=True)
        for (group, topic, index), offset in offsets.offsets().items():
            commits[group, (topic, index)] = offset
    return commits


def _paths(disk: SimDisk, directory: str, topic: str) -> list[str]:
    return [path for tp, path in partition_directories(disk, directory).items() if tp[0] == topic]


def _batches_of(
    disk: SimDisk, path: str, read: Callable[[str], bytes | bytearray]
) -> Iterator[tuple[BatchHeader, list[Record]]]:
    """Yield the header and records of each readable batch of a partition."""
    end = _end(disk, path, read)
    for _, segment in segment_files(disk, path):
        data = read(segment)
        for batch in read_batches(data):
            header = batch.header
            if header.next_offset > end:
                break
            yield header, records_of(data, batch)


class ReplayedOffsets:
    """The committed offsets in the log of a partition of __consumer_offsets."""

    def __init__(self) -> None:
        # With the offset of the record: the last record of a partition counts, not the last marker.
        self._committed: dict[OffsetKey, tuple[int, int]] = {}
        self._pending: dict[int, dict[OffsetKey, tuple[int, int]]] = {}

    def add(self, header: BatchHeader, records: Iterable[Record]) -> None:
        if header.is_control:
            types = [parse_control_type(record.key) for record in records]
            self.end_transaction(header.producer_id, committed=COMMIT in types)
            return
        target = self._pending.setdefault(header.producer_id, {}) if header.is_transactional else self._committed
        for record in records:
            try:
                decoded = RECORD_CODEC.decode(record.key, record.value)
            except MalformedError:
                continue
            if not isinstance(decoded, OffsetRecord):
                continue
            key = decoded.key.group_id, decoded.key.topic, decoded.key.partition
            if decoded.value is not None:
                target[key] = header.base_offset + record.offset_delta, decoded.value.offset
                continue
            self._committed.pop(key, None)
            for pending in self._pending.values():
                pending.pop(key, None)

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        for key, written in self._pending.pop(producer_id, {}).items():
            if committed and self._committed.get(key, (-1, 0)) < written:
                self._committed[key] = written

    def offsets(self) -> dict[OffsetKey, int]:
        return {key: offset for key, (_, offset) in self._committed.items()}


class ReplayedTransactions:
    """The last record of each transactional id in the log of a partition of __transaction_state."""

    def __init__(self) -> None:
        self.last: dict[str, TransactionMetadata] = {}

    def add(self, header: BatchHeader, records: Iterable[Record]) -> None:
        for record in records:
            decoded = decode_transaction_record(record.key, record.value)
            if isinstance(decoded, TransactionMetadata):
                self.last[decoded.transactional_id] = decoded
            elif isinstance(decoded, TransactionTombstone):
                self.last.pop(decoded.transactional_id, None)


# The bytes of a batch header; with its CRC they identify the batch.
HEADER_BYTES = 61


class BatchId(NamedTuple):
    """What two replicas must agree on: offsets, leader epoch, and the CRC of the rest."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    crc: int


class _Batch(NamedTuple):
    id: BatchId
    start: int
    end: int
    header: bytes


class StoredLog:
    """The batches of a log on a machine's disk, followed as the log grows, is truncated and loses its first segments.

    `truncated_to`: the lowest offset at which the log was cut since this was reset.
    """

    def __init__(self) -> None:
        self.truncated_to: int | None = None
        self._segments: dict[int, list[_Batch]] = {}
        # The state of the directory that was read last: its disk, path and number of changes.
        self._read: tuple[SimDisk, str | None, int] | None = None

    def is_current(self, disk: SimDisk, path: str | None) -> bool:
        """Whether nothing has changed in the directory since it was read."""
        return self._read == (disk, path, disk.changes[path or ""])

    def update(self, disk: SimDisk, path: str | None) -> list[BatchId]:
        """Read what is new in the directory, None for a log that does not exist. Returns the new batches."""
        if self.is_current(disk, path):
            return []
        self._read = disk, path, disk.changes[path or ""]
        listed = dict(segment_files(disk, path)) if path is not None and disk.isdir(path) else {}
        added: list[BatchId] = []
        # Retention removes the first segments. Any others are removed by a truncation.
        last_kept = max((base for base in self._segments if base in listed), default=-1)
        for base in [base for base in self._segments if base not in listed]:
            batches = self._segments.pop(base)
            if batches and base > last_kept:
                self._cut(batches[0].id.base_offset)
        for base, file in listed.items():
            added += self._update_segment(base, disk.data(file))
        return added

    def _update_segment(self, base: int, data: bytes | bytearray) -> list[BatchId]:
        batches = self._segments.setdefault(base, [])
        while batches and data[batches[-1].start : batches[-1].start + HEADER_BYTES] != batches[-1].header:
            self._cut(batches.pop().id.base_offset)
        if batches and batches[-1].end > len(data):
            self._cut(batches.pop().id.base_offset)
        position = batches[-1].end if batches else 0
        if position >= len(data):
            return []
        added = []
        for batch in read_batches(data, position):
            header = batch.header
            id = BatchId(header.base_offset, header.next_offset, header.leader_epoch, header.crc)
            batches.append(_Batch(id, batch.start, batch.end, bytes(data[batch.start : batch.start + HEADER_BYTES])))
            added.append(id)
        return added

    def _cut(self, offset: int) -> None:
        self.truncated_to = offset if self.truncated_to is None else min(self.truncated_to, offset)

    @property
    def start(self) -> int:
        """The base offset of the first batch, or that of the empty last segment."""
        first = (batches[0].id.base_offset for _, batches in sorted(self._segments.items()) if batches)
        return next(first, self.active_base)

    @property
    def end(self) -> int:
        """The offset after the last batch, or the base offset of an empty last segment; 0 if there is neither."""
        base = self.active_base
        batches = self._segments.get(base)
        return batches[-1].id.next_offset if batches else base

    @property
    def active_base(self) -> int:
        """The base offset of the last segment, which compaction does not change."""
        return max(self._segments, default=0)

    def batches_from(self, offset: int) -> Iterator[BatchId]:
        """Yield the batches that end after this offset, in order."""
        for base in sorted(self._segments):
            batches = self._segments[base]
            if batches and batches[-1].id.next_offset > offset:
                for batch in batches:
                    if batch.id.next_offset > offset:
                        yield batch.id
