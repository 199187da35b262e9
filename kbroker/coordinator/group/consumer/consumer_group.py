"""A consumer group: its members, the owners of its partitions, and which commits of offsets it accepts."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum

from kbroker.coordinator.group.assignors.members import Assignment
from kbroker.coordinator.group.consumer.consumer_group_member import ConsumerGroupMember
from kbroker.coordinator.group.consumer.records import (
    ConsumerGroupRecord,
    GroupEpoch,
    RegularExpression,
    TargetEpoch,
    member_tombstones,
)
from kbroker.coordinator.group.consumer.regex import GroupRegexes
from kbroker.coordinator.group.modern.committing_group import CommittingGroup
from kbroker.coordinator.group.modern.modern_member import NO_ASSIGNMENT
from kbroker.coordinator.group.records import OffsetRecord
from protocol.errors import ErrorCode
from protocol.messages.consumer_group_records import ClassicMemberMetadata

# The keys of deadlines: a member has not revoked its partitions in time; one of the classic protocol has not sent the
# JoinGroup that a heartbeat's response asks for, or the SyncGroup that follows.
REVOCATION = "revocation"
CLASSIC_JOIN = "join"
CLASSIC_SYNC = "sync"


class ConsumerGroupState(StrEnum):
    """The values are the names that ConsumerGroupDescribe and ListGroups return.

    Empty: no members.
    Assigning: the target assignment is not that of the group epoch yet.
    Reconciling: not every member has its target.
    Stable: every member has.
    Dead: the group does not exist. No group is in this state.
    """

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class ConsumerGroup(CommittingGroup[ConsumerGroupMember, Assignment]):
    """The replay of records changes a group; `owners` has the member of each partition, assigned or pending."""

    __slots__ = ("_classic_protocols", "assignor_votes", "classic_member_count", "owners", "regexes")

    type_name = "consumer"
    no_target = NO_ASSIGNMENT

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.owners: dict[bytes, dict[int, str]] = {}
        self.regexes = GroupRegexes()
        # How many members prefer each server-side assignor.
        self.assignor_votes: Counter[str] = Counter()
        self.classic_member_count = 0
        # How many members of the classic protocol support each protocol.
        self._classic_protocols: Counter[str] = Counter()

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.group_epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def state_name(self) -> str:
        return self.state.value

    # Members.

    def put_member(self, member: ConsumerGroupMember) -> None:
        old = self.members.get(member.member_id)
        super().put_member(member)
        self._count_choices(old, member)
        if old is None:
            self._own(member)
        elif old.assigned != member.assigned or old.pending_revocation != member.pending_revocation:
            self._disown(old)
            self._own(member)

    def remove_member(self, member_id: str) -> ConsumerGroupMember | None:
        member = super().remove_member(member_id)
        if member is not None:
            self._count_choices(member, None)
            self._disown(member)
        for reason in (REVOCATION, CLASSIC_JOIN, CLASSIC_SYNC):
            self.deadlines.cancel((reason, member_id))
        return member

    def is_free_for(self, member_id: str, topic_id: bytes, partition: int) -> bool:
        """Return whether no other member has the partition, assigned or pending revocation."""
        return self.owners.get(topic_id, {}).get(partition, member_id) == member_id

    def _own(self, member: ConsumerGroupMember) -> None:
        """The last record in the log decides: earlier ones of the former owner may remain after compaction."""
        for partitions in (member.assigned, member.pending_revocation):
            for topic_id, epochs in partitions.items():
                self.owners.setdefault(topic_id, {}).update(dict.fromkeys(epochs, member.member_id))

    def _disown(self, member: ConsumerGroupMember) -> None:
        for partitions in (member.assigned, member.pending_revocation):
            for topic_id, epochs in partitions.items():
                owners = self.owners.get(topic_id, {})
                for index in epochs:
                    if owners.get(index) == member.member_id:
                        del owners[index]
                if not owners:
                    self.owners.pop(topic_id, None)

    # Subscriptions.

    def _count_choices(self, old: ConsumerGroupMember | None, new: ConsumerGroupMember | None) -> None:
        old_regex, old_assignor = (None, None) if old is None else (old.subscribed_regex, old.server_assignor)
        new_regex, new_assignor = (None, None) if new is None else (new.subscribed_regex, new.server_assignor)
        self.regexes.replace(old_regex, new_regex)
        if old_assignor != new_assignor:
            self.assignor_votes = votes_after(self.assignor_votes, old_assignor, new_assignor)
        old_classic = None if old is None else old.classic
        new_classic = None if new is None else new.classic
        if old_classic != new_classic:
            self._count_classic(old_classic, -1)
            self._count_classic(new_classic, 1)

    def _count_classic(self, classic: ClassicMemberMetadata | None, difference: int) -> None:
        if classic is not None:
            self.classic_member_count += difference
            for protocol in classic.supported_protocols:
                self._classic_protocols[protocol.name] += difference
            self._classic_protocols = +self._classic_protocols

    def supports_classic_protocols(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Return whether a member of the classic protocol may join: all such members support one of its protocols."""
        return protocol_type == self.protocol_type_name and any(
            self._classic_protocols[name] == self.classic_member_count for name in names
        )

    def subscribed_topics(self) -> Collection[str]:
        return self.subscribed_topics_with((), ())

    def subscribed_topics_with(
        self,
        removed: Iterable[ConsumerGroupMember],
        added: Iterable[ConsumerGroupMember],
        without_regexes: Collection[str] = (),
    ) -> set[str]:
        """Return the subscribed topics after members have left and joined, and regular expressions were removed."""
        names = super().subscribed_topics_with(removed, added)
        for regex, resolved in self.regexes.resolved.items():
            if regex not in without_regexes:
                names |= resolved.topics
        return names

    def topics_of(self, member: ConsumerGroupMember) -> frozenset[str]:
        """Return the names of the topics that a member subscribes to."""
        matched = self.regexes.topics(member.subscribed_regex)
        return member.subscribed_names | matched if matched else member.subscribed_names

    def is_subscribed_to(self, topic: str) -> bool:
        return super().is_subscribed_to(topic) or any(
            topic in resolved.topics for resolved in self.regexes.resolved.values()
        )

    # Offsets.

    def stale_error(self, member: ConsumerGroupMember) -> ErrorCode:
        return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION

    def assignment_epoch_of(self, member: ConsumerGroupMember, record: OffsetRecord) -> int | None:
        (_, _, partition), offset = record
        topic_id = b"" if offset is None else offset.topic_id
        for partitions in (member.assigned, member.pending_revocation):
            epoch = partitions.get(topic_id, {}).get(partition)
            if epoch is not None:
                return epoch
        return None

    # Deletion.

    def tombstones(self) -> Sequence[ConsumerGroupRecord]:
        records: list[ConsumerGroupRecord] = []
        for member_id in self.members:
            records += member_tombstones(self.group_id, member_id)
        records.append(TargetEpoch(self.group_id, None))
        records += [RegularExpression(self.group_id, regex, None) for regex in self.regexes.resolved]
        return [*records, GroupEpoch(self.group_id, None)]


def votes_after(votes: Counter[str], before: str | None, after: str | None) -> Counter[str]:
    """Return how many members prefer each assignor after one has changed its mind; None for no preference."""
    changed = votes.copy()
    if before is not None:
        changed[before] -= 1
    if after is not None:
        changed[after] += 1
    return +changed
