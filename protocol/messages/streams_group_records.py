"""The keys and values of records in __consumer_offsets for streams groups (KIP-1071), each preceded by its version.

The version of a key is its kind: 17 group epoch, 19 member, 20 epoch of the target assignment, 21 target of a member,
22 current assignment of a member, 23 topology. Key 18, the metadata of partitions, was that of a preview.
"""

from protocol.messages.k88_streams_groups import (
    HeartbeatSubtopology,
    StreamsEndpoint,
    StreamsKeyValue,
    StreamsTaskIds,
)
from protocol.schema.message import Message, Struct, row


class StreamsGroupMetadataKey(Message, kind="data", versions="17", flexible="none"):
    group_id: str = row("string", "17")


class StreamsGroupMetadataValue(Message, kind="data", versions="0", flexible="0+"):
    epoch: int = row("int32", "0+")
    metadata_hash: int = row("int64", "0+")
    validated_topology_epoch: int = row("int32", "0+", tag=0, default=-1)
    last_assignment_configs: list[StreamsKeyValue] | None = row(
        [StreamsKeyValue], "0+", nullable="0+", tag=1, default=None
    )
    stored_description_topology_epoch: int = row("int32", "0+", tag=2, default=-1)
    failed_description_topology_epoch: int = row("int32", "0+", tag=3, default=-1)


class StreamsGroupMemberMetadataKey(Message, kind="data", versions="19", flexible="none"):
    group_id: str = row("string", "19")
    member_id: str = row("string", "19")


class StreamsGroupMemberMetadataValue(Message, kind="data", versions="0", flexible="0+"):
    instance_id: str | None = row("string", "0+", nullable="0+")
    rack_id: str | None = row("string", "0+", nullable="0+")
    client_id: str = row("string", "0+")
    client_host: str = row("string", "0+")
    rebalance_timeout_ms: int = row("int32", "0+", default=-1)
    topology_epoch: int = row("int32", "0+")
    process_id: str = row("string", "0+")
    user_endpoint: StreamsEndpoint | None = row(StreamsEndpoint, "0+", nullable="0+", default=None)
    client_tags: list[StreamsKeyValue] = row([StreamsKeyValue], "0+")


class StreamsGroupTargetAssignmentMetadataKey(Message, kind="data", versions="20", flexible="none"):
    group_id: str = row("string", "20")


class StreamsGroupTargetAssignmentMetadataValue(Message, kind="data", versions="0", flexible="0+"):
    assignment_epoch: int = row("int32", "0+")
    assignment_timestamp: int = row("int64", "0+", tag=0, default=0, ignorable=True)


class StreamsGroupTargetAssignmentMemberKey(Message, kind="data", versions="21", flexible="none"):
    group_id: str = row("string", "21")
    member_id: str = row("string", "21")


class StreamsGroupTargetAssignmentMemberValue(Message, kind="data", versions="0", flexible="0+"):
    active_tasks: list[StreamsTaskIds] = row([StreamsTaskIds], "0+")
    standby_tasks: list[StreamsTaskIds] = row([StreamsTaskIds], "0+")
    warmup_tasks: list[StreamsTaskIds] = row([StreamsTaskIds], "0+")


class StreamsGroupCurrentMemberAssignmentKey(Message, kind="data", versions="22", flexible="none"):
    group_id: str = row("string", "22")
    member_id: str = row("string", "22")


class CurrentTaskIds(Struct):
    subtopology_id: str = row("string", "0+")
    partitions: list[int] = row(["int32"], "0+")
    assignment_epochs: list[int] | None = row(["int32"], "0+", nullable="0+", tag=0, default=None)


class StreamsGroupCurrentMemberAssignmentValue(Message, kind="data", versions="0", flexible="0+"):
    member_epoch: int = row("int32", "0+")
    previous_member_epoch: int = row("int32", "0+")
    state: int = row("int8", "0+")
    active_tasks: list[CurrentTaskIds] = row([CurrentTaskIds], "0+")
    standby_tasks: list[CurrentTaskIds] = row([CurrentTaskIds], "0+")
    warmup_tasks: list[CurrentTaskIds] = row([CurrentTaskIds], "0+")
    active_tasks_pending_revocation: list[CurrentTaskIds] = row([CurrentTaskIds], "0+")
    standby_tasks_pending_revocation: list[CurrentTaskIds] = row([CurrentTaskIds], "0+")
    warmup_tasks_pending_revocation: list[CurrentTaskIds] = row([CurrentTaskIds], "0+")


class StreamsGroupTopologyKey(Message, kind="data", versions="23", flexible="none"):
    group_id: str = row("string", "23")


class StreamsGroupTopologyValue(Message, kind="data", versions="0", flexible="0+", costly=True):
    epoch: int = row("int32", "0+")
    subtopologies: list[HeartbeatSubtopology] = row([HeartbeatSubtopology], "0+")
