"""The subscriptions and assignments of consumers, which are opaque bytes in JoinGroup and SyncGroup.

Each is preceded by its version (int16):

1: owned partitions, for cooperative rebalances (KIP-429).
2: generation (KIP-792).
3: rack (KIP-881).

A member that knows only a lower version decodes the fields of that version and ignores the remaining bytes.
"""

from protocol.schema.message import Message, Struct, row


class OwnedTopic(Struct):
    topic: str = row("string", "1+")
    partitions: list[int] = row(["int32"], "1+")


class ConsumerProtocolSubscription(Message, kind="data", versions="0-3", flexible="none"):
    topics: list[str] = row(["string"], "0+")
    user_data: bytes | None = row("bytes", "0+", nullable="0+", default=None)
    owned_partitions: list[OwnedTopic] = row([OwnedTopic], "1+", ignorable=True)
    generation_id: int = row("int32", "2+", default=-1, ignorable=True)
    rack_id: str | None = row("string", "3+", nullable="3+", default=None, ignorable=True)


class AssignedTopic(Struct):
    topic: str = row("string", "0+")
    partitions: list[int] = row(["int32"], "0+")


class ConsumerProtocolAssignment(Message, kind="data", versions="0-3", flexible="none"):
    assigned_partitions: list[AssignedTopic] = row([AssignedTopic], "0+")
    user_data: bytes | None = row("bytes", "0+", nullable="0+", default=None)
