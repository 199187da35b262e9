"""Metadata: the brokers, topics and partitions.

0: an empty list of topics means all.
1: null means all; racks, controller, internal topics.
2: cluster id.
4: whether to create missing topics.
5: offline replicas.
7: leader epoch.
8-10: authorized operations of the cluster (KIP-430; later versions have none, DescribeCluster has them).
10: topic ids in responses, 12: in requests (KIP-516).
13: an error code for the whole response (KIP-1102).
"""

from protocol.schema.message import Message, Struct, row


class MetadataRequestTopic(Struct):
    topic_id: bytes = row("uuid", "10+", ignorable=True)
    name: str | None = row("string", "0+", nullable="10+")


class MetadataRequest(Message, key=3, kind="request", versions="0-13", flexible="9+"):
    topics: list[MetadataRequestTopic] | None = row([MetadataRequestTopic], "0+", nullable="1+")
    allow_auto_topic_creation: bool = row("bool", "4+", default=True)
    include_cluster_authorized_operations: bool = row("bool", "8-10")
    include_topic_authorized_operations: bool = row("bool", "8+")


class MetadataResponseBroker(Struct):
    node_id: int = row("int32", "0+")
    host: str = row("string", "0+")
    port: int = row("int32", "0+")
    rack: str | None = row("string", "1+", nullable="1+", default=None, ignorable=True)


class MetadataResponsePartition(Struct):
    error_code: int = row("int16", "0+")
    partition_index: int = row("int32", "0+")
    leader_id: int = row("int32", "0+")
    leader_epoch: int = row("int32", "7+", default=-1, ignorable=True)
    replica_nodes: list[int] = row(["int32"], "0+")
    isr_nodes: list[int] = row(["int32"], "0+")
    offline_replicas: list[int] = row(["int32"], "5+", ignorable=True)


class MetadataResponseTopic(Struct):
    error_code: int = row("int16", "0+")
    name: str | None = row("string", "0+", nullable="12+")
    topic_id: bytes = row("uuid", "10+", ignorable=True)
    is_internal: bool = row("bool", "1+", ignorable=True)
    partitions: list[MetadataResponsePartition] = row([MetadataResponsePartition], "0+")
    topic_authorized_operations: int = row("int32", "8+", default=-(2**31))


class MetadataResponse(Message, key=3, kind="response", versions="0-13", flexible="9+"):
    throttle_time_ms: int = row("int32", "3+", ignorable=True)
    brokers: list[MetadataResponseBroker] = row([MetadataResponseBroker], "0+")
    cluster_id: str | None = row("string", "2+", nullable="2+", default=None, ignorable=True)
    controller_id: int = row("int32", "1+", default=-1, ignorable=True)
    topics: list[MetadataResponseTopic] = row([MetadataResponseTopic], "0+")
    cluster_authorized_operations: int = row("int32", "8-10", default=-(2**31))
    error_code: int = row("int16", "13+", ignorable=True)
