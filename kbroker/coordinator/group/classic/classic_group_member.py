"""One member of a classic group."""

from collections.abc import Set
from dataclasses import dataclass, replace

from kbroker.coordinator.group.classic.requests import JoinedMember, JoinReply, Protocols, SyncReply
from kbroker.coordinator.group.records import MemberRecord


@dataclass(slots=True, kw_only=True)
class ClassicGroupMember:
    """Timeouts in ms. `joining` and `syncing` answer a request that waits.

    `is_new`: its first join has not been answered, so that it cannot send heartbeats.
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
    joining: JoinReply | None = None
    syncing: SyncReply | None = None

    def metadata(self, protocol: str | None) -> bytes:
        """Its metadata for a protocol; b"" for one that it does not have."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def vote(self, candidates: Set[str]) -> str:
        """Its favourite among the candidates."""
        return next(name for name, _ in self.protocols if name in candidates)

    def waits(self) -> bool:
        return self.joining is not None or self.syncing is not None

    def renamed(self, member_id: str) -> "ClassicGroupMember":
        """The same static member under the id that its restart was given; nothing waits on it yet."""
        return replace(self, member_id=member_id, is_new=False, joining=None, syncing=None)

    def joined(self, protocol: str | None) -> JoinedMember:
        return JoinedMember(self.member_id, self.instance_id, self.metadata(protocol))

    def record(self, protocol: str | None) -> MemberRecord:
        return MemberRecord(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=self.assignment,
        )


def loaded(record: MemberRecord, protocol: str | None) -> ClassicGroupMember:
    """A member as the log knows it: with the chosen protocol only."""
    return ClassicGroupMember(
        member_id=record.member_id,
        instance_id=record.instance_id,
        client_id=record.client_id,
        client_host=record.client_host,
        rebalance_timeout_ms=record.rebalance_timeout_ms,
        session_timeout_ms=record.session_timeout_ms,
        protocols=((protocol or "", record.subscription),),
        assignment=record.assignment,
    )
