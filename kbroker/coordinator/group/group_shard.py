"""The groups of one partition of __consumer_offsets: decisions go in, committed records are applied."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from kbroker.common import TopicPartition
from kbroker.coordinator.group import replay as applying
from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.group.classic.rebalance import prepare
from kbroker.coordinator.group.classic.requests import JoinResponse, Now, SyncResponse, Write
from kbroker.coordinator.group.offsets.group_offsets import GroupOffsets
from kbroker.coordinator.group.offsets.pending_offsets import Partition, PendingOffset, PendingOffsets
from kbroker.coordinator.group.record_codec import decode_record, encode_record
from kbroker.coordinator.group.records import GroupRecord, GroupTombstone, OffsetRecord, Record
from kbroker.coordinator.internal_log import Config, InternalLog, TransactionMarker
from kbroker.coordinator.runtime.batches import NOBODY, Producer
from kbroker.coordinator.runtime.coordinator_context import CoordinatorContext, Ended, Limits, Loaded, Status
from kbroker.coordinator.runtime.coordinator_runtime import inactive
from kbroker.coordinator.runtime.key_lock import KeyLock
from kbroker.coordinator.timeouts import ResponseTimeouts
from kbroker.runtime.environment import Environment
from protocol.errors import ErrorCode

Done = Callable[[ErrorCode], None]


def ignore(_: ErrorCode) -> None:
    """Whoever asked does not wait for it."""


@dataclass(slots=True)
class Groups:
    """What is known of the partition's groups. Every group with offsets, pending ones too, or members is in `by_id`."""

    by_id: dict[str, ClassicGroup] = field(default_factory=dict)
    offsets: dict[str, GroupOffsets] = field(default_factory=dict)
    pending: PendingOffsets = field(default_factory=PendingOffsets)

    def partitions_of(self, group_id: str) -> list[Partition]:
        """Of which partitions a group has offsets, committed or pending."""
        offsets = self.offsets.get(group_id) or GroupOffsets()
        return list(dict.fromkeys([*((topic, index) for topic, index, _ in offsets), *self.pending.of_group(group_id)]))


class GroupShard:
    """Runs operations on groups, one group at a time, and lets their writes pipeline (see gate.py)."""

    def __init__(
        self,
        environment: Environment,
        log: InternalLog,
        tp: TopicPartition,
        epoch: int,
        config: Callable[[], Config],
        moved: Callable[[ClassicGroup], None],
    ) -> None:
        """`epoch`: the partition's leader epoch. `moved` is told of a group whose next deadline may have changed."""
        self.epoch = epoch
        self.groups = Groups()
        self._environment = environment
        self._config = config
        self.moved = moved
        self._gates: dict[str, KeyLock] = {}
        self._when_active: list[Callable[[], None]] = []
        self._commits = ResponseTimeouts(environment.loop, lambda: config().offsets_commit_timeout_ms)
        self.runtime: CoordinatorContext[Record] = CoordinatorContext(environment, log, tp, self, self._limits)

    def _limits(self) -> Limits:
        config = self._config()
        return Limits(
            config.message_max_bytes,
            config.offsets_topic_compression_codec,
            config.group_coordinator_append_linger_ms,
            config.offsets_load_buffer_size,
        )

    def now(self) -> Now:
        return Now(self._environment.clock.mono_ms(), self._environment.clock.now_ms())

    def inactive(self) -> ErrorCode:
        """Why operations may not run; NONE when they may."""
        return inactive(self)

    def get(self, group_id: str) -> ClassicGroup | None:
        return self.groups.by_id.get(group_id)

    # Operations.

    def enter(self, group_id: str, operation: Callable[[], None], *, alone: bool = False) -> None:
        """Run an operation on a group now, or when the group's gate lets it in."""
        gate = self._gates.get(group_id)
        if gate is None:
            operation()
        else:
            gate.enter(operation, alone=alone)

    def change(self, group: ClassicGroup, write: Write | None) -> None:
        """An operation on a group has ended; carry out what it wants written."""
        self.moved(group)
        if write is not None:
            self.write_alone(group.group_id, [write.record], lambda error: self._written(group, write, error))

    def _written(self, group: ClassicGroup, write: Write, error: ErrorCode) -> None:
        if error is ErrorCode.NONE:
            write.committed(self.now())
        else:
            write.failed(error, self.now())
        self.moved(group)

    def write_alone(self, group_id: str, records: Sequence[Record], done: Done) -> None:
        """Write, and let nothing else happen to the group until it is settled."""
        gate = self._gate(group_id)
        gate.hold()

        def settled(error: ErrorCode) -> None:
            done(error)
            gate.release()
            self._close_gate(group_id, gate)

        self.runtime.write(records, settled)

    def write_shared(self, group_id: str, records: Sequence[Record], done: Done, producer: Producer = NOBODY) -> None:
        """Write offsets, within a transaction when there is a producer; other commits of the group may overtake
        nothing but need not wait.

        `done` is called after offsets.commit.timeout.ms at the latest, as if there were no coordinator. What was
        written may be committed later; a commit can be repeated.
        """
        gate = self._gate(group_id)
        gate.share()
        answer = self._commits.begin(done, ErrorCode.COORDINATOR_NOT_AVAILABLE)

        def settled(error: ErrorCode) -> None:
            answer(error)
            gate.unshare()
            self._close_gate(group_id, gate)

        self.runtime.write(records, settled, producer)

    def write_marker(self, marker: TransactionMarker, done: Done) -> None:
        """Write the end of a transaction, whose offsets count or are forgotten when it is committed.

        Nobody is held up by it: until then they are pending, for deletions and expiry too.
        """
        self.runtime.write_marker(marker, done)

    def _gate(self, group_id: str) -> KeyLock:
        gate = self._gates.get(group_id)
        if gate is None:
            gate = self._gates[group_id] = KeyLock()
        return gate

    def _close_gate(self, group_id: str, gate: KeyLock) -> None:
        if gate.is_idle and self._gates.get(group_id) is gate:
            del self._gates[group_id]

    # Runtime's machine.

    def encode(self, record: Record) -> tuple[bytes, bytes | None]:
        return encode_record(record)

    def decode(self, key: bytes | None, value: bytes | None) -> Record | None:
        return decode_record(key, value)

    def apply(self, record: Record) -> None:
        """Take a committed record in."""
        if isinstance(record, OffsetRecord):
            self._apply_offset(record)
        elif isinstance(record, GroupTombstone):
            self._forget(record.group_id)
        else:
            group = self.groups.by_id.get(record.group_id)
            if group is None:
                self.groups.by_id[record.group_id] = applying.restore(record)
            else:
                applying.apply(group, record)

    def _apply_offset(self, record: OffsetRecord, place: int | None = None) -> None:
        """`place`: where in the log it is, if that is not after all that was applied before."""
        key, value = record.key, record.value
        offsets = self.groups.offsets.get(key.group_id)
        if value is None:
            self.groups.pending.forget(key)
            if offsets is not None:
                offsets.remove(key.topic, key.partition)
                if not offsets:
                    del self.groups.offsets[key.group_id]
            return
        if self.groups.pending:
            self.groups.pending.overtake(key, place)
        if offsets is None:
            offsets = self.groups.offsets[key.group_id] = GroupOffsets()
        offsets.put(key.topic, key.partition, value)
        self._ensure(key.group_id)

    def _ensure(self, group_id: str) -> None:
        """A group that commits offsets and never has members is known too: a simple group."""
        if group_id not in self.groups.by_id:
            self.groups.by_id[group_id] = ClassicGroup(group_id)

    def _forget(self, group_id: str) -> None:
        group = self.groups.by_id.pop(group_id, None)
        if group is not None:
            self._bury(group, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def load(self, item: Loaded[Record] | Ended) -> None:
        """One thing of the log, when it is read anew; and what transactions write, as it is committed."""
        if isinstance(item, Ended):
            self._end_transaction(item)
        elif isinstance(item.record, GroupRecord):
            self.groups.by_id[item.record.group_id] = applying.restore(item.record)
        elif isinstance(item.record, OffsetRecord) and item.producer_id != -1 and item.record.value is not None:
            pending = PendingOffset(item.record.key, item.record.value, item.offset)
            self.groups.pending.add(item.producer_id, pending)
            self._ensure(pending.key.group_id)
        else:
            self.apply(item.record)

    def _end_transaction(self, ended: Ended) -> None:
        """A group of which nothing is left stays, as in Kafka, until the next look for what has expired."""
        counting = self.groups.pending.end(ended.producer_id)
        for pending in counting if ended.committed else ():
            self._apply_offset(OffsetRecord(pending.key, pending.offset), pending.place)

    def start(self) -> None:
        """Loading is done: members have a session's time to show themselves.

        A group that has outgrown group.max.size joins again, which keeps out those that are too many.
        """
        self.runtime.activate()
        config, now = self._config(), self.now()
        for group in self.groups.by_id.values():
            if group.members:
                applying.start_sessions(group, now.mono_ms)
                too_large = len(group.members) > config.group_max_size
                self.change(group, prepare(group, now, config) if too_large else None)
        waiting, self._when_active = self._when_active, []
        for action in waiting:
            action()

    def lost(self, error: ErrorCode) -> None:
        """Answer everybody who waits in a join or a sync, and forget."""
        groups, self.groups = self.groups, Groups()
        for group in groups.by_id.values():
            self._bury(group, error)

    def drop(self, group: ClassicGroup, error: ErrorCode) -> None:
        """A new group could not be written."""
        if self.groups.by_id.get(group.group_id) is group:
            del self.groups.by_id[group.group_id]
        self._bury(group, error)

    def _bury(self, group: ClassicGroup, error: ErrorCode) -> None:
        for member in list(group.members.values()):
            group.answer_join(member, JoinResponse(error, member.member_id))
            group.answer_sync(member, SyncResponse(error))
        applying.bury(group)
        self.moved(group)

    def when_active(self, action: Callable[[], None]) -> None:
        """Do something now, or when loading is done."""
        if self.runtime.status is Status.LOADING:
            self._when_active.append(action)
        else:
            action()

    def groups_with_offsets(self, topics: Iterable[str]) -> list[str]:
        """Every group that has offsets of one of the topics, committed or on their way."""
        wanted = set(topics)
        found = dict.fromkeys(one for one, offsets in self.groups.offsets.items() if wanted & offsets.topics.keys())
        pending = self.groups.pending
        found |= dict.fromkeys(
            one for one in pending.groups() if any(topic in wanted for topic, _ in pending.of_group(one))
        )
        return [*found, *(group_id for group_id in self._gates if group_id not in found)]
