"""A member of a streams group, and its records."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from kbroker.coordinator.group.modern.modern_member import LEAVE_EPOCH, ModernMember
from kbroker.coordinator.group.streams.records import StreamsCurrentAssignment, StreamsMemberMetadata
from kbroker.coordinator.group.streams.tasks import TaskId, each_task, grouped, task_ids_of
from protocol.messages.k88_streams_groups import StreamsEndpoint, StreamsKeyValue
from protocol.messages.streams_group_records import (
    CurrentTaskIds,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataValue,
)


class StreamsMemberState(IntEnum):
    """How far a member is on its way from its current tasks to its target. The values are those in records."""

    STABLE = 1
    UNREVOKED_TASKS = 2
    UNRELEASED_TASKS = 3
    UNKNOWN = 127


_STATES = {int(state): state for state in StreamsMemberState}


class AssignedTasks(NamedTuple):
    """The tasks that a member has: active ones with the epochs in which they were assigned, and copies of others."""

    active: Mapping[TaskId, int] = MappingProxyType({})
    standby: frozenset[TaskId] = frozenset()
    warmup: frozenset[TaskId] = frozenset()


NO_ASSIGNED_TASKS = AssignedTasks()


class UserEndpoint(NamedTuple):
    """Where a member serves interactive queries."""

    host: str
    port: int

    @classmethod
    def of(cls, struct: StreamsEndpoint | None) -> "UserEndpoint | None":
        return None if struct is None else cls(struct.host, struct.port)

    @property
    def struct(self) -> StreamsEndpoint:
        return StreamsEndpoint(host=self.host, port=self.port)


@dataclass(slots=True, frozen=True, kw_only=True)
class StreamsGroupMember(ModernMember):
    """A member, which is replaced when it changes. Members with the same `process_id` share a state directory."""

    rebalance_timeout_ms: int = -1
    topology_epoch: int = -1
    process_id: str = ""
    endpoint: UserEndpoint | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    state: StreamsMemberState = StreamsMemberState.STABLE
    assigned: AssignedTasks = NO_ASSIGNED_TASKS
    pending_revocation: AssignedTasks = NO_ASSIGNED_TASKS

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.state is StreamsMemberState.STABLE and self.epoch == target_epoch

    # Records.

    def with_metadata(self, value: StreamsGroupMemberMetadataValue) -> "StreamsGroupMember":
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            topology_epoch=value.topology_epoch,
            process_id=value.process_id,
            endpoint=UserEndpoint.of(value.user_endpoint),
            tags=tags_of(value.client_tags),
        )

    def with_current_assignment(self, value: StreamsGroupCurrentMemberAssignmentValue | None) -> "StreamsGroupMember":
        """Return the member with its current tasks; None in a tombstone, which precedes that of the member."""
        if value is None:
            return replace(
                self,
                epoch=LEAVE_EPOCH,
                previous_epoch=LEAVE_EPOCH,
                assigned=NO_ASSIGNED_TASKS,
                pending_revocation=NO_ASSIGNED_TASKS,
            )
        epoch = value.member_epoch
        return replace(
            self,
            epoch=epoch,
            previous_epoch=value.previous_member_epoch,
            state=_STATES.get(value.state, StreamsMemberState.UNKNOWN),
            assigned=AssignedTasks(
                _active(value.active_tasks, epoch), _copies(value.standby_tasks), _copies(value.warmup_tasks)
            ),
            pending_revocation=AssignedTasks(
                _active(value.active_tasks_pending_revocation, epoch),
                _copies(value.standby_tasks_pending_revocation),
                _copies(value.warmup_tasks_pending_revocation),
            ),
        )

    def metadata_record(self, group_id: str) -> StreamsMemberMetadata:
        value = StreamsGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            topology_epoch=self.topology_epoch,
            process_id=self.process_id,
            user_endpoint=None if self.endpoint is None else self.endpoint.struct,
            client_tags=self.tag_structs(),
        )
        return StreamsMemberMetadata(group_id, self.member_id, value)

    def tag_structs(self) -> list[StreamsKeyValue]:
        return [StreamsKeyValue(key=key, value=tag) for key, tag in sorted(self.tags.items())]

    def current_assignment_record(self, group_id: str) -> StreamsCurrentAssignment:
        assigned, pending = self.assigned, self.pending_revocation
        value = StreamsGroupCurrentMemberAssignmentValue(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=self.state,
            active_tasks=_structs(assigned.active, assigned.active),
            standby_tasks=_structs(assigned.standby),
            warmup_tasks=_structs(assigned.warmup),
            active_tasks_pending_revocation=_structs(pending.active, pending.active),
            standby_tasks_pending_revocation=_structs(pending.standby),
            warmup_tasks_pending_revocation=_structs(pending.warmup),
        )
        return StreamsCurrentAssignment(group_id, self.member_id, value)


def tags_of(structs: Iterable[StreamsKeyValue]) -> dict[str, str]:
    return {struct.key: struct.value for struct in structs}


def _active(structs: Iterable[CurrentTaskIds], member_epoch: int) -> dict[TaskId, int]:
    """Return the active tasks of a record. Brokers before Kafka 4.3 have not stored their assignment epochs."""
    found: dict[TaskId, int] = {}
    for struct in structs:
        epochs = struct.assignment_epochs
        if epochs is None or len(epochs) != len(struct.partitions):
            epochs = [max(member_epoch, 0)] * len(struct.partitions)
        for partition, epoch in zip(struct.partitions, epochs, strict=True):
            found[TaskId(struct.subtopology_id, partition)] = epoch
    return found


def _copies(structs: Iterable[CurrentTaskIds]) -> frozenset[TaskId]:
    return frozenset(each_task(task_ids_of(structs)))


def _structs(tasks: Iterable[TaskId], epochs: Mapping[TaskId, int] | None = None) -> list[CurrentTaskIds]:
    return [
        CurrentTaskIds(
            subtopology_id=subtopology_id,
            partitions=list(partitions),
            assignment_epochs=None
            if epochs is None
            else [epochs[TaskId(subtopology_id, partition)] for partition in partitions],
        )
        for subtopology_id, partitions in grouped(tasks).items()
    ]
