"""Fetch: read record batches, as a consumer or as a follower.

4: isolation level.
5: log start offset.
7: incremental sessions (KIP-227).
9: leader epochs (KIP-320).
11: rack (KIP-392).
12: diverging epoch (KIP-595).
13: topic ids (KIP-516).
15: the replica's state becomes a tagged field (KIP-903).
16: node endpoints (KIP-951).
17: replica directory id.
18: high watermark (KIP-1166).

Sizes are in bytes, waits in milliseconds. The broker uses protocol/fast/fetch.py; tests compare it with these rows.
"""

from protocol.schema.message import Message, Struct, row
from protocol.schema.primitives import Buffer


class ReplicaState(Struct):
    replica_id: int = row("int32", "15+", default=-1)
    replica_epoch: int = row("int64", "15+", default=-1)


class FetchPartition(Struct):
    partition: int = row("int32", "0+")
    current_leader_epoch: int = row("int32", "9+", default=-1, ignorable=True)
    fetch_offset: int = row("int64", "0+")
    last_fetched_epoch: int = row("int32", "12+", default=-1)
    log_start_offset: int = row("int64", "5+", default=-1, ignorable=True)
    partition_max_bytes: int = row("int32", "0+")
    replica_directory_id: bytes = row("uuid", "17+", tag=0, ignorable=True)
    high_watermark: int = row("int64", "18+", tag=1, default=2**63 - 1, ignorable=True)


class FetchTopic(Struct):
    topic: str = row("string", "0-12", ignorable=True)
    topic_id: bytes = row("uuid", "13+", ignorable=True)
    partitions: list[FetchPartition] = row([FetchPartition], "0+")


class ForgottenTopic(Struct):
    topic: str = row("string", "7-12", ignorable=True)
    topic_id: bytes = row("uuid", "13+", ignorable=True)
    partitions: list[int] = row(["int32"], "7+")


class FetchRequest(Message, key=1, kind="request", versions="4-18", flexible="12+"):
    cluster_id: str | None = row("string", "12+", nullable="12+", tag=0, default=None, ignorable=True)
    replica_id: int = row("int32", "0-14", default=-1)
    replica_state: ReplicaState = row(ReplicaState, "15+", tag=1)
    max_wait_ms: int = row("int32", "0+")
    min_bytes: int = row("int32", "0+")
    max_bytes: int = row("int32", "3+", default=2**31 - 1, ignorable=True)
    isolation_level: int = row("int8", "4+", ignorable=True)
    session_id: int = row("int32", "7+", ignorable=True)
    session_epoch: int = row("int32", "7+", default=-1, ignorable=True)
    topics: list[FetchTopic] = row([FetchTopic], "0+")
    forgotten_topics_data: list[ForgottenTopic] = row([ForgottenTopic], "7+")
    rack_id: str = row("string", "11+", ignorable=True)


class EpochEndOffset(Struct):
    epoch: int = row("int32", "12+", default=-1)
    end_offset: int = row("int64", "12+", default=-1)


class LeaderIdAndEpoch(Struct):
    leader_id: int = row("int32", "12+", default=-1)
    leader_epoch: int = row("int32", "12+", default=-1)


class SnapshotId(Struct):
    end_offset: int = row("int64", "0+", default=-1)
    epoch: int = row("int32", "0+", default=-1)


class AbortedTransaction(Struct):
    producer_id: int = row("int64", "4+")
    first_offset: int = row("int64", "4+")


class PartitionData(Struct):
    partition_index: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    high_watermark: int = row("int64", "0+")
    last_stable_offset: int = row("int64", "4+", default=-1, ignorable=True)
    log_start_offset: int = row("int64", "5+", default=-1, ignorable=True)
    diverging_epoch: EpochEndOffset = row(EpochEndOffset, "12+", tag=0)
    current_leader: LeaderIdAndEpoch = row(LeaderIdAndEpoch, "12+", tag=1)
    snapshot_id: SnapshotId = row(SnapshotId, "12+", tag=2)
    aborted_transactions: list[AbortedTransaction] | None = row(
        [AbortedTransaction], "4+", nullable="4+", ignorable=True
    )
    preferred_read_replica: int = row("int32", "11+", default=-1)
    records: Buffer | None = row("records", "0+", nullable="0+", default=None)


class FetchableTopicResponse(Struct):
    topic: str = row("string", "0-12", ignorable=True)
    topic_id: bytes = row("uuid", "13+", ignorable=True)
    partitions: list[PartitionData] = row([PartitionData], "0+")


class NodeEndpoint(Struct):
    node_id: int = row("int32", "16+")
    host: str = row("string", "16+")
    port: int = row("int32", "16+")
    rack: str | None = row("string", "16+", nullable="16+", default=None)


class FetchResponse(Message, key=1, kind="response", versions="4-18", flexible="12+"):
    throttle_time_ms: int = row("int32", "1+", ignorable=True)
    error_code: int = row("int16", "7+", ignorable=True)
    session_id: int = row("int32", "7+")
    responses: list[FetchableTopicResponse] = row([FetchableTopicResponse], "0+")
    node_endpoints: list[NodeEndpoint] = row([NodeEndpoint], "16+", tag=0)
