"""The share partitions of one partition of __share_group_state: the operations on them, and the replay of records.

An operation decides on the replayed state, and returns the records that change it. The first write after
`updates_per_snapshot` updates is a snapshot, so that what precedes it can be deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from kbroker.common import KafkaError
from kbroker.config import BrokerConfig
from kbroker.coordinator.runtime.coordinator_context import CoordinatorContext
from kbroker.coordinator.runtime.operation import ORDERED, CoordinatorResult
from kbroker.coordinator.share.records import (
    ShareRecord,
    ShareSnapshot,
    ShareTombstone,
    ShareUpdate,
    decode_record,
    encode_record,
)
from kbroker.coordinator.share.share_partition_state import (
    UNINITIALIZED_EPOCH,
    UNINITIALIZED_START_OFFSET,
    UNKNOWN_COUNT,
    PersistedState,
    SharePartitionKey,
    StateSummary,
    StateWrite,
)
from kbroker.coordinator.share.state_batches import combine_batches
from kbroker.metadata.image import MetadataImage
from kbroker.runtime.environment import Environment
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode

T = TypeVar("T")

UNCHANGED_EPOCH = -1
NEGATIVE_PARTITION = "The partition id cannot be a negative number."
NEGATIVE_LEADER_EPOCH = "The leader epoch cannot be a negative number."
NEGATIVE_STATE_EPOCH = "The state epoch cannot be a negative number."
FENCED_LEADER_EPOCH = "The leader epoch in the request is older than the epoch on the broker."
FENCED_STATE_EPOCH = "The coordinator rejected the request because the state epoch did not match."
UNKNOWN_PARTITION = "This server does not host this topic-partition."
# Kafka's share.coordinator.cold.partition.snapshot.interval.ms, which is internal.
COLD_PARTITION_SNAPSHOT_INTERVAL_MS = 300_000


@dataclass(slots=True)
class ShareGroupOffset:
    """The state of one share partition: its last snapshot with the updates since then, and their number.

    `leader_epoch` is the highest one that has read the state. That in `state` is 0 after each initialization.
    """

    state: ShareSnapshot
    leader_epoch: int
    updates: int = 0


class ShareShard:
    """The state of one partition of __share_group_state.

    `end_offset` returns the log end offset of the partition.
    """

    def __init__(
        self,
        environment: Environment,
        metadata: MetadataImage,
        config: Callable[[], BrokerConfig],
        context: CoordinatorContext[ShareShard],
        end_offset: Callable[[], int],
    ) -> None:
        self.partitions: dict[SharePartitionKey, ShareGroupOffset] = {}
        self._clock = environment.clock
        self._metadata = metadata
        self._config = config
        self._context = context
        self._end_offset = end_offset
        self._is_loaded = False
        self._topics_deleted_while_loading: set[bytes] = set()
        # An offset that is not above that of the newest committed snapshot of each partition. Records below the lowest
        # of them are redundant.
        self._snapshot_offsets: dict[SharePartitionKey, int] = {}

    # Operations. They raise KafkaError with the code and the message for the leader that asks.

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> CoordinatorResult[None]:
        """Set the start offset and discard the ranges. A state epoch below the current one is fenced."""
        _check_not_negative(key.partition, NEGATIVE_PARTITION)
        _check_not_negative(state_epoch, NEGATIVE_STATE_EPOCH)
        current = self.partitions.get(key)
        if current is not None and current.state.state_epoch > state_epoch:
            raise KafkaError(ErrorCode.FENCED_STATE_EPOCH, FENCED_STATE_EPOCH)
        self._check_partition(key)
        now_ms = self._clock.now_ms()
        return self._write_snapshot(
            ShareSnapshot(
                key,
                snapshot_epoch=0 if current is None else current.state.snapshot_epoch + 1,
                state_epoch=state_epoch,
                leader_epoch=UNINITIALIZED_EPOCH,
                start_offset=start_offset,
                delivery_complete_count=UNKNOWN_COUNT if start_offset == UNINITIALIZED_START_OFFSET else 0,
                create_ms=now_ms,
                write_ms=now_ms,
            ),
            None,
        )

    def read(self, key: SharePartitionKey, leader_epoch: int) -> CoordinatorResult[PersistedState]:
        """Return the state for a leader. A higher leader epoch is written: leaders of lower epochs cannot write."""
        _check_not_negative(key.partition, NEGATIVE_PARTITION)
        _check_not_negative(leader_epoch, NEGATIVE_LEADER_EPOCH)
        current = self._existing(key, "Read")
        _check_leader_epoch(current, leader_epoch)
        self._check_partition(key)
        state = current.state
        response = PersistedState(state.state_epoch, state.start_offset, state.batches)
        if leader_epoch == current.leader_epoch:
            return CoordinatorResult(response)
        write = StateWrite(state.state_epoch, leader_epoch, state.start_offset, state.delivery_complete_count, ())
        return self._write(key, write, leader_epoch, response)

    def write(self, key: SharePartitionKey, write: StateWrite) -> CoordinatorResult[None]:
        """Change ranges and the start offset, which never falls. Only `read` raises the leader epoch."""
        _check_not_negative(key.partition, NEGATIVE_PARTITION)
        _check_not_negative(write.leader_epoch, NEGATIVE_LEADER_EPOCH)
        _check_not_negative(write.state_epoch, NEGATIVE_STATE_EPOCH)
        current = self._existing(key, "Write")
        _check_leader_epoch(current, write.leader_epoch)
        if current.state.state_epoch > write.state_epoch:
            raise KafkaError(ErrorCode.FENCED_STATE_EPOCH, FENCED_STATE_EPOCH)
        self._check_partition(key)
        return self._write(key, write, current.state.leader_epoch, None)

    def delete(self, key: SharePartitionKey) -> CoordinatorResult[None]:
        """Delete the state of a share partition, if there is any."""
        _check_not_negative(key.partition, NEGATIVE_PARTITION)
        self._check_partition(key)
        return self._delete(key)

    def _delete(self, key: SharePartitionKey) -> CoordinatorResult[None]:
        if key not in self.partitions:
            return CoordinatorResult(None)
        return CoordinatorResult(None, [ShareTombstone(key)], lambda: self._forget_snapshot(key))

    def read_summary(self, key: SharePartitionKey) -> CoordinatorResult[StateSummary]:
        """Return the start offset and how many records are completed; defaults for a partition without state."""
        _check_not_negative(key.partition, NEGATIVE_PARTITION)
        self._check_partition(key)
        current = self.partitions.get(key)
        if current is None:
            return CoordinatorResult(StateSummary())
        state = current.state
        return CoordinatorResult(
            StateSummary(state.state_epoch, state.leader_epoch, state.start_offset, state.delivery_complete_count)
        )

    def on_topics_deleted(self, topic_ids: Collection[bytes]) -> None:
        """Delete the state of deleted topics, once the partition is loaded."""
        if self._is_loaded:
            self._context.in_turns(self._delete_topics, topic_ids)
        else:
            self._topics_deleted_while_loading.update(topic_ids)

    def _delete_topics(self, topic_ids: Collection[bytes]) -> None:
        for key in paced(list(self.partitions)):
            if key.topic_id in topic_ids:
                self._context.post(partial(ShareShard._delete, key=key), str(key), ORDERED)

    def snapshot_cold(self, key: SharePartitionKey) -> CoordinatorResult[None]:
        """Write a snapshot of a partition whose last one is old, so that the records since then can be deleted."""
        current = self.partitions.get(key)
        if current is None or not self._is_old(current):
            return CoordinatorResult(None)
        epoch = current.state.snapshot_epoch + 1
        snapshot = current.state._replace(snapshot_epoch=epoch, write_ms=self._clock.now_ms())
        return self._write_snapshot(snapshot, None)

    # Decisions.

    def _existing(self, key: SharePartitionKey, operation: str) -> ShareGroupOffset:
        current = self.partitions.get(key)
        if current is None:
            message = f"{operation} operation on uninitialized share partition not allowed."
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        return current

    def _check_partition(self, key: SharePartitionKey) -> None:
        topic = self._metadata.topics_by_id.get(key.topic_id)
        if topic is None or key.partition >= len(self._metadata.resolve_view(topic).partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_PARTITION)

    def _write(self, key: SharePartitionKey, write: StateWrite, leader_epoch: int, response: T) -> CoordinatorResult[T]:
        """Return the update, or the snapshot with its changes if there are enough updates.

        A write that arrives late takes back neither the start offset nor the count of completed records.
        """
        current = self.partitions[key]
        state = current.state
        count = write.delivery_complete_count
        if write.start_offset == state.start_offset:
            count = max(count, state.delivery_complete_count)
        elif write.start_offset < state.start_offset:
            count = state.delivery_complete_count
        start_offset = max(write.start_offset, state.start_offset)
        batches = combine_batches((), write.batches, start_offset)
        update = ShareUpdate(key, state.snapshot_epoch, leader_epoch, start_offset, count, batches)
        if current.updates < self._config().share_coordinator_snapshot_update_records_per_snapshot:
            return CoordinatorResult(response, [update])
        now_ms = self._clock.now_ms()
        return self._write_snapshot(
            apply_update(state, update)._replace(
                snapshot_epoch=state.snapshot_epoch + 1, create_ms=now_ms, write_ms=now_ms
            ),
            response,
        )

    def _write_snapshot(self, snapshot: ShareSnapshot, response: T) -> CoordinatorResult[T]:
        key, end_offset = snapshot.key, self._end_offset()

        def on_committed() -> None:
            self._snapshot_offsets[key] = end_offset

        # The first snapshot must not be deleted before it is committed.
        self._snapshot_offsets.setdefault(key, end_offset)
        return CoordinatorResult(response, [snapshot], on_committed, lambda error: self._forget_snapshot(key))

    def _forget_snapshot(self, key: SharePartitionKey) -> None:
        """Follow the deletion of a partition, or the failure of its first snapshot."""
        if key not in self.partitions:
            self._snapshot_offsets.pop(key, None)

    # Deletion of redundant records.

    def redundant_before(self) -> int:
        """Return the offset below which no record is needed any more."""
        lowest = min(paced(list(self._snapshot_offsets.values())), default=None)
        return self._end_offset() if lowest is None else lowest

    def cold_partitions(self) -> list[SharePartitionKey]:
        """Return the partitions whose snapshot is old; none if all have been written by `snapshot_cold` already.

        Then nothing is written to any partition, so that there is nothing to delete either.
        """
        partitions = list(self.partitions.items())
        if all(current.state.create_ms != current.state.write_ms for _, current in paced(partitions)):
            return []
        return [key for key, current in paced(partitions) if self._is_old(current)]

    def _is_old(self, current: ShareGroupOffset) -> bool:
        return self._clock.now_ms() - current.state.write_ms >= COLD_PARTITION_SNAPSHOT_INTERVAL_MS

    # Replay.

    def encode(self, record: ShareRecord) -> tuple[bytes, bytes | None]:
        return encode_record(record)

    def decode(self, key: bytes | None, value: bytes | None) -> ShareRecord | None:
        return decode_record(key, value)

    def replay(self, record: ShareRecord, offset: int, producer_id: int) -> None:
        """Apply a record. The log may begin between a snapshot and its updates: these are followed by a newer one."""
        key = record.key
        current = self.partitions.get(key)
        if isinstance(record, ShareUpdate):
            if current is not None and record.snapshot_epoch == current.state.snapshot_epoch:
                current.state = apply_update(current.state, record)
                current.leader_epoch = max(current.leader_epoch, record.leader_epoch)
                current.updates += 1
        elif isinstance(record, ShareTombstone):
            self.partitions.pop(key, None)
            if not self._is_loaded:
                self._snapshot_offsets.pop(key, None)
        else:
            fenced = record.leader_epoch if current is None else max(record.leader_epoch, current.leader_epoch)
            self.partitions[key] = ShareGroupOffset(record, fenced)
            if not self._is_loaded:
                self._snapshot_offsets[key] = offset

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        """Do nothing: no transaction writes to __share_group_state."""

    def on_loaded(self) -> None:
        self._is_loaded = True
        self._delete_topics(self._topics_deleted_while_loading)

    def on_unloaded(self, error: ErrorCode) -> None:
        self.partitions = {}
        self._snapshot_offsets = {}


def apply_update(state: ShareSnapshot, update: ShareUpdate) -> ShareSnapshot:
    """Return the state after an update. A leader epoch or start offset of -1 in it means no change."""
    start_offset = state.start_offset if update.start_offset == UNINITIALIZED_START_OFFSET else update.start_offset
    return state._replace(
        leader_epoch=state.leader_epoch if update.leader_epoch == UNCHANGED_EPOCH else update.leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=update.delivery_complete_count,
        batches=combine_batches(state.batches, update.batches, start_offset),
    )


def _check_not_negative(value: int, message: str) -> None:
    if value < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _check_leader_epoch(current: ShareGroupOffset, leader_epoch: int) -> None:
    if current.leader_epoch > leader_epoch:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, FENCED_LEADER_EPOCH)
