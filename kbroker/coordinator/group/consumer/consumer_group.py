"""A consumer group: its members, the owners of its partitions, and which commits of offsets it accepts."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum

from kbroker.common import KafkaError
from kbroker.coordinator.group.consumer.consumer_group_member import (
    AssignedPartitions,
    ConsumerGroupMember,
)
from kbroker.coordinator.group.consumer.records import (
    ConsumerGroupRecord,
    GroupEpoch,
    RegularExpression,
    TargetEpoch,
    member_tombstones,
)
from kbroker.coordinator.group.consumer.regex import GroupRegexes
from kbroker.coordinator.group.group import Committer
from kbroker.coordinator.group.modern.modern_group import ModernGroup
from kbroker.coordinator.group.records import OffsetRecord
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.consumer_group_records import ClassicMemberMetadata

# The keys of deadlines: a member has not revoked its partitions in time; one of the classic protocol has not sent the
# JoinGroup that a heartbeat's response asks for, or the SyncGroup that follows.
REVOCATION = "revocation"
CLASSIC_JOIN = "join"
CLASSIC_SYNC = "sync"

# The first version of OffsetCommit that has member epochs.
MEMBER_EPOCH_VERSION = 9


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


class ConsumerGroup(ModernGroup[ConsumerGroupMember]):
    """The replay of records changes a group; `owners` has the member of each partition, assigned or pending."""

    __slots__ = ("_classic_protocols", "assignor_votes", "classic_member_count", "owners", "regexes")

    type_name = "consumer"

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

    @property
    def protocol_type_name(self) -> str:
        return "consumer"

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

    def validate_offset_commit(self, committer: Committer, offsets: Sequence[OffsetRecord], now_ms: int) -> None:
        """Check a commit. An epoch before the member's is accepted for partitions that it had already (KIP-1251)."""
        if committer.generation < 0 and not self.members:
            return
        member = self.existing_member(committer.member_id)
        if member.classic is None and committer.version < MEMBER_EPOCH_VERSION:
            message = "OffsetCommit version 9 or above must be used by members using the consumer group protocol"
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, message)
        self._validate_epoch_of_commit(member, committer.generation, offsets)

    def validate_transactional_offset_commit(self, committer: Committer, offsets: Sequence[OffsetRecord]) -> None:
        member_id, instance_id, epoch, _ = committer
        if epoch < 0 and (not self.members or (not member_id and instance_id is None)):
            return
        try:
            self._validate_epoch_of_commit(self.existing_member(member_id), epoch, offsets)
        except KafkaError as error:
            if error.code is ErrorCode.STALE_MEMBER_EPOCH:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION, error.message) from error
            raise

    def _validate_epoch_of_commit(
        self, member: ConsumerGroupMember, epoch: int, offsets: Sequence[OffsetRecord]
    ) -> None:
        if epoch == member.epoch:
            return
        stale = ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
        if epoch > member.epoch:
            raise KafkaError(stale, f"Received member epoch {epoch} is newer than current member epoch {member.epoch}.")
        for key, offset in paced(offsets):
            topic_id = b"" if offset is None else offset.topic_id
            assigned_epoch = _assignment_epoch(member, topic_id, key.partition)
            if assigned_epoch is None:
                message = f"Partition {key.topic}-{key.partition} is not assigned or pending revocation for member."
                raise KafkaError(stale, message)
            if epoch < assigned_epoch:
                message = (
                    f"Received member epoch {epoch} is older than assignment epoch {assigned_epoch} for partition "
                    f"{key.topic}-{key.partition}."
                )
                raise KafkaError(stale, message)

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Check an OffsetFetch: only a member in its current epoch may read, so that it never reads too early."""
        if member_id is None and member_epoch < 0:
            return
        member = self.existing_member(member_id or "")
        if member_epoch != member.epoch:
            code = ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
            message = (
                f"The received member epoch {member_epoch} does not match the expected member epoch {member.epoch}."
            )
            raise KafkaError(code, message)

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


def _assignment_epoch(member: ConsumerGroupMember, topic_id: bytes, partition: int) -> int | None:
    """Return the epoch in which the member was assigned a partition that it still has, else None."""
    for partitions in (member.assigned, member.pending_revocation):
        epoch = _find(partitions, topic_id, partition)
        if epoch is not None:
            return epoch
    return None


def _find(partitions: AssignedPartitions, topic_id: bytes, partition: int) -> int | None:
    return partitions.get(topic_id, {}).get(partition)
