"""A member of a group of the newer protocols: what it has sent, and its epochs."""

from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kbroker.coordinator.group.assignors.members import Assignment
from protocol.messages.consumer_group_records import TargetTopicPartition

# The epochs in heartbeats of members that join, leave, or leave until they return with the same instance id.
JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2

NO_ASSIGNMENT: Assignment = MappingProxyType({})


@dataclass(slots=True, frozen=True, kw_only=True)
class ModernMember:
    """A member, which is replaced when it changes.

    `previous_epoch` is the epoch before the last one, whose heartbeats are accepted while the response that carried
    the last one may be lost.
    """

    member_id: str
    epoch: int = 0
    previous_epoch: int = -1
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_names: frozenset[str] = frozenset()


def assignment_of(topics: Iterable[Any]) -> Assignment:
    """Return the assignment in a list of structs with `topic_id` and `partitions`."""
    return {topic.topic_id: tuple(sorted(set(topic.partitions))) for topic in topics if topic.partitions}


def topic_partitions(assignment: Assignment) -> list[TargetTopicPartition]:
    return [TargetTopicPartition(topic_id=topic_id, partitions=list(own)) for topic_id, own in assignment.items()]
