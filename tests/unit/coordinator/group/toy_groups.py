"""A toy kind of group: a roster, whose members join with a topic, and whose epoch rises with each of them.

It has what the kinds of groups to come have and classic groups lack: records of several types, member epochs that every
commit is checked against, and a reaction to changes of topics.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from kbroker.common import KafkaError
from kbroker.coordinator.group.group import Committer, Group
from kbroker.coordinator.group.group_shard import GroupKind
from kbroker.coordinator.group.records import NO_TIMESTAMP, EncodedRecord, OffsetRecord, RecordCodec
from kbroker.coordinator.runtime.operation import CoordinatorResult, LockMode
from kbroker.runtime.deadlines import Deadlines
from protocol.errors import ErrorCode

EPOCH_KEY, MEMBER_KEY = 1000, 1001
SESSION_MS = 1000


class EpochRecord(NamedTuple):
    """The group's epoch; None when the group is deleted."""

    group_id: str
    epoch: int | None


class RosterMember(NamedTuple):
    """A member, which reads a topic; topic is None when it leaves."""

    group_id: str
    name: str
    topic: str | None


def encode(record: EpochRecord | RosterMember) -> EncodedRecord:
    version, value = (EPOCH_KEY, record.epoch) if isinstance(record, EpochRecord) else (MEMBER_KEY, record.topic)
    key = record.group_id if isinstance(record, EpochRecord) else f"{record.group_id}/{record.name}"
    return version.to_bytes(2) + key.encode(), None if value is None else str(value).encode()


def decode(version: int, key: bytes, value: bytes | None) -> EpochRecord | RosterMember:
    group_id, _, name = key[2:].decode().partition("/")
    if version == EPOCH_KEY:
        return EpochRecord(group_id, None if value is None else int(value))
    return RosterMember(group_id, name, None if value is None else value.decode())


class Roster(Group):
    type_name = "roster"

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.epoch = 0
        self.topics: dict[str, str] = {}

    @property
    def state_name(self) -> str:
        return "Manned" if self.topics else "Empty"

    @property
    def protocol_type_name(self) -> str:
        return "roster"

    @property
    def member_count(self) -> int:
        return len(self.topics)

    def validate_offset_commit(self, committer: Committer, offsets: Sequence[OffsetRecord], now_ms: int) -> None:
        if committer.version < 9:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        self.validate_offset_fetch(committer.member_id, committer.generation)
        if any(record.key.topic != self.topics[committer.member_id] for record in offsets):
            raise KafkaError(ErrorCode.STALE_MEMBER_EPOCH)

    def validate_transactional_offset_commit(self, committer: Committer, offsets: Sequence[OffsetRecord]) -> None:
        self.validate_offset_fetch(committer.member_id, committer.generation)

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id not in self.topics and (member_id is not None or member_epoch >= 0):
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if member_id is not None and member_epoch != self.epoch:
            raise KafkaError(ErrorCode.STALE_MEMBER_EPOCH)

    def validate_offset_delete(self) -> None: ...

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.topics.values()

    def offsets_expire_since_ms(self) -> int | None:
        return NO_TIMESTAMP

    @property
    def is_unused(self) -> bool:
        return not self.topics

    def validate_delete(self) -> None:
        if self.topics:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def tombstones(self) -> list[EpochRecord]:
        return [EpochRecord(self.group_id, None)]


class Rosters(GroupKind[Roster]):
    type_name = Roster.type_name
    state_names = ("Empty", "Manned")
    codec = RecordCodec((EPOCH_KEY, MEMBER_KEY), (EpochRecord, RosterMember), encode, decode)
    mode = LockMode.ORDERED
    feature = ("roster.version", 1)

    def new_group(self, group_id: str) -> Roster:
        return Roster(group_id)

    def join(self, group_id: str, name: str, topic: str) -> CoordinatorResult[int]:
        """Add a member. The response is the epoch."""
        if topic not in self.shard.metadata.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return self._change(group_id, RosterMember(group_id, name, topic))

    def leave(self, group_id: str, name: str) -> CoordinatorResult[int]:
        return self._change(group_id, RosterMember(group_id, name, None))

    def _change(self, group_id: str, *members: RosterMember) -> CoordinatorResult[int]:
        group = self.shard.find(Roster, group_id)
        epoch = 1 if group is None else group.epoch + 1
        return CoordinatorResult(epoch, [*members, EpochRecord(group_id, epoch)])

    def read_epoch(self, group_id: str) -> CoordinatorResult[int]:
        group = self.shard.find(Roster, group_id)
        return CoordinatorResult(0 if group is None else group.epoch)

    def replay(self, record: EpochRecord | RosterMember) -> None:
        if isinstance(record, EpochRecord):
            if record.epoch is None:
                self.remove(record.group_id)
            else:
                self.find_or_create(record.group_id).epoch = record.epoch
            return
        if record.topic is None:
            existing = self.shard.find(Roster, record.group_id)
            if existing is not None:
                existing.topics.pop(record.name, None)
            return
        group = self.find_or_create(record.group_id)
        group.topics[record.name] = record.topic
        if self.shard.is_loaded:
            self._start_session(group, record.name)
            self.shard.update_timer(group)

    def on_loaded(self, group: Roster) -> None:
        for name in group.topics:
            if ("session", name) not in group.deadlines:
                self._start_session(group, name)

    def _start_session(self, group: Roster, name: str) -> None:
        group.deadlines.set(("session", name), self.shard.now().mono_ms + SESSION_MS)

    def expire_deadline(self, group: Roster) -> CoordinatorResult[None]:
        expired = group.deadlines.pop_due(self.shard.now().mono_ms)
        self.shard.update_timer(group)
        if expired is None or expired[1] not in group.topics:
            return CoordinatorResult(None)
        leaving = RosterMember(group.group_id, expired[1], None)
        return CoordinatorResult(None, self._change(group.group_id, leaving).records)

    def close(self, group: Roster, error: ErrorCode) -> None:
        group.deadlines = Deadlines()
        self.shard.update_timer(group)

    def topics_of(self, group: Roster) -> set[str]:
        return set(group.topics.values())

    def on_topics_changed(self, group: Roster, topics: Collection[str]) -> CoordinatorResult[None]:
        """Remove the members whose topic is deleted."""
        gone = {name for name in topics if self.shard.topic(name) is None}
        members = [RosterMember(group.group_id, name, None) for name, topic in group.topics.items() if topic in gone]
        return CoordinatorResult(None, self._change(group.group_id, *members).records if members else ())
