"""Reads the log files on a disk without the broker: which records and committed offsets survive a crash."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from kbroker.coordinator.group.kinds import decode_record
from kbroker.coordinator.group.records import OffsetRecord
from kbroker.coordinator.transaction.transaction_metadata import TransactionMetadata, TransactionState
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
# Offsets committed in open transactions, by producer id.
_Pending = dict[int, Commits]

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
    prepared = _prepared_producer_ids(disk, directory, read)
    for tp, path in partition_directories(disk, directory).items():
        if tp[0] == GROUPS_TOPIC:
            pending: _Pending = {}
            for header, records in _batches_of(disk, path, read):
                _apply_batch(header, records, commits, pending)
            for producer_id in prepared:
                commits.update(pending.get(producer_id, {}))
    return commits


def _prepared_producer_ids(disk: SimDisk, directory: str, read: Callable[[str], bytes | bytearray]) -> list[int]:
    """Return the producer ids whose transactions are in PrepareCommit in __transaction_state."""
    last: dict[str, TransactionMetadata] = {}
    for tp, path in partition_directories(disk, directory).items():
        if tp[0] == TRANSACTIONS_TOPIC:
            for _, records in _batches_of(disk, path, read):
                for record in records:
                    decoded = decode_transaction_record(record.key, record.value)
                    if isinstance(decoded, TransactionMetadata):
                        last[decoded.transactional_id] = decoded
    return [each.producer_id for each in last.values() if each.state is TransactionState.PREPARE_COMMIT]


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
            body = decompress(header.codec, body_of(data, batch.start, header.size), _MAX_RECORDS_BYTES)
            yield header, list(iter_records(body, header.count, header.base_timestamp))


def _apply_batch(header: BatchHeader, records: list[Record], commits: Commits, pending: _Pending) -> None:
    if header.is_control:
        written = pending.pop(header.producer_id, {})
        if records and parse_control_type(records[0].key) == COMMIT:
            commits.update(written)
    elif header.is_transactional:
        pending.setdefault(header.producer_id, {}).update(_committed_by(records))
    else:
        commits.update(_committed_by(records))


def _committed_by(records: Iterable[Record]) -> Commits:
    commits: Commits = {}
    for record in records:
        try:
            decoded = decode_record(record.key, record.value)
        except MalformedError:
            continue
        if isinstance(decoded, OffsetRecord):
            key = (decoded.key.group_id, (decoded.key.topic, decoded.key.partition))
            commits[key] = -1 if decoded.value is None else decoded.value.offset
    return commits
