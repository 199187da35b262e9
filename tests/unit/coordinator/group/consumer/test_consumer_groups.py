"""Consumer groups on a coordinator: what is durable when, what is loaded, and what follows topics and configs."""

from collections.abc import Callable
from typing import Any

import pytest

from kbroker.common import KafkaError
from kbroker.coordinator.group.consumer.consumer_group import ConsumerGroup
from kbroker.coordinator.group.consumer.consumer_group_member import ConsumerGroupMember, MemberState
from kbroker.coordinator.group.consumer.consumer_groups import ConsumerGroups
from kbroker.metadata.features import GROUP_VERSION, FinalizedFeatures
from protocol.errors import ErrorCode
from protocol.messages.k11_classic_groups import HeartbeatRequest, JoinGroupRequest, JoinGroupRequestProtocol
from protocol.messages.k15_groups import DescribeGroupsRequest, ListGroupsRequest
from protocol.messages.k42_delete_groups import DeleteGroupsRequest
from protocol.messages.k68_consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from tests.unit.support.consumer_members import ModelMember, settle
from tests.unit.support.group_coordinator import NODE, Harness

Make = Callable[..., Harness]


def consumer_group(broker: Harness) -> ConsumerGroup:
    group = broker.shard().find(ConsumerGroup, "g")
    assert group is not None
    return group


def fail_over(broker: Harness) -> None:
    index = broker.groups.runtime.partition_for("g")
    broker.run(broker.elect(index, NODE + 1))
    broker.run(broker.elect(index, NODE))
    broker.loop.pass_ms(10)


def join(member_id: str = "m", **fields: Any) -> ConsumerGroupHeartbeatRequest:
    defaults = {"rebalance_timeout_ms": 1000, "subscribed_topic_names": ["t"], "topic_partitions": []}
    return ConsumerGroupHeartbeatRequest(group_id="g", member_id=member_id, **{**defaults, **fields})


def test_heartbeats_respond_when_what_they_have_seen_is_committed(broker: Harness) -> None:
    """The second member sees the first one at once, and so does a heartbeat that changes nothing."""
    broker.log.held = True
    tasks = [broker.start(join("a"), 1), broker.start(join("b"), 1)]
    tasks.append(broker.start(ConsumerGroupHeartbeatRequest(group_id="g", member_id="b", member_epoch=3), 1))
    tasks.append(broker.start(ConsumerGroupDescribeRequest(group_ids=["g"]), 1))
    tasks.append(broker.start(ListGroupsRequest(), 5))
    refused = broker.start(ConsumerGroupHeartbeatRequest(group_id="g", member_id="b", member_epoch=9), 1)
    assert set(consumer_group(broker).members) == {"a", "b"}
    assert not any(task.done() for task in [*tasks, refused])
    broker.log.commit()
    broker.loop.run_ready()
    assert [task.result().member_epoch for task in tasks[:3]] == [2, 3, 3]
    assert [member.member_id for member in tasks[3].result().groups[0].members] == ["a", "b"]
    assert refused.result().error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_a_thousand_members_that_join_need_few_appends(make: Make) -> None:
    broker = make(group_consumer_assignment_interval_ms=1000)
    broker.create_topic("t", 100)
    tasks = [broker.loop.create_task(broker.serve(join(f"m{number}"), 1)) for number in range(1000)]
    broker.loop.run_ready()
    assert all(task.done() for task in tasks)
    assert len(consumer_group(broker).members) == 1000
    assert sum(map(len, broker.log.batches.values())) < 20
    # The target of all of them is computed at once, after the interval.
    broker.loop.pass_ms(1000)
    assert consumer_group(broker).assignment_epoch == 2
    broker.run(broker.serve(ConsumerGroupHeartbeatRequest(group_id="g", member_id="m7", member_epoch=2), 1))
    assert consumer_group(broker).assignment_epoch == consumer_group(broker).group_epoch == 1001


def test_an_append_that_fails_leaves_nothing(broker: Harness) -> None:
    broker.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    task = broker.start(join("a"), 1)
    broker.loop.pass_ms(10)
    assert task.result().error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.log.append_error = None
    broker.loop.pass_ms(10_000)
    assert "g" not in broker.shard().groups
    assert broker.call(join("a"), 1).error_code == ErrorCode.NONE


def test_sessions_and_revocations_continue_at_the_next_coordinator(broker: Harness) -> None:
    first, second = ModelMember("a", {"t"}), ModelMember("b", {"t"})
    settle(broker, [first])
    second.heartbeat(broker)
    first.heartbeat(broker)
    fail_over(broker)
    assert consumer_group(broker).members["a"].state is MemberState.UNREVOKED_PARTITIONS
    # It sends heartbeats, but keeps its partitions: it is removed after its rebalance timeout.
    first.is_stubborn, first.owned = True, {*first.owned, *((topic, 2) for topic, _ in first.owned)}
    for _ in range(25):
        first.sends_all = True
        first.heartbeat(broker)
        second.heartbeat(broker)
        broker.loop.pass_ms(100)
        if "a" not in consumer_group(broker).members:
            break
    assert set(consumer_group(broker).members) == {"b"}
    # The other one fails, and is removed after its session timeout.
    fail_over(broker)
    broker.loop.pass_ms(2_900)
    assert set(consumer_group(broker).members) == {"b"}
    broker.loop.pass_ms(200)
    assert consumer_group(broker).state_name == "Empty"
    assert len(consumer_group(broker).deadlines) == 0


def test_the_last_record_decides_who_owns_a_partition(broker: Harness) -> None:
    """Compaction may leave an older record of the former owner, and remove the one with which it gave it up."""
    topic = b"t" * 16

    def record(member_id: str, epoch: int, *partitions: int) -> Any:
        assigned = {topic: dict.fromkeys(partitions, epoch)} if partitions else {}
        return ConsumerGroupMember(member_id=member_id, epoch=epoch, assigned=assigned).current_assignment_record("g")

    kind = broker.shard().kind(ConsumerGroups)
    for each in (record("a", 2, 0, 1), record("b", 4, 1), record("a", 5, 0)):
        kind.replay(each)
    assert consumer_group(broker).owners == {topic: {0: "a", 1: "b"}}


def test_members_follow_their_topics(broker: Harness) -> None:
    """A topic that is created, that is deleted, and one of the same name that is another one."""
    member = ModelMember("a", {"t", "later"})
    settle(broker, [member])
    assert len(member.owned) == 3
    for change, expected in (
        (lambda: broker.create_topic("later", 2), 5),
        (lambda: broker.run(broker.delete_topic("t")), 2),
        (lambda: broker.create_topic("t", 1), 3),
    ):
        change()
        settle(broker, [member], rounds=3)
        assert len(member.owned) == expected
    assert {topic_id for topic_id, _ in member.owned} == {
        broker.metadata.topics[name].topic_id for name in ("t", "later")
    }


def test_a_regular_expression_follows_new_topics(broker: Harness) -> None:
    member = ModelMember("a", set(), regex="t.*")
    settle(broker, [member])
    assert len(member.owned) == 3
    broker.create_topic("t2", 1)
    # The expression is resolved again at most every ten seconds.
    settle(broker, [member], rounds=3)
    assert len(member.owned) == 3
    for _ in range(12):
        member.heartbeat(broker)
        broker.loop.pass_ms(1000)
    settle(broker, [member], rounds=3)
    assert len(member.owned) == 4
    fail_over(broker)
    assert consumer_group(broker).regexes.resolved["t.*"].topics == {"t", "t2"}


@pytest.mark.parametrize("kept", ["offsets", "nothing"])
def test_an_empty_group_of_the_classic_protocol_becomes_a_consumer_group(broker: Harness, kept: str) -> None:
    broker.join_group()
    broker.loop.pass_ms(10_000)
    if kept == "offsets":
        from kbroker.coordinator.group.records import OffsetAndMetadata

        broker.commit_offset("t", 0, OffsetAndMetadata(5))
    assert broker.call(join("a"), 1).error_code == ErrorCode.NONE
    fail_over(broker)
    assert set(consumer_group(broker).members) == {"a"}
    assert bool(broker.committed_offsets()) == (kept == "offsets")


def test_a_consumer_group_is_not_a_classic_one(broker: Harness) -> None:
    broker.call(join("a"), 1)
    [described] = broker.call(DescribeGroupsRequest(groups=["g"]), 6).groups
    assert (described.error_code, described.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Group g is not a classic group.",
    )
    heartbeat = HeartbeatRequest(group_id="g", generation_id=2, member_id="a")
    assert broker.call(heartbeat, 4).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    [deleted] = broker.call(DeleteGroupsRequest(groups_names=["g"]), 2).results
    assert deleted.error_code == ErrorCode.NON_EMPTY_GROUP


def test_an_empty_consumer_group_becomes_a_classic_one(broker: Harness) -> None:
    broker.call(join("a"), 1)
    broker.call(ConsumerGroupHeartbeatRequest(group_id="g", member_id="a", member_epoch=-1), 1)
    protocols = [JoinGroupRequestProtocol(name="range")]
    request = JoinGroupRequest(group_id="g", session_timeout_ms=5000, protocol_type="consumer", protocols=protocols)
    task = broker.start(request, 0)
    broker.loop.pass_ms(10)
    assert task.result().generation_id == 1
    fail_over(broker)
    assert broker.shard().groups["g"].type_name == "classic"


def test_without_the_feature_there_are_no_consumer_groups(broker: Harness) -> None:
    broker.metadata.features = FinalizedFeatures(1, {GROUP_VERSION: 0})
    assert broker.call(join("a"), 1).error_code == ErrorCode.UNSUPPORTED_VERSION
    [described] = broker.call(ConsumerGroupDescribeRequest(group_ids=["g"]), 1).groups
    assert described.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_offsets_of_an_empty_group_expire_with_the_group(make: Make) -> None:
    broker = make(offsets_retention_minutes=1)
    broker.create_topic("t", 3)
    member = ModelMember("a", {"t"})
    settle(broker, [member])
    partition = sorted(member.owned)[0]
    assert member.commit(broker, partition, member.epoch) is ErrorCode.NONE
    for _ in range(40):
        broker.loop.pass_ms(2_000)
        member.heartbeat(broker)
    broker.run(broker.groups._expire_offsets())
    broker.loop.run_ready()
    assert broker.committed_offsets(), "the member subscribes to the topic"
    member.leave(broker)
    broker.run(broker.groups._expire_offsets())
    broker.loop.run_ready()
    assert "g" not in broker.shard().groups
    with pytest.raises(KafkaError):
        broker.shard().kind(ConsumerGroups).existing_group("g")
