"""DescribeCluster: cluster id, controller and brokers (KIP-700).

1: endpoint type, 1 brokers, 2 controllers (KIP-919).
2: fenced brokers too (KIP-1073).
"""

from protocol.schema.message import Message, Struct, row


class DescribeClusterRequest(Message, key=60, kind="request", versions="0-2", flexible="0+"):
    include_cluster_authorized_operations: bool = row("bool", "0+")
    endpoint_type: int = row("int8", "1+", default=1)
    include_fenced_brokers: bool = row("bool", "2+")


class DescribeClusterBroker(Struct):
    broker_id: int = row("int32", "0+")
    host: str = row("string", "0+")
    port: int = row("int32", "0+")
    rack: str | None = row("string", "0+", nullable="0+", default=None)
    is_fenced: bool = row("bool", "2+")


class DescribeClusterResponse(Message, key=60, kind="response", versions="0-2", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)
    endpoint_type: int = row("int8", "1+", default=1)
    cluster_id: str = row("string", "0+")
    controller_id: int = row("int32", "0+", default=-1)
    brokers: list[DescribeClusterBroker] = row([DescribeClusterBroker], "0+")
    cluster_authorized_operations: int = row("int32", "0+", default=-(2**31))
