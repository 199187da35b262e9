"""Streams groups (KIP-1071): StreamsGroupHeartbeat and StreamsGroupDescribe.

Version 1 of StreamsGroupDescribe adds a description of the topology for readers (KIP-1331), and the assignor.
"""

from protocol.schema.message import Message, Struct, row


class StreamsKeyValue(Struct):
    key: str = row("string", "0+")
    value: str = row("string", "0+")


class StreamsTopicInfo(Struct):
    name: str = row("string", "0+")
    partitions: int = row("int32", "0+")
    replication_factor: int = row("int16", "0+")
    topic_configs: list[StreamsKeyValue] = row([StreamsKeyValue], "0+")


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


class CopartitionGroup(Struct):
    """Indexes in the lists of topics of its subtopology."""

    source_topics: list[int] = row(["int16"], "0+")
    source_topic_regex: list[int] = row(["int16"], "0+")
    repartition_source_topics: list[int] = row(["int16"], "0+")


class HeartbeatSubtopology(Struct):
    subtopology_id: str = row("string", "0+")
    source_topics: list[str] = row(["string"], "0+")
    source_topic_regex: list[str] = row(["string"], "0+")
    state_changelog_topics: list[StreamsTopicInfo] = row([StreamsTopicInfo], "0+")
    repartition_sink_topics: list[str] = row(["string"], "0+")
    repartition_source_topics: list[StreamsTopicInfo] = row([StreamsTopicInfo], "0+")
    copartition_groups: list[CopartitionGroup] = row([CopartitionGroup], "0+")


class HeartbeatTopology(Struct):
    epoch: int = row("int32", "0+")
    subtopologies: list[HeartbeatSubtopology] = row([HeartbeatSubtopology], "0+")


class StreamsGroupHeartbeatRequest(Message, key=88, kind="request", versions="0-1", flexible="0+", costly=True):
    group_id: str = row("string", "0+")
    member_id: str = row("string", "0+")
    member_epoch: int = row("int32", "0+")
    endpoint_information_epoch: int = row("int32", "0+")
    instance_id: str | None = row("string", "0+", nullable="0+", default=None)
    rack_id: str | None = row("string", "0+", nullable="0+", default=None)
    rebalance_timeout_ms: int = row("int32", "0+", default=-1)
    topology: HeartbeatTopology | None = row(HeartbeatTopology, "0+", nullable="0+", default=None)
    active_tasks: list[StreamsTaskIds] | None = row([StreamsTaskIds], "0+", nullable="0+", default=None)
    standby_tasks: list[StreamsTaskIds] | None = row([StreamsTaskIds], "0+", nullable="0+", default=None)
    warmup_tasks: list[StreamsTaskIds] | None = row([StreamsTaskIds], "0+", nullable="0+", default=None)
    process_id: str | None = row("string", "0+", nullable="0+", default=None)
    user_endpoint: StreamsEndpoint | None = row(StreamsEndpoint, "0+", nullable="0+", default=None)
    client_tags: list[StreamsKeyValue] | None = row([StreamsKeyValue], "0+", nullable="0+", default=None)
    task_offsets: list[StreamsTaskOffset] | None = row([StreamsTaskOffset], "0+", nullable="0+", default=None)
    task_end_offsets: list[StreamsTaskOffset] | None = row([StreamsTaskOffset], "0+", nullable="0+", default=None)
    shutdown_application: bool = row("bool", "0+", default=False)


class StreamsStatus(Struct):
    status_code: int = row("int8", "0+")
    status_detail: str = row("string", "0+")


class EndpointTopicPartitions(Struct):
    topic: str = row("string", "0+")
    partitions: list[int] = row(["int32"], "0+")


class EndpointToPartitions(Struct):
    user_endpoint: StreamsEndpoint = row(StreamsEndpoint, "0+")
    active_partitions: list[EndpointTopicPartitions] = row([EndpointTopicPartitions], "0+")
    standby_partitions: list[EndpointTopicPartitions] = row([EndpointTopicPartitions], "0+")


class StreamsGroupHeartbeatResponse(Message, key=88, kind="response", versions="0-1", flexible="0+", costly=True):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)
    member_id: str = row("string", "0+")
    member_epoch: int = row("int32", "0+")
    heartbeat_interval_ms: int = row("int32", "0+")
    acceptable_recovery_lag_legacy: int = row("int32", "0")
    task_offset_interval_ms: int = row("int32", "0+")
    acceptable_recovery_lag: int = row("int64", "1+", default=-1, ignorable=True)
    status: list[StreamsStatus] | None = row([StreamsStatus], "0+", nullable="0+")
    active_tasks: list[StreamsTaskIds] | None = row([StreamsTaskIds], "0+", nullable="0+", default=None)
    standby_tasks: list[StreamsTaskIds] | None = row([StreamsTaskIds], "0+", nullable="0+", default=None)
    warmup_tasks: list[StreamsTaskIds] | None = row([StreamsTaskIds], "0+", nullable="0+", default=None)
    topology_description_required: bool = row("bool", "1+", default=False)
    endpoint_information_epoch: int = row("int32", "0+")
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = row(
        [EndpointToPartitions], "0+", nullable="0+", default=None
    )


class StreamsGroupDescribeRequest(Message, key=89, kind="request", versions="0-1", flexible="0+", costly=True):
    group_ids: list[str] = row(["string"], "0+")
    include_authorized_operations: bool = row("bool", "0+")
    include_topology_description: bool = row("bool", "1+", default=False)


class StreamsSubtopology(Struct):
    subtopology_id: str = row("string", "0+")
    source_topics: list[str] = row(["string"], "0+")
    repartition_sink_topics: list[str] = row(["string"], "0+")
    state_changelog_topics: list[StreamsTopicInfo] = row([StreamsTopicInfo], "0+")
    repartition_source_topics: list[StreamsTopicInfo] = row([StreamsTopicInfo], "0+")


class StreamsTopology(Struct):
    epoch: int = row("int32", "0+")
    subtopologies: list[StreamsSubtopology] | None = row([StreamsSubtopology], "0+", nullable="0+", default=None)


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


class TopologyDescriptionNode(Struct):
    name: str = row("string", "1+")
    node_type: int = row("int8", "1+")
    source_topics: list[str] = row(["string"], "1+")
    sink_topic: str | None = row("string", "1+", nullable="1+", default=None)
    stores: list[str] = row(["string"], "1+")
    successors: list[str] = row(["string"], "1+")


class TopologyDescriptionSubtopology(Struct):
    subtopology_id: str = row("string", "1+")
    nodes: list[TopologyDescriptionNode] = row([TopologyDescriptionNode], "1+")


class TopologyDescriptionGlobalStore(Struct):
    source: TopologyDescriptionNode = row(TopologyDescriptionNode, "1+")
    processor: TopologyDescriptionNode = row(TopologyDescriptionNode, "1+")


class TopologyDescription(Struct):
    subtopologies: list[TopologyDescriptionSubtopology] = row([TopologyDescriptionSubtopology], "1+")
    global_stores: list[TopologyDescriptionGlobalStore] = row([TopologyDescriptionGlobalStore], "1+")


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
    topology_description: TopologyDescription | None = row(TopologyDescription, "1+", nullable="1+", default=None)
    topology_description_status: int = row("int8", "1+", default=0)
    assignor_name: str | None = row("string", "1+", nullable="1+", default=None, ignorable=True)


class StreamsGroupDescribeResponse(Message, key=89, kind="response", versions="0-1", flexible="0+", costly=True):
    throttle_time_ms: int = row("int32", "0+")
    groups: list[DescribedStreamsGroup] = row([DescribedStreamsGroup], "0+")
