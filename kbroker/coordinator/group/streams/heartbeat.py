"""StreamsGroupHeartbeat: what a heartbeat changes in its group, and what it is answered (pure).

1. The member is found, created, or takes over a static member's place (membership.py).
2. What it has sent replaces what it had sent before; null means unchanged. The first member brings the topology.
3. The topology is configured for the topics that exist (topology.py).
4. Another member, a changed topic, or other configs begin a group epoch.
5. If the target assignment is older than the group epoch, it is computed, at most once per assignment interval. The
   first one waits for more members.
6. The member proceeds towards its target (current_assignment.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from kbroker.common import KafkaError
from kbroker.coordinator.group.assignors.tasks_sticky import TaskMember, assign_sticky
from kbroker.coordinator.group.modern.modern_member import JOIN_EPOCH
from kbroker.coordinator.group.modern.subscribed_topics import SubscribedTopics
from kbroker.coordinator.group.modern.target import may_compute
from kbroker.coordinator.group.streams.current_assignment import StreamsTarget, TaskSets, next_assignment
from kbroker.coordinator.group.streams.endpoints import endpoint_partitions
from kbroker.coordinator.group.streams.membership import find_member, replacement_records
from kbroker.coordinator.group.streams.records import (
    StreamsGroupRecord,
    StreamsTopology,
    group_epoch_record,
    target_epoch_record,
    target_record,
    task_structs,
)
from kbroker.coordinator.group.streams.streams_group import (
    NO_OFFSETS,
    NO_TOPOLOGY_EPOCH,
    StreamsGroup,
    TaskOffsets,
)
from kbroker.coordinator.group.streams.streams_group_member import (
    AssignedTasks,
    StreamsGroupMember,
    UserEndpoint,
    tags_of,
)
from kbroker.coordinator.group.streams.tasks import NO_TASKS, TaskId, Tasks, grouped, task_ids_of
from kbroker.coordinator.group.streams.topology import (
    ConfiguredTopology,
    InternalTopic,
    Status,
    StatusDetail,
    configure,
    required_topics,
)
from kbroker.coordinator.java_collections import hash_map_order
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k88_streams_groups import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsStatus,
    StreamsTaskOffset,
)
from protocol.messages.streams_group_records import StreamsGroupTopologyValue

UNSET_TIMEOUT = -1
# Kafka's internal configs group.streams.acceptable.recovery.lag and group.streams.task.offset.interval.ms.
ACCEPTABLE_RECOVERY_LAG = 10_000
TASK_OFFSET_INTERVAL_MS = 60_000


class StreamsHeartbeatSettings(NamedTuple):
    """What a heartbeat depends on besides its group: configs, with times in milliseconds, the wall clock, and who has
    sent it. `is_delayed`: the first target still waits for more members.
    """

    client_id: str
    client_host: str
    max_size: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int
    standby_count: int
    rack_tags: Sequence[str]
    is_delayed: bool
    wall_ms: int

    @property
    def assignment_configs(self) -> Mapping[str, str]:
        """Return the configs of the assignor as they are stored with the group epoch."""
        configs = {"num.standby.replicas": str(self.standby_count)}
        return configs | ({"rack.aware.assignment.tags": ",".join(self.rack_tags)} if self.rack_tags else {})


class StreamsHeartbeat(NamedTuple):
    """The response to a heartbeat, and the topics that have to be created for the application."""

    response: StreamsGroupHeartbeatResponse
    missing_topics: Sequence[InternalTopic] = ()


class StreamsMemberHeartbeat:
    """The heartbeat of a member that joins or stays."""

    def __init__(
        self,
        group: StreamsGroup,
        request: StreamsGroupHeartbeatRequest,
        topics: SubscribedTopics,
        settings: StreamsHeartbeatSettings,
        *,
        is_new_group: bool,
    ) -> None:
        """Find the member. Raises KafkaError if the request is not that of a member."""
        self._group = group
        self._request = request
        self._topics = topics
        self._settings = settings
        self._is_new_group = is_new_group
        self._is_joining = request.member_epoch == JOIN_EPOCH
        self._records: list[StreamsGroupRecord] = []
        self._owned = None if request.active_tasks is None else TaskSets.of(_owned_tasks(request))
        member_id, instance_id = request.member_id, request.instance_id
        self._member = find_member(group, member_id, instance_id, request.member_epoch, self._owned, settings.max_size)
        # The same member as it is in the group: with its former id, if it takes over a static member's place.
        static = None if instance_id is None else group.static_member(instance_id)
        self._existing = static or group.members.get(member_id)
        if static is not None and self._is_joining:
            self._records += replacement_records(group, static, self._member)

    def run(self) -> tuple[list[StreamsGroupRecord], StreamsHeartbeat]:
        """Return the records, and the response. Raises KafkaError."""
        group, offsets = self._group, self._task_offsets()
        updated = self._updated_member()
        must_bump = is_changed = updated != self._member or self._existing is None
        if is_changed:
            self._records.append(updated.metadata_record(group.group_id))
        if self._existing is not None and self._request.instance_id is not None:
            must_bump = _is_other_for_assignor(self._member, updated)
        topology = self._topology()
        configured, metadata_hash = self._configure(topology)
        group_epoch = self._next_group_epoch(topology, configured, metadata_hash, must_bump)
        target = self._target(updated, group_epoch, configured)
        reconciled = updated
        if not updated.is_reconciled_to(target.epoch):
            reconciled = next_assignment(updated, target, self._owned, group.holders(updated.process_id))
            if reconciled != updated:
                self._records.append(reconciled.current_assignment_record(group.group_id))
        # From here on the request is accepted.
        group.configured, group.is_metadata_current = configured, True
        group.task_offsets[updated.member_id] = offsets
        if self._request.shutdown_application:
            group.shutdown_member_id = updated.member_id
        response = self._response(reconciled, topology)
        is_behind = updated.topology_epoch < topology.epoch
        response.status = self._statuses(reconciled, topology if is_behind else None, configured, group_epoch, target)
        return self._records, StreamsHeartbeat(response, configured.missing_topics)

    # The member.

    def _updated_member(self) -> StreamsGroupMember:
        """Return the member with what the request has; null means unchanged, except for the endpoint in a join."""
        member, request = self._member, self._request
        timeout_ms, tags, topology = request.rebalance_timeout_ms, request.client_tags, request.topology
        endpoint = UserEndpoint.of(request.user_endpoint)
        sent: dict[str, Any] = {
            "instance_id": request.instance_id,
            "rack_id": request.rack_id,
            "rebalance_timeout_ms": None if timeout_ms == UNSET_TIMEOUT else timeout_ms,
            "topology_epoch": None if topology is None else topology.epoch,
            "process_id": request.process_id,
            "tags": None if tags is None else tags_of(tags),
            "client_id": self._settings.client_id,
            "client_host": self._settings.client_host,
        }
        changes = {name: value for name, value in sent.items() if value is not None}
        if endpoint is not None or self._is_joining:
            changes["endpoint"] = endpoint
        return replace(member, **changes)

    def _task_offsets(self) -> TaskOffsets:
        before, request = self._group.task_offsets.get(self._request.member_id, NO_OFFSETS), self._request
        return TaskOffsets(
            before.offsets if request.task_offsets is None else _by_task(request.task_offsets),
            before.end_offsets if request.task_end_offsets is None else _by_task(request.task_end_offsets),
        )

    # The topology.

    def _topology(self) -> StreamsGroupTopologyValue:
        """Return the topology of the group, which is written if this member brings it."""
        group, sent = self._group, self._request.topology
        known = group.topology
        if sent is None:
            if known is None:
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
            return known
        value = StreamsGroupTopologyValue(epoch=sent.epoch, subtopologies=sent.subtopologies)
        if known is None:
            self._records.append(StreamsTopology(group.group_id, value))
            return value
        if known.epoch <= sent.epoch and known != value:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet.")
        return known

    def _configure(self, topology: StreamsGroupTopologyValue) -> tuple[ConfiguredTopology, int]:
        """Return the topology for the topics that exist, and the hash of these. Raises KafkaError."""
        group = self._group
        configured, metadata_hash = group.configured, group.metadata_hash
        if configured is None or not group.is_metadata_current:
            names = required_topics(topology.subtopologies)
            metadata_hash = self._topics.hash(names)
            counts = {name: topic.partition_count for name, topic in self._topics.existing(names)}
            configured = configure(topology.subtopologies, counts)
        if configured.problem is None:
            self._validate_owned(configured)
        return configured, metadata_hash

    def _validate_owned(self, configured: ConfiguredTopology) -> None:
        subtopologies = configured.subtopologies or {}
        for tasks in _owned_tasks(self._request):
            for subtopology_id, partitions in tasks.items():
                subtopology = subtopologies.get(subtopology_id)
                if subtopology is None:
                    text = f"Subtopology {subtopology_id} does not exist in the topology."
                    raise KafkaError(ErrorCode.INVALID_REQUEST, text)
                invalid = [each for each in partitions if not 0 <= each < subtopology.task_count]
                if invalid:
                    text = (
                        f"Task {invalid[0]} for subtopology {subtopology_id} is invalid. Number of tasks for this "
                        f"subtopology: {subtopology.task_count}"
                    )
                    raise KafkaError(ErrorCode.INVALID_REQUEST, text)

    # The group.

    def _next_group_epoch(
        self,
        topology: StreamsGroupTopologyValue,
        configured: ConfiguredTopology,
        metadata_hash: int,
        must_bump: bool,
    ) -> int:
        """Return the group epoch. It rises if it must, or if topics or configs have changed."""
        group, configs = self._group, self._settings.assignment_configs
        validated = topology.epoch if configured.problem is None else NO_TOPOLOGY_EPOCH
        reasons = (group.metadata_hash, group.validated_topology_epoch, group.configs)
        if not must_bump and reasons == (metadata_hash, validated, configs):
            return group.group_epoch
        epoch = group.group_epoch + 1
        self._records.append(group_epoch_record(group.group_id, epoch, metadata_hash, validated, configs))
        return epoch

    def _target(self, updated: StreamsGroupMember, group_epoch: int, configured: ConfiguredTopology) -> StreamsTarget:
        """Return the target of the member. If that of the group is computed, its records are added, the epoch last."""
        group, settings = self._group, self._settings
        own = group.target_of(updated)
        computed_ms, interval_ms = group.assignment_timestamp_ms, settings.assignment_interval_ms
        if settings.is_delayed or not may_compute(
            group.assignment_epoch, computed_ms, group_epoch, interval_ms, settings.wall_ms
        ):
            return StreamsTarget(group.assignment_epoch, own)
        existing = self._existing
        members = [updated if member is existing else member for member in group.members.values()]
        if existing is None:
            members.append(updated)
        targets, records = compute_target(group, members, configured, settings, group_epoch)
        self._records += records
        return StreamsTarget(group_epoch, targets[updated.member_id])

    # The response.

    def _response(
        self, member: StreamsGroupMember, topology: StreamsGroupTopologyValue
    ) -> StreamsGroupHeartbeatResponse:
        group, before, assigned = self._group, self._member, member.assigned
        response = StreamsGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=self._settings.heartbeat_interval_ms,
            acceptable_recovery_lag=ACCEPTABLE_RECOVERY_LAG,
            task_offset_interval_ms=TASK_OFFSET_INTERVAL_MS,
        )
        has_other_tasks = _has_other_tasks(before, member)
        # Kafka does not repeat the tasks if a response with them was lost: nobody would process them.
        has_missed_tasks = self._owned is not None and not _owns_all(self._owned, assigned)
        if self._is_joining or has_other_tasks or has_missed_tasks:
            response.active_tasks = task_structs(grouped(assigned.active))
            response.standby_tasks = task_structs(grouped(assigned.standby))
            response.warmup_tasks = task_structs(grouped(assigned.warmup))
        endpoint_epoch = group.endpoint_epoch
        if member.endpoint != before.endpoint or (member.endpoint is not None and has_other_tasks):
            endpoint_epoch += 1
        if endpoint_epoch != self._request.endpoint_information_epoch:
            members = [member if each is self._existing else each for each in group.members.values()]
            if self._existing is None:
                members.append(member)
            response.partitions_by_user_endpoint = endpoint_partitions(topology, members, self._topics)
        # As in Kafka, the endpoints of a new group begin with epoch 0.
        group.endpoint_epoch = response.endpoint_information_epoch = 0 if self._is_new_group else endpoint_epoch
        return response

    def _statuses(
        self,
        member: StreamsGroupMember,
        newer: StreamsGroupTopologyValue | None,
        configured: ConfiguredTopology,
        group_epoch: int,
        target: StreamsTarget,
    ) -> list[StreamsStatus]:
        """`newer`: the topology of the group, if that of the member is an earlier one."""
        found: list[StatusDetail] = []
        if newer is not None:
            text = f"The member's topology epoch {member.topology_epoch} is behind the group's topology epoch "
            found.append(StatusDetail(Status.STALE_TOPOLOGY, f"{text}{newer.epoch}."))
        if group_epoch > target.epoch:
            reason = "initial rebalance delay" if self._settings.is_delayed else "assignment interval"
            found.append(StatusDetail(Status.ASSIGNMENT_DELAYED, f"Assignment delayed due to the configured {reason}."))
        if configured.problem is not None:
            found.append(configured.problem)
        if self._group.shutdown_member_id is not None:
            text = f"Streams group member {self._group.shutdown_member_id} encountered a fatal error and requested a "
            found.append(StatusDetail(Status.SHUTDOWN_APPLICATION, f"{text}shutdown for the entire application."))
        missing = [tag for tag in self._settings.rack_tags if tag not in member.tags]
        if missing:
            text = f"Missing required client tags for rack-aware standby assignment: [{', '.join(missing)}]. Configure "
            text += "them via 'client.tag.<tagKey>' in your Streams config."
            found.append(StatusDetail(Status.MISSING_CLIENT_TAGS, text))
        return [StreamsStatus(status_code=status, status_detail=text) for status, text in found]


def compute_target(
    group: StreamsGroup,
    members: Sequence[StreamsGroupMember],
    configured: ConfiguredTopology,
    settings: StreamsHeartbeatSettings,
    group_epoch: int,
) -> tuple[Mapping[str, Tasks], list[StreamsGroupRecord]]:
    """Return the targets of all members, and the records of it: the targets that change, and their epoch."""
    records: list[StreamsGroupRecord] = []
    by_id = {member.member_id: member for member in members}
    specs = {id: _task_member(group, by_id[id]) for id in paced(hash_map_order(by_id))}
    if configured.problem is None and configured.subtopologies is not None:
        subtopologies = {id: (each.task_count, each.is_stateful) for id, each in configured.subtopologies.items()}
        targets = assign_sticky(specs, subtopologies, settings.standby_count)
    else:
        targets = dict.fromkeys(specs, NO_TASKS)
    for member_id, target in paced(targets.items()):
        if target != group.target_of(by_id[member_id]):
            records.append(target_record(group.group_id, member_id, target))
    records.append(target_epoch_record(group.group_id, group_epoch, settings.wall_ms))
    return targets, records


def _task_member(group: StreamsGroup, member: StreamsGroupMember) -> TaskMember:
    """Return a member with the tasks that it has, which are not those of its target while it proceeds."""
    offsets = group.task_offsets.get(member.member_id, NO_OFFSETS).offsets
    return TaskMember(member.process_id, member.assigned.active, member.assigned.standby, offsets)


def _owned_tasks(request: StreamsGroupHeartbeatRequest) -> Tasks:
    return Tasks(
        task_ids_of(request.active_tasks), task_ids_of(request.standby_tasks), task_ids_of(request.warmup_tasks)
    )


def _by_task(structs: Sequence[StreamsTaskOffset]) -> dict[TaskId, int]:
    found: dict[TaskId, int] = {}
    for struct in paced(structs):
        task = TaskId(struct.subtopology_id, struct.partition)
        if task in found:
            text = f"Task offsets contain a duplicate entry for subtopology {task.subtopology_id} and partition "
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{text}{task.partition}.")
        found[task] = struct.offset
    return found


def _is_other_for_assignor(before: StreamsGroupMember, after: StreamsGroupMember) -> bool:
    """Return whether a static member is another one for the assignor."""
    return (before.topology_epoch, before.rack_id, before.process_id, before.tags) != (
        after.topology_epoch,
        after.rack_id,
        after.process_id,
        after.tags,
    )


def _has_other_tasks(before: StreamsGroupMember, after: StreamsGroupMember) -> bool:
    old, new = before.assigned, after.assigned
    return (old.active.keys(), old.standby, old.warmup) != (new.active.keys(), new.standby, new.warmup)


def _owns_all(owned: TaskSets, assigned: AssignedTasks) -> bool:
    has_copies = owned.standby >= assigned.standby and owned.warmup >= assigned.warmup
    return has_copies and owned.active >= assigned.active.keys()
