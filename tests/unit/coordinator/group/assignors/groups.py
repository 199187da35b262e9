"""Groups as lines of text, for Kafka's own assignors (KafkaAssignors.java), and random groups that change in steps.

assignor|partitions of topic 0,of topic 1,...|member;instance id;subscribed topics;target|...
targets: member;0=0.1.2,1=3|...
"""

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from kbroker.coordinator.group.assignors.members import Assignments, MemberSpec


class RandomGroup(NamedTuple):
    assignor: str
    counts: dict[bytes, int]
    members: dict[str, MemberSpec]


def topic_id(index: int) -> bytes:
    part = (index * 37 & 0xFF) * 0x0101010101010101
    return part.to_bytes(8) + (part ^ index).to_bytes(8)


INDEXES = {topic_id(index): index for index in range(256)}


def to_line(group: RandomGroup) -> str:
    fields = [group.assignor, ",".join(map(str, group.counts.values()))]
    for name, member in group.members.items():
        subscribed = ",".join(map(str, sorted(INDEXES[topic] for topic in member.subscribed)))
        target = ",".join(f"{INDEXES[topic]}={'.'.join(map(str, ps))}" for topic, ps in member.target.items())
        fields.append(f"{name};{member.instance_id or ''};{subscribed};{target}")
    return "|".join(fields)


def from_line(line: str) -> RandomGroup:
    assignor, counts, *members = line.split("|")
    parsed = {}
    for text in members:
        name, instance_id, subscribed, target = text.split(";")
        topics = frozenset(topic_id(int(index)) for index in subscribed.split(",") if index)
        parsed[name] = MemberSpec(topics, _target(target), instance_id or None)
    return RandomGroup(assignor, {topic_id(i): int(count) for i, count in enumerate(counts.split(","))}, parsed)


def targets_from_line(line: str) -> Assignments:
    return {name: _target(target) for name, target in (text.split(";") for text in line.split("|"))}


def _target(text: str) -> dict[bytes, tuple[int, ...]]:
    topics = (topic.split("=") for topic in text.split(",") if topic)
    return {topic_id(int(index)): tuple(map(int, partitions.split("."))) for index, partitions in topics}


def new_group(random: Random, assignor: str, is_homogeneous: bool) -> RandomGroup:
    counts = {topic_id(index): random.randint(1, 9) for index in range(random.randint(1, 4))}
    group = RandomGroup(assignor, counts, {})
    for _ in range(random.randint(1, 6)):
        add_member(random, group, is_homogeneous)
    return group


def add_member(random: Random, group: RandomGroup, is_homogeneous: bool) -> None:
    topics = [topic for topic in group.counts if is_homogeneous or random.random() < 0.6]
    instance_id = f"i{random.randrange(100)}" if random.random() < 0.3 else None
    group.members[f"m{random.randrange(10_000)}"] = MemberSpec(frozenset(topics), {}, instance_id)


def steps(random: Random, group: RandomGroup, is_homogeneous: bool, count: int) -> Iterator[str]:
    """Change the group before each step: one or two events. Yields what has happened."""
    yield "start"
    for _ in range(count - 1):
        events = [random.choice(("join", "leave", "grow", "subscribe")) for _ in range(random.randint(1, 2))]
        for event in events:
            if event == "join" or len(group.members) < 2:
                add_member(random, group, is_homogeneous)
            elif event == "leave":
                del group.members[random.choice(list(group.members))]
            elif event == "grow":
                group.counts[random.choice(list(group.counts))] += random.randint(1, 3)
            elif not is_homogeneous:
                name = random.choice(list(group.members))
                topics = frozenset(topic for topic in group.counts if random.random() < 0.6)
                group.members[name] = group.members[name]._replace(subscribed=topics)
        yield "+".join(events)


def moves(members: dict[str, MemberSpec], targets: Assignments) -> int:
    """Return how many partitions go from one member to another one, whether the former is still there or not."""
    had = {(topic, p): name for name, member in members.items() for topic, ps in member.target.items() for p in ps}
    has = {(topic, p): name for name, target in targets.items() for topic, ps in target.items() for p in ps}
    return sum(1 for partition, name in has.items() if had.get(partition, name) != name)
