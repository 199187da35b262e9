"""StreamsGroupDescribe: a streams group with its topology, its members and their tasks (KIP-1071).

Version 1 adds a description of the topology for readers, and the assignor. kbroker sends version 0.
"""

from protocol.schema.message import Message, Struct, row


class StreamsGroupDescribeRequest(Message, key=89, kind="request", versions="0", flexible="0+", costly=True):
    group_ids: list[str] = row(["string"], "0+")
    include_authorized_operations: bool = row("bool", "0+")


class StreamsKeyValue(Struct):
    key: str = row("string", "0+")
    value: str = row("string", "0+")


class StreamsTopicInfo(Struct):
    name: str = row("string", "0+")
    partitions: int = row("int32", "0+")
    replication_factor: int = row("int16", "0+")
    topic_configs: list[StreamsKeyValue] = row([StreamsKeyValue], "0+")


class StreamsSubtopology(Struct):
    subtopology_id: str = row("string", "0+")
    source_topics: list[str] = row(["string"], "0+")
    repartition_sink_topics: list[str] = row(["string"], "0+")
    state_changelog_topics: list[StreamsTopicInfo] = row([StreamsTopicInfo], "0+")
    repartition_source_topics: list[StreamsTopicInfo] = row([StreamsTopicInfo], "0+")


class StreamsTopology(Struct):
    epoch: int = row("int32", "0+")
    subtopologies: list[StreamsSubtopology] | None = row([StreamsSubtopology], "0+", nullable="0+", default=None)


class StreamsEndpoint(Struct):
    host: str = row("string", "0+")
    port: int = row("uint16", "0+")


class StreamsTaskOffset(Struct):
    subtopology_id: str = row("string", "0+")
    partition: int = row("int32", "0+")
    offset: int = row("int64", "0+")


class StreamsTaskIds(Struct):
    subtopology_id: str = row("string", "0+")
    partitions: list[int] = row(["int32"], "0+")


class StreamsAssignment(Struct):
    active_tasks: list[StreamsTaskIds] = row([StreamsTaskIds], "0+")
    standby_tasks: list[StreamsTaskIds] = row([StreamsTaskIds], "0+")
    warmup_tasks: list[StreamsTaskIds] = row([StreamsTaskIds], "0+")


class DescribedStreamsGroupMember(Struct):
    member_id: str = row("string", "0+")
    member_epoch: int = row("int32", "0+")
    instance_id: str | None = row("string", "0+", nullable="0+", default=None)
    rack_id: str | None = row("string", "0+", nullable="0+", default=None)
    client_id: str = row("string", "0+")
    client_host: str = row("string", "0+")
    topology_epoch: int = row("int32", "0+")
    process_id: str = row("string", "0+")
    user_endpoint: StreamsEndpoint | None = row(StreamsEndpoint, "0+", nullable="0+", default=None)
    client_tags: list[StreamsKeyValue] = row([StreamsKeyValue], "0+")
    task_offsets: list[StreamsTaskOffset] = row([StreamsTaskOffset], "0+")
    task_end_offsets: list[StreamsTaskOffset] = row([StreamsTaskOffset], "0+")
    assignment: StreamsAssignment = row(StreamsAssignment, "0+")
    target_assignment: StreamsAssignment = row(StreamsAssignment, "0+")
    is_classic: bool = row("bool", "0+")


class DescribedStreamsGroup(Struct):
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)
    group_id: str = row("string", "0+")
    group_state: str = row("string", "0+")
    group_epoch: int = row("int32", "0+")
    assignment_epoch: int = row("int32", "0+")
    topology: StreamsTopology | None = row(StreamsTopology, "0+", nullable="0+", default=None)
    members: list[DescribedStreamsGroupMember] = row([DescribedStreamsGroupMember], "0+")
    authorized_operations: int = row("int32", "0+", default=-(2**31))


class StreamsGroupDescribeResponse(Message, key=89, kind="response", versions="0", flexible="0+", costly=True):
    throttle_time_ms: int = row("int32", "0+")
    groups: list[DescribedStreamsGroup] = row([DescribedStreamsGroup], "0+")
