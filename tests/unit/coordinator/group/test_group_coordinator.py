"""Groups through restarts, elections, a high watermark that lags behind, deletions and expiration."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.group.group_shard import GroupShard
from kbroker.metadata.topics.topic_names import GROUP_METADATA_TOPIC
from kbroker.runtime.turns import TURN_ELEMENTS
from protocol.errors import ErrorCode
from protocol.messages.k08_offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from protocol.messages.k09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from protocol.messages.k11_classic_groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from protocol.messages.k15_groups import DescribeGroupsRequest, ListGroupsRequest
from protocol.messages.k42_delete_groups import DeleteGroupsRequest
from tests.unit.support.calls_per_step import calls_per_step
from tests.unit.support.group_coordinator import NODE, Harness
from tests.unit.support.internal_log import MemoryLog

Make = Callable[..., Harness]
DAY_MS = 24 * 3600 * 1000
SUBSCRIBED_TO_T = b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"


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


def stable_group(broker: Harness, *, session_ms: int = 10_000) -> str:
    """Create a group of one member in state Stable, and return the member id."""
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


def commit_error(response: Any) -> int:
    return int(response.topics[0].partitions[0].error_code)


def fetch_request(*, stable: bool = False) -> OffsetFetchRequest:
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)], require_stable=stable)


def offsets_in(response: Any) -> dict[str, list[int]]:
    return {
        topic.name: [partition.committed_offset for partition in topic.partitions]
        for topic in response.groups[0].topics
    }


def state(broker: Harness) -> str:
    described: str = broker.call(DescribeGroupsRequest(groups=["g"]), 5).groups[0].group_state
    return described


def heartbeat(broker: Harness, member_id: str, generation: int = 1) -> ErrorCode:
    request = HeartbeatRequest(group_id="g", generation_id=generation, member_id=member_id)
    return ErrorCode(broker.call(request, 4).error_code)


def partition_of(broker: Harness, group_id: str = "g") -> TopicPartition:
    return TopicPartition(GROUP_METADATA_TOPIC, broker.groups.runtime.partition_for(group_id))


# Restarts.


def test_after_a_restart_a_member_has_its_session_timeout_to_come_back(broker: Harness, make: Make) -> None:
    stable_group(broker, session_ms=5_000)
    successor = make(broker.log)
    successor.loop.pass_ms(4_900)
    assert state(successor) == "Stable"
    successor.loop.pass_ms(200)
    assert state(successor) == "Empty"


def test_a_restarted_static_member_and_a_restarted_broker(broker: Harness, make: Make) -> None:
    first = broker.call(join_request(instance="i"), 9).member_id
    sync = sync_request(first)
    sync.group_instance_id = "i"
    broker.call(sync, 4)
    second = broker.call(join_request(instance="i"), 9)
    assert second.skip_assignment
    successor = make(broker.log)
    assert heartbeat(successor, second.member_id) is ErrorCode.NONE
    assert heartbeat(successor, first) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_deleted_group_does_not_come_back_after_a_restart(broker: Harness, make: Make) -> None:
    broker.call(commit_request(5), 9)
    assert broker.call(DeleteGroupsRequest(groups_names=["g"]), 2).results[0].error_code == 0
    successor = make(broker.log)
    assert successor.call(ListGroupsRequest(), 5).groups == []
    assert successor.shard().offsets.by_group == {}


def test_a_log_of_apache_kafka_is_loaded(make: Make) -> None:
    """Two partitions with a transactional consumer, one of whose commits was aborted, and a KIP-848 group."""
    log = MemoryLog()
    for index, name in enumerate(("a", "b")):
        data = (Path(__file__).parents[1] / "data" / f"kafka-4.3.1-{name}.log").read_bytes()
        log.batches[TopicPartition(GROUP_METADATA_TOPIC, index)] = [bytearray(data)]
    broker = make(log, offsets_topic_num_partitions=2)
    groups = {id: group for shard in broker.groups.runtime.loaded_shards() for id, group in shard.groups.items()}
    assert {"txg"} <= set(groups) <= {"txg", "newg"}
    assert groups["txg"].generation >= 1
    assert broker.committed_offsets("txg")["t"][0].offset == 1


# Elections.


def test_while_a_partition_is_loading_requests_get_an_error_to_retry(broker: Harness) -> None:
    member_id = stable_group(broker)
    index = partition_of(broker).partition
    broker.run(broker.elect(index, NODE + 1))
    assert heartbeat(broker, member_id) is ErrorCode.NOT_COORDINATOR
    broker.run(broker.elect(index, NODE))
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    for request, version in ((join_request(member_id), 9), (sync_request(member_id), 4)):
        assert broker.run(broker.serve(request, version)).error_code == loading
        broker.run(broker.elect(index, NODE + 1))
        broker.run(broker.elect(index, NODE))
    # A member must not give up because its group is loading.
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member_id)
    assert broker.run(broker.serve(beat, 4)).error_code == 0
    broker.loop.run_ready()
    assert heartbeat(broker, member_id) is ErrorCode.NONE


def test_a_partition_that_cannot_be_loaded_has_no_coordinator(broker: Harness) -> None:
    index = partition_of(broker).partition
    broker.log.read_error = OSError("bad sector")
    broker.run(broker.elect(index, NODE + 1))
    broker.run(broker.elect(index, NODE))
    broker.loop.run_ready()
    assert heartbeat(broker, "m") is ErrorCode.NOT_COORDINATOR
    # The other partitions have one.
    assert broker.call(ListGroupsRequest(), 5).error_code == 0


# The high watermark lags behind.


def test_offset_commits_are_pipelined_and_succeed_when_they_are_committed(broker: Harness) -> None:
    broker.log.held = True
    first, second = broker.start(commit_request(1), 9), broker.start(commit_request(2), 9)
    assert len(broker.log.waiting) == 2
    # Fetches see what is committed; stable fetches wait for commits in flight.
    assert offsets_in(broker.call(fetch_request(), 9)) == {}
    stable = broker.start(fetch_request(stable=True), 9)
    broker.log.commit(1)
    broker.loop.run_ready()
    assert (first.done(), second.done(), stable.done()) == (True, False, False)
    assert offsets_in(broker.call(fetch_request(), 9)) == {"t": [1]}
    broker.log.commit()
    broker.loop.run_ready()
    assert commit_error(second.result()) == 0
    assert offsets_in(stable.result()) == {"t": [2]}


def test_deleting_a_group_waits_for_commits_in_flight(broker: Harness, make: Make) -> None:
    broker.call(commit_request(1), 9)
    broker.log.held = True
    commit = broker.start(commit_request(2, topic="t"), 9)
    delete = broker.start(DeleteGroupsRequest(groups_names=["g"]), 2)
    late = broker.start(commit_request(3), 9)
    assert len(broker.log.waiting) == 1
    for task in (commit, delete, late):
        assert not task.done()
        broker.log.commit()
        broker.loop.run_ready()
        assert task.done()
    # The late commit created another group; nothing of the deleted one is left.
    successor = make(broker.log)
    assert offsets_in(successor.call(fetch_request(), 9)) == {"t": [3]}


def test_a_group_becomes_stable_when_the_assignment_is_committed(broker: Harness) -> None:
    member_id = broker.call(join_request(), 9).member_id
    broker.call(join_request(member_id), 9)
    broker.log.held = True
    sync = broker.start(sync_request(member_id), 4)
    assert state(broker) == "CompletingRebalance"
    assert heartbeat(broker, member_id) is ErrorCode.NONE
    # Another request for the group waits meanwhile.
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
    response = broker.call(sync_request(member_id, assignment=bytes(2000)), 4)
    assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert state(broker) == "PreparingRebalance"
    assert heartbeat(broker, member_id) is ErrorCode.REBALANCE_IN_PROGRESS
    assert broker.call(join_request(member_id), 9).generation_id == 2
    assert broker.call(sync_request(member_id, 2), 4).assignment == b"A"


def test_a_static_member_is_not_replaced_if_that_cannot_be_written(broker: Harness) -> None:
    first = broker.call(join_request(instance="i"), 9).member_id
    sync = sync_request(first)
    sync.group_instance_id = "i"
    broker.call(sync, 4)
    broker.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    response = broker.call(join_request(instance="i"), 9)
    assert (response.error_code, response.member_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, "")
    assert heartbeat(broker, first) is ErrorCode.NONE


def test_a_new_group_that_cannot_be_written_does_not_exist(broker: Harness) -> None:
    broker.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    waiting = broker.call(join_request(), 3)
    assert waiting.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert broker.call(ListGroupsRequest(), 5).groups == []
    broker.loop.pass_ms(30_000)


def test_a_commit_that_does_not_fit_into_a_batch(broker: Harness) -> None:
    broker.log.max_batch = 60
    assert commit_error(broker.call(commit_request(1), 9)) == ErrorCode.INVALID_COMMIT_OFFSET_SIZE


def test_a_group_above_a_lowered_size_limit_rebalances_after_a_restart(broker: Harness, make: Make) -> None:
    members = [stable_group(broker)]
    members.append(broker.call(join_request(), 9).member_id)
    follower = broker.start(join_request(members[1]), 9)
    broker.call(join_request(members[0]), 9)
    assert follower.result().generation_id == 2
    broker.call(sync_request(members[0], 2), 4)
    successor = make(broker.log, group_max_size=1)
    assert state(successor) == "PreparingRebalance"
    first = successor.start(join_request(members[1]), 9)
    assert successor.call(join_request(members[0]), 9).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    successor.loop.pass_ms(20_000)
    assert first.result().leader == members[1]


# Repeated and cancelled requests.


def test_a_repeated_join_ends_the_waiting_one(broker: Harness) -> None:
    stable_group(broker)
    other = broker.call(join_request(), 9).member_id
    old = broker.start(join_request(other), 9)
    new = broker.start(join_request(other), 9)
    assert old.result().error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert not new.done()


def test_a_cancelled_request_does_not_disturb_the_other_members(broker: Harness) -> None:
    member_id = stable_group(broker)
    other = broker.call(join_request(), 9).member_id
    cancelled = broker.start(join_request(other), 9)
    cancelled.cancel()
    broker.loop.run_ready()
    joined = broker.call(join_request(member_id), 9)
    assert len(joined.members) == 2
    broker.loop.pass_ms(10_100)
    assert heartbeat(broker, member_id, 2) is ErrorCode.UNKNOWN_MEMBER_ID


# Deleted topics and expiration.


def test_the_offsets_of_a_deleted_topic_are_deleted(broker: Harness, make: Make) -> None:
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


def test_the_offsets_of_an_empty_group_expire_and_the_group_with_them(make: Make) -> None:
    broker = make(offsets_retention_minutes=60)
    broker.create_topic("t", 1)
    member_id = stable_group(broker, session_ms=60_000)
    broker.call(commit_request(5, member_id=member_id, generation=1), 9)
    leave = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=member_id)])
    broker.loop.pass_ms(50_000)
    broker.call(leave, 3)
    broker.loop.pass_ms(3_600_000 - 100_000)
    assert offsets_in(broker.call(fetch_request(), 9)) == {"t": [5]}
    broker.loop.pass_ms(1_000_000)
    assert broker.call(ListGroupsRequest(), 5).groups == []
    assert make(broker.log).call(ListGroupsRequest(), 5).groups == []


def test_the_offsets_of_many_groups_expire_in_steps(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = make(offsets_topic_num_partitions=1)
    broker.create_topic("t", 2)
    for number in range(300):
        request = commit_request(5)
        request.group_id = f"g{number}"
        broker.call(request, 9)
    calls = calls_per_step(monkeypatch, GroupShard, "expire_offsets")
    broker.run(broker.environment.turns.run(broker.groups._expire_offsets()))
    assert (sum(calls.values()), max(calls.values())) == (300, TURN_ELEMENTS)


def test_a_group_with_members_keeps_its_offsets(broker: Harness) -> None:
    member_id = stable_group(broker, session_ms=60_000)
    broker.call(commit_request(5, member_id=member_id, generation=1), 9)
    for _ in range(20):
        broker.loop.pass_ms(50_000)
        assert heartbeat(broker, member_id) is ErrorCode.NONE
    broker.environment.clock.skew_ms = 30 * DAY_MS  # type: ignore[attr-defined]
    for _ in range(20):
        broker.loop.pass_ms(50_000)
        assert heartbeat(broker, member_id) is ErrorCode.NONE
    assert offsets_in(broker.call(fetch_request(), 9)) == {"t": [5]}


def test_a_group_that_no_member_joined_is_removed(broker: Harness) -> None:
    broker.call(join_request(), 9)
    broker.loop.pass_ms(700_000)
    assert broker.call(ListGroupsRequest(), 5).groups == []


# Cost.


def test_a_heartbeat_costs_the_same_among_many_idle_groups(broker: Harness) -> None:
    member_id = stable_group(broker, session_ms=60_000)
    shard = broker.shard()
    for i in range(2_000):
        shard.groups[f"idle-{i}"] = ClassicGroup(f"idle-{i}")
    assert heartbeat(broker, member_id) is ErrorCode.NONE
    assert shard._timer.keys() == ["g"]


def test_operations_on_a_group_of_another_broker_are_rejected(make: Make) -> None:
    broker = make(with_topic=False)
    with pytest.raises(KafkaError) as error_info:
        broker.run(broker.groups.delete_group("g"))
    assert error_info.value.code is ErrorCode.NOT_COORDINATOR
