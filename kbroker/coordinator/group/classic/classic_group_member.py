"""A member of a classic group, and the topics of its subscription."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from protocol.errors import MalformedError
from protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from protocol.messages.group_records import GroupMetadataMember
from protocol.messages.k11_classic_groups import JoinGroupResponse, SyncGroupResponse
from protocol.messages.k15_groups import DescribedGroupMember
from protocol.schema.codec import decoder

CONSUMER_PROTOCOL_TYPE = "consumer"

UNKNOWN_MEMBER_ID = ""

# (name, metadata) in the member's order of preference; each name once.
Protocols = tuple[tuple[str, bytes], ...]
RespondToJoin = Callable[[JoinGroupResponse], None]
RespondToSync = Callable[[SyncGroupResponse], None]

# The version of a subscription, an int16 that precedes the message.
_VERSION_BYTES = 2


@dataclass(slots=True, kw_only=True)
class ClassicGroupMember:
    """`awaiting_join` and `awaiting_sync` respond to a waiting request of the member.

    `is_new`: its first JoinGroup has no response yet, so it cannot send heartbeats.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    awaiting_join: RespondToJoin | None = None
    awaiting_sync: RespondToSync | None = None

    def metadata(self, protocol: str | None) -> bytes:
        """Return the metadata of a protocol; b"" if the member does not support it."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    @property
    def has_waiting_request(self) -> bool:
        return self.awaiting_join is not None or self.awaiting_sync is not None

    def with_member_id(self, member_id: str) -> "ClassicGroupMember":
        """Return the static member with the id that it received after its restart, without waiting requests."""
        return replace(self, member_id=member_id, is_new=False, awaiting_join=None, awaiting_sync=None)

    def description(self, protocol: str | None) -> DescribedGroupMember:
        """Return the member for DescribeGroups, with its metadata for the protocol; None for no metadata."""
        return DescribedGroupMember(
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            member_metadata=b"" if protocol is None else self.metadata(protocol),
            member_assignment=self.assignment,
        )

    def record(self, protocol: str | None) -> GroupMetadataMember:
        return GroupMetadataMember(
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout=self.rebalance_timeout_ms,
            session_timeout=self.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=self.assignment,
        )


def member_from_record(record: GroupMetadataMember, protocol: str | None) -> ClassicGroupMember:
    """Return the member of a record. It has only the selected protocol."""
    # Version 0 has no rebalance timeout: the session timeout was used for both.
    rebalance_timeout_ms = record.rebalance_timeout if record.rebalance_timeout != -1 else record.session_timeout
    return ClassicGroupMember(
        member_id=record.member_id,
        instance_id=record.group_instance_id,
        client_id=record.client_id,
        client_host=record.client_host,
        rebalance_timeout_ms=rebalance_timeout_ms,
        session_timeout_ms=record.session_timeout,
        protocols=((protocol or "", record.subscription),),
        assignment=record.assignment,
    )


def subscribed_topics(metadata: bytes) -> list[str] | None:
    """Return the topics of a consumer's subscription, its JoinGroup metadata; None if the bytes are not a subscription.

    The metadata belongs to the clients; the coordinator only reads its beginning, which all versions share.
    """
    if len(metadata) < _VERSION_BYTES:
        return None
    try:
        subscription, _ = decoder(ConsumerProtocolSubscription, 0)(metadata, _VERSION_BYTES)
    except MalformedError:
        return None
    return subscription.topics
