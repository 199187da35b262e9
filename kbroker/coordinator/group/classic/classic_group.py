"""A classic group: its state, generation and members. The other modules change them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from kbroker.common import KafkaError
from kbroker.coordinator.group.classic.classic_group_member import (
    CONSUMER_PROTOCOL_TYPE,
    UNKNOWN_MEMBER_ID,
    ClassicGroupMember,
    Protocols,
    subscribed_topics,
)
from kbroker.coordinator.group.classic.records import ClassicGroupRecord
from kbroker.coordinator.group.group import Committer, Group
from kbroker.coordinator.group.records import NO_TIMESTAMP, OffsetRecord
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.group_records import GroupMetadataMember, GroupMetadataValue
from protocol.messages.k11_classic_groups import JoinGroupResponse, SyncGroupResponse
from protocol.messages.k15_groups import DescribedGroup

# Keys of a group's deadlines; a member's session is ("session", member id).
JOIN_DEADLINE = ("join", "")
SYNC_DEADLINE = ("sync", "")


class GroupState(StrEnum):
    """The values are the names that DescribeGroups and ListGroups return.

    Empty: no members; the group exists for its committed offsets, or only for a moment.
        JoinGroup of new members; OffsetCommit without a member (simple consumers, tools); may be deleted.
        -> PreparingRebalance: a member joins
        -> Dead: the group is deleted, or its last offset has expired

    PreparingRebalance: members have to join again.
        JoinGroup waits for the other members; SyncGroup, Heartbeat: REBALANCE_IN_PROGRESS; OffsetCommit of the
        generation is accepted.
        -> CompletingRebalance: all members have joined, or the rebalance timeout has passed
        -> Empty: all members have left

    CompletingRebalance: a new generation waits for the assignment of its leader.
        SyncGroup of followers waits for the leader's; a changed JoinGroup starts another rebalance; Heartbeat: NONE;
        OffsetCommit: REBALANCE_IN_PROGRESS.
        -> Stable: the assignment of the leader is committed
        -> PreparingRebalance: a member joins, leaves or fails

    Stable: every member can fetch its assignment.
        SyncGroup returns the assignment; JoinGroup of an unchanged follower returns the generation; Heartbeat: NONE.
        -> PreparingRebalance: a member joins, changes, leaves or fails, or the leader joins again

    Dead: the group is deleted, or its partition has moved to another broker. There are no transitions.
    """

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


VALID_PREVIOUS_STATES: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.EMPTY, GroupState.STABLE, GroupState.COMPLETING_REBALANCE}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(GroupState),
}


class ClassicGroup(Group):
    """A classic group in memory.

    Its last committed record is durable. Later changes of a rebalance in progress, waiting requests and deadlines
    are not: after a failover the new coordinator continues with the record.
    """

    __slots__ = (
        "_supported_protocols",
        "generation",
        "initial_delay_ms",
        "leader_id",
        "members",
        "members_awaiting_join",
        "new_member_added",
        "pending_join_members",
        "pending_sync_members",
        "protocol",
        "protocol_type",
        "state",
        "state_timestamp_ms",
        "static_members",
        "subscribed_topics",
    )

    type_name = "classic"

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.state = GroupState.EMPTY
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.generation = 0
        self.leader_id: str | None = None
        self.state_timestamp_ms = NO_TIMESTAMP
        self.members: dict[str, ClassicGroupMember] = {}
        # Member ids by instance id.
        self.static_members: dict[str, str] = {}
        # Member ids that were sent to new members, which have not joined with them yet (KIP-394).
        self.pending_join_members: set[str] = set()
        # Members of this generation that have not sent SyncGroup.
        self.pending_sync_members: set[str] = set()
        # The number of members whose JoinGroup waits for its response.
        self.members_awaiting_join = 0
        # During an initial rebalance: (current delay, remaining delay).
        self.initial_delay_ms: tuple[int, int] | None = None
        self.new_member_added = False
        # None if the coordinator cannot read the subscriptions.
        self.subscribed_topics: frozenset[str] | None = None
        # How many members support each protocol.
        self._supported_protocols: Counter[str] = Counter()

    # The interface of groups.

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def protocol_type_name(self) -> str:
        return self.protocol_type or ""

    @property
    def member_count(self) -> int:
        return len(self.members)

    def describe(self) -> DescribedGroup:
        """Return the group for DescribeGroups.

        Protocol and member metadata are returned in state Stable only: during a rebalance they may not match.
        """
        protocol = self.protocol if self.state is GroupState.STABLE else None
        # A group may have thousands of members, each with its subscription and assignment.
        members = [member.description(protocol) for member in paced(list(self.members.values()))]
        return DescribedGroup(
            group_id=self.group_id,
            group_state=self.state.value,
            protocol_type=self.protocol_type_name,
            protocol_data=protocol or "",
            members=members,
        )

    def validate_offset_commit(self, committer: Committer, offsets: Sequence[OffsetRecord], now_ms: int) -> None:
        """Check a commit. One without a member is accepted while the group has no members.

        The commit of a member is also a heartbeat.
        """
        member_id, instance_id, generation, _ = committer
        if generation < 0 and self.state is GroupState.EMPTY:
            return
        if generation < 0 and member_id == UNKNOWN_MEMBER_ID and instance_id is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = self.validate_member(member_id, instance_id)
        if generation != self.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        if self.state is GroupState.COMPLETING_REBALANCE:
            # The member knows the new generation but has no assignment in it yet.
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        self.restart_session(member, now_ms)

    def validate_transactional_offset_commit(self, committer: Committer, offsets: Sequence[OffsetRecord]) -> None:
        """Check a commit in a transaction (KIP-447).

        It differs from an ordinary commit: clients may not know their member id and generation (versions before 3), a
        member of the generation may commit during a rebalance, and the commit does not count as a heartbeat.
        """
        member_id, instance_id, generation, _ = committer
        if generation < 0 and self.state is GroupState.EMPTY:
            return
        if generation < 0 and member_id == UNKNOWN_MEMBER_ID and instance_id is None:
            return
        self.validate_member(member_id, instance_id)
        if generation != self.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Do nothing: anyone may fetch the offsets of a classic group."""

    def validate_offset_delete(self) -> None:
        if self.state is not GroupState.EMPTY and not self.uses_consumer_protocol():
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether a member subscribes to the topic. A consumer group whose subscriptions cannot be read counts
        as subscribed to every topic.
        """
        return self.uses_consumer_protocol() if self.subscribed_topics is None else topic in self.subscribed_topics

    def offsets_expire_since_ms(self) -> int | None:
        """Return the time from which the retention counts.

        empty group                      the time when it became empty
        group without a protocol type    that of each commit (simple consumers)
        stable consumer group            that of each commit, for topics without a subscriber
        any other                        never
        """
        if self.protocol_type is None:
            return NO_TIMESTAMP
        if self.state is GroupState.EMPTY:
            return self.state_timestamp_ms
        has_subscriptions = self.uses_consumer_protocol() and self.subscribed_topics is not None
        return NO_TIMESTAMP if self.state is GroupState.STABLE and has_subscriptions else None

    @property
    def is_unused(self) -> bool:
        return self.state is GroupState.EMPTY and not self.pending_join_members

    def validate_delete(self) -> None:
        if self.state is not GroupState.EMPTY:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def tombstones(self) -> list[ClassicGroupRecord]:
        return [ClassicGroupRecord(self.group_id, None)]

    # States.

    @property
    def is_dead(self) -> bool:
        """Whether the group is deleted or its partition was lost, perhaps while an operation has paused."""
        return self.state is GroupState.DEAD

    def transition_to(self, state: GroupState) -> None:
        if self.state not in VALID_PREVIOUS_STATES[state]:
            raise AssertionError(f"group {self.group_id}: {self.state} -> {state}")
        self.state = state

    # Members.

    def add_member(self, member: ClassicGroupMember) -> None:
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self.members[member.member_id] = member
        self._count_protocols(member.protocols, 1)
        self.members_awaiting_join += member.awaiting_join is not None
        self.pending_join_members.discard(member.member_id)
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove_member(self, member_id: str) -> None:
        """Remove a member or a pending one. Another member becomes the leader if it was."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count_protocols(member.protocols, -1)
            self.members_awaiting_join -= member.awaiting_join is not None
            if member.instance_id is not None:
                self.static_members.pop(member.instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_join_members.discard(member_id)
        self.pending_sync_members.discard(member_id)
        self.end_session(member_id)

    def replace_static_member(self, old_member_id: str, member: ClassicGroupMember) -> None:
        """Replace a static member by the same member with a new id. It keeps its position and its leadership."""
        was_leader = self.leader_id == old_member_id
        self._count_protocols(self.members[old_member_id].protocols, -1)
        members = [member if known.member_id == old_member_id else known for known in self.members.values()]
        self.members = {known.member_id: known for known in members}
        self._count_protocols(member.protocols, 1)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if was_leader:
            self.leader_id = member.member_id
        self.pending_sync_members.discard(old_member_id)
        self.end_session(old_member_id)

    def set_protocols(self, member: ClassicGroupMember, protocols: Protocols) -> None:
        self._count_protocols(member.protocols, -1)
        member.protocols = protocols
        self._count_protocols(protocols, 1)

    def _count_protocols(self, protocols: Protocols, difference: int) -> None:
        for name, _ in protocols:
            self._supported_protocols[name] += difference
            if not self._supported_protocols[name]:
                del self._supported_protocols[name]

    def validate_member(self, member_id: str, instance_id: str | None) -> ClassicGroupMember:
        """Return the member. Raises UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if another member has the instance id."""
        if instance_id is not None:
            static_member_id = self.static_members.get(instance_id)
            if static_member_id is not None and static_member_id != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
            if static_member_id is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def have_all_members_joined(self) -> bool:
        return len(self.members) == self.members_awaiting_join and not self.pending_join_members

    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # Sessions.

    def start_session(self, member_id: str, timeout_ms: int, now_ms: int) -> None:
        self.deadlines.set(("session", member_id), now_ms + timeout_ms)

    def restart_session(self, member: ClassicGroupMember, now_ms: int) -> None:
        """Restart the session timeout of a member, as after a heartbeat."""
        self.deadlines.set(("session", member.member_id), now_ms + member.session_timeout_ms)

    def end_session(self, member_id: str) -> None:
        self.deadlines.cancel(("session", member_id))

    # Waiting requests.

    def respond_to_join(self, member: ClassicGroupMember, response: JoinGroupResponse) -> None:
        """Respond to the waiting JoinGroup of a member, if there is one."""
        respond, member.awaiting_join = member.awaiting_join, None
        if respond is not None:
            self.members_awaiting_join -= 1
            respond(response)

    def respond_to_sync(self, member: ClassicGroupMember, response: SyncGroupResponse) -> bool:
        """Respond to the waiting SyncGroup of a member. Returns whether there was one."""
        respond, member.awaiting_sync = member.awaiting_sync, None
        if respond is not None:
            respond(response)
        return respond is not None

    # Protocols.

    def supports_protocols(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Return whether a member with these protocols can join; an empty group accepts any."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and any(True for _ in names)
        return protocol_type == self.protocol_type and any(
            self._supported_protocols[name] == len(self.members) for name in names
        )

    def select_protocol(self) -> str:
        """Return the protocol with the most votes among those that all members support.

        If several have the same number of votes, it is the one that the earliest member voted for.
        """
        candidates = {name for name, count in self._supported_protocols.items() if count == len(self.members)}
        votes = Counter(
            next(name for name, _ in member.protocols if name in candidates)
            for member in paced(list(self.members.values()))
        )
        return votes.most_common(1)[0][0]

    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def compute_subscribed_topics(self, protocol: str | None) -> frozenset[str] | None:
        if not self.uses_consumer_protocol():
            return None
        topics: set[str] = set()
        for member in paced(list(self.members.values())):
            of_member = subscribed_topics(member.metadata(protocol))
            if of_member is None:
                return None
            topics.update(of_member)
        return frozenset(topics)

    # Records.

    def record(self, wall_ms: int, assignments: Mapping[str, bytes]) -> ClassicGroupRecord:
        """Return the record of the group's current state, with the assignments of members by their ids."""
        members = []
        for member in paced(list(self.members.values())):
            record = member.record(self.protocol)
            record.assignment = assignments.get(member.member_id, b"")
            members.append(record)
        return self._record(self.leader_id, members, wall_ms)

    def record_with_replaced_member(
        self, old_member_id: str, member: ClassicGroupMember, wall_ms: int
    ) -> ClassicGroupRecord:
        """Return the record of the group with one member replaced by another."""
        leader_id = member.member_id if self.leader_id == old_member_id else self.leader_id
        members = [member if known.member_id == old_member_id else known for known in self.members.values()]
        return self._record(leader_id, [member.record(self.protocol) for member in paced(members)], wall_ms)

    def _record(self, leader_id: str | None, members: list[GroupMetadataMember], wall_ms: int) -> ClassicGroupRecord:
        value = GroupMetadataValue(
            protocol_type=self.protocol_type_name,
            generation=self.generation,
            protocol=self.protocol,
            leader=leader_id,
            current_state_timestamp=wall_ms,
            members=members,
        )
        return ClassicGroupRecord(self.group_id, value)
