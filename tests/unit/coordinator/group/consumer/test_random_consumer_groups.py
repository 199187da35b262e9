"""Random stories of one consumer group, each from a seed.

Members join, leave, fail, return, lose responses, change what they subscribe to and commit; topics are created, grow
and are deleted; the coordinator fails. A partition never has two owners, epochs never fall, and a group that is left
alone reaches its target. A broker that loads the log has the same groups, whatever compaction has left of it.
"""

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from kbroker.common import TopicPartition
from kbroker.coordinator.group.consumer.consumer_group import ConsumerGroup
from kbroker.coordinator.group.consumer.consumer_group_member import MemberState
from kbroker.coordinator.group.group_shard import GroupShard
from kbroker.coordinator.group.kinds import GROUP_KINDS, RECORD_CODEC
from kbroker.metadata.image import MetadataDelta, PartitionChange, PartitionRegistration
from kbroker.metadata.topics.topic_names import GROUP_METADATA_TOPIC
from protocol.errors import ErrorCode
from protocol.records.batch import body_of, iter_headers
from protocol.records.record import iter_records
from tests.sampling import third_of
from tests.unit.support.consumer_members import REBALANCE_MS, ModelMember, Partition, settle
from tests.unit.support.group_coordinator import NODE, Harness

STEPS = 120
SESSION_MS = 3_000
TOPICS = ("t", "u", "v")


class Story:
    """A coordinator, its members, and what must hold after each step."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"consumer group {seed}")
        self.broker = Harness(group_consumer_session_timeout_ms=SESSION_MS)
        self.members: list[ModelMember] = []
        self.count = 0
        self.epochs = (0, 0)
        # The latest requests.
        self.sent: list[Any] = []
        # Since when each member has had to revoke partitions.
        self.revoking_since_ms: dict[tuple[str, int], int] = {}
        self.broker.create_topic("t", 4)
        self.broker.create_topic("u", 3)

    @property
    def group(self) -> ConsumerGroup | None:
        return self.broker.shard().find(ConsumerGroup, "g")

    # Steps.

    def step(self) -> None:
        steps = {
            self.join: 4,
            self.heartbeat: 30,
            self.lose_a_response: 5,
            self.leave: 2,
            self.fail: 1,
            self.resend: 3,
            self.be_stubborn: 1,
            self.be_stubborn_across_a_failover: 0.5,
            self.subscribe: 2,
            self.commit: 6,
            self.change_topics: 2,
            self.recreate_a_topic: 1,
            self.pass_time: 6,
            self.fail_over: 1,
        }
        [step] = self.random.choices(list(steps), list(steps.values()))
        step()
        self.check()

    def join(self) -> None:
        if len(self.members) >= 5:
            return
        self.count += 1
        topics = set(self.random.sample(TOPICS, self.random.randint(1, 3)))
        instance_id = f"i{self.count}" if self.random.random() < 0.3 else None
        regex = self.random.choice(("", "", "[tu]"))
        self.members.append(ModelMember(f"m{self.count}", topics, regex=regex, instance_id=instance_id))
        before = 0 if self.group is None else self.group.group_epoch
        self.members[-1].heartbeat(self.broker)
        assert self.group is not None
        assert self.group.group_epoch > before

    def any_member(self) -> ModelMember | None:
        return self.random.choice(self.members) if self.members else None

    def heartbeat(self) -> None:
        member = self.any_member()
        if member is not None:
            self.sent = [*self.sent[-20:], member.request()]
            member.heartbeat(self.broker)

    def resend(self) -> None:
        """An old request of a member arrives again. If it is accepted, the member has nothing that others may get."""
        request = self.random.choice(self.sent) if self.sent else None
        member = next((member for member in self.members if request and member.member_id == request.member_id), None)
        if request is None or member is None or request.member_epoch == 0 or request.topic_partitions is None:
            return
        response = self.broker.call(request, 1)
        # The member does not get the response.
        member.sends_all = True
        if response.error_code == ErrorCode.NONE and request.member_epoch < response.member_epoch:
            owned = {(topic.topic_id, index) for topic in request.topic_partitions for index in topic.partitions}
            assert all(self.owners().get(partition) == member.member_id for partition in owned)

    def lose_a_response(self) -> None:
        member = self.any_member()
        if member is not None:
            member.heartbeat(self.broker, is_lost=True)

    def leave(self) -> None:
        member = self.any_member()
        if member is None:
            return
        for_a_moment = member.instance_id is not None and self.random.random() < 0.5
        if for_a_moment and member.epoch > 0:
            member.leave(self.broker, for_a_moment=True)
            self.count += 1
            # The process starts again.
            member.member_id = f"m{self.count}"
        else:
            self.members.remove(member)
            member.leave(self.broker)

    def fail(self) -> None:
        member = self.any_member()
        if member is not None:
            self.members.remove(member)

    def be_stubborn(self) -> None:
        member = self.any_member()
        if member is not None:
            member.is_stubborn = True

    def be_stubborn_across_a_failover(self) -> None:
        """A member keeps its partitions, also when another coordinator has loaded the group. It is removed."""
        member = self.any_member()
        if member is None or len(self.members) >= 5:
            return
        member.is_stubborn = True
        self.join()
        for other in self.members:
            other.heartbeat(self.broker)
        self.fail_over()
        for _ in range(2 * REBALANCE_MS // 250):
            for other in self.members:
                other.heartbeat(self.broker)
            self.broker.loop.pass_ms(250)
            self.check()
        member.is_stubborn = False

    def subscribe(self) -> None:
        member = self.any_member()
        if member is not None:
            member.topics = set(self.random.sample(TOPICS, self.random.randint(0, 3)))
            member.sends_all = True

    def commit(self) -> None:
        """A commit is accepted from the owner only, and not in an epoch before it had the partition."""
        member, group = self.any_member(), self.group
        if member is None or group is None or not member.owned:
            return
        partition = self.random.choice(sorted(member.owned))
        epoch = max(member.epoch - self.random.randint(0, 2), 0)
        if self.topic_name(partition) is None:
            return
        error = member.commit(self.broker, partition, epoch)
        known = group.members.get(member.member_id)
        if error is ErrorCode.NONE:
            assert known is not None
            if epoch < known.epoch:
                assert self.owners().get(partition) == member.member_id
                assert epoch >= self.assignment_epoch(member.member_id, partition)
        elif known is not None and epoch == known.epoch:
            raise AssertionError(f"a commit in the current epoch is refused: {error.name}")

    def topic_name(self, partition: Partition) -> str | None:
        topic = self.broker.metadata.topics_by_id.get(partition[0])
        return None if topic is None or partition[1] >= len(topic.partitions) else topic.name

    def assignment_epoch(self, member_id: str, partition: Partition) -> int:
        assert self.group is not None
        member = self.group.members[member_id]
        topic_id, index = partition
        return next(
            partitions[topic_id][index]
            for partitions in (member.assigned, member.pending_revocation)
            if index in partitions.get(topic_id, {})
        )

    def change_topics(self) -> None:
        name = self.random.choice(TOPICS)
        if name not in self.broker.metadata.topics:
            self.broker.create_topic(name, self.random.randint(1, 4))
        elif self.random.random() < 0.5:
            self.broker.run(self.broker.delete_topic(name))
        else:
            self.grow(name)
        self.broker.loop.run_ready()

    def recreate_a_topic(self) -> None:
        name = self.random.choice(sorted(self.broker.metadata.topics.keys() & set(TOPICS)) or [""])
        if name:
            partitions = len(self.broker.metadata.topics[name].partitions)
            self.broker.run(self.broker.delete_topic(name))
            self.broker.create_topic(name, partitions)
            self.broker.loop.run_ready()

    def grow(self, name: str) -> None:
        topic = self.broker.metadata.topics[name]
        index = len(topic.partitions)
        added = PartitionRegistration(NODE, 0, [NODE], [NODE])
        change = PartitionChange(TopicPartition(name, index), topic.topic_id, None, added)
        delta = MetadataDelta(updated=[replace(topic, partitions=[*topic.partitions, added])], partitions=[change])
        self.broker.run(self.broker.on_delta(delta))

    def pass_time(self) -> None:
        self.broker.loop.pass_ms(self.random.choice((50, 300, 1_500)))
        # Stubborn members, and those that are paused, are removed now.
        self.broker.loop.run_ready()

    def fail_over(self) -> None:
        """The coordinator loses the partition and gets it back. What was not durable is lost."""
        before = dump(self.broker.shard())
        index = self.broker.groups.runtime.partition_for("g")
        self.broker.run(self.broker.elect(index, NODE + 1))
        self.broker.run(self.broker.elect(index, NODE))
        self.broker.loop.pass_ms(10)
        assert dump(self.broker.shard()) == before
        # The new coordinator starts the timeouts again.
        self.revoking_since_ms = {}

    # What holds.

    def owners(self) -> dict[Partition, str]:
        owners: dict[Partition, str] = {}
        assert self.group is not None
        for member in self.group.members.values():
            for partitions in (member.assigned, member.pending_revocation):
                for topic_id, epochs in partitions.items():
                    for index in epochs:
                        assert (topic_id, index) not in owners, f"{member.member_id} and {owners[topic_id, index]}"
                        owners[topic_id, index] = member.member_id
        return owners

    def check(self) -> None:
        group = self.group
        if group is None:
            self.epochs = (0, 0)
            return
        known = {(topic_id, index): owner for topic_id, by in group.owners.items() for index, owner in by.items()}
        assert known == self.owners()
        assert group.assignment_epoch <= group.group_epoch
        assert all(member.epoch <= group.assignment_epoch for member in group.members.values())
        epochs = (group.group_epoch, group.assignment_epoch)
        assert self.epochs <= epochs
        assert self.epochs[1] <= epochs[1]
        self.epochs = epochs
        if not group.members:
            assert group.assignment_epoch == group.group_epoch
        self.check_revocations(group)
        # Applications that follow the protocol never read a partition at the same time.
        reading: dict[Partition, str] = {}
        for member in self.members:
            current = group.members.get(member.member_id)
            if current is None or member.is_stubborn or member.epoch not in (current.epoch, current.previous_epoch):
                continue
            for partition in member.owned:
                assert partition not in reading, f"{partition} is read by {member.member_id} and {reading[partition]}"
                reading[partition] = member.member_id

    def check_revocations(self, group: ConsumerGroup) -> None:
        """A member that keeps its partitions is removed after its rebalance timeout."""
        now_ms = self.broker.environment.clock.mono_ms()
        revoking = {
            (member.member_id, member.epoch)
            for member in group.members.values()
            if member.state is MemberState.UNREVOKED_PARTITIONS and member.epoch > 0
        }
        self.revoking_since_ms = {key: self.revoking_since_ms.get(key, now_ms) for key in revoking}
        # It has as long again for what it has to revoke after that.
        assert all(now_ms - since_ms <= 2 * REBALANCE_MS for since_ms in self.revoking_since_ms.values())

    def end(self) -> None:
        """Leave the group alone, with members that do what they should: it reaches its target."""
        for member in self.members:
            member.is_stubborn = False
            member.owned &= member.assigned
            member.sends_all = True
        # Members that have failed are removed in this time.
        for _ in range(SESSION_MS // 500 + 1):
            for member in self.members:
                member.heartbeat(self.broker)
            self.broker.loop.pass_ms(500)
        settle(self.broker, self.members, self.random)
        self.check()
        group = self.group
        if group is None or not self.members:
            return
        assert group.state_name == "Stable"
        assert set(group.members) == {member.member_id for member in self.members}
        topics = self.broker.metadata.topics
        subscribed = {name for member in group.members.values() for name in group.topics_of(member)} & topics.keys()
        expected = {(topics[name].topic_id, i) for name in subscribed for i in range(len(topics[name].partitions))}
        assert self.owners().keys() == expected
        owners = self.owners()
        for member in self.members:
            assert member.owned == {partition for partition in owners if owners[partition] == member.member_id}


def records_of(broker: Harness) -> list[tuple[bytes, bytes | None]]:
    """Return the records of the partition of the group."""
    index = broker.groups.runtime.partition_for("g")
    batches = broker.log.batches[TopicPartition(GROUP_METADATA_TOPIC, index)]
    return [
        (raw.key, raw.value)
        for batch in batches
        for pos, header in iter_headers(bytes(batch))
        for raw in iter_records(body_of(batch, pos, header.size), header.count, header.base_timestamp)
    ]


def dump(shard: GroupShard) -> dict[str, Any]:
    """Return the durable state of the consumer groups."""
    return {
        group.group_id: (
            group.group_epoch,
            group.metadata_hash,
            group.assignment_epoch,
            group.assignment_timestamp_ms,
            group.members,
            {member_id: dict(target) for member_id, target in group.target.items()},
            group.owners,
            group.static_members,
            group.regexes.resolved,
            +group.regexes.members,
            sorted(group.subscribed_topics()),
            group.assignor_votes,
        )
        for group in shard.groups.values()
        if isinstance(group, ConsumerGroup)
    }


def compacted(records: list[tuple[bytes, bytes | None]], random: Random) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield what the log cleaner may leave.

    Up to an offset it has kept the last record of each key, and up to a lower one no others and no tombstones.
    """
    cleaned = random.randint(0, len(records))
    without_tombstones = random.randint(0, cleaned)
    last = {key: offset for offset, (key, _) in enumerate(records[:cleaned])}
    for offset, (key, value) in enumerate(records):
        is_last = offset >= cleaned or last[key] == offset
        if offset >= without_tombstones:
            is_last = is_last or random.random() < 0.5
        elif value is None:
            is_last = False
        if is_last:
            yield key, value


def replayed(broker: Harness, records: list[tuple[bytes, bytes | None]]) -> GroupShard:
    context: Any = None
    shard = GroupShard(broker.environment, lambda: broker.config, broker.metadata, context, GROUP_KINDS)
    for key, value in records:
        record = RECORD_CODEC.decode(key, value)
        if record is not None:
            shard.replay(record, 0, -1)
    return shard


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
def test_a_consumer_group_keeps_its_invariants(seed: int) -> None:
    run(seed)
