"""Consumer groups with confluent-kafka: joining and leaving, static members, cooperative rebalancing."""

import subprocess
import sys
import textwrap

import pytest
from confluent_kafka import KafkaError, TopicPartition

from tests.compat.confluent_kafka.helpers import Member, everything, send_all, shared
from tests.compat.support import DEADLINE_S, eventually


@pytest.mark.feature("consumer groups")
@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
def test_members_join_and_leave_and_share_the_partitions(consumer, producer, topic, strategy):
    name = topic(partitions=6)
    settings = {"partition.assignment.strategy": strategy}
    members = []
    for count in (1, 2, 3):
        members.append(Member(consumer(settings), [name]))
        eventually(lambda: shared(members, everything(name, 6)), f"six partitions over {count} members")
    assert [len(m.assignment) for m in members] == [2, 2, 2]
    for partition in range(6):
        send_all(producer(), name, (b"v%d" % n for n in range(10)), partition=partition)

    def seen() -> list[tuple[int, int]]:
        return sorted((r.partition(), r.offset()) for m in members for r in m.records)

    eventually(lambda: shared(members, everything(name, 6)) and len(seen()) >= 60, "60 records")
    assert seen() == [(partition, offset) for partition in range(6) for offset in range(10)]
    for remaining in (2, 1):
        members.pop(0).consumer.close()
        eventually(lambda: shared(members, everything(name, 6)), f"the {remaining} that stayed")


@pytest.mark.feature("consumer groups")
def test_a_dead_member_is_removed_after_its_session_timeout(consumer, topic, group, bootstrap):
    """The other member is a process that is killed, so it sends no LeaveGroup."""
    name = topic(partitions=2)
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "session.timeout.ms": 6000}
    program = f"""
        from confluent_kafka import Consumer
        consumer = Consumer({{**{settings!r}, "heartbeat.interval.ms": 200}})
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
        survivor = Member(consumer(), [name])
        eventually(lambda: shared([survivor], {(name, 0)}) or shared([survivor], {(name, 1)}), "a share")
    finally:
        other.kill()
        other.wait()
    eventually(lambda: shared([survivor], everything(name, 2)), "both partitions after the session timeout")


@pytest.mark.feature("consumer groups")
def test_a_group_reads_topics_that_match_later(consumer, topic):
    first = topic()
    pattern = "^" + first.rsplit("-", 1)[0] + "-.*"
    member = Member(consumer({"topic.metadata.refresh.interval.ms": 300}), [pattern])
    eventually(lambda: shared([member], everything(first, 1)), "the first topic")
    second = topic(partitions=2)
    expected = everything(first, 1) | everything(second, 2)
    eventually(lambda: shared([member], expected), "both topics")


@pytest.mark.feature("static membership")
def test_a_static_member_comes_back_without_a_rebalance(consumer, topic):
    name = topic(partitions=4)
    stays = Member(consumer({"group.instance.id": "stays"}), [name])
    leaves = Member(consumer({"group.instance.id": "leaves"}), [name])
    eventually(lambda: shared([stays, leaves], everything(name, 4)), "two partitions for each")
    stays.revoked.clear()
    share = leaves.assignment
    leaves.consumer.close()
    returned = Member(consumer({"group.instance.id": "leaves"}), [name])
    eventually(lambda: shared([stays, returned], everything(name, 4)), "the member that came back")
    assert returned.assignment == share
    assert stays.revoked == set(), "the member that stayed kept its partitions all along"


@pytest.mark.feature("static membership")
def test_the_second_owner_of_an_instance_id_fences_the_first(consumer, topic):
    name = topic()
    first = Member(consumer({"group.instance.id": "only-one"}), [name])
    eventually(lambda: shared([first], everything(name, 1)), "the first owner's assignment")
    second = Member(consumer({"group.instance.id": "only-one"}), [name])
    eventually(lambda: shared([second], everything(name, 1)), "the second owner's assignment")
    eventually(lambda: first.poll() or first.error, "the first owner's error")
    assert first.error.code() == KafkaError._FATAL
    assert "FENCED_INSTANCE_ID" in str(first.error) or "fenced" in str(first.error).lower()


@pytest.mark.feature("cooperative rebalance")
def test_a_cooperative_member_gives_up_only_what_moves(consumer, producer, topic):
    name = topic(partitions=4)
    settings = {"partition.assignment.strategy": "cooperative-sticky"}
    first = Member(consumer(settings), [name])
    eventually(lambda: shared([first], everything(name, 4)), "everything for the first member")
    second = Member(consumer(settings), [name])
    eventually(lambda: shared([first, second], everything(name, 4)), "two partitions for each")
    moved = second.assignment
    assert len(moved) == 2
    assert first.revoked == moved, "only the partitions that moved were revoked"
    for partition in range(4):
        send_all(producer(), name, [b"v"], partition=partition)
    eventually(lambda: shared([first, second], everything(name, 4)) and len(second.records) == 2, "two records")
    assert {(r.topic(), r.partition()) for r in second.records} == moved
    assert first.consumer.committed([TopicPartition(*next(iter(moved)))], timeout=DEADLINE_S)
