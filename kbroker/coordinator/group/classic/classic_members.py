"""The interface of a kind whose groups may have members of the classic protocol."""

from abc import ABC, abstractmethod
from typing import ClassVar

from kbroker.coordinator.group.classic.classic_group_member import RespondToJoin, RespondToSync
from kbroker.coordinator.group.classic.join import JoinRequest
from kbroker.coordinator.runtime.operation import CoordinatorResult, LockMode
from protocol.errors import ErrorCode
from protocol.messages.k11_classic_groups import MemberIdentity, SyncGroupRequest


class ClassicMembers(ABC):
    """The requests of such members. The groups of the consumer protocol have them while a group is being migrated."""

    mode: ClassVar[LockMode]

    @abstractmethod
    def join_group(self, request: JoinRequest, respond: RespondToJoin) -> CoordinatorResult[None]:
        """Handle a JoinGroup. `respond` is called now or later."""

    @abstractmethod
    def sync_group(self, request: SyncGroupRequest, respond: RespondToSync) -> CoordinatorResult[None]:
        """Handle a SyncGroup. `respond` is called now or later."""

    @abstractmethod
    def classic_heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Restart the session of a member. REBALANCE_IN_PROGRESS makes it join again."""

    @abstractmethod
    def leave_group(self, group_id: str, members: list[MemberIdentity]) -> CoordinatorResult[list[ErrorCode]]:
        """Remove members. The response is the result of each member."""
