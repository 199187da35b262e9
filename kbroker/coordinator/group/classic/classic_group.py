"""A classic group: its members, generation and state. What can happen to it is in the modules beside it."""

from collections import Counter
from collections.abc import Iterable

from kbroker.common import KafkaError
from kbroker.coordinator.group.classic.classic_group_member import ClassicGroupMember
from kbroker.coordinator.group.classic.group_state import ENTERED_FROM, GroupState
from kbroker.coordinator.group.classic.requests import JoinedMember, JoinResponse, Protocols, SyncResponse
from kbroker.coordinator.group.classic.subscription import CONSUMER_PROTOCOL, topics_of
from kbroker.coordinator.group.records import NO_TIMESTAMP, GroupRecord
from kbroker.runtime.deadlines import Deadlines
from protocol.errors import ErrorCode

# Deadlines of the group; those of members are keyed by ("session", member id).
JOIN_DEADLINE = ("join", "")
SYNC_DEADLINE = ("sync", "")


class ClassicGroup:
    """The live group.

    Durable is what a GroupRecord has, as of the last one that was applied. All that a rebalance in progress
    has added to it, waiting requests and deadlines are soft: a new coordinator starts from the log.
    """

    __slots__ = (
        "_supporters",
        "deadlines",
        "generation",
        "group_id",
        "initial_delay",
        "joined_during_delay",
        "joining",
        "leader",
        "members",
        "pending_joins",
        "pending_syncs",
        "protocol",
        "protocol_type",
        "state",
        "state_timestamp_ms",
        "static",
        "subscribed",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.generation = 0
        self.leader: str | None = None
        self.state_timestamp_ms = NO_TIMESTAMP
        self.members: dict[str, ClassicGroupMember] = {}
        # Member ids by instance id.
        self.static: dict[str, str] = {}
        # Ids that were given out (KIP-394) and have not joined with them yet.
        self.pending_joins: set[str] = set()
        # Members of this generation that have not sent SyncGroup.
        self.pending_syncs: set[str] = set()
        # Members that wait for the answer to their join.
        self.joining = 0
        # Initial rebalance: (delay, what is left of the longest delay) in ms; None in any other.
        self.initial_delay: tuple[int, int] | None = None
        self.joined_during_delay = False
        # Topics that the members subscribe to; None when the coordinator cannot know.
        self.subscribed: frozenset[str] | None = None
        self.deadlines: Deadlines[tuple[str, str]] = Deadlines()
        self._supporters: Counter[str] = Counter()

    # States.

    def enter(self, state: GroupState) -> None:
        if self.state not in ENTERED_FROM[state]:
            raise AssertionError(f"group {self.group_id}: {self.state} -> {state}")
        self.state = state

    def can_rebalance(self) -> bool:
        return self.state in ENTERED_FROM[GroupState.PREPARING_REBALANCE]

    def next_deadline_ms(self) -> int | None:
        return self.deadlines.next_ms()

    # Members.

    def add(self, member: ClassicGroupMember) -> None:
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        self.members[member.member_id] = member
        self._count(member.protocols, 1)
        self.joining += member.joining is not None
        self.pending_joins.discard(member.member_id)
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> None:
        """Forget a member or a pending one; another member becomes leader when it was."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count(member.protocols, -1)
            self.joining -= member.joining is not None
            if member.instance_id is not None:
                self.static.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending_joins.discard(member_id)
        self.pending_syncs.discard(member_id)
        self.end_session(member_id)

    def replace(self, old_id: str, member: ClassicGroupMember) -> None:
        """Put a static member's new incarnation in the old one's place, leadership included."""
        was_leader = self.leader == old_id
        self._count(self.members[old_id].protocols, -1)
        self.members = {
            (member.member_id if known == old_id else known): (member if known == old_id else one)
            for known, one in self.members.items()
        }
        self._count(member.protocols, 1)
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        if was_leader:
            self.leader = member.member_id
        self.pending_syncs.discard(old_id)
        self.end_session(old_id)

    def set_protocols(self, member: ClassicGroupMember, protocols: Protocols) -> None:
        self._count(member.protocols, -1)
        member.protocols = protocols
        self._count(protocols, 1)

    def _count(self, protocols: Protocols, by: int) -> None:
        for name, _ in protocols:
            self._supporters[name] += by
            if not self._supporters[name]:
                del self._supporters[name]

    def check_member(self, member_id: str, instance_id: str | None) -> ClassicGroupMember:
        """The member. Raises KafkaError: UNKNOWN_MEMBER_ID; FENCED_INSTANCE_ID if the instance id is
        another's.
        """
        if instance_id is not None:
            known = self.static.get(instance_id)
            if known is not None and known != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
            if known is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def all_joined(self) -> bool:
        return len(self.members) == self.joining and not self.pending_joins

    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # Sessions.

    def start_session(self, member_id: str, timeout_ms: int, now_ms: int) -> None:
        self.deadlines.set(("session", member_id), now_ms + timeout_ms)

    def keep_session(self, member: ClassicGroupMember, now_ms: int) -> None:
        """What a heartbeat does."""
        self.start_session(member.member_id, member.session_timeout_ms, now_ms)

    def end_session(self, member_id: str) -> None:
        self.deadlines.cancel(("session", member_id))

    # Waiting requests.

    def answer_join(self, member: ClassicGroupMember, answer: JoinResponse) -> None:
        """Answer a member's join, if one waits."""
        reply, member.joining = member.joining, None
        if reply is not None:
            self.joining -= 1
            reply(answer)

    def answer_sync(self, member: ClassicGroupMember, answer: SyncResponse) -> bool:
        """Answer a member's sync; False when none waits."""
        reply, member.syncing = member.syncing, None
        if reply is not None:
            reply(answer)
        return reply is not None

    # Protocols.

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Can somebody with these protocols join? Into an empty group anybody can who has any."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and any(True for _ in names)
        return protocol_type == self.protocol_type and any(
            self._supporters[name] == len(self.members) for name in names
        )

    def choose_protocol(self) -> str:
        """Of the protocols that all support, the one that most prefer; the earliest member decides a draw."""
        candidates = {name for name, count in self._supporters.items() if count == len(self.members)}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def is_consumer_group(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL

    def is_subscribed(self, topic: str) -> bool:
        """When the subscription cannot be read, a consumer group counts as subscribed to everything."""
        return self.is_consumer_group() if self.subscribed is None else topic in self.subscribed

    def find_subscription(self) -> frozenset[str] | None:
        if not self.is_consumer_group():
            return None
        topics: set[str] = set()
        for member in self.members.values():
            found = topics_of(member.metadata(self.protocol))
            if found is None:
                return None
            topics.update(found)
        return frozenset(topics)

    # Views.

    def joined_members(self) -> tuple[JoinedMember, ...]:
        return tuple(member.joined(self.protocol) for member in self.members.values())

    def record(self, wall_ms: int) -> GroupRecord:
        """The group as it is to be written."""
        return self._record(self.leader, self.members.values(), wall_ms)

    def record_with(self, old_id: str, member: ClassicGroupMember, wall_ms: int) -> GroupRecord:
        """The group as it would be with a member in another's place."""
        leader = member.member_id if self.leader == old_id else self.leader
        members = [member if known == old_id else one for known, one in self.members.items()]
        return self._record(leader, members, wall_ms)

    def _record(self, leader: str | None, members: Iterable[ClassicGroupMember], wall_ms: int) -> GroupRecord:
        return GroupRecord(
            group_id=self.group_id,
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=leader,
            state_timestamp_ms=wall_ms,
            members=tuple(member.record(self.protocol) for member in members),
        )
