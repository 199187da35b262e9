"""Who reads what: the assignors that a group's leader runs, and the opaque bytes in which it is told."""

from collections.abc import Callable, Mapping, Sequence

from kbroker.simulation.checker.history import Place
from protocol.messages.consumer_protocol import (
    AssignedTopic,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from protocol.schema.codec import decode, encode

# Topics by member, partition counts by topic -> partitions by member.
Assignor = Callable[[Mapping[str, Sequence[str]], Mapping[str, int]], dict[str, list[Place]]]

# The version of subscriptions and assignments that is written; any can be read.
VERSION = 0
VERSION_SIZE = 2
PREFIX = VERSION.to_bytes(VERSION_SIZE, "big")


def range_assignor(topics: Mapping[str, Sequence[str]], counts: Mapping[str, int]) -> dict[str, list[Place]]:
    """Of each topic, consecutive partitions to each member; the first get one more."""
    assigned: dict[str, list[Place]] = {member: [] for member in sorted(topics)}
    for topic in sorted({topic for wanted in topics.values() for topic in wanted}):
        members = [member for member in assigned if topic in topics[member]]
        share, more = divmod(counts.get(topic, 0), len(members))
        first = 0
        for number, member in enumerate(members):
            size = share + (number < more)
            assigned[member] += [(topic, index) for index in range(first, first + size)]
            first += size
    return assigned


def round_robin_assignor(topics: Mapping[str, Sequence[str]], counts: Mapping[str, int]) -> dict[str, list[Place]]:
    """One partition after another, to one member after another among those that want it."""
    assigned: dict[str, list[Place]] = {member: [] for member in sorted(topics)}
    members = list(assigned)
    turn = 0
    for topic in sorted({topic for wanted in topics.values() for topic in wanted}):
        for index in range(counts.get(topic, 0)):
            while topic not in topics[members[turn % len(members)]]:
                turn += 1
            assigned[members[turn % len(members)]].append((topic, index))
            turn += 1
    return assigned


ASSIGNORS: dict[str, Assignor] = {"range": range_assignor, "roundrobin": round_robin_assignor}


def encode_subscription(topics: Sequence[str]) -> bytes:
    return PREFIX + encode(ConsumerProtocolSubscription(topics=list(topics)), VERSION)


def decode_subscription(data: bytes) -> list[str]:
    """Raises MalformedError."""
    version = min(int.from_bytes(data[:VERSION_SIZE], "big"), 3)
    return decode(ConsumerProtocolSubscription, data, version, VERSION_SIZE).topics


def encode_assignment(places: Sequence[Place]) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, index in places:
        topics.setdefault(topic, []).append(index)
    found = [AssignedTopic(topic=topic, partitions=indexes) for topic, indexes in topics.items()]
    return VERSION.to_bytes(VERSION_SIZE, "big") + encode(
        ConsumerProtocolAssignment(assigned_partitions=found), VERSION
    )


def decode_assignment(data: bytes) -> list[Place]:
    """Empty bytes are nothing. Raises MalformedError."""
    if not data:
        return []
    version = min(int.from_bytes(data[:VERSION_SIZE], "big"), 3)
    found = decode(ConsumerProtocolAssignment, data, version, VERSION_SIZE)
    return [(topic.topic, index) for topic in found.assigned_partitions for index in topic.partitions]
