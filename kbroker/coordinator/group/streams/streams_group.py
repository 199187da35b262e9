"""A streams group: its members, its topology, and who has which task."""

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from kbroker.coordinator.group.modern.committing_group import CommittingGroup
from kbroker.coordinator.group.modern.modern_group import INITIAL_EPOCH
from kbroker.coordinator.group.records import OffsetRecord
from kbroker.coordinator.group.streams.current_assignment import Holder, Holders
from kbroker.coordinator.group.streams.records import (
    StreamsGroupEpoch,
    StreamsGroupRecord,
    StreamsTargetEpoch,
    StreamsTopology,
    member_tombstones,
)
from kbroker.coordinator.group.streams.streams_group_member import AssignedTasks, StreamsGroupMember
from kbroker.coordinator.group.streams.tasks import NO_TASKS, TaskId, Tasks
from kbroker.coordinator.group.streams.topology import ConfiguredTopology, required_topics
from protocol.messages.streams_group_records import StreamsGroupTopologyValue

# The keys of deadlines: a member has not revoked its tasks in time; the first target waits for more members.
REVOCATION = "revocation"
INITIAL_DELAY = "initial delay"
NO_TOPOLOGY_EPOCH = -1


class StreamsGroupState(StrEnum):
    """The values are the names that StreamsGroupDescribe and ListGroups return.

    Empty: no members.
    NotReady: the topics do not fit the topology, so no tasks are assigned.
    Assigning: the target assignment is not that of the group epoch yet.
    Reconciling: not every member has its target.
    Stable: every member has.
    Dead: the group does not exist. No group is in this state.
    """

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class TaskOffsets(NamedTuple):
    """How far a member has restored its tasks: offsets in their changelogs, and the ends of these."""

    offsets: Mapping[TaskId, int]
    end_offsets: Mapping[TaskId, int]


NO_OFFSETS = TaskOffsets({}, {})


class StreamsGroup(CommittingGroup[StreamsGroupMember, Tasks]):
    """The replay of records changes a group, apart from its deadlines and the soft state below.

    `validated_topology_epoch`: the epoch of the topology if the topics fit it, as of the group epoch. `configs`: those
    of the assignor for which the group epoch was set.

    Soft: `configured`, the topology with its topics as last seen; `task_offsets` by member; `shutdown_member_id`, the
    member that asks all others to stop; `endpoint_epoch`, which rises when the endpoints of tasks change.
    """

    __slots__ = (
        "_active",
        "_copies",
        "configs",
        "configured",
        "endpoint_epoch",
        "shutdown_member_id",
        "sources",
        "task_offsets",
        "topology",
        "validated_topology_epoch",
    )

    type_name = "streams"
    no_target = NO_TASKS

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.assignment_epoch = INITIAL_EPOCH
        self.validated_topology_epoch = NO_TOPOLOGY_EPOCH
        self.configs: Mapping[str, str] = {}
        self.topology: StreamsGroupTopologyValue | None = None
        # The subtopology of each topic that tasks read.
        self.sources: dict[str, str] = {}
        self.configured: ConfiguredTopology | None = None
        self.task_offsets: dict[str, TaskOffsets] = {}
        self.shutdown_member_id: str | None = None
        self.endpoint_epoch = 0
        # The member that has each active task, and those that have a standby or a warm-up of each, by role.
        self._active: dict[TaskId, str] = {}
        self._copies: tuple[dict[TaskId, set[str]], dict[TaskId, set[str]]] = ({}, {})

    @property
    def state(self) -> StreamsGroupState:
        if not self.members:
            return StreamsGroupState.EMPTY
        if self.topology is None or self.topology.epoch != self.validated_topology_epoch:
            return StreamsGroupState.NOT_READY
        if self.group_epoch > self.assignment_epoch:
            return StreamsGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return StreamsGroupState.STABLE
        return StreamsGroupState.RECONCILING

    @property
    def state_name(self) -> str:
        return self.state.value

    def set_topology(self, topology: StreamsGroupTopologyValue | None) -> None:
        self.topology = topology
        self.configured = None
        self.sources = {
            topic: each.subtopology_id
            for each in ([] if topology is None else topology.subtopologies)
            for topic in (*each.source_topics, *(source.name for source in each.repartition_source_topics))
        }

    # Members.

    def put_member(self, member: StreamsGroupMember) -> None:
        old = self.members.get(member.member_id)
        super().put_member(member)
        if old is not None:
            self._disown(old)
        self._own(member)

    def remove_member(self, member_id: str) -> StreamsGroupMember | None:
        member = super().remove_member(member_id)
        if member is not None:
            self._disown(member)
        self.task_offsets.pop(member_id, None)
        self.deadlines.cancel((REVOCATION, member_id))
        if not self.members:
            self.shutdown_member_id = None
        return member

    def _own(self, member: StreamsGroupMember) -> None:
        """The last record in the log decides: earlier ones of the former owner may remain after compaction."""
        for tasks in (member.assigned, member.pending_revocation):
            self._active.update(dict.fromkeys(tasks.active, member.member_id))
            for copies, ids in zip(self._copies, (tasks.standby, tasks.warmup), strict=True):
                for task in ids:
                    copies.setdefault(task, set()).add(member.member_id)

    def _disown(self, member: StreamsGroupMember) -> None:
        for tasks in (member.assigned, member.pending_revocation):
            for task in tasks.active:
                if self._active.get(task) == member.member_id:
                    del self._active[task]
            for copies, ids in zip(self._copies, (tasks.standby, tasks.warmup), strict=True):
                for task in ids:
                    members = copies.get(task, set())
                    members.discard(member.member_id)
                    if not members:
                        copies.pop(task, None)

    def holders(self, process_id: str) -> Holders:
        """Return who has tasks, for a member of a process."""
        return Holders(
            partial(self._active_holder, process_id),
            partial(self._is_copied_by, process_id, self._copies[0]),
            partial(self._is_copied_by, process_id, self._copies[1]),
        )

    def _active_holder(self, process_id: str, task: TaskId) -> Holder:
        member = self.members.get(self._active.get(task, ""))
        if member is None:
            return Holder.NOBODY
        return Holder.PROCESS if member.process_id == process_id else Holder.OTHER

    def _is_copied_by(self, process_id: str, copies: Mapping[TaskId, Collection[str]], task: TaskId) -> bool:
        return any(self.members[member_id].process_id == process_id for member_id in copies.get(task, ()))

    # Topics.

    def subscribed_topics(self) -> Collection[str]:
        return [] if self.topology is None else required_topics(self.topology.subtopologies)

    def is_subscribed_to(self, topic: str) -> bool:
        return bool(self.members) and topic in self.sources

    # Offsets.

    def assignment_epoch_of(self, member: StreamsGroupMember, record: OffsetRecord) -> int | None:
        (_, topic, partition), _ = record
        task = TaskId(self.sources.get(topic, ""), partition)
        own: AssignedTasks
        for own in (member.assigned, member.pending_revocation):
            if task in own.active:
                return own.active[task]
        return None

    # Deletion.

    def tombstones(self) -> Sequence[StreamsGroupRecord]:
        records: list[StreamsGroupRecord] = []
        for member_id in self.members:
            records += member_tombstones(self.group_id, member_id)
        return [
            *records,
            StreamsTargetEpoch(self.group_id, None),
            StreamsGroupEpoch(self.group_id, None),
            StreamsTopology(self.group_id, None),
        ]
