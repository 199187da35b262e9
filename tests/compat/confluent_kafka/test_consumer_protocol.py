"""Consumer groups of the protocol of KIP-848 with confluent-kafka (`group.protocol=consumer`)."""

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.confluent_kafka.helpers import Member, everything, send_all, shared
from tests.compat.support import DEADLINE_S, BrokerProcess, eventually, need_own_broker, running_broker, unique

# The broker decides how often the members send heartbeats.
SETTINGS = {
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.assignment.interval.ms": "0",
}


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    need_own_broker()
    with running_broker(tmp_path_factory.mktemp("broker"), SETTINGS) as broker:
        yield broker


@pytest.fixture
def topic(own_broker: BrokerProcess) -> Callable[[int], str]:
    def create(partitions: int, name: str = "") -> str:
        name = name or unique("topic")
        admin = AdminClient({"bootstrap.servers": own_broker.bootstrap})
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(DEADLINE_S)
        return name

    return create


@pytest.fixture
def consumer(own_broker: BrokerProcess) -> Iterator[Callable[..., Consumer]]:
    consumers: list[Consumer] = []
    group = unique("group")

    def create(**settings: Any) -> Consumer:
        defaults = {
            "bootstrap.servers": own_broker.bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 100,
            "topic.metadata.refresh.interval.ms": 500,
        }
        named = {name.replace("_", "."): value for name, value in settings.items()}
        consumers.append(Consumer({**defaults, **named}))
        return consumers[-1]

    yield create
    for client in consumers:
        client.close()


def offsets(members: list[Member]) -> list[tuple[int, int]]:
    return sorted((record.partition(), record.offset()) for member in members for record in member.records)


@pytest.mark.feature("consumer groups")
def test_members_share_the_partitions_also_when_the_broker_restarts(
    own_broker: BrokerProcess, consumer: Callable[..., Consumer], topic: Callable[..., str]
) -> None:
    name = topic(6)
    producer = Producer({"bootstrap.servers": own_broker.bootstrap})
    members: list[Member] = []
    for count in (1, 2, 3):
        members.append(Member(consumer(), [name]))
        eventually(lambda: shared(members, everything(name, 6)), f"six partitions over {count} members")
    assert [len(member.assignment) for member in members] == [2, 2, 2]
    for partition in range(6):
        send_all(producer, name, (b"v%d" % n for n in range(10)), partition=partition)
    eventually(lambda: shared(members, everything(name, 6)) and len(offsets(members)) >= 60, "60 records")
    assert offsets(members) == [(partition, offset) for partition in range(6) for offset in range(10)]
    before = [member.assignment for member in members]
    for member in members:
        member.consumer.commit(asynchronous=False)
    own_broker.restart()
    for partition in range(6):
        send_all(producer, name, [b"later"], partition=partition)
    eventually(lambda: shared(members, everything(name, 6)) and len(offsets(members)) >= 66, "six more records")
    # Nobody had to give up a partition, and no record was read twice.
    assert [member.assignment for member in members] == before
    assert len(offsets(members)) == len(set(offsets(members))) == 66
    for remaining in (2, 1):
        members.pop(0).consumer.close()
        eventually(lambda: shared(members, everything(name, 6)), f"the {remaining} that stayed")


@pytest.mark.feature("consumer groups")
def test_a_dead_member_is_removed_after_its_session_timeout(
    own_broker: BrokerProcess, consumer: Callable[..., Consumer], topic: Callable[..., str]
) -> None:
    name, group = topic(2), unique("group")
    settings = {"bootstrap.servers": own_broker.bootstrap, "group.id": group, "group.protocol": "consumer"}
    program = f"""
        from confluent_kafka import Consumer
        consumer = Consumer({settings!r})
        consumer.subscribe([{name!r}])
        while True:
            consumer.poll(0.1)
            if consumer.assignment():
                print(len(consumer.assignment()), flush=True)
    """
    other = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == b"2", "the other member alone has both partitions"
        survivor = Member(consumer(group_id=group), [name])
        eventually(lambda: shared([survivor], {(name, 0)}) or shared([survivor], {(name, 1)}), "a share")
    finally:
        other.kill()
        other.wait()
    eventually(lambda: shared([survivor], everything(name, 2)), "both partitions after the session timeout")


@pytest.mark.feature("static membership")
def test_a_static_member_gets_its_partitions_back(consumer: Callable[..., Consumer], topic: Callable[..., str]) -> None:
    name = topic(4)
    one, two = (Member(consumer(group_instance_id=instance), [name]) for instance in ("one", "two"))
    eventually(lambda: shared([one, two], everything(name, 4)), "four partitions over two members")
    before = one.assignment
    two.revoked.clear()
    one.consumer.close()
    again = Member(consumer(group_instance_id="one"), [name])
    eventually(lambda: shared([again, two], everything(name, 4)), "the partitions of the member that has returned")
    assert again.assignment == before
    assert two.revoked == set(), "the other member was not disturbed"


@pytest.mark.feature("consumer groups")
def test_a_regular_expression_matches_topics_that_are_created_later(
    own_broker: BrokerProcess, consumer: Callable[..., Consumer], topic: Callable[..., str]
) -> None:
    prefix = unique("pattern")
    topic(1, f"{prefix}-1")
    member = Member(consumer(), [f"^{prefix}-.*"])
    eventually(lambda: shared([member], {(f"{prefix}-1", 0)}), "the topic that exists")
    topic(2, f"{prefix}-2")
    matching = {(f"{prefix}-1", 0), (f"{prefix}-2", 0), (f"{prefix}-2", 1)}
    eventually(lambda: shared([member], matching), "the topic that was created later")
    send_all(Producer({"bootstrap.servers": own_broker.bootstrap}), f"{prefix}-2", [b"x"], partition=1)
    eventually(lambda: shared([member], matching) and len(member.records) == 1, "its record")
    member.consumer.commit(asynchronous=False)
    [committed] = member.consumer.committed([TopicPartition(f"{prefix}-2", 1)], DEADLINE_S)
    assert committed.offset == 1


@pytest.mark.feature("consumer groups")
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_is_migrated_member_by_member_and_back(
    own_broker: BrokerProcess, consumer: Callable[..., Consumer], topic: Callable[..., str], strategy: str
) -> None:
    """Members restart with the other protocol while records arrive; meanwhile members of both share the group."""
    name, group = topic(6), unique("group")
    producer = Producer({"bootstrap.servers": own_broker.bootstrap})
    admin = AdminClient({"bootstrap.servers": own_broker.bootstrap})
    sent = 0
    read_by_others: list[tuple[int, int]] = []

    def member(protocol: str) -> Member:
        classic = {"heartbeat.interval.ms": 200, "partition.assignment.strategy": strategy}
        settings = classic if protocol == "classic" else {}
        return Member(consumer(group_id=group, group_protocol=protocol, **settings), [name])

    def all_read() -> bool:
        return shared(members, everything(name, 6)) and len(set(all_offsets())) == sent

    def all_offsets() -> list[tuple[int, int]]:
        return read_by_others + offsets(members)

    def group_type() -> str:
        [listing] = [item for item in admin.list_consumer_groups().result().valid if item.group_id == group]
        return str(listing.type).rsplit(".", 1)[-1].lower()

    members = [member("classic") for _ in range(3)]
    for protocol in ("consumer", "classic"):
        for _ in range(3):
            for partition in range(6):
                send_all(producer, name, [b"record"], partition=partition)
            sent += 6
            eventually(all_read, f"{sent} records", progress=lambda: len(set(all_offsets())))
            leaving = members.pop(0)
            read_by_others += offsets([leaving])
            leaving.consumer.close()
            members.append(member(protocol))
            eventually(lambda: shared(members, everything(name, 6)), "the group with the new member")
        assert group_type() == protocol
    # Each partition was read from its first record to its last.
    assert sorted(set(all_offsets())) == [(partition, n) for partition in range(6) for n in range(sent // 6)]
