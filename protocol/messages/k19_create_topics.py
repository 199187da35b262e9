"""CreateTopics: create topics by partition count or by assignment.

4: -1 for the broker's default partition count and replication factor (KIP-464).
5: the configs in the response (KIP-525).
6: the error THROTTLING_QUOTA_EXCEEDED.
7: topic ids in the response.
"""

from protocol.schema.message import Message, Struct, row


class CreatableReplicaAssignment(Struct):
    partition_index: int = row("int32", "0+")
    broker_ids: list[int] = row(["int32"], "0+")


class CreatableTopicConfig(Struct):
    name: str = row("string", "0+")
    value: str | None = row("string", "0+", nullable="0+")


class CreatableTopic(Struct):
    name: str = row("string", "0+")
    num_partitions: int = row("int32", "0+")
    replication_factor: int = row("int16", "0+")
    assignments: list[CreatableReplicaAssignment] = row([CreatableReplicaAssignment], "0+")
    configs: list[CreatableTopicConfig] = row([CreatableTopicConfig], "0+")


class CreateTopicsRequest(Message, key=19, kind="request", versions="2-7", flexible="5+"):
    topics: list[CreatableTopic] = row([CreatableTopic], "0+")
    timeout_ms: int = row("int32", "0+", default=60000)
    validate_only: bool = row("bool", "1+")


class CreatableTopicConfigs(Struct):
    name: str = row("string", "5+")
    value: str | None = row("string", "5+", nullable="5+")
    read_only: bool = row("bool", "5+")
    config_source: int = row("int8", "5+", default=-1, ignorable=True)
    is_sensitive: bool = row("bool", "5+")


class CreatableTopicResult(Struct):
    name: str = row("string", "0+")
    topic_id: bytes = row("uuid", "7+", ignorable=True)
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "1+", nullable="0+", ignorable=True)
    topic_config_error_code: int = row("int16", "5+", tag=0, ignorable=True)
    num_partitions: int = row("int32", "5+", default=-1, ignorable=True)
    replication_factor: int = row("int16", "5+", default=-1, ignorable=True)
    configs: list[CreatableTopicConfigs] | None = row([CreatableTopicConfigs], "5+", nullable="5+", ignorable=True)


class CreateTopicsResponse(Message, key=19, kind="response", versions="2-7", flexible="5+"):
    throttle_time_ms: int = row("int32", "2+", ignorable=True)
    topics: list[CreatableTopicResult] = row([CreatableTopicResult], "0+")
