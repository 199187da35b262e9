"""Consumer groups (KIP-848) and share groups (KIP-932) with franz-go and kafkit-client, a client of these only."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConsumerGroupDescription,
    NewTopic,
    ResourceType,
)

from tests.compat.confluent_kafka.helpers import send_all
from tests.compat.modern_groups.members import REJECT, RELEASE, Got, Member, Members, go, rust
from tests.compat.support import DEADLINE_S, EXTERNAL_BOOTSTRAP, eventually, running_broker

SETTINGS = {
    f"group.{kind}.{name}": value
    for kind in ("consumer", "share")
    for name, value in {
        "min.heartbeat.interval.ms": "100",
        "heartbeat.interval.ms": "200",
        "assignment.interval.ms": "0",
    }.items()
}
PROGRAMS: dict[str, Callable[[Path], Path]] = {"go": go, "kafkit": rust}


@pytest.fixture(scope="module")
def frequent_heartbeats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The bootstrap address of a broker whose groups need no 5 s for a change."""
    if EXTERNAL_BOOTSTRAP:
        yield EXTERNAL_BOOTSTRAP
        return
    with running_broker(tmp_path_factory.mktemp("broker"), SETTINGS) as broker:
        yield broker.bootstrap


@pytest.fixture(scope="module")
def admin(frequent_heartbeats: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": frequent_heartbeats})


@pytest.fixture(
    params=[pytest.param(client, marks=pytest.mark.client(client)) for client in PROGRAMS], ids=str, scope="module"
)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return PROGRAMS[request.param](tmp_path_factory.mktemp("program"))


@pytest.fixture
def members(program: Path, frequent_heartbeats: str) -> Iterator[Members]:
    opened = Members(program, frequent_heartbeats)
    yield opened
    opened.close()


@pytest.fixture
def producer(frequent_heartbeats: str) -> Producer:
    return Producer({"bootstrap.servers": frequent_heartbeats, "linger.ms": 1})


def create(admin: AdminClient, name: str, partitions: int) -> None:
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(DEADLINE_S)


def described(admin: AdminClient, group: str) -> ConsumerGroupDescription:
    return admin.describe_consumer_groups([group])[group].result(DEADLINE_S)


def committed(admin: AdminClient, group: str) -> list[tuple[int, int]]:
    listing = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
    partitions: list[TopicPartition] = listing.result(DEADLINE_S).topic_partitions
    return sorted((partition.partition, partition.offset) for partition in partitions)


def positions(got: list[Got]) -> list[int]:
    """Return the number of different records of each partition."""
    return sorted(Counter(partition for _, partition, _ in {record[:3] for record in got}).values())


def all_of(topic: str, count: int) -> list[str]:
    return [f"{topic}:{partition}" for partition in range(count)]


def shared(members: list[Member], expected: list[str], got: list[Got]) -> bool:
    """Poll each member, and return whether they share these partitions evenly."""
    for member in members:
        got.extend(member.poll())
    owned = [member.partitions() for member in members]
    sizes = {len(partitions) for partitions in owned}
    return sorted(name for partitions in owned for name in partitions) == expected and max(sizes) - min(sizes) <= 1


@pytest.mark.feature("consumer groups")
def test_three_members_rebalance_commit_and_leave(
    members: Members, admin: AdminClient, producer: Producer, name: str, group: str
) -> None:
    create(admin, name, 6)
    got: list[Got] = []
    joined: list[Member] = []
    for number in range(3):
        joined.append(members.open(f"member-{number}", group, topic=name))
        eventually(lambda: shared(joined, all_of(name, 6), got), f"six partitions over {len(joined)} members")
    for partition in range(6):
        send_all(producer, name, (b"%d" % n for n in range(10)), partition=partition)
    eventually(lambda: shared(joined, all_of(name, 6), got) and len(got) >= 60, "60 records")
    description = described(admin, group)
    assert description.state.name == "STABLE"
    assert description.type.name == "CONSUMER"
    assert {member.client_id for member in description.members} == {"member-0", "member-1", "member-2"}
    assert [len(member.target_assignment.topic_partitions) for member in description.members] == [2, 2, 2]
    for member in joined:
        member.commit()
    assert committed(admin, group) == [(partition, 10) for partition in range(6)]
    for partition in range(6):
        send_all(producer, name, [b"later"], partition=partition)
    while len(joined) > 1:
        joined.pop(0).close()
        eventually(lambda: shared(joined, all_of(name, 6), got), "the partitions of the member that has left")
    # Those who took over continued at the committed offsets.
    eventually(lambda: got.extend(joined[0].poll()) or positions(got) == [11] * 6, "the last records")
    assert [record.value for record in got].count("0") == 6
    joined[0].commit()
    joined[0].close()
    eventually(lambda: described(admin, group).state.name == "EMPTY", "an empty group")
    assert committed(admin, group) == [(partition, 11) for partition in range(6)]


@pytest.mark.feature("static membership")
def test_a_static_member_returns_to_its_partitions(
    members: Members, admin: AdminClient, producer: Producer, name: str, group: str
) -> None:
    create(admin, name, 4)
    got: list[Got] = []
    one, two = (members.open(seat, group, topic=name, instance=seat) for seat in ("one", "two"))
    eventually(lambda: shared([one, two], all_of(name, 4), got), "four partitions over two members")
    before = one.partitions()
    assert {member.group_instance_id for member in described(admin, group).members} == {"one", "two"}
    one.close()
    assert {member.group_instance_id for member in described(admin, group).members} == {"one", "two"}
    one = members.open("one again", group, topic=name, instance="one")
    eventually(lambda: shared([one, two], all_of(name, 4), got), "the partitions of the member that has returned")
    assert one.partitions() == before
    send_all(producer, name, [b"all"], partition=int(min(before)[-1]))
    eventually(lambda: got.extend(one.poll()) or got, "a record for the member that has returned")


@pytest.mark.feature("consumer groups")
def test_a_pattern_matches_topics_that_are_created_later(
    members: Members, admin: AdminClient, producer: Producer, name: str, group: str
) -> None:
    create(admin, f"{name}-1", 2)
    got: list[Got] = []
    member = members.open("pattern", group, pattern=f"{name}-[0-9]+")
    eventually(lambda: shared([member], all_of(f"{name}-1", 2), got), "the first topic")
    create(admin, f"{name}-2", 1)
    create(admin, f"{name}-x", 1)
    eventually(lambda: shared([member], [*all_of(f"{name}-1", 2), f"{name}-2:0"], got), "the second topic")
    send_all(producer, f"{name}-2", [b"new"], partition=0)
    eventually(lambda: got.extend(member.poll()) or got, "a record of the second topic")
    assert [record.value for record in got] == ["new"]


@pytest.mark.feature("share groups")
def test_share_members_accept_release_and_reject(
    members: Members, admin: AdminClient, producer: Producer, name: str, group: str
) -> None:
    create(admin, name, 2)
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)
    for partition in range(2):
        send_all(producer, name, (b"%d" % (2 * n + partition) for n in range(20)), partition=partition)
    joined = [members.open(f"member-{number}", group, topic=name, share=True) for number in range(2)]
    seen: Counter[tuple[str, int]] = Counter()

    def work() -> bool:
        for member in joined:
            records = member.poll()
            seen.update((record.value, record.deliveries) for record in records)
            released = {r.value: RELEASE for r in records if r.value.endswith("5") and r.deliveries == 1}
            rejected = {r.value: REJECT for r in records if r.value.endswith("7")}
            if records:
                member.acknowledge({**released, **rejected})
        return len(seen) >= 44

    eventually(work, "40 records, and four of them again")
    expected = {(str(n), 1): 1 for n in range(40)} | {(str(n), 2): 1 for n in range(40) if n % 10 == 5}
    assert seen == expected
    joined[0].close()
    send_all(producer, name, [b"more"], partition=0)
    send_all(producer, name, [b"more"], partition=1)

    def last(member: Member = joined[1]) -> Any:
        seen.update((record.value, record.deliveries) for record in member.poll())
        return seen["more", 1] == 2

    eventually(last, "two records for the member that has stayed")
    # It leaves without acknowledging the last ones.
    joined[1].close()
    after = members.open("next", group, topic=name, share=True)

    def again() -> Any:
        seen.update((record.value, record.deliveries) for record in after.poll())
        return seen["more", 2]

    eventually(again, "a record that nobody has acknowledged")
