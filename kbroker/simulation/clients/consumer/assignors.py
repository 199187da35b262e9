"""Consumer group assignors, and the encoding of subscriptions and assignments."""

from collections.abc import Callable, Mapping, Sequence

from kbroker.simulation.checker.history import TopicPartition
from protocol.messages.consumer_protocol import (
    AssignedTopic,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from protocol.schema.codec import decode, encode

# (subscribed topics by member, partition counts by topic) -> assigned partitions by member.
Assignor = Callable[[Mapping[str, Sequence[str]], Mapping[str, int]], dict[str, list[TopicPartition]]]

# The version of encoded subscriptions and assignments. All versions can be decoded.
VERSION = 0
VERSION_SIZE = 2
PREFIX = VERSION.to_bytes(VERSION_SIZE, "big")


def range_assignor(topics: Mapping[str, Sequence[str]], counts: Mapping[str, int]) -> dict[str, list[TopicPartition]]:
    """Assign consecutive partitions of each topic; the first members get one more if the count is uneven."""
    assigned: dict[str, list[TopicPartition]] = {member: [] for member in sorted(topics)}
    for topic in sorted({topic for subscribed in topics.values() for topic in subscribed}):
        members = [member for member in assigned if topic in topics[member]]
        share, remainder = divmod(counts.get(topic, 0), len(members))
        first = 0
        for number, member in enumerate(members):
            size = share + (number < remainder)
            assigned[member] += [(topic, index) for index in range(first, first + size)]
            first += size
    return assigned


def round_robin_assignor(
    topics: Mapping[str, Sequence[str]], counts: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Assign partitions one by one, each to the next member that subscribes to its topic."""
    assigned: dict[str, list[TopicPartition]] = {member: [] for member in sorted(topics)}
    members = list(assigned)
    position = 0
    for topic in sorted({topic for subscribed in topics.values() for topic in subscribed}):
        for index in range(counts.get(topic, 0)):
            while topic not in topics[members[position % len(members)]]:
                position += 1
            assigned[members[position % len(members)]].append((topic, index))
            position += 1
    return assigned


ASSIGNORS: dict[str, Assignor] = {"range": range_assignor, "roundrobin": round_robin_assignor}


def encode_subscription(topics: Sequence[str]) -> bytes:
    return PREFIX + encode(ConsumerProtocolSubscription(topics=list(topics)), VERSION)


def decode_subscription(data: bytes) -> list[str]:
    """Return the topics of a subscription. Raises MalformedError."""
    version = min(int.from_bytes(data[:VERSION_SIZE], "big"), 3)
    return decode(ConsumerProtocolSubscription, data, version, VERSION_SIZE).topics


def encode_assignment(partitions: Sequence[TopicPartition]) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    by_topic = [AssignedTopic(topic=topic, partitions=indexes) for topic, indexes in topics.items()]
    return VERSION.to_bytes(VERSION_SIZE, "big") + encode(
        ConsumerProtocolAssignment(assigned_partitions=by_topic), VERSION
    )


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Return the partitions of an assignment, none for empty bytes. Raises MalformedError."""
    if not data:
        return []
    version = min(int.from_bytes(data[:VERSION_SIZE], "big"), 3)
    assignment = decode(ConsumerProtocolAssignment, data, version, VERSION_SIZE)
    return [(topic.topic, index) for topic in assignment.assigned_partitions for index in topic.partitions]
