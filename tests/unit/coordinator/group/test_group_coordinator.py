"""Stories of groups over restarts, moving coordinators, slow commits, deletions and time."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.internal_log import GROUP_METADATA_TOPIC
from kbroker.coordinator.runtime.coordinator_runtime import java_hash
from protocol.errors import ErrorCode
from protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from protocol.messages.k09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from protocol.messages.k12_heartbeat import HeartbeatRequest
from protocol.messages.k13_leave_group import LeaveGroupRequest, MemberIdentity
from protocol.messages.k14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from protocol.messages.k15_describe_groups import DescribeGroupsRequest
from protocol.messages.k16_list_groups import ListGroupsRequest
from protocol.messages.k42_delete_groups import DeleteGroupsRequest
from tests.unit.support.group_coordinator import NODE, Harness
from tests.unit.support.internal_log import MemoryLog

Make = Callable[..., Harness]
DAY_MS = 24 * 3600 * 1000
SUBSCRIBED_TO_T = b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Harness] = []

    def build(*args: Any, **config: Any) -> Harness:
        made.append(Harness(*args, **config))
        return made[-1]

    yield build
    for harness in made:
        harness.close()


@pytest.fixture
def broker(make: Make) -> Harness:
    harness = make()
    harness.create_topic("t", 2)
    return harness


def join_request(member_id: str = "", *, session_ms: int = 10_000, instance: str | None = None) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=20_000,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=SUBSCRIBED_TO_T)],
    )


def sync_request(member_id: str, generation: int = 1, assignment: bytes = b"A") -> SyncGroupRequest:
    assignments = [SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)]
    return SyncGroupRequest(group_id="g", generation_id=generation, member_id=member_id, assignments=assignments)


def only_member(broker: Harness, *, session_ms: int = 10_000) -> str:
    """A group of one member in Stable."""
    member_id: str = broker.call(join_request(session_ms=session_ms), 9).member_id
    joined = broker.call(join_request(member_id, session_ms=session_ms), 9)
    assert broker.call(sync_request(member_id, joined.generation_id), 4).error_code == 0
    return member_id


def commit_request(offset: int, *, topic: str = "t", member_id: str = "", generation: int = -1) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="m")
    return OffsetCommitRequest(
        group_id="g",
        member_id=member_id,
        generation_id_or_member_epoch=generation,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])],
    )


def committed(response: Any) -> int:
    return int(response.topics[0].partitions[0].error_code)


def fetch_request(*, stable: bool = False) -> OffsetFetchRequest:
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)], require_stable=stable)


def offsets_in(response: Any) -> dict[str, list[int]]:
    return {topic.name: [one.committed_offset for one in topic.partitions] for topic in response.groups[0].topics}


def state(broker: Harness) -> str:
    described: str = broker.call(DescribeGroupsRequest(groups=["g"]), 5).groups[0].group_state
    return described


def heartbeat(broker: Harness, member_id: str, generation: int = 1) -> ErrorCode:
    request = HeartbeatRequest(group_id="g", generation_id=generation, member_id=member_id)
    return ErrorCode(broker.call(request, 4).error_code)


def partition_of(broker: Harness, group_id: str = "g") -> TopicPartition:
    return TopicPartition(GROUP_METADATA_TOPIC, broker.groups.runtime.partition_for(group_id))


# Where a group lives.


@pytest.mark.parametrize(
    ("group_id", "value"),
    [
        ("", 0),
        ("g", 103),
        ("console-consumer-12345", 158455506),
        ("polygenelubricants", 0),
        ("grüße", 98768023),
        ("𝄞", 1772394),
    ],
)
def test_a_groups_partition_is_the_one_that_java_computes(group_id: str, value: int) -> None:
    assert java_hash(group_id) == value


# Restarts.


def test_a_restart_keeps_members_generation_assignment_and_offsets(broker: Harness, make: Make) -> None:
    member_id = only_member(broker)
    assert committed(broker.call(commit_request(42, member_id=member_id, generation=1), 9)) == 0
    again = make(broker.log)
    again.create_topic("t", 2)
    assert state(again) == "Stable"
    assert heartbeat(again, member_id) is ErrorCode.NONE
    assert again.call(sync_request(member_id), 4).assignment == b"A"
    assert offsets_in(again.call(fetch_request(), 9)) == {"t": [42]}
    # The member lives on: its next commit and its leaving are as if nothing had been.
    assert committed(again.call(commit_request(43, member_id=member_id, generation=1), 9)) == 0
    leave = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=member_id)])
    assert again.call(leave, 3).members[0].error_code == 0
    assert state(again) == "Empty"


def test_after_a_restart_a_member_has_a_whole_session_to_come_back(broker: Harness, make: Make) -> None:
    only_member(broker, session_ms=5_000)
    again = make(broker.log)
    again.loop.pass_ms(4_900)
    assert state(again) == "Stable"
    again.loop.pass_ms(200)
    assert state(again) == "Empty"


def test_a_restarted_static_member_and_a_restarted_broker(broker: Harness, make: Make) -> None:
    first = broker.call(join_request(instance="i"), 9).member_id
    sync = sync_request(first)
    sync.group_instance_id = "i"
    broker.call(sync, 4)
    second = broker.call(join_request(instance="i"), 9)
    assert second.skip_assignment
    again = make(broker.log)
    assert heartbeat(again, second.member_id) is ErrorCode.NONE
    assert heartbeat(again, first) is ErrorCode.UNKNOWN_MEMBER_ID


def test_groups_are_deleted_for_good(broker: Harness, make: Make) -> None:
    broker.call(commit_request(5), 9)
    assert broker.call(DeleteGroupsRequest(groups_names=["g"]), 2).results[0].error_code == 0
    again = make(broker.log)
    assert again.call(ListGroupsRequest(), 5).groups == []
    assert again.shard().offsets.by_group == {}


def test_what_apache_kafka_wrote_is_loaded(make: Make) -> None:
    """Two partitions of a Kafka that had a transactional consumer (one commit aborted), and a KIP-848 group."""
    log = MemoryLog()
    for index, name in enumerate(("a", "b")):
        data = (Path(__file__).parents[1] / "data" / f"kafka-4.3.1-{name}.log").read_bytes()
        log.batches[TopicPartition(GROUP_METADATA_TOPIC, index)] = [bytearray(data)]
    broker = make(log, offsets_topic_num_partitions=2)
    groups = {group.group_id: group for group in broker.groups.list_groups()}
    assert {"txg"} <= set(groups) <= {"txg", "newg"}
    assert groups["txg"].generation >= 1
    assert broker.committed_offsets("txg")["t"][0].offset == 1


# Loading and moving.


def test_while_loading_clients_are_told_to_come_again(broker: Harness) -> None:
    member_id = only_member(broker)
    index = partition_of(broker).partition
    broker.run(broker.elect(index, NODE + 1))
    assert heartbeat(broker, member_id) is ErrorCode.NOT_COORDINATOR
    broker.run(broker.elect(index, NODE))
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    for request, version in ((join_request(member_id), 9), (sync_request(member_id), 4)):
        assert broker.run(broker.serve(request, version)).error_code == loading
        broker.run(broker.elect(index, NODE + 1))
        broker.run(broker.elect(index, NODE))
    # Nobody can know better while the group is loading, and a member must not give up for that.
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member_id)
    assert broker.run(broker.serve(beat, 4)).error_code == 0
    broker.loop.run_ready()
    assert heartbeat(broker, member_id) is ErrorCode.NONE


def test_losing_the_partition_answers_everybody_who_waits(broker: Harness) -> None:
    member_id = only_member(broker)
    other = broker.call(join_request(), 9).member_id
    waiting = broker.start(join_request(other), 9)
    broker.log.held = True
    commit = broker.start(commit_request(1, member_id=member_id, generation=1), 9)
    assert not waiting.done()
    assert not commit.done()
    broker.run(broker.elect(partition_of(broker).partition, NODE + 1))
    broker.loop.run_ready()
    assert waiting.result().error_code == ErrorCode.NOT_COORDINATOR
    assert committed(commit.result()) == ErrorCode.NOT_COORDINATOR
    assert broker.call(DescribeGroupsRequest(groups=["g"]), 6).groups[0].error_code == ErrorCode.NOT_COORDINATOR
    # Deadlines of groups that are gone mean nothing.
    broker.loop.pass_ms(60_000)


def test_a_partition_that_cannot_be_loaded_is_not_served(broker: Harness) -> None:
    index = partition_of(broker).partition
    broker.log.read_error = OSError("bad sector")
    broker.run(broker.elect(index, NODE + 1))
    broker.run(broker.elect(index, NODE))
    broker.loop.run_ready()
    assert heartbeat(broker, "m") is ErrorCode.NOT_COORDINATOR
    # The other partitions are served.
    assert broker.call(ListGroupsRequest(), 5).error_code == 0


# Slow commits: the high watermark lags behind.


def test_offset_commits_pipeline_and_answer_when_they_are_committed(broker: Harness) -> None:
    broker.log.held = True
    first, second = broker.start(commit_request(1), 9), broker.start(commit_request(2), 9)
    assert len(broker.log.waiting) == 2
    # Reads see what is committed, unless they ask to wait.
    assert offsets_in(broker.call(fetch_request(), 9)) == {}
    stable = broker.start(fetch_request(stable=True), 9)
    broker.log.commit(1)
    broker.loop.run_ready()
    assert (first.done(), second.done(), stable.done()) == (True, False, False)
    assert offsets_in(broker.call(fetch_request(), 9)) == {"t": [1]}
    broker.log.commit()
    broker.loop.run_ready()
    assert committed(second.result()) == 0
    assert offsets_in(stable.result()) == {"t": [2]}


def test_commits_of_one_turn_share_an_append(broker: Harness) -> None:
    before = len(broker.log.batches.get(partition_of(broker), []))
    tasks = [broker.loop.create_task(broker.serve(commit_request(i), 9)) for i in range(50)]
    broker.loop.run_ready()
    assert all(task.done() for task in tasks)
    assert len(broker.log.batches[partition_of(broker)]) == before + 1
    assert offsets_in(broker.call(fetch_request(), 9)) == {"t": [49]}


def test_deleting_a_group_waits_for_commits_that_are_on_their_way(broker: Harness, make: Make) -> None:
    broker.call(commit_request(1), 9)
    broker.log.held = True
    commit = broker.start(commit_request(2, topic="t"), 9)
    delete = broker.start(DeleteGroupsRequest(groups_names=["g"]), 2)
    late = broker.start(commit_request(3), 9)
    assert len(broker.log.waiting) == 1
    for done in (commit, delete, late):
        assert not done.done()
        broker.log.commit()
        broker.loop.run_ready()
        assert done.done()
    # The late commit made the group anew; nothing of the old one is left.
    again = make(broker.log)
    assert offsets_in(again.call(fetch_request(), 9)) == {"t": [3]}


def test_a_sync_becomes_stable_when_it_is_committed(broker: Harness) -> None:
    member_id = broker.call(join_request(), 9).member_id
    broker.call(join_request(member_id), 9)
    broker.log.held = True
    sync = broker.start(sync_request(member_id), 4)
    assert state(broker) == "CompletingRebalance"
    assert heartbeat(broker, member_id) is ErrorCode.NONE
    # Whoever comes meanwhile waits for it to be settled.
    other = broker.start(join_request(), 9)
    assert not other.done()
    broker.log.commit()
    broker.loop.run_ready()
    assert sync.result().assignment == b"A"
    assert state(broker) == "Stable"
    assert other.result().error_code == ErrorCode.MEMBER_ID_REQUIRED


def test_an_assignment_that_cannot_be_written_makes_members_join_again(broker: Harness) -> None:
    member_id = broker.call(join_request(), 9).member_id
    broker.call(join_request(member_id), 9)
    broker.log.max_batch = 1000
    answer = broker.call(sync_request(member_id, assignment=bytes(2000)), 4)
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert state(broker) == "PreparingRebalance"
    assert heartbeat(broker, member_id) is ErrorCode.REBALANCE_IN_PROGRESS
    assert broker.call(join_request(member_id), 9).generation_id == 2
    assert broker.call(sync_request(member_id, 2), 4).assignment == b"A"


def test_a_static_replacement_that_cannot_be_written_leaves_the_old_member(broker: Harness) -> None:
    first = broker.call(join_request(instance="i"), 9).member_id
    sync = sync_request(first)
    sync.group_instance_id = "i"
    broker.call(sync, 4)
    broker.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    refused = broker.call(join_request(instance="i"), 9)
    assert (refused.error_code, refused.member_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, "")
    assert heartbeat(broker, first) is ErrorCode.NONE


def test_a_new_group_that_cannot_be_written_is_none(broker: Harness) -> None:
    broker.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    waiting = broker.call(join_request(), 3)
    assert waiting.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert broker.call(ListGroupsRequest(), 5).groups == []
    broker.loop.pass_ms(30_000)


def test_a_commit_larger_than_the_log_takes(broker: Harness) -> None:
    broker.log.max_batch = 60
    assert committed(broker.call(commit_request(1), 9)) == ErrorCode.INVALID_COMMIT_OFFSET_SIZE


def test_a_group_that_outgrew_the_limit_joins_again_after_a_restart(broker: Harness, make: Make) -> None:
    members = [only_member(broker)]
    members.append(broker.call(join_request(), 9).member_id)
    follower = broker.start(join_request(members[1]), 9)
    broker.call(join_request(members[0]), 9)
    assert follower.result().generation_id == 2
    broker.call(sync_request(members[0], 2), 4)
    again = make(broker.log, group_max_size=1)
    assert state(again) == "PreparingRebalance"
    first = again.start(join_request(members[1]), 9)
    assert again.call(join_request(members[0]), 9).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    again.loop.pass_ms(20_000)
    assert first.result().leader == members[1]


# Who waits twice, or no longer.


def test_a_join_that_is_repeated_on_a_new_connection_ends_the_old_one(broker: Harness) -> None:
    only_member(broker)
    other = broker.call(join_request(), 9).member_id
    old = broker.start(join_request(other), 9)
    new = broker.start(join_request(other), 9)
    assert old.result().error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert not new.done()


def test_a_closed_connection_does_not_hurt_the_others(broker: Harness) -> None:
    member_id = only_member(broker)
    other = broker.call(join_request(), 9).member_id
    gone = broker.start(join_request(other), 9)
    gone.cancel()
    broker.loop.run_ready()
    joined = broker.call(join_request(member_id), 9)
    assert len(joined.members) == 2
    broker.loop.pass_ms(10_100)
    assert heartbeat(broker, member_id, 2) is ErrorCode.UNKNOWN_MEMBER_ID


# Deleted topics, retention.


def test_a_deleted_topic_takes_its_offsets_along(broker: Harness, make: Make) -> None:
    broker.create_topic("u", 1)
    broker.call(commit_request(5), 9)
    broker.call(commit_request(6, topic="u"), 9)
    broker.run(broker.delete_topic("t"))
    broker.loop.run_ready()
    assert offsets_in(broker.call(fetch_request(), 9)) == {"u": [6]}
    assert offsets_in(make(broker.log).call(fetch_request(), 9)) == {"u": [6]}


def test_a_topic_deleted_while_the_group_is_loading(broker: Harness) -> None:
    broker.call(commit_request(5), 9)
    index = partition_of(broker).partition
    broker.run(broker.elect(index, NODE + 1))
    broker.run(broker.elect(index, NODE))
    broker.run(broker.delete_topic("t"))
    broker.loop.run_ready()
    assert offsets_in(broker.call(fetch_request(), 9)) == {}


def test_offsets_of_an_empty_group_go_after_the_retention_and_the_group_with_them(broker: Harness, make: Make) -> None:
    member_id = only_member(broker, session_ms=60_000)
    broker.call(commit_request(5, member_id=member_id, generation=1), 9)
    leave = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=member_id)])
    broker.loop.pass_ms(50_000)
    broker.call(leave, 3)
    broker.loop.pass_ms(7 * DAY_MS - 100_000)
    assert offsets_in(broker.call(fetch_request(), 9)) == {"t": [5]}
    broker.loop.pass_ms(1_000_000)
    assert broker.call(ListGroupsRequest(), 5).groups == []
    assert make(broker.log).call(ListGroupsRequest(), 5).groups == []


def test_a_group_that_is_alive_keeps_its_offsets(broker: Harness) -> None:
    member_id = only_member(broker, session_ms=60_000)
    broker.call(commit_request(5, member_id=member_id, generation=1), 9)
    for _ in range(20):
        broker.loop.pass_ms(50_000)
        assert heartbeat(broker, member_id) is ErrorCode.NONE
    broker.environment.clock.skew_ms = 30 * DAY_MS  # type: ignore[attr-defined]
    for _ in range(20):
        broker.loop.pass_ms(50_000)
        assert heartbeat(broker, member_id) is ErrorCode.NONE
    assert offsets_in(broker.call(fetch_request(), 9)) == {"t": [5]}


def test_a_group_that_nobody_joined_does_not_stay(broker: Harness) -> None:
    broker.call(join_request(), 9)
    broker.loop.pass_ms(700_000)
    assert broker.call(ListGroupsRequest(), 5).groups == []


# Cost.


def test_a_heartbeat_costs_the_same_among_many_idle_groups(broker: Harness) -> None:
    member_id = only_member(broker, session_ms=60_000)
    shard = broker.shard()
    for i in range(2_000):
        shard.groups[f"idle-{i}"] = ClassicGroup(f"idle-{i}")
    assert heartbeat(broker, member_id) is ErrorCode.NONE
    assert shard._timer.keys() == ["g"]


def test_operations_on_a_group_of_another_broker_are_refused(make: Make) -> None:
    broker = make(with_topic=False)
    with pytest.raises(KafkaError) as refused:
        broker.run(broker.groups.delete_group("g"))
    assert refused.value.code is ErrorCode.NOT_COORDINATOR
