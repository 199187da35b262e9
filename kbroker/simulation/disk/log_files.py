"""What lies on a disk, read past the broker: the oracle for what a crash may take and for what must hold of a log."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from crc32c import crc32c

from kbroker.coordinator.group.record_codec import decode_record
from kbroker.coordinator.group.records import OffsetRecord
from kbroker.coordinator.transaction import record_codec as transaction_records
from kbroker.coordinator.transaction.transaction_metadata import TransactionMetadata
from kbroker.coordinator.transaction.transaction_state import TransactionState
from kbroker.simulation.checker.history import Place
from kbroker.simulation.disk.disk import SimDisk
from kbroker.storage.file_names import LOG, SWAP, parse_partition_dir, parse_segment_file
from protocol.errors import MalformedError
from protocol.records.batch import CRC_START, HEADER_SIZE, BatchHeader, body_of, parse_header
from protocol.records.compression import decompress
from protocol.records.control import COMMIT, parse_control_type
from protocol.records.record import Record, iter_records

Commits = dict[tuple[str, Place], int]
# By producer id: of transactions that are open.
_Pending = dict[int, Commits]

GROUPS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
# Of which brokers write what nobody but they read; both are compacted.
INTERNAL = (GROUPS_TOPIC, TRANSACTIONS_TOPIC)
# What a batch's records may come to, decompressed, in a simulation.
_MAX_RECORDS_BYTES = 1 << 26


class Batch(NamedTuple):
    """A whole batch with a right CRC, and where it ends in its file."""

    header: BatchHeader
    start: int
    end: int


def batches(data: bytes | bytearray, position: int = 0) -> Iterator[Batch]:
    """The valid batches from `position` on, up to the first that is none."""
    view = memoryview(data)
    while len(view) - position >= HEADER_SIZE:
        header = parse_header(view, position)
        end = position + header.size
        if header.size < HEADER_SIZE or end > len(view) or crc32c(view[position + CRC_START : end]) != header.crc:
            return
        yield Batch(header, position, end)
        position = end


def partitions(disk: SimDisk, directory: str) -> dict[Place, str]:
    """The directory of each partition that is not being deleted."""
    found = {}
    for name in sorted(disk.entries(directory)):
        tp = parse_partition_dir(name)
        path = f"{directory}/{name}"
        if tp is not None and disk.isdir(path):
            found[tp.topic, tp.partition] = path
    return found


def segments(disk: SimDisk, path: str) -> list[tuple[int, str]]:
    """(base offset, path) of a partition's segments, in order."""
    found = []
    for name in disk.entries(path):
        parsed = parse_segment_file(name)
        if parsed is not None and parsed[1] == LOG:
            found.append((parsed[0], f"{path}/{name}"))
    return sorted(found)


def durable_end(disk: SimDisk, path: str) -> int:
    """The first offset of a partition that a power loss now may take."""
    return _end(disk, path, lambda segment: _durable(disk, segment))


def _durable(disk: SimDisk, segment: str) -> bytes:
    """What compaction has made counts as soon as it is there as `.swap`: the next start gives it its name."""
    return disk.durable(segment, segment + SWAP)


def _end(disk: SimDisk, path: str, read: Callable[[str], bytes | bytearray]) -> int:
    end = 0
    for base, segment in segments(disk, path):
        last = None
        for last in batches(read(segment)):
            end = last.header.next_offset
        if last is None:
            end = max(end, base) if end else 0
        if (last.end if last is not None else 0) < disk.size(segment):
            break
    return end


def durable_ends(disk: SimDisk, directory: str) -> dict[Place, int]:
    """`durable_end` of the partitions of clients' topics."""
    ends = {place: durable_end(disk, path) for place, path in partitions(disk, directory).items()}
    return {place: end for place, end in ends.items() if place[0] not in INTERNAL}


def durable_commits(disk: SimDisk, directory: str) -> Commits:
    """The committed offsets that a power loss now cannot take, by group and partition; -1: it may take all."""
    return {
        **dict.fromkeys(readable_commits(disk, directory), -1),
        **_commits(disk, directory, lambda path: _durable(disk, path)),
    }


def readable_commits(disk: SimDisk, directory: str) -> Commits:
    """The committed offsets that can be read of a disk, before the first batch that is damaged."""
    return _commits(disk, directory, disk.data)


def _commits(disk: SimDisk, directory: str, read: Callable[[str], bytes | bytearray]) -> Commits:
    commits: Commits = {}
    prepared = _prepared(disk, directory, read)
    for place, path in partitions(disk, directory).items():
        if place[0] == GROUPS_TOPIC:
            pending: _Pending = {}
            for header, records in _batches_of(disk, path, read):
                _take_commits(header, records, commits, pending)
            for producer_id in prepared:
                commits.update(pending.get(producer_id, {}))
    return commits


def _prepared(disk: SimDisk, directory: str, read: Callable[[str], bytes | bytearray]) -> list[int]:
    """The producers whose transactions will be committed whatever happens, as __transaction_state has it."""
    last: dict[str, TransactionMetadata] = {}
    for place, path in partitions(disk, directory).items():
        if place[0] == TRANSACTIONS_TOPIC:
            for _, records in _batches_of(disk, path, read):
                for record in records:
                    said = transaction_records.decode_record(record.key, record.value)
                    if isinstance(said, TransactionMetadata):
                        last[said.transactional_id] = said
    return [one.producer_id for one in last.values() if one.state is TransactionState.PREPARE_COMMIT]


def _batches_of(
    disk: SimDisk, path: str, read: Callable[[str], bytes | bytearray]
) -> Iterator[tuple[BatchHeader, list[Record]]]:
    """What can be read of a partition, decoded, up to where its log ends."""
    end = _end(disk, path, read)
    for _, segment in segments(disk, path):
        data = read(segment)
        for batch in batches(data):
            header = batch.header
            if header.next_offset > end:
                break
            body = decompress(header.codec, body_of(data, batch.start, header.size), _MAX_RECORDS_BYTES)
            yield header, list(iter_records(body, header.count, header.base_timestamp))


def _take_commits(header: BatchHeader, records: list[Record], commits: Commits, pending: _Pending) -> None:
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
            said = decode_record(record.key, record.value)
        except MalformedError:
            continue
        if isinstance(said, OffsetRecord):
            key = (said.key.group_id, (said.key.topic, said.key.partition))
            commits[key] = -1 if said.value is None else said.value.offset
    return commits
