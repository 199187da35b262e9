"""The keys and values of records in __consumer_offsets for classic groups, each preceded by its version (int16).

The version of a key is its kind: 0 and 1 are committed offsets, 2 is a group, higher ones belong to newer group types.

Offset values: 1 has an expiration time (OffsetCommit v2-4), 2 has none, 3 adds the leader epoch (KIP-320), 4 the topic
id. Group values: 1 adds the rebalance timeout, 2 the time of the last state change (KIP-211), 3 static members
(KIP-345), 4 is flexible.
"""

from protocol.schema.message import Message, Struct, row


class OffsetCommitKey(Message, kind="data", versions="0-1", flexible="none"):
    group: str = row("string", "0+")
    topic: str = row("string", "0+")
    partition: int = row("int32", "0+")


class OffsetCommitValue(Message, kind="data", versions="0-4", flexible="4+"):
    offset: int = row("int64", "0+")
    leader_epoch: int = row("int32", "3+", default=-1, ignorable=True)
    metadata: str = row("string", "0+")
    commit_timestamp: int = row("int64", "0+")
    expire_timestamp: int = row("int64", "1", default=-1, ignorable=True)
    topic_id: bytes = row("uuid", "4+", tag=0, ignorable=True)


class GroupMetadataKey(Message, kind="data", versions="2", flexible="none"):
    group: str = row("string", "2+")


class GroupMetadataMember(Struct):
    member_id: str = row("string", "0+")
    group_instance_id: str | None = row("string", "3+", nullable="3+", default=None, ignorable=True)
    client_id: str = row("string", "0+")
    client_host: str = row("string", "0+")
    rebalance_timeout: int = row("int32", "1+", default=-1, ignorable=True)
    session_timeout: int = row("int32", "0+")
    subscription: bytes = row("bytes", "0+")
    assignment: bytes = row("bytes", "0+")


class GroupMetadataValue(Message, kind="data", versions="0-4", flexible="4+"):
    protocol_type: str = row("string", "0+")
    generation: int = row("int32", "0+")
    protocol: str | None = row("string", "0+", nullable="0+")
    leader: str | None = row("string", "0+", nullable="0+")
    current_state_timestamp: int = row("int64", "2+", default=-1, ignorable=True)
    members: list[GroupMetadataMember] = row([GroupMetadataMember], "0+")
