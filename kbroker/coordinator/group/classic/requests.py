"""Requests and responses of the classic group protocol, independent of their versions on the wire."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from kbroker.coordinator.group.classic.records import GroupRecord
from kbroker.coordinator.group.group import Now
from kbroker.coordinator.runtime.operation import ignore
from protocol.errors import ErrorCode

UNKNOWN_MEMBER_ID = ""
UNKNOWN_GENERATION = -1

# (name, metadata) in the member's order of preference; each name once.
Protocols = tuple[tuple[str, bytes], ...]


@dataclass(slots=True, frozen=True, kw_only=True)
class JoinRequest:
    """A JoinGroup request. `new_member_id` is the id of the member if it turns out to be new.

    `requires_known_member_id`: a new member is sent its id and has to join again with it (version 4, KIP-394).
    `supports_skipping_assignment`: the client knows skip_assignment (version 9, KIP-814).
    """

    group_id: str
    member_id: str
    new_member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    requires_known_member_id: bool = True
    supports_skipping_assignment: bool = True
    reason: str | None = None


class JoinResponseMember(NamedTuple):
    """A member in the response to the leader."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(slots=True, frozen=True)
class JoinResponse:
    """A JoinGroup response. Only the leader gets `members`."""

    error: ErrorCode = ErrorCode.NONE
    member_id: str = UNKNOWN_MEMBER_ID
    generation: int = UNKNOWN_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader_id: str = ""
    skip_assignment: bool = False
    members: tuple[JoinResponseMember, ...] = ()


@dataclass(slots=True, frozen=True, kw_only=True)
class SyncRequest:
    """A SyncGroup request. Protocol type and protocol are None in versions without them (before 5, KIP-559)."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(slots=True, frozen=True)
class SyncResponse:
    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class LeavingMember(NamedTuple):
    """A member of a LeaveGroup request: by member id, or by instance id only (tools of administrators)."""

    member_id: str
    instance_id: str | None = None
    reason: str | None = None


RespondToJoin = Callable[[JoinResponse], None]
RespondToSync = Callable[[SyncResponse], None]


@dataclass(slots=True, frozen=True)
class PendingRecord:
    """A record that has to be committed before an operation on a group continues. The group is locked until then.

    `on_committed` is called after the replay of the record.
    """

    record: GroupRecord
    on_committed: Callable[[Now], None] = ignore
    on_failed: Callable[[ErrorCode, Now], None] = ignore
