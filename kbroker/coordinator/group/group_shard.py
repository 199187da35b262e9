"""The groups of one partition of __consumer_offsets: the operations on their offsets, and the replay of their records.

What the members of a group do is up to its kind: `GroupKind` is the interface of a kind, kinds.py has all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar, cast

from kbroker.common import KafkaError
from kbroker.config import BrokerConfig
from kbroker.coordinator.group.classic.classic_members import ClassicMembers
from kbroker.coordinator.group.group import Committer, Group, Now
from kbroker.coordinator.group.offset_metadata_manager import (
    FetchedOffsets,
    OffsetMetadataManager,
    expired_offsets,
    offset_tombstones,
    validate_commit_size,
)
from kbroker.coordinator.group.records import GroupRecordCodec, OffsetRecord, RecordCodec
from kbroker.coordinator.group.topics import GroupTopic, find_topic
from kbroker.coordinator.runtime.coordinator_context import CoordinatorContext
from kbroker.coordinator.runtime.operation import ORDERED, CoordinatorResult, LockMode
from kbroker.metadata.image import MetadataDelta, MetadataImage
from kbroker.runtime.deadlines import DeadlineTimer
from kbroker.runtime.environment import Environment
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode

G = TypeVar("G", bound=Group)
K = TypeVar("K", bound="GroupKind[Any]")
TopicPartitions = Sequence[tuple[str, int]]
# The version of OffsetCommit from which on clients know this error.
GROUP_ID_NOT_FOUND_VERSION = 9


class GroupKind(ABC, Generic[G]):
    """The groups of one kind in one partition of __consumer_offsets.

    A kind is a subclass in a folder of its own, next to its subclass of Group, and a row in kinds.py. Its operations
    are further methods, which return a CoordinatorResult (the records to write, and the response); API handlers
    schedule them with `GroupCoordinator.write` or `GroupCoordinator.call`. Only `replay` changes what is durable.
    """

    # The type in ListGroups; the states, with the names in ListGroups.
    type_name: ClassVar[str]
    state_names: ClassVar[tuple[str, ...]]
    codec: ClassVar[RecordCodec]
    # How the operations wait for each other, including those that deadlines and changes of topics cause.
    mode: ClassVar[LockMode] = LockMode.EXCLUSIVE
    # The feature and the level of it without which the operations are refused. Records are replayed regardless.
    feature: ClassVar[tuple[str, int] | None] = None
    # Whether group.coordinator.rebalance.protocols must have the kind, too.
    is_configured: ClassVar[bool] = False
    # The operations of members of the classic protocol, None if groups of this kind have no such members.
    classic_members: ClassicMembers | None = None

    def __init__(self, shard: GroupShard) -> None:
        self.shard = shard

    @abstractmethod
    def new_group(self, group_id: str) -> G:
        """Return a group without members. The first kind's are those of simple consumers, which only commit offsets."""

    @abstractmethod
    def replay(self, record: Any) -> None:
        """Apply a record. `find_or_create` and `remove` know what may precede it in the log."""

    def find_or_create(self, group_id: str) -> G:
        """Return the group of a record that is replayed.

        One that has been of another kind until now, or had offsets only, becomes a group of this kind. The offsets of a
        group may precede its other records, since compaction keeps the last record of each key only.
        """
        group = self.shard.groups.get(group_id)
        if group is None or group.type_name != self.type_name:
            group = self.new_group(group_id)
            self.put(group)
        return cast(G, group)

    def put(self, group: G) -> None:
        """Add a group, or replace one. If that is of another kind, it is closed."""
        old = self.shard.groups.get(group.group_id)
        if old is not None and old.type_name != self.type_name:
            self.shard.kind_of(old).close(old, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.shard.groups[group.group_id] = group

    def remove(self, group_id: str) -> None:
        """Remove a group, whose tombstone is replayed, unless it does not exist or has become one of another kind."""
        group = self.shard.groups.get(group_id)
        if group is not None and group.type_name == self.type_name:
            del self.shard.groups[group_id]
            self.close(cast(G, group), ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self.shard.keep_simple_group(group_id)

    @abstractmethod
    def on_loaded(self, group: G) -> None:
        """Start the timeouts that a group's members lack: the whole partition is loaded.

        Of an ORDERED kind, also if the records of `expire_deadline` could not be written.
        """

    @abstractmethod
    def expire_deadline(self, group: G) -> CoordinatorResult[None]:
        """Act on the deadlines of the group that have passed, on one of them at least, if any have."""

    @abstractmethod
    def close(self, group: G, error: ErrorCode) -> None:
        """Respond to the waiting requests of a group that no longer exists, and cancel its deadlines."""

    def on_delta(self, delta: MetadataDelta) -> None:
        """Follow changes of topics, which `shard.metadata` has already."""

    def topics_of(self, group: G) -> Collection[str]:
        """Return the topics to which a group subscribes; none if it need not know when they change."""
        return ()

    def on_topics_changed(self, group: G, topics: Collection[str]) -> CoordinatorResult[None]:
        """Act on the change of topics to which a group subscribes: their existence, id, partitions or replicas."""
        return CoordinatorResult(None)


class GroupShard:
    """The state of one partition of __consumer_offsets, and the operations on it.

    Every group that has members or offsets, committed or pending, is in `groups`.
    """

    def __init__(
        self,
        environment: Environment,
        config: Callable[[], BrokerConfig],
        metadata: MetadataImage,
        context: CoordinatorContext[GroupShard],
        kinds: Sequence[type[GroupKind[Any]]],
    ) -> None:
        self.groups: dict[str, Group] = {}
        self.offsets = OffsetMetadataManager()
        self.metadata = metadata
        self.config = config
        self.context = context
        self.is_loaded = False
        # Groups that become groups of another kind: their members are not all in memory before that is committed.
        self.converted_groups: set[str] = set()
        self.environment = environment
        self._clock = environment.clock
        self.mono_ms = environment.clock.mono_ms
        # The earliest deadline of each group that has one.
        self._timer: DeadlineTimer[str] = DeadlineTimer(
            environment.clock.mono_ms, environment.loop.call_later, self._on_deadline
        )
        self._topics_deleted_while_loading: list[str] = []
        self._kinds: dict[type[GroupKind[Any]], Any] = {kind: kind(self) for kind in kinds}
        self._kinds_by_name: dict[str, GroupKind[Any]] = {kind.type_name: kind for kind in self._kinds.values()}
        self._first_kind: GroupKind[Any] = next(iter(self._kinds.values()))
        self._kinds_by_record = {record: kind for kind in self._kinds.values() for record in kind.codec.record_types}
        codec = GroupRecordCodec([kind.codec for kind in kinds])
        self.encode, self.decode = codec.encode, codec.decode

    # Groups.

    def kind(self, kind: type[K]) -> K:
        """Return the groups of a kind, for operations on them."""
        found: K = self._kinds[kind]
        return found

    def find(self, group_type: type[G], group_id: str) -> G | None:
        """Return a group, unless it does not exist or is of another kind."""
        group = self.groups.get(group_id)
        return group if isinstance(group, group_type) else None

    def kind_of(self, group: Group) -> GroupKind[Any]:
        return self._kinds_by_name[group.type_name]

    def classic_members(self, group_id: str) -> ClassicMembers:
        """Return the operations of the members of the classic protocol in a group, which are the first kind's if it
        does not exist, is empty, or has no such members.
        """
        group, kind = self.groups.get(group_id), self._first_kind
        if group is not None and group.type_name != kind.type_name and not group.is_unused:
            kind = self._kinds_by_name[group.type_name]
        return kind.classic_members or cast("ClassicMembers", self._first_kind.classic_members)

    def topic(self, name: str) -> GroupTopic | None:
        """Return a topic as its subscribers see it, None if it does not exist."""
        return find_topic(self.metadata, name)

    def topic_name(self, topic_id: bytes) -> str | None:
        topic = self.metadata.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def keep_simple_group(self, group_id: str) -> None:
        """Let a group that has only offsets be one of the first kind, like those of simple consumers."""
        if group_id not in self.groups and self.offsets.has_offsets(group_id):
            self._first_kind.find_or_create(group_id)

    def delete_group(self, group_id: str) -> CoordinatorResult[None]:
        """Delete a group. As in Kafka, this includes pending offsets, which their transactions no longer commit."""
        group = self._existing(group_id)
        group.validate_delete()
        tombstones = offset_tombstones(group_id, self.offsets.partitions(group_id))
        return CoordinatorResult(None, [*tombstones, *group.tombstones()])

    def _existing(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        return group

    # Operations on offsets.

    def commit_offsets(
        self, group_id: str, committer: Committer, offsets: Sequence[OffsetRecord], max_bytes: int | None
    ) -> CoordinatorResult[None]:
        group = self.groups.get(group_id)
        if group is not None:
            group.validate_offset_commit(committer, offsets, self.mono_ms())
            if committer.generation >= 0:
                # It was the heartbeat of a member.
                self.update_timer(group)
        elif committer.generation >= 0:
            is_known = committer.version >= GROUP_ID_NOT_FOUND_VERSION
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND if is_known else ErrorCode.ILLEGAL_GENERATION)
        validate_commit_size(offsets, max_bytes)
        return CoordinatorResult(None, offsets)

    def commit_transactional_offsets(
        self, group_id: str, committer: Committer, offsets: Sequence[OffsetRecord], max_bytes: int | None
    ) -> CoordinatorResult[None]:
        group = self.groups.get(group_id)
        if group is not None:
            group.validate_transactional_offset_commit(committer, offsets)
        elif committer.generation >= 0:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        validate_commit_size(offsets, max_bytes)
        return CoordinatorResult(None, offsets)

    def fetch_offsets(self, group_id: str, member_id: str | None, member_epoch: int) -> FetchedOffsets:
        group = self.groups.get(group_id)
        if group is not None:
            group.validate_offset_fetch(member_id, member_epoch)
        return FetchedOffsets(self.offsets.topics(group_id))

    def fetch_stable_offsets(
        self, group_id: str, member_id: str | None, member_epoch: int
    ) -> CoordinatorResult[FetchedOffsets]:
        offsets = self.fetch_offsets(group_id, member_id, member_epoch)
        return CoordinatorResult(offsets._replace(unstable=frozenset(self.offsets.pending.partitions(group_id))))

    def delete_offsets(self, group_id: str, partitions: TopicPartitions) -> CoordinatorResult[list[ErrorCode]]:
        """Delete offsets. The response is the result of each partition; a missing offset is not an error."""
        group = self._existing(group_id)
        group.validate_offset_delete()
        by_topic = {
            topic: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed_to(topic) else ErrorCode.NONE
            for topic in dict.fromkeys([topic for topic, _ in partitions])
        }
        errors = [by_topic[topic] for topic, _ in partitions]
        existing = set(self.offsets.partitions(group_id))
        deleted = [
            partition
            for partition, error in zip(partitions, errors, strict=True)
            if error is ErrorCode.NONE and partition in existing
        ]
        return CoordinatorResult(errors, offset_tombstones(group_id, deleted))

    def expire_offsets(self, group_id: str, retention_ms: int) -> CoordinatorResult[None]:
        """Delete expired offsets, and an empty group with its last offset.

        A committed offset does not expire while an open transaction has written an offset of its partition.
        """
        group = self.groups.get(group_id)
        if group is None:
            return CoordinatorResult(None)
        pending = set(self.offsets.pending.partitions(group_id))
        expired = [
            partition
            for partition in expired_offsets(group, self.offsets.topics(group_id), retention_ms, self.now().wall_ms)
            if partition not in pending
        ]
        records: list[object] = list(offset_tombstones(group_id, expired))
        if group.is_unused and len(self.offsets.partitions(group_id)) == len(expired):
            records += group.tombstones()
        return CoordinatorResult(None, records)

    def on_topics_deleted(self, topics: list[str]) -> None:
        """Delete the offsets of deleted topics in every group, with members or not, once the partition is loaded."""
        if self.is_loaded:
            self._delete_offsets_of(topics, lambda topic, _: topic in topics)
        else:
            self._topics_deleted_while_loading += topics

    def on_partitions_removed(self, removed: Collection[tuple[str, int]]) -> None:
        """Delete the offsets of removed partitions in every group: partitions with these numbers may be added again.

        Those of groups that are still being loaded stay.
        """
        if self.is_loaded:
            self._delete_offsets_of({topic for topic, _ in removed}, lambda *partition: partition in removed)

    def _delete_offsets_of(self, topics: Collection[str], is_gone: Callable[[str, int], bool]) -> None:
        """Delete the offsets of these topics for which `is_gone` is true."""

        def delete(group_id: str, _: GroupShard) -> CoordinatorResult[None]:
            deleted = [partition for partition in self.offsets.partitions(group_id) if is_gone(*partition)]
            return CoordinatorResult(None, offset_tombstones(group_id, deleted))

        # A commit in flight may add offsets of the topics to a group.
        groups = dict.fromkeys([*self.offsets.groups_with_topics(topics), *self.context.locked_keys()])

        def delete_all() -> None:
            for group_id in paced(groups):
                self.context.post(partial(delete, group_id), group_id, LockMode.EXCLUSIVE_AFTER_SHARED)

        self.context.in_turns(delete_all)

    def schedule_offset_expiration(self, group_id: str, retention_ms: int) -> None:
        """Schedule the expiration of a group's offsets."""
        operation = partial(GroupShard.expire_offsets, group_id=group_id, retention_ms=retention_ms)
        self.context.post(operation, group_id, LockMode.EXCLUSIVE_AFTER_SHARED)

    def on_delta(self, delta: MetadataDelta, changed: AbstractSet[str]) -> None:
        """Follow changes of topics. A partition that is loading finds them in the image when it is loaded."""
        if self.is_loaded:
            for kind in self._kinds.values():
                kind.on_delta(delta)
            if changed:
                self.context.in_turns(self._on_topics_changed, changed)

    def _on_topics_changed(self, topics: AbstractSet[str]) -> None:
        # Topics change seldom: an index of their groups would cost each join more than the search costs.
        for group in paced(list(self.groups.values())):
            if not topics.isdisjoint(self.kind_of(group).topics_of(group)):
                self._post(group, lambda kind, group: kind.on_topics_changed(group, topics))

    def _post(self, group: Group, operation: Callable[[GroupKind[Any], Group], CoordinatorResult[None]]) -> None:
        """Schedule an operation on a group in the mode of its kind, unless it becomes one of another kind before."""
        group_id, kind = group.group_id, self.kind_of(group)

        def run(shard: GroupShard) -> CoordinatorResult[None]:
            group = self.groups.get(group_id)
            if group is None or self.kind_of(group) is not kind:
                return CoordinatorResult(None)
            return operation(kind, group)

        self.context.post(run, group_id, kind.mode)

    # Replay.

    def replay(self, record: object, offset: int, producer_id: int) -> None:
        if isinstance(record, OffsetRecord):
            self.offsets.replay(record, offset, producer_id)
            group_id = record.key.group_id
            if record.value is not None and group_id not in self.groups:
                # A simple group, which commits offsets and never has members, or one whose records follow.
                self.keep_simple_group(group_id)
        else:
            self._kinds_by_record[type(record)].replay(record)

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        # As in Kafka, a group without offsets stays until the next check for expired offsets.
        self.offsets.replay_end_transaction(producer_id, committed)

    def on_loaded(self) -> None:
        """Start the sessions of all members. They have to find this coordinator within their session timeout."""
        self.is_loaded = True
        if self._topics_deleted_while_loading:
            self.on_topics_deleted(self._topics_deleted_while_loading)
        for group in paced(list(self.groups.values())):
            self._post(group, self._start_group)

    def _start_group(self, kind: GroupKind[Any], group: Group) -> CoordinatorResult[None]:
        self._start_timeouts(kind, group)
        return CoordinatorResult(None)

    def _start_timeouts(self, kind: GroupKind[Any], group: Group) -> None:
        kind.on_loaded(group)
        self.update_timer(group)

    def on_unloaded(self, error: ErrorCode) -> None:
        self._timer.stop()
        groups, self.groups = self.groups, {}
        self.offsets = OffsetMetadataManager()
        for group in paced(list(groups.values())):
            self.kind_of(group).close(group, error)

    # Time.

    def now(self) -> Now:
        return Now(self._clock.mono_ms(), self._clock.now_ms())

    def update_timer(self, group: Group) -> None:
        """Follow the deadlines of a group, which have changed."""
        # A heartbeat moves a deadline later. The timer runs at the earlier time, and then finds the next deadline.
        time_ms = group.deadlines.not_before_ms()
        if time_ms is None:
            self._timer.cancel(group.group_id)
        else:
            self._timer.set(group.group_id, time_ms)

    def _on_deadline(self, group_id: str) -> None:
        group = self.groups.get(group_id)
        if group is not None:
            self._post(group, self._expire_deadline)

    def _expire_deadline(self, kind: GroupKind[Any], group: Group) -> CoordinatorResult[None]:
        result = kind.expire_deadline(group)
        if kind.mode is ORDERED and result.records:
            # The group is unchanged if they cannot be written, and a member without a timeout would stay for good.
            result = result._replace(on_failed=lambda error: self._start_timeouts(kind, group))
        return result
