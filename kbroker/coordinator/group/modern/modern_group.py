"""A group of the newer protocols: its members, its epochs and the target assignment. Each kind has a subclass.

    group epoch         rises when a member, a subscription or a topic changes
    assignment epoch    the group epoch for which the target assignment was computed
    member epoch        the assignment epoch that a member has reached

Member epoch <= assignment epoch <= group epoch, and in an empty group the last two are equal.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any, ClassVar, Generic, TypeVar

from kbroker.common import KafkaError
from kbroker.coordinator.group.group import Group
from kbroker.coordinator.group.modern.modern_member import ModernMember
from kbroker.coordinator.group.records import NO_TIMESTAMP
from protocol.errors import ErrorCode

M = TypeVar("M", bound=ModernMember)
T = TypeVar("T")

# A group begins with an epoch above that of its target, so that there is a target for its first member.
INITIAL_EPOCH = 1
# The key of a deadline: the session of a member ends.
SESSION = "session"


class ModernGroup(Group, Generic[M, T]):
    """`T` is the target of a member, `no_target` that of a member without one.

    The replay of records changes a group, apart from its deadlines and `is_metadata_current`.

    `metadata_hash` is that of the topics for which the group epoch was set. `is_metadata_current`: no topic that the
    group subscribes to has changed since they were last compared with the hash.
    """

    __slots__ = (
        "_name_subscribers",
        "assignment_epoch",
        "assignment_timestamp_ms",
        "group_epoch",
        "is_metadata_current",
        "members",
        "metadata_hash",
        "static_members",
        "target",
    )

    no_target: ClassVar[Any]

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.group_epoch = INITIAL_EPOCH
        self.metadata_hash = 0
        self.assignment_epoch = 0
        # Wall clock; 0 if a target may be computed at once.
        self.assignment_timestamp_ms = 0
        self.members: dict[str, M] = {}
        # Member ids by instance id.
        self.static_members: dict[str, str] = {}
        self.target: dict[str, T] = {}
        self.is_metadata_current = False
        self._name_subscribers: Counter[str] = Counter()

    # Members.

    @property
    def protocol_type_name(self) -> str:
        return self.type_name

    @property
    def member_count(self) -> int:
        return len(self.members)

    def existing_member(self, member_id: str) -> M:
        member = self.members.get(member_id)
        if member is None:
            message = f"Member {member_id} is not a member of group {self.group_id}."
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, message)
        return member

    def static_member(self, instance_id: str) -> M | None:
        return self.members.get(self.static_members.get(instance_id, ""))

    def put_member(self, member: M) -> None:
        """Add a member, or replace one with the same id."""
        old = self.members.get(member.member_id)
        self.members[member.member_id] = member
        if old is None or old.subscribed_names != member.subscribed_names:
            self._name_subscribers.update(member.subscribed_names)
            if old is not None:
                self._name_subscribers.subtract(old.subscribed_names)
                self._name_subscribers = +self._name_subscribers
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id

    def remove_member(self, member_id: str) -> M | None:
        member = self.members.pop(member_id, None)
        if member is not None:
            self._name_subscribers.subtract(member.subscribed_names)
            self._name_subscribers = +self._name_subscribers
            # The instance id may belong to the member that has replaced this one.
            if member.instance_id is not None and self.static_members.get(member.instance_id) == member_id:
                del self.static_members[member.instance_id]
        self.deadlines.cancel((SESSION, member_id))
        return member

    def existing_static_member(self, member_id: str, instance_id: str) -> M:
        """Return the member that a request names by both ids. Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
        member = self.static_member(instance_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if member.member_id != member_id:
            message = (
                f"Static member {member_id} with instance id {instance_id} was fenced by member {member.member_id}."
            )
            raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, message)
        return member

    def named_member(self, member_id: str, instance_id: str | None) -> M:
        """Return the member that a request names. Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
        if instance_id is None:
            return self.existing_member(member_id)
        return self.existing_static_member(member_id, instance_id)

    def check_size(self, max_size: int) -> None:
        """Raise GROUP_MAX_SIZE_REACHED if a new member would be one too many."""
        if len(self.members) >= max_size:
            message = f"The {self.type_name} group has reached its maximum capacity of {max_size} members."
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)

    def unreleased_instance(self, member_id: str, owner: M) -> KafkaError:
        message = (
            f"Static member {member_id} with instance id {owner.instance_id} cannot join the group because the "
            f"instance id is owned by {owner.member_id} member."
        )
        return KafkaError(ErrorCode.UNRELEASED_INSTANCE_ID, message)

    def fenced_epoch(self, member: M, epoch: int, mismatch: str = "") -> KafkaError:
        """Return the error of a request with another epoch than the member's."""
        comparison = "greater" if epoch > member.epoch else "smaller"
        message = (
            f"The {self.type_name} group member has a {comparison} member epoch ({epoch}) than the one known by the "
            f"group coordinator ({member.epoch}){mismatch}. The member must abandon all its partitions and rejoin."
        )
        return KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, message)

    def target_of(self, member: M) -> T:
        """Return the target of a member, or of the static member that it replaces."""
        member_id = member.member_id
        if member.instance_id is not None:
            member_id = self.static_members.get(member.instance_id, member_id)
        target: T = self.target.get(member_id, self.no_target)
        return target

    # Subscriptions.

    def subscribed_topics(self) -> Collection[str]:
        """Return the names of the topics to which the group subscribes."""
        return self._name_subscribers.keys()

    def subscribed_topics_with(self, removed: Iterable[M], added: Iterable[M]) -> set[str]:
        """Return `subscribed_topics` as they are after members have left and joined."""
        gone = Counter(name for member in removed for name in member.subscribed_names)
        names = {name for name, count in self._name_subscribers.items() if count > gone.get(name, 0)}
        return names.union(*(member.subscribed_names for member in added))

    # The interface of groups.

    def validate_offset_delete(self) -> None:
        """Do nothing: the offsets of topics without subscribers may be deleted."""

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self._name_subscribers

    def offsets_expire_since_ms(self) -> int | None:
        return NO_TIMESTAMP

    @property
    def is_unused(self) -> bool:
        return not self.members

    def validate_delete(self) -> None:
        if self.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
