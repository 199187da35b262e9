"""What runs inside a group's gate: look the group up, decide, write, answer.

An operation may have waited for its turn, so it looks at the shard and the group only when it runs.
"""

from collections.abc import Callable, Sequence

from kbroker.common import KafkaError
from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.group.classic.group_state import GroupState
from kbroker.coordinator.group.classic.join import join
from kbroker.coordinator.group.classic.leave import expire_one, leave
from kbroker.coordinator.group.classic.requests import (
    UNKNOWN_MEMBER,
    JoinReply,
    JoinRequest,
    JoinResponse,
    LeavingMember,
    Settings,
    SyncReply,
    SyncRequest,
    SyncResponse,
    Write,
)
from kbroker.coordinator.group.classic.sync import sync
from kbroker.coordinator.group.group_shard import GroupShard, ignore
from kbroker.coordinator.group.offsets import commit_validation as commits
from kbroker.coordinator.group.offsets.group_offsets import GroupOffsets, expired
from kbroker.coordinator.group.records import (
    GroupRecord,
    GroupTombstone,
    OffsetAndMetadata,
    OffsetKey,
    OffsetRecord,
    Record,
)
from kbroker.coordinator.runtime.batches import Producer
from protocol.errors import ErrorCode

Partitions = Sequence[tuple[str, int]]
Done = Callable[[ErrorCode], None]


def run_join(shard: GroupShard, settings: Settings, request: JoinRequest, reply: JoinReply) -> None:
    error = shard.inactive()
    group = shard.get(request.group_id)
    if error is ErrorCode.NONE and group is None:
        error = _no_group_for(request)
    if error is not ErrorCode.NONE:
        reply(JoinResponse(error, request.member_id))
    elif group is None:
        group = shard.groups.by_id[request.group_id] = ClassicGroup(request.group_id)
        join(group, request, reply, shard.now(), settings)
        shard.change(group, _first_record(shard, group))
    else:
        shard.change(group, join(group, request, reply, shard.now(), settings))


def _no_group_for(request: JoinRequest) -> ErrorCode:
    """Only a new member makes a group; Kafka makes one for a refused one too, which would stay for nothing."""
    if request.member_id != UNKNOWN_MEMBER:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if not request.protocol_type or not request.protocols:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.NONE


def _first_record(shard: GroupShard, group: ClassicGroup) -> Write:
    """A new group is written at once, empty, so that it is known after a failover."""
    record = GroupRecord(
        group_id=group.group_id,
        protocol_type="",
        generation=0,
        protocol=None,
        leader=None,
        state_timestamp_ms=shard.now().wall_ms,
    )
    return Write(record, failed=lambda error, now: shard.drop(group, error))


def run_sync(shard: GroupShard, settings: Settings, request: SyncRequest, reply: SyncReply) -> None:
    error = shard.inactive()
    group = shard.get(request.group_id)
    if error is not ErrorCode.NONE:
        reply(SyncResponse(error))
    elif group is None:
        reply(SyncResponse(ErrorCode.UNKNOWN_MEMBER_ID))
    else:
        shard.change(group, sync(group, request, reply, shard.now(), settings))


def run_leave(
    shard: GroupShard,
    settings: Settings,
    group_id: str,
    leavers: list[LeavingMember],
    reply: Callable[[list[ErrorCode]], None],
    fail: Done,
) -> None:
    """`reply` gets each leaver's result, once what their leaving wrote is committed."""
    error = shard.inactive()
    group = shard.get(group_id)
    if error is not ErrorCode.NONE:
        fail(error)
    elif group is None:
        reply([ErrorCode.UNKNOWN_MEMBER_ID] * len(leavers))
    else:
        errors, write = leave(group, leavers, shard.now(), settings)
        if write is None:
            reply(errors)
        else:
            write = Write(write.record, lambda now: reply(errors), lambda error, now: fail(error))
        shard.change(group, write)


def run_expiry(shard: GroupShard, settings: Settings, group_id: str) -> None:
    """Act on one deadline of a group that has passed; `change` sees to the next one."""
    group = shard.get(group_id)
    if group is not None and shard.inactive() is ErrorCode.NONE:
        shard.change(group, expire_one(group, shard.now(), settings))


def run_commit(
    shard: GroupShard,
    group_id: str,
    member_id: str,
    instance_id: str | None,
    generation: int,
    offsets: Sequence[tuple[str, int, OffsetAndMetadata]],
    done: Done,
) -> None:
    error = shard.inactive()
    if error is ErrorCode.NONE:
        group = shard.get(group_id)
        try:
            commits.check_commit(group, member_id, instance_id, generation, shard.now())
        except KafkaError as refusal:
            error = refusal.code
        else:
            if group is not None:
                shard.moved(group)
    if error is not ErrorCode.NONE or not offsets:
        done(error)
        return
    shard.write_shared(group_id, _offset_records(group_id, offsets), done)


def run_commit_in_transaction(
    shard: GroupShard,
    group_id: str,
    member_id: str,
    instance_id: str | None,
    generation: int,
    producer: Producer,
    offsets: Sequence[tuple[str, int, OffsetAndMetadata]],
    done: Done,
) -> None:
    error = shard.inactive()
    if error is ErrorCode.NONE:
        try:
            commits.check_commit_in_transaction(shard.get(group_id), member_id, instance_id, generation)
        except KafkaError as refusal:
            error = refusal.code
    if error is not ErrorCode.NONE or not offsets:
        done(error)
        return
    shard.write_shared(group_id, _offset_records(group_id, offsets), done, producer)


def _offset_records(group_id: str, offsets: Sequence[tuple[str, int, OffsetAndMetadata]]) -> list[OffsetRecord]:
    return [OffsetRecord(OffsetKey(group_id, topic, partition), offset) for topic, partition, offset in offsets]


def run_delete_group(shard: GroupShard, group_id: str, done: Done) -> None:
    """Alone: a commit under way would come back as a group without members after a restart.

    Offsets that are pending go as well, as in Kafka: when their transactions commit, nothing comes of it.
    """
    error = shard.inactive()
    if error is ErrorCode.NONE:
        try:
            commits.check_group_delete(shard.get(group_id))
        except KafkaError as refusal:
            error = refusal.code
    if error is not ErrorCode.NONE:
        done(error)
        return
    records = offset_tombstones(group_id, shard.groups.partitions_of(group_id))
    shard.write_alone(group_id, [*records, GroupTombstone(group_id)], done)


def run_delete_offsets(
    shard: GroupShard,
    group_id: str,
    partitions: Partitions,
    reply: Callable[[list[ErrorCode]], None],
    fail: Done,
) -> None:
    """`reply` gets each partition's result. Deleting an offset that is not there is no error; what is pending is
    deleted too.
    """
    error = shard.inactive()
    if error is not ErrorCode.NONE:
        fail(error)
        return
    try:
        group = commits.check_offset_delete(shard.get(group_id))
    except KafkaError as refusal:
        fail(refusal.code)
        return
    errors = [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed(topic) else ErrorCode.NONE for topic, _ in partitions
    ]
    allowed = [one for one, refused in zip(partitions, errors, strict=True) if refused is ErrorCode.NONE]
    known = set(shard.groups.partitions_of(group_id))
    there = [one for one in allowed if one in known]
    if there:
        tombstones = offset_tombstones(group_id, there)
        shard.write_alone(
            group_id, tombstones, lambda error: fail(error) if error is not ErrorCode.NONE else reply(errors)
        )
    else:
        reply(errors)


def run_forget_topics(shard: GroupShard, group_id: str, names: Sequence[str]) -> None:
    """The topics are deleted: members or not, their offsets mean nothing any more."""
    there = [one for one in shard.groups.partitions_of(group_id) if one[0] in names]
    if there and shard.inactive() is ErrorCode.NONE:
        shard.write_alone(group_id, offset_tombstones(group_id, there), ignore)


def run_cleanup(shard: GroupShard, group_id: str, retention_ms: int) -> None:
    """Forget offsets whose time is over, and the group with its last offset, when it has no members.

    A partition whose offset is pending keeps the one that it has, and its group, however old.
    """
    group = shard.get(group_id)
    if group is None or shard.inactive() is not ErrorCode.NONE:
        return
    offsets = shard.groups.offsets.get(group_id) or GroupOffsets()
    pending = set(shard.groups.pending.of_group(group_id))
    gone = [one for one in expired(group, offsets, retention_ms, shard.now().wall_ms) if one not in pending]
    records: list[Record] = list(offset_tombstones(group_id, gone))
    left = len(shard.groups.partitions_of(group_id)) - len(gone)
    if left == 0 and group.state is GroupState.EMPTY and not group.pending_joins:
        records.append(GroupTombstone(group_id))
    if records:
        shard.write_alone(group_id, records, ignore)


def offset_tombstones(group_id: str, partitions: Partitions) -> list[OffsetRecord]:
    return [OffsetRecord(OffsetKey(group_id, topic, partition), None) for topic, partition in partitions]
