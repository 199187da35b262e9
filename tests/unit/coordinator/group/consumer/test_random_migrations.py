"""Random stories of one group whose members change their protocol while they consume, each from a seed.

Members of the classic and of the consumer protocol join, leave, fail and restart with the other protocol; static ones
keep their instance id. Commits take time, and the coordinator fails. No partition is read by two members, whatever kind
the group is of; one that is left alone assigns each partition; its offsets stay; and a broker that loads the log has
the same group.
"""

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.group.consumer.consumer_group import ConsumerGroup
from kbroker.coordinator.group.records import OffsetAndMetadata
from tests.sampling import third_of
from tests.unit.support.classic_members import SESSION_MS, ClassicModelMember
from tests.unit.support.consumer_members import ModelMember, Partition
from tests.unit.support.group_coordinator import NODE, Harness

STEPS = 150
TOPICS = {"t": 6, "u": 3}
Member = ModelMember | ClassicModelMember


class Story:
    def __init__(self, seed: int) -> None:
        self.random = Random(f"migration {seed}")
        self.broker = Harness(group_consumer_session_timeout_ms=SESSION_MS)
        self.topic_ids = {name: self.broker.create_topic(name, count) for name, count in TOPICS.items()}
        self.members: list[Member] = []
        self.count = 0
        self.kinds: list[str] = []
        # The heartbeats of members of the consumer protocol that wait for a commit.
        self.waiting: dict[str, asyncio.Task[Any]] = {}
        self.broker.commit_offset("t", 0, OffsetAndMetadata(17, -1, "", 0))

    def new_member(self, instance_id: str | None) -> Member:
        topics = set(self.random.choice((["t"], ["t", "u"], ["t", "u"])))
        if self.random.random() < 0.5:
            return ClassicModelMember(topics, instance_id)
        self.count += 1
        return ModelMember(f"m{self.count}", topics, instance_id=instance_id)

    # Steps.

    def step(self) -> None:
        steps = {self.act: 30, self.join: 4, self.leave: 2, self.fail: 1, self.restart: 3, self.pass_time: 5}
        steps |= {self.fail_over: 1, self.hold_commits: 2, self.commit: 4}
        [step] = self.random.choices(list(steps), list(steps.values()))
        step()
        self.broker.loop.run_ready()
        self.check()

    def act(self) -> None:
        if self.members:
            self.let_act(self.random.choice(self.members))

    def let_act(self, member: Member) -> None:
        if isinstance(member, ClassicModelMember):
            member.step(self.broker)
            return
        task = self.waiting.pop(member.member_id, None) or self.broker.start(member.request(), 1)
        if task.done():
            answered: Any = SimpleNamespace(call=lambda *_: task.result(), shard=self.broker.shard)
            member.heartbeat(answered)
        else:
            self.waiting[member.member_id] = task

    def hold_commits(self) -> None:
        self.broker.log.held = True

    def commit(self) -> None:
        self.broker.log.held = False
        self.broker.log.commit()
        self.broker.loop.run_ready()

    def join(self) -> None:
        if len(self.members) < 5:
            self.count += 1
            self.members.append(self.new_member(f"i{self.count}" if self.random.random() < 0.4 else None))

    def leave(self) -> None:
        self.commit()
        if self.members:
            self.members.pop(self.random.randrange(len(self.members))).leave(self.broker)

    def fail(self) -> None:
        if self.members:
            del self.members[self.random.randrange(len(self.members))]

    def restart(self) -> None:
        """A member returns with any of the protocols. A static one of the consumer protocol leaves for a moment."""
        self.commit()
        if not self.members:
            return
        index = self.random.randrange(len(self.members))
        member = self.members[index]
        if isinstance(member, ModelMember) and member.instance_id is not None:
            member.leave(self.broker, for_a_moment=True)
        elif member.instance_id is None:
            member.leave(self.broker)
        self.members[index] = self.new_member(member.instance_id)

    def pass_time(self) -> None:
        self.broker.loop.pass_ms(self.random.choice((50, 300, 900)))

    def fail_over(self) -> None:
        index = self.broker.groups.runtime.partition_for("g")
        self.broker.log.waiting.clear()
        self.broker.run(self.broker.elect(index, NODE + 1))
        self.broker.loop.run_ready()
        self.broker.run(self.broker.elect(index, NODE))
        self.broker.loop.run_ready()
        # The new coordinator serves requests when all that it has loaded is committed.
        self.commit()
        self.broker.loop.pass_ms(10)

    # What holds.

    def check(self) -> None:
        group = self.broker.shard().groups["g"]
        if self.kinds[-1:] != [group.type_name]:
            self.kinds.append(group.type_name)
        if isinstance(group, ConsumerGroup):
            classic = [member for member in group.members.values() if member.classic is not None]
            assert group.classic_member_count == len(classic)
            assert group.assignment_epoch <= group.group_epoch
        reading: dict[Partition, str] = {}
        for member in self.members:
            if self.is_current(group, member):
                for partition in member.owned:
                    assert partition not in reading, f"{partition}: {member.member_id} and {reading[partition]}"
                    reading[partition] = member.member_id

    def is_current(self, group: Any, member: Member) -> bool:
        """Return whether the coordinator accepts what the member does: others have lost their partitions."""
        known = group.members.get(member.member_id)
        if known is None:
            return False
        if isinstance(group, ClassicGroup):
            return isinstance(member, ClassicModelMember) and member.generation == group.generation
        epoch = member.generation if isinstance(member, ClassicModelMember) else member.epoch
        return epoch in (known.epoch, known.previous_epoch)

    def settle(self) -> None:
        """Let the members act until each has what it gets. Those that have failed are removed in this time."""
        self.commit()
        for _ in range(60):
            for member in self.members:
                self.let_act(member)
            self.broker.loop.pass_ms(150)
        self.check()

    def end(self) -> None:
        self.settle()
        assert self.broker.committed_offsets()["t"][0].offset == 17
        group = self.broker.shard().groups["g"]
        if not self.members:
            assert group.is_unused
            return
        is_consumer = any(isinstance(member, ModelMember) for member in self.members)
        assert isinstance(group, ConsumerGroup if is_consumer else ClassicGroup)
        assert group.state_name == "Stable"
        assert set(group.members) == {member.member_id for member in self.members}
        subscribed = {topic for member in self.members for topic in member.topics}
        owned = [partition for member in self.members for partition in member.owned]
        assert sorted(owned) == sorted((self.topic_ids[name], i) for name in subscribed for i in range(TOPICS[name]))
        self.fail_over()
        self.settle()
        assert sorted(owned) == sorted(partition for member in self.members for partition in member.owned)


def run(seed: int) -> list[str]:
    """Return the kinds that the group has been of."""
    story = Story(seed)
    try:
        for _ in range(STEPS):
            story.step()
        story.end()
        return story.kinds
    finally:
        story.broker.close()


@pytest.mark.parametrize("seed", third_of(range(60)))
def test_members_of_both_protocols_share_a_group(seed: int) -> None:
    run(seed)


def test_the_stories_convert_groups_both_ways() -> None:
    kinds = [run(seed) for seed in range(5)]
    assert sum(map(len, kinds)) >= 15
    assert all({"classic", "consumer"} <= set(of_story) for of_story in kinds)
