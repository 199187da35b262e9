"""How a member proceeds from its current assignment to its target (pure).

STABLE -> UNREVOKED_PARTITIONS     it has partitions that are not in its target: it keeps its epoch until it no longer
                                   owns them
       -> UNRELEASED_PARTITIONS    it is in the epoch of its target, and others still have some of its partitions
       -> STABLE                   it is in the epoch of its target, and has all of it

A partition never has two owners: another member gets it only when its owner has confirmed the revocation.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import replace
from typing import NamedTuple

from kbroker.common import KafkaError
from kbroker.coordinator.group.assignors.members import Assignment
from kbroker.coordinator.group.consumer.consumer_group_member import (
    NO_PARTITIONS,
    AssignedPartitions,
    ConsumerGroupMember,
    MemberState,
)
from protocol.errors import ErrorCode

# The partitions that a member says it has, by topic id; None if it does not say.
OwnedPartitions = Mapping[bytes, Collection[int]] | None


class Target(NamedTuple):
    """The target assignment of a member, and the epoch for which it was computed."""

    epoch: int
    assignment: Assignment


def next_assignment(
    member: ConsumerGroupMember,
    target: Target,
    owned: OwnedPartitions,
    subscribed_topic_ids: Set[bytes],
    has_subscription_changed: bool,
    is_free: Callable[[bytes, int], bool],
) -> ConsumerGroupMember:
    """Return the member after its heartbeat. Raises FENCED_MEMBER_EPOCH if its state is not known.

    `is_free` returns whether no other member has a partition, assigned or pending revocation. Partitions of topics to
    which the member no longer subscribes are revoked even if the target still has them.
    """
    state = member.state
    if state is MemberState.UNKNOWN and (owned is None or any(owned.values())):
        message = (
            "The consumer group member is in a unknown state. The member must abandon all its partitions and rejoin."
        )
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, message)
    if state is MemberState.STABLE and member.epoch == target.epoch:
        return _without_unsubscribed(member, owned, subscribed_topic_ids) if has_subscription_changed else member
    if state is MemberState.UNREVOKED_PARTITIONS and _owns_any(owned, member.pending_revocation):
        return _without_unsubscribed(member, owned, subscribed_topic_ids) if has_subscription_changed else member
    return _towards(member, target, owned, subscribed_topic_ids, is_free)


def _owns_any(owned: OwnedPartitions, partitions: AssignedPartitions) -> bool:
    """Return whether the member still has one of the partitions. Without a word from it, it has."""
    if owned is None:
        return True
    return any(not partitions.get(topic_id, {}).keys().isdisjoint(indexes) for topic_id, indexes in owned.items())


def _without_unsubscribed(
    member: ConsumerGroupMember, owned: OwnedPartitions, subscribed_topic_ids: Set[bytes]
) -> ConsumerGroupMember:
    """Revoke the partitions of topics to which the member no longer subscribes. It stays in its epoch."""
    dropped = member.assigned.keys() - subscribed_topic_ids
    if not dropped:
        return member
    assigned = {topic_id: epochs for topic_id, epochs in member.assigned.items() if topic_id not in dropped}
    pending = dict(member.pending_revocation)
    for topic_id in dropped:
        pending[topic_id] = {**pending.get(topic_id, {}), **member.assigned[topic_id]}
    member = replace(member, previous_epoch=member.epoch, assigned=assigned)
    if not _owns_any(owned, pending):
        return member
    return replace(member, state=MemberState.UNREVOKED_PARTITIONS, pending_revocation=pending)


def _towards(
    member: ConsumerGroupMember,
    target: Target,
    owned: OwnedPartitions,
    subscribed_topic_ids: Set[bytes],
    is_free: Callable[[bytes, int], bool],
) -> ConsumerGroupMember:
    """Return the member one step closer to its target."""
    kept: dict[bytes, dict[int, int]] = {}
    revoked: dict[bytes, dict[int, int]] = {}
    added: dict[bytes, dict[int, int]] = {}
    waits_for_release = False
    for topic_id in _topics(target.assignment, member.assigned):
        wanted: Iterable[int] = target.assignment.get(topic_id, ()) if topic_id in subscribed_topic_ids else ()
        current = member.assigned.get(topic_id, {})
        wanted_set = set(wanted)
        _put(kept, topic_id, {index: epoch for index, epoch in current.items() if index in wanted_set})
        _put(revoked, topic_id, {index: epoch for index, epoch in current.items() if index not in wanted_set})
        new = [index for index in wanted if index not in current]
        free = [index for index in new if is_free(topic_id, index)]
        waits_for_release = waits_for_release or len(free) < len(new)
        _put(added, topic_id, dict.fromkeys(free, target.epoch))
    if revoked and _owns_any(owned, revoked):
        return replace(
            member,
            state=MemberState.UNREVOKED_PARTITIONS,
            previous_epoch=member.epoch,
            assigned=kept,
            pending_revocation=revoked,
        )
    for topic_id, epochs in added.items():
        kept[topic_id] = dict(sorted({**kept.get(topic_id, {}), **epochs}.items()))
    return replace(
        member,
        state=MemberState.UNRELEASED_PARTITIONS if waits_for_release else MemberState.STABLE,
        previous_epoch=member.epoch,
        epoch=target.epoch,
        assigned=kept,
        pending_revocation=NO_PARTITIONS,
    )


def _topics(target: Assignment, assigned: AssignedPartitions) -> list[bytes]:
    return list(dict.fromkeys([*target, *assigned]))


def _put(partitions: dict[bytes, dict[int, int]], topic_id: bytes, epochs: dict[int, int]) -> None:
    if epochs:
        partitions[topic_id] = epochs
