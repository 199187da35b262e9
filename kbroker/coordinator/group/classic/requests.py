"""What members ask for and what they are answered, free of the wire's versions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kbroker.coordinator.group.records import GroupRecord
from protocol.errors import ErrorCode

UNKNOWN_MEMBER = ""
NO_GENERATION = -1

# Names, each once, and the member's metadata for them, in its order of preference.
Protocols = tuple[tuple[str, bytes], ...]


class Now(NamedTuple):
    """One moment on both clocks: `mono_ms` for deadlines, `wall_ms` for what is stored."""

    mono_ms: int
    wall_ms: int


class Settings(Protocol):
    """The broker configs that groups follow (a BrokerConfig fits)."""

    @property
    def group_initial_rebalance_delay_ms(self) -> int: ...
    @property
    def group_min_session_timeout_ms(self) -> int: ...
    @property
    def group_max_session_timeout_ms(self) -> int: ...
    @property
    def group_max_size(self) -> int: ...


@dataclass(slots=True, frozen=True, kw_only=True)
class JoinRequest:
    """A JoinGroup. `member_id_of_new` is the id to give, should the member be new.

    `requires_member_id`: the client joins again with the id that it is given (JoinGroup v4, KIP-394).
    `skips_assignment`: the client understands skip_assignment (v9, KIP-814). `reason` is for the log (v8, KIP-800).
    """

    group_id: str
    member_id: str
    member_id_of_new: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    requires_member_id: bool = True
    skips_assignment: bool = True
    reason: str | None = None


class JoinedMember(NamedTuple):
    """A member as the leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(slots=True, frozen=True)
class JoinResponse:
    """Only the leader gets `members`, unless it is to skip the assignment."""

    error: ErrorCode = ErrorCode.NONE
    member_id: str = UNKNOWN_MEMBER
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(slots=True, frozen=True, kw_only=True)
class SyncRequest:
    """A SyncGroup. Protocol type and name are None in versions that do not carry them (before v5, KIP-559)."""

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
    """Who is to leave: by member id, or by instance id alone (an administrator, LeaveGroup v3).

    `reason` is for the log (v5, KIP-800).
    """

    member_id: str
    instance_id: str | None = None
    reason: str | None = None


JoinReply = Callable[[JoinResponse], None]
SyncReply = Callable[[SyncResponse], None]


def nothing(*_: object) -> None:
    """Nothing is left to do."""


@dataclass(slots=True, frozen=True)
class Write:
    """A record to append before the operation goes on; nothing else may happen to its group meanwhile.

    When it is committed it is applied, then `committed` does the soft rest and answers. Or `failed` is
    called.
    """

    record: GroupRecord
    committed: Callable[[Now], None] = nothing
    failed: Callable[[ErrorCode, Now], None] = nothing
