"""Share consumers: ShareFetch reads and acquires records, and acknowledges earlier ones; ShareAcknowledge does only the
latter (KIP-932).

1: the number of records, and the size of acquired batches.
2: acquire modes (KIP-1206) and renewals (KIP-1222).

An acknowledgement batch has one type for all its records, or one for each: 0 gap, 1 accept, 2 release, 3 reject,
4 renew. Sizes are in bytes, times in milliseconds.
"""

from protocol.schema.message import Message, Struct, row
from protocol.schema.primitives import Buffer


class AcknowledgementBatch(Struct):
    first_offset: int = row("int64", "0+")
    last_offset: int = row("int64", "0+")
    acknowledge_types: list[int] = row(["int8"], "0+")


class FetchPartition(Struct):
    partition_index: int = row("int32", "0+")
    partition_max_bytes: int = row("int32", "0")
    acknowledgement_batches: list[AcknowledgementBatch] = row([AcknowledgementBatch], "0+")


class FetchTopic(Struct):
    topic_id: bytes = row("uuid", "0+")
    partitions: list[FetchPartition] = row([FetchPartition], "0+")


class ForgottenTopic(Struct):
    topic_id: bytes = row("uuid", "0+")
    partitions: list[int] = row(["int32"], "0+")


class ShareFetchRequest(Message, key=78, kind="request", versions="1-2", flexible="0+"):
    group_id: str | None = row("string", "0+", nullable="0+", default=None)
    member_id: str | None = row("string", "0+", nullable="0+")
    share_session_epoch: int = row("int32", "0+")
    max_wait_ms: int = row("int32", "0+")
    min_bytes: int = row("int32", "0+")
    max_bytes: int = row("int32", "0+", default=2**31 - 1)
    max_records: int = row("int32", "1+")
    batch_size: int = row("int32", "1+")
    share_acquire_mode: int = row("int8", "2+", default=0, ignorable=True)
    is_renew_ack: bool = row("bool", "2+", default=False)
    topics: list[FetchTopic] = row([FetchTopic], "0+")
    forgotten_topics_data: list[ForgottenTopic] = row([ForgottenTopic], "0+")


class LeaderIdAndEpoch(Struct):
    leader_id: int = row("int32", "0+")
    leader_epoch: int = row("int32", "0+")


class NodeEndpoint(Struct):
    node_id: int = row("int32", "0+")
    host: str = row("string", "0+")
    port: int = row("int32", "0+")
    rack: str | None = row("string", "0+", nullable="0+", default=None)


class AcquiredRecords(Struct):
    first_offset: int = row("int64", "0+")
    last_offset: int = row("int64", "0+")
    delivery_count: int = row("int16", "0+")


class SharePartitionData(Struct):
    partition_index: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)
    acknowledge_error_code: int = row("int16", "0+")
    acknowledge_error_message: str | None = row("string", "0+", nullable="0+", default=None)
    current_leader: LeaderIdAndEpoch = row(LeaderIdAndEpoch, "0+")
    records: Buffer | None = row("records", "0+", nullable="0", default=b"")
    acquired_records: list[AcquiredRecords] = row([AcquiredRecords], "0+")


class ShareFetchableTopicResponse(Struct):
    topic_id: bytes = row("uuid", "0+")
    partitions: list[SharePartitionData] = row([SharePartitionData], "0+")


class ShareFetchResponse(Message, key=78, kind="response", versions="1-2", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = row("int32", "1+")
    responses: list[ShareFetchableTopicResponse] = row([ShareFetchableTopicResponse], "0+")
    node_endpoints: list[NodeEndpoint] = row([NodeEndpoint], "0+")


class AcknowledgePartition(Struct):
    partition_index: int = row("int32", "0+")
    acknowledgement_batches: list[AcknowledgementBatch] = row([AcknowledgementBatch], "0+")


class AcknowledgeTopic(Struct):
    topic_id: bytes = row("uuid", "0+")
    partitions: list[AcknowledgePartition] = row([AcknowledgePartition], "0+")


class ShareAcknowledgeRequest(Message, key=79, kind="request", versions="1-2", flexible="0+"):
    group_id: str | None = row("string", "0+", nullable="0+", default=None)
    member_id: str | None = row("string", "0+", nullable="0+")
    share_session_epoch: int = row("int32", "0+")
    is_renew_ack: bool = row("bool", "2+", default=False)
    topics: list[AcknowledgeTopic] = row([AcknowledgeTopic], "0+")


class AcknowledgePartitionData(Struct):
    partition_index: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)
    current_leader: LeaderIdAndEpoch = row(LeaderIdAndEpoch, "0+")


class ShareAcknowledgeTopicResponse(Struct):
    topic_id: bytes = row("uuid", "0+")
    partitions: list[AcknowledgePartitionData] = row([AcknowledgePartitionData], "0+")


class ShareAcknowledgeResponse(Message, key=79, kind="response", versions="1-2", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = row("int32", "2+", ignorable=True)
    responses: list[ShareAcknowledgeTopicResponse] = row([ShareAcknowledgeTopicResponse], "0+")
    node_endpoints: list[NodeEndpoint] = row([NodeEndpoint], "0+")
