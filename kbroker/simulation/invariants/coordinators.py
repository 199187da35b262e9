"""Invariants of the coordinators of a running broker: their state is the replay of their log up to the high watermark.

A coordinator that is active in a leader epoch has waited until everything that the former leader may have committed is
committed again. Compared are the committed offsets of groups, and the last state of each transactional id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.coordinator.group.kinds import RECORD_CODEC
from kbroker.coordinator.group.records import OffsetRecord
from kbroker.coordinator.runtime.coordinator_context import ACTIVE
from kbroker.coordinator.transaction.transaction_metadata import TransactionMetadata, TransactionTombstone
from kbroker.coordinator.transaction.transaction_metadata import decode_record as decode_transaction_record
from kbroker.simulation.disk.log_files import StoredBatch, read_batches
from kbroker.storage.file_names import LOG
from protocol.errors import MalformedError
from protocol.records.batch import body_of
from protocol.records.compression import decompress
from protocol.records.control import COMMIT, parse_control_type
from protocol.records.record import iter_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kbroker.api.context import Services
    from kbroker.coordinator.group.group_shard import GroupShard
    from kbroker.coordinator.transaction.transaction_shard import TransactionShard
    from kbroker.simulation.disk.disk import SimDisk
    from kbroker.storage.log.log import Log
    from protocol.records.record import Record

# The largest decompressed batch of a simulation.
_MAX_RECORDS_BYTES = 1 << 26
# A group, topic and partition.
OffsetKey = tuple[str, str, int]


class CommittedBatches:
    """Reads the batches of a log below a growing offset, each once. Compaction may replace segments meanwhile."""

    def __init__(self) -> None:
        self._next_offset = 0
        # By base offset of the segment: its size when it was read, and the position after the last batch.
        self._positions: dict[int, tuple[int, int]] = {}

    def read(self, disk: SimDisk, log: Log, end: int) -> Iterator[tuple[StoredBatch, list[Record]]]:
        """Yield the batches below `end` that are new."""
        # A look at the directory would draw the order of its entries, and so change all that follows.
        for segment in log.segments:
            base, file = segment.base_offset, segment.path(LOG)
            if not disk.exists(file):
                continue
            data = disk.data(file)
            size, position = self._positions.get(base, (0, 0))
            if size == len(data) and position == size:
                continue
            # A shorter file was compacted.
            for batch in read_batches(data, position if size <= len(data) else 0):
                if batch.header.next_offset > end:
                    return
                position = batch.end
                if batch.header.base_offset >= self._next_offset:
                    self._next_offset = batch.header.next_offset
                    body = decompress(
                        batch.header.codec, body_of(data, batch.start, batch.header.size), _MAX_RECORDS_BYTES
                    )
                    yield batch, list(iter_records(body, batch.header.count, batch.header.base_timestamp))
            self._positions[base] = len(data), position


class ReplayedOffsets:
    """The committed offsets in the log of a partition of __consumer_offsets."""

    def __init__(self) -> None:
        # With the offset of the record: the last record of a partition counts, not the last marker.
        self._committed: dict[OffsetKey, tuple[int, int]] = {}
        self._pending: dict[int, dict[OffsetKey, tuple[int, int]]] = {}

    def add(self, batch: StoredBatch, records: Iterable[Record]) -> None:
        header = batch.header
        if header.is_control:
            self._end_transaction(header.producer_id, [parse_control_type(record.key) for record in records])
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

    def _end_transaction(self, producer_id: int, types: list[int]) -> None:
        for key, written in self._pending.pop(producer_id, {}).items():
            if COMMIT in types and self._committed.get(key, (-1, 0)) < written:
                self._committed[key] = written

    def differences(self, shard: GroupShard) -> str:
        expected = {key: offset for key, (_, offset) in self._committed.items()}
        found = {
            (group_id, topic, index): value.offset
            for group_id, topics in shard.offsets.by_group.items()
            for topic, offsets in topics.items()
            for index, value in offsets.items()
        }
        return _differences(expected, found)


class ReplayedTransactions:
    """The last record of each transactional id in the log of a partition of __transaction_state."""

    def __init__(self) -> None:
        self._last: dict[str, TransactionMetadata] = {}

    def add(self, batch: StoredBatch, records: Iterable[Record]) -> None:
        for record in records:
            decoded = decode_transaction_record(record.key, record.value)
            if isinstance(decoded, TransactionMetadata):
                self._last[decoded.transactional_id] = decoded
            elif isinstance(decoded, TransactionTombstone):
                self._last.pop(decoded.transactional_id, None)

    def differences(self, shard: TransactionShard) -> str:
        expected = {id: _identity(metadata) for id, metadata in self._last.items()}
        # A new transactional id is there before its first record is.
        found = {id: _identity(entry.metadata) for id, entry in shard.entries.items() if id in expected}
        return _differences(expected, found)


def _identity(metadata: TransactionMetadata) -> tuple[object, ...]:
    return metadata.producer_id, metadata.producer_epoch, metadata.state.name


def _differences(expected: dict[Any, Any], found: dict[Any, Any]) -> str:
    return ", ".join(
        f"{key}: {found.get(key)} instead of {expected.get(key)}"
        for key in dict.fromkeys((*expected, *found))
        if expected.get(key) != found.get(key)
    )


class CoordinatorInvariants:
    """Of one process. Each context of a coordinator, so each leader epoch, is followed from the start of its log."""

    def __init__(self) -> None:
        self._replayed: dict[Any, tuple[CommittedBatches, ReplayedOffsets | ReplayedTransactions]] = {}

    def check(self, services: Services, disk: SimDisk) -> str | None:
        """Return how an active coordinator differs from its log, None if none does."""
        replayed, self._replayed = self._replayed, {}
        coordinators: list[tuple[Any, Callable[[], ReplayedOffsets | ReplayedTransactions]]] = [
            (services.groups, ReplayedOffsets),
            (services.transactions, ReplayedTransactions),
        ]
        for coordinator, make in coordinators:
            for context in coordinator.runtime.contexts():
                partition = services.replicas.get(*context.tp)
                if context.state is not ACTIVE or partition is None or partition.log.health.offline is not None:
                    continue
                state = partition.state
                if not partition.is_leader or state.leader_epoch != context.epoch:
                    return f"{context.tp}: a coordinator is active in epoch {context.epoch}, in which it does not lead"
                if partition.is_catching_up:
                    return (
                        f"{context.tp}: a coordinator is active with the high watermark {state.high_watermark}, "
                        f"but the epoch starts at {state.epoch_start_offset}"
                    )
                batches, state_of_log = self._replayed[context] = replayed.get(context) or (CommittedBatches(), make())
                for batch, records in batches.read(disk, partition.log, partition.high_watermark):
                    state_of_log.add(batch, records)
                differences = state_of_log.differences(context.shard)
                if differences:
                    return f"{context.tp}: the coordinator differs from its log: {differences}"
        return None
