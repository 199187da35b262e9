"""Random stories of one streams group, each from a seed.

Members of several processes join, leave, fail, return, lose responses and commit; topics grow and are deleted; the
coordinator fails. An active task never has two owners, and a process never has a task twice; epochs never fall, and a
group that is left alone reaches its target. A broker that loads the log has the same group, whatever compaction has
left of it.
"""

from random import Random
from typing import Any

import pytest

from kbroker.coordinator.group.group_shard import GroupShard
from kbroker.coordinator.group.streams.streams_group import StreamsGroup
from kbroker.coordinator.group.streams.tasks import TaskId
from protocol.errors import ErrorCode
from protocol.messages.k88_streams_groups import (
    HeartbeatSubtopology,
    HeartbeatTopology,
    StreamsGroupHeartbeatRequest,
    StreamsTaskIds,
    StreamsTopicInfo,
)
from tests.sampling import third_of
from tests.unit.coordinator.group.consumer.test_random_consumer_groups import compacted, records_of, replayed
from tests.unit.support.group_coordinator import NODE, Harness

STEPS = 120
SESSION_MS, REBALANCE_MS = 3_000, 2_000
ROLES = ("active", "standby")
REJOIN = {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND}
# The second subtopology has state, so that it has standby tasks.
TOPOLOGY = HeartbeatTopology(
    epoch=0,
    subtopologies=[
        HeartbeatSubtopology(subtopology_id="0", source_topics=["t"]),
        HeartbeatSubtopology(
            subtopology_id="1", source_topics=["u"], state_changelog_topics=[StreamsTopicInfo(name="changelog")]
        ),
    ],
)
Owned = dict[str, set[TaskId]]


class Member:
    """A member as Kafka Streams keeps it: `owned` are the tasks that it has, by role. A stubborn one keeps them all."""

    def __init__(self, member_id: str, process_id: str, instance_id: str | None) -> None:
        self.member_id, self.process_id, self.instance_id = member_id, process_id, instance_id
        self.is_stubborn = False
        self.rejoin()

    def rejoin(self) -> None:
        self.epoch, self.owned, self.sends_all = 0, {role: set[TaskId]() for role in ROLES}, True

    def request(self) -> StreamsGroupHeartbeatRequest:
        request = StreamsGroupHeartbeatRequest(
            group_id="g", member_id=self.member_id, member_epoch=self.epoch, instance_id=self.instance_id
        )
        if self.epoch == 0:
            request.topology, request.process_id = TOPOLOGY, self.process_id
        if self.epoch == 0 or self.sends_all:
            request.rebalance_timeout_ms = REBALANCE_MS
            request.active_tasks, request.standby_tasks = (
                _structs(self.owned["active"]),
                _structs(self.owned["standby"]),
            )
            request.warmup_tasks = []
        return request

    def heartbeat(self, broker: Harness, *, is_lost: bool = False) -> ErrorCode:
        response: Any = broker.call(self.request(), 1)
        error = ErrorCode(response.error_code)
        assert self.epoch > 0 or error is not ErrorCode.FENCED_MEMBER_EPOCH
        self.sends_all = is_lost
        if is_lost:
            return error
        if error is ErrorCode.NONE:
            self.epoch = response.member_epoch
            if response.active_tasks is not None:
                self._follow({"active": response.active_tasks, "standby": response.standby_tasks})
        elif error in REJOIN:
            self.rejoin()
        else:
            assert error is ErrorCode.UNRELEASED_INSTANCE_ID, error
        return error

    def _follow(self, assigned: dict[str, list[StreamsTaskIds]]) -> None:
        tasks = {
            role: {TaskId(row.subtopology_id, p) for row in rows for p in row.partitions}
            for role, rows in assigned.items()
        }
        self.sends_all = tasks != self.owned
        self.owned = {role: self.owned[role] | tasks[role] for role in ROLES} if self.is_stubborn else tasks

    def leave(self, broker: Harness, epoch: int) -> None:
        request = StreamsGroupHeartbeatRequest(
            group_id="g", member_id=self.member_id, member_epoch=epoch, instance_id=self.instance_id
        )
        broker.call(request, 1)
        self.rejoin()


def _structs(tasks: set[TaskId]) -> list[StreamsTaskIds]:
    by_id: dict[str, list[int]] = {}
    for subtopology_id, partition in sorted(tasks):
        by_id.setdefault(subtopology_id, []).append(partition)
    return [StreamsTaskIds(subtopology_id=name, partitions=found) for name, found in by_id.items()]


class Story:
    def __init__(self, seed: int) -> None:
        self.random = Random(f"streams group {seed}")
        self.broker = Harness(
            group_streams_session_timeout_ms=SESSION_MS,
            group_streams_assignment_interval_ms=self.random.choice((0, 500)),
            group_streams_initial_rebalance_delay_ms=self.random.choice((0, 500)),
            group_streams_num_standby_replicas=self.random.choice((0, 1)),
        )
        self.members: list[Member] = []
        self.count = 0
        self.epochs = (0, 0)
        # Of the topic t.
        self.partition_count = 4
        for name, partitions in (("t", 4), ("u", 3), ("changelog", 3)):
            self.broker.create_topic(name, partitions)

    @property
    def group(self) -> StreamsGroup | None:
        return self.broker.shard().find(StreamsGroup, "g")

    # Steps.

    def step(self) -> None:
        steps = {
            self.join: 4,
            self.heartbeat: 30,
            self.lose_a_response: 5,
            self.leave: 2,
            self.fail: 1,
            self.be_stubborn: 1,
            self.change_topics: 1,
            self.pass_time: 6,
            self.fail_over: 1,
        }
        [step] = self.random.choices(list(steps), list(steps.values()))
        step()
        self.check()

    def join(self) -> None:
        if len(self.members) < 5:
            self.count += 1
            instance_id = f"i{self.count}" if self.random.random() < 0.3 else None
            process_id = f"p{self.random.randint(0, 3)}"
            self.members.append(Member(f"m{self.count}", process_id, instance_id))
            self.members[-1].heartbeat(self.broker)

    def some_member(self) -> Member | None:
        return self.random.choice(self.members) if self.members else None

    def heartbeat(self) -> None:
        if (member := self.some_member()) is not None:
            member.heartbeat(self.broker)

    def lose_a_response(self) -> None:
        if (member := self.some_member()) is not None:
            member.heartbeat(self.broker, is_lost=True)

    def leave(self) -> None:
        if (member := self.some_member()) is None:
            return
        if member.instance_id is not None and self.random.random() < 0.5:
            # Its successor has another id.
            member.leave(self.broker, -2)
            self.count += 1
            member.member_id = f"m{self.count}"
        else:
            member.leave(self.broker, -1)
            self.members.remove(member)

    def fail(self) -> None:
        if (member := self.some_member()) is not None:
            self.members.remove(member)

    def be_stubborn(self) -> None:
        if (member := self.some_member()) is not None:
            member.is_stubborn = True

    def change_topics(self) -> None:
        # Tasks that do not exist any more are refused: the topic is never created with fewer partitions.
        if "t" not in self.broker.metadata.topics:
            self.broker.create_topic("t", self.partition_count)
        elif self.random.random() < 0.5:
            self.broker.run(self.broker.delete_topic("t"))
        elif self.partition_count < 6:
            self.partition_count += 1
            self.broker.add_partitions("t", self.partition_count)
        self.broker.loop.run_ready()

    def pass_time(self) -> None:
        self.broker.loop.pass_ms(self.random.choice((50, 300, 1_500)))

    def fail_over(self) -> None:
        before = dump(self.broker.shard())
        index = self.broker.groups.runtime.partition_for("g")
        self.broker.run(self.broker.elect(index, NODE + 1))
        self.broker.run(self.broker.elect(index, NODE))
        self.broker.loop.pass_ms(10)
        assert dump(self.broker.shard()) == before

    # What holds.

    def check(self) -> None:
        group = self.group
        if group is None:
            self.epochs = (0, 0)
            return
        owners: dict[TaskId, str] = {}
        copies: dict[tuple[str, TaskId], str] = {}
        for member in group.members.values():
            for tasks in (member.assigned, member.pending_revocation):
                for task in tasks.active:
                    assert owners.setdefault(task, member.member_id) == member.member_id, task
                for task in (*tasks.active, *tasks.standby):
                    # A static member may return in another process, with the tasks of the one before.
                    if member.instance_id is None:
                        key = (member.process_id, task)
                        assert copies.setdefault(key, member.member_id) == member.member_id, key
        assert group._active == owners
        assert all(member.epoch <= group.assignment_epoch for member in group.members.values())
        epochs = (group.group_epoch, group.assignment_epoch)
        assert epochs[1] <= epochs[0]
        assert self.epochs[0] <= epochs[0]
        assert self.epochs[1] <= epochs[1]
        self.epochs = epochs
        assert group.members or epochs[0] == epochs[1]
        # Applications that follow the protocol never process a task at the same time.
        running: dict[TaskId, str] = {}
        for member in self.members:
            current = group.members.get(member.member_id)
            if current is None or member.is_stubborn or member.epoch not in (current.epoch, current.previous_epoch):
                continue
            for task in member.owned["active"]:
                assert running.setdefault(task, member.member_id) == member.member_id, task

    def end(self) -> None:
        """Leave the group alone, with members that do what they should: it reaches its target."""
        if "t" not in self.broker.metadata.topics:
            self.broker.create_topic("t", self.partition_count)
        for member in self.members:
            member.is_stubborn = False
        # Stubborn and failed members are removed in this time.
        for _ in range(SESSION_MS // 250 + 20):
            for member in self.random.sample(self.members, len(self.members)):
                member.heartbeat(self.broker)
            self.broker.loop.pass_ms(250)
        self.check()
        group = self.group
        if group is None or not self.members:
            return
        assert set(group.members) == {member.member_id for member in self.members}
        assert group.state_name == "Stable"
        topics = self.broker.metadata.topics
        expected = {TaskId(id, p) for id, name in (("0", "t"), ("1", "u")) for p in range(len(topics[name].partitions))}
        owned = [task for member in self.members for task in member.owned["active"]]
        assert sorted(owned) == sorted(expected)


def dump(shard: GroupShard) -> dict[str, Any]:
    """Return the durable state of the streams groups."""
    return {
        group.group_id: (
            group.group_epoch,
            group.metadata_hash,
            group.validated_topology_epoch,
            group.configs,
            group.assignment_epoch,
            group.assignment_timestamp_ms,
            group.members,
            group.target,
            group.static_members,
            group.topology,
            group.sources,
            group._active,
            group._copies,
        )
        for group in shard.groups.values()
        if isinstance(group, StreamsGroup)
    }


def run(seed: int) -> None:
    story = Story(seed)
    try:
        for _ in range(STEPS):
            story.step()
        story.end()
        records, expected = records_of(story.broker), dump(story.broker.shard())
        assert dump(replayed(story.broker, records)) == expected
        for _ in range(10):
            assert dump(replayed(story.broker, list(compacted(records, story.random)))) == expected
    finally:
        story.broker.close()


@pytest.mark.parametrize("seed", third_of(range(60)))
def test_a_streams_group_keeps_its_invariants(seed: int) -> None:
    run(seed)
