"""What the kinds of groups of the newer protocols share: sessions, topics, and the replay of the common records."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, TypeVar

from kbroker.common import KafkaError
from kbroker.config.config_def import ConfigResourceType
from kbroker.config.group_config import GroupConfig
from kbroker.coordinator.group.group_shard import GroupKind, GroupShard
from kbroker.coordinator.group.modern.modern_group import SESSION, ModernGroup
from kbroker.coordinator.group.modern.subscribed_topics import SubscribedTopics
from kbroker.coordinator.runtime.operation import CoordinatorResult, LockMode
from kbroker.metadata.image import MetadataDelta
from kbroker.runtime.deadlines import Deadlines
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode

G = TypeVar("G", bound=ModernGroup[Any, Any])
log = EventLogger("kbroker.groups")


class ModernGroups(GroupKind[G]):
    """A kind of group of the newer protocols.

    `member_class` has `with_metadata` and `with_current_assignment`, which return a member with a record. `replays` has
    the method for each class of records.
    """

    mode = LockMode.ORDERED
    group_class: ClassVar[type[ModernGroup[Any, Any]]]
    member_class: ClassVar[type[Any]]

    def __init__(self, shard: GroupShard) -> None:
        super().__init__(shard)
        self._topics = SubscribedTopics(shard.topic)
        self._replays: Mapping[type[Any], Callable[[Any], None]] = {}

    def new_group(self, group_id: str) -> G:
        group: Any = self.group_class(group_id)
        return group  # type: ignore[no-any-return]

    def _config(self, group_id: str) -> GroupConfig:
        return self.shard.config().group_config(self.shard.metadata.overrides(ConfigResourceType.GROUP, group_id))

    def existing_group(self, group_id: str) -> G:
        """Return a group. Raises GROUP_ID_NOT_FOUND."""
        group: Any = self.shard.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        if not isinstance(group, self.group_class):
            raise self.other_kind(group_id)
        return group  # type: ignore[return-value]

    def other_kind(self, group_id: str) -> KafkaError:
        return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a {self.type_name} group.")

    # Topics.

    def on_delta(self, delta: MetadataDelta) -> None:
        self._topics.forget()

    def topics_of(self, group: G) -> Collection[str]:
        return group.subscribed_topics()

    def on_topics_changed(self, group: G, topics: Collection[str]) -> CoordinatorResult[None]:
        """Let the next heartbeat compare the topics with their hash."""
        group.is_metadata_current = False
        return CoordinatorResult(None)

    # Replay.

    def replay(self, record: Any) -> None:
        self._replays[type(record)](record)

    def replay_group_epoch(self, record: Any) -> None:
        group_id, value = record
        if value is None:
            self.remove(group_id)
        else:
            group = self.find_or_create(group_id)
            group.group_epoch, group.metadata_hash = value.epoch, value.metadata_hash

    def replay_member(self, record: Any) -> None:
        group_id, member_id, value = record
        if value is None:
            if (existing := self._find(group_id)) is not None:
                existing.remove_member(member_id)
            return
        group = self.find_or_create(group_id)
        member = group.members.get(member_id) or self.member_class(member_id=member_id)
        group.put_member(member.with_metadata(value))
        if self.shard.is_loaded:
            self.start_session(group, member_id)

    def replay_target_epoch(self, record: Any) -> None:
        if record.value is not None:
            group = self.find_or_create(record.group_id)
            group.assignment_epoch = record.value.assignment_epoch
            group.assignment_timestamp_ms = record.value.assignment_timestamp

    def replay_target(self, record: Any) -> None:
        group_id, member_id, value = record
        if value is not None:
            self.find_or_create(group_id).target[member_id] = self.target_in(value)
        elif (existing := self._find(group_id)) is not None:
            existing.target.pop(member_id, None)

    def replay_current_assignment(self, record: Any) -> None:
        group_id, member_id, value = record
        if value is not None:
            group = self.find_or_create(group_id)
            member = group.members.get(member_id) or self.member_class(member_id=member_id)
        elif (existing := self._find(group_id)) is not None and member_id in existing.members:
            group, member = existing, existing.members[member_id]
        else:
            return
        member = member.with_current_assignment(value)
        group.put_member(member)
        if self.shard.is_loaded and value is not None:
            self.restart_revocation(group, member)

    def _find(self, group_id: str) -> G | None:
        found: Any = self.shard.find(self.group_class, group_id)
        return found  # type: ignore[no-any-return]

    @abstractmethod
    def target_in(self, value: Any) -> Any:
        """Return the target of a member in a record."""

    # Timeouts.

    def on_loaded(self, group: G) -> None:
        for member in paced(list(group.members.values())):
            self.start_session(group, member.member_id)
            self.restart_revocation(group, member)

    @abstractmethod
    def session_timeout_ms(self, group: G, member_id: str) -> int: ...

    def start_session(self, group: G, member_id: str) -> None:
        """Start the session of a member that has none."""
        if (SESSION, member_id) not in group.deadlines:
            self.restart_session(group, member_id)

    def restart_session(self, group: G, member_id: str) -> None:
        timeout_ms = self.session_timeout_ms(group, member_id)
        group.deadlines.set((SESSION, member_id), self.shard.now().mono_ms + timeout_ms)
        self.shard.update_timer(group)

    def restart_revocation(self, group: G, member: Any) -> None:
        """Restart the time in which a member has to give up what it has been asked for, if it has been."""

    def pop_expired(self, group: G) -> list[tuple[str, str]]:
        """Return the deadlines that have passed: why, and whose; "" for the group's own."""
        passed, now_ms = [], self.shard.now().mono_ms
        while (due := group.deadlines.pop_due(now_ms)) is not None:
            passed.append(due)
            if due[1]:
                log.info("member removed", group=group.group_id, member=due[1], expired=due[0])
        self.shard.update_timer(group)
        return passed

    def close(self, group: G, error: ErrorCode) -> None:
        group.deadlines = Deadlines()
        self.shard.update_timer(group)
