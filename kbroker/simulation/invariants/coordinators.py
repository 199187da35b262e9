"""The coordinators of a running broker: their state is the replay of their log.

A coordinator that is active in a leader epoch has waited until everything that the former leader may have committed is
committed again. Compared are the committed offsets of groups and the last state of each transactional id, up to the
high watermark; and the groups and states of share partitions whose records are replayed before they are committed,
whenever nothing is in flight: what a failed append has left would stay.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from kbroker.common import NO_PRODUCER_ID
from kbroker.coordinator.group.group_shard import GroupShard
from kbroker.coordinator.group.kinds import GROUP_KINDS
from kbroker.coordinator.runtime.coordinator_context import ACTIVE, CoordinatorContext
from kbroker.coordinator.runtime.operation import ORDERED
from kbroker.simulation.disk.log_files import ReplayedOffsets, ReplayedTransactions, read_batches, records_of
from kbroker.storage.file_names import LOG
from protocol.records.control import COMMIT, parse_control_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kbroker.api.context import Services
    from kbroker.coordinator.group.group_shard import GroupKind
    from kbroker.coordinator.share.share_shard import ShareShard
    from kbroker.coordinator.transaction.transaction_metadata import TransactionMetadata
    from kbroker.simulation.disk.disk import SimDisk
    from kbroker.storage.log.log import Log
    from protocol.records.batch import BatchHeader
    from protocol.records.record import Record

# By kind, what only the replay of records changes.
_MODERN = ("group_epoch", "metadata_hash", "assignment_epoch", "members", "static_members", "target")
REPLAYED_FIELDS: dict[str, tuple[str, ...]] = {
    "consumer": (*_MODERN, "owners"),
    "share": (*_MODERN, "states"),
    "streams": (*_MODERN, "topology", "validated_topology_epoch", "configs", "sources"),
}


class CommittedBatches:
    """Reads the batches of a log below a growing offset, each once. Compaction may replace segments meanwhile."""

    def __init__(self) -> None:
        self._next_offset = 0
        # By base offset of the segment: its size when it was read, and the position after the last batch.
        self._positions: dict[int, tuple[int, int]] = {}

    def read(self, disk: SimDisk, log: Log, end: int) -> Iterator[tuple[BatchHeader, list[Record]]]:
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
                    yield batch.header, records_of(data, batch)
            self._positions[base] = len(data), position


class ReplayedGroups(ReplayedOffsets):
    """Also the groups of a partition, which another shard replays."""

    def __init__(
        self, context: CoordinatorContext[GroupShard], kinds: Sequence[type[GroupKind[Any]]] = GROUP_KINDS
    ) -> None:
        super().__init__()
        shard = context.shard
        self._shard = GroupShard(shard.environment, shard.config, shard.metadata, context, kinds)

    def add(self, header: BatchHeader, records: Iterable[Record]) -> None:
        records = list(records)
        super().add(header, records)
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
        for record in records:
            if header.is_control:
                committed = parse_control_type(record.key) == COMMIT
                self._shard.replay_end_transaction(header.producer_id, committed)
                continue
            decoded = self._shard.decode(record.key, record.value)
            if decoded is not None:
                self._shard.replay(decoded, header.base_offset + record.offset_delta, producer_id)

    def group_differences(self, shard: GroupShard) -> str:
        """Return how the groups of a shard differ, apart from those that are replayed when they are committed."""
        return _differences(_replayed_fields(self._shard), _replayed_fields(shard))


class ReplayedShares:
    """The states of share partitions in the log of a partition of __share_group_state."""

    def __init__(self, context: CoordinatorContext[ShareShard]) -> None:
        self._shard = copy(context.shard)
        self._shard.partitions = {}

    def add(self, header: BatchHeader, records: Iterable[Record]) -> None:
        for record in records:
            decoded = self._shard.decode(record.key, record.value)
            if decoded is not None:
                self._shard.replay(decoded, header.base_offset + record.offset_delta, NO_PRODUCER_ID)

    def differences(self, shard: ShareShard) -> str:
        return _differences(self._shard.partitions, shard.partitions)


def _replayed_fields(shard: GroupShard) -> dict[str, tuple[Any, ...]]:
    return {
        group_id: tuple(getattr(group, name) for name in REPLAYED_FIELDS[group.type_name])
        for group_id, group in shard.groups.items()
        if shard.kind_of(group).mode is ORDERED
    }


def _identity(metadata: TransactionMetadata) -> tuple[object, ...]:
    return metadata.producer_id, metadata.producer_epoch, metadata.state.name


StateOfLog = ReplayedGroups | ReplayedTransactions | ReplayedShares


def _differences_of(state_of_log: StateOfLog, shard: Any, *, is_idle: bool) -> str:
    """Return how the shard of a coordinator differs from the replay of its log. `is_idle`: nothing is in flight."""
    if isinstance(state_of_log, ReplayedShares):
        return state_of_log.differences(shard) if is_idle else ""
    if isinstance(state_of_log, ReplayedGroups):
        found = {
            (group_id, topic, index): value.offset
            for group_id, topics in shard.offsets.by_group.items()
            for topic, offsets in topics.items()
            for index, value in offsets.items()
        }
        differences = _differences(state_of_log.offsets(), found)
        return differences or (state_of_log.group_differences(shard) if is_idle else "")
    expected = {id: _identity(metadata) for id, metadata in state_of_log.last.items()}
    # A new transactional id is there before its first record is.
    return _differences(
        expected, {id: _identity(entry.metadata) for id, entry in shard.entries.items() if id in expected}
    )


def _differences(expected: dict[Any, Any], found: dict[Any, Any]) -> str:
    return ", ".join(
        f"{key}: {found.get(key)} instead of {expected.get(key)}"
        for key in dict.fromkeys((*expected, *found))
        if expected.get(key) != found.get(key)
    )


class CoordinatorInvariants:
    """Of one process. Each context of a coordinator is followed from the start of its log."""

    def __init__(self) -> None:
        self._replayed: dict[Any, tuple[CommittedBatches, StateOfLog]] = {}

    def check(self, services: Services, disk: SimDisk) -> str | None:
        """Return how an active coordinator differs from its log, None if none does."""
        replayed, self._replayed = self._replayed, {}
        coordinators: list[tuple[Any, Callable[[Any], StateOfLog]]] = [
            (services.groups, ReplayedGroups),
            (services.transactions, lambda _: ReplayedTransactions()),
            (services.share_states, ReplayedShares),
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
                batches, state_of_log = self._replayed[context] = replayed.get(context) or (
                    CommittedBatches(),
                    make(context),
                )
                for header, records in batches.read(disk, partition.log, partition.high_watermark):
                    state_of_log.add(header, records)
                is_idle = partition.high_watermark == partition.log.log_end_offset and not context.locked_keys()
                differences = _differences_of(state_of_log, context.shard, is_idle=is_idle)
                if differences:
                    return f"{context.tp}: the coordinator differs from its log: {differences}"
        return None
