"""Consumer groups with kafka-python: joining and leaving, static members, cooperative rebalancing."""

import pytest
from kafka import ConsumerRebalanceListener
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.errors import FencedInstanceIdError, InconsistentGroupProtocolError

from tests.compat.kafka_python.helpers import Member, partitions, shared
from tests.compat.support import DEADLINE_S, eventually


@pytest.mark.feature("consumer groups")
def test_members_join_and_leave_and_share_the_partitions(member, producer, topic, group):
    name = topic(partitions=6)
    everything = set(partitions(name, 6))
    members = []
    for count in (1, 2, 3):
        members.append(member(name, group_id=group))
        eventually(lambda: shared(members, everything), f"six partitions over {count} members")
    assert sorted(len(m.assignment) for m in members) == [2, 2, 2]
    sender = producer()
    for n in range(60):
        sender.send(name, str(n).encode(), partition=n % 6)
    sender.flush(DEADLINE_S)

    def numbers() -> list[int]:
        return sorted(int(r.value) for m in members for r in m.records)

    eventually(lambda: len(numbers()) >= 60, "60 records over three members")
    assert numbers() == list(range(60))
    assert all(len(m.records) == 20 for m in members)

    for remaining in (2, 1):
        members.pop(0).leave()
        eventually(lambda: shared(members, everything), f"six partitions over the {remaining} that stayed")


@pytest.mark.feature("consumer groups")
def test_members_with_different_assignors_agree_on_the_common_one(member, topic, admin, group):
    name = topic(partitions=2)
    both = [RangePartitionAssignor, RoundRobinPartitionAssignor]
    first = member(name, group_id=group, partition_assignment_strategy=both)
    two = member(name, group_id=group, partition_assignment_strategy=[RoundRobinPartitionAssignor])
    eventually(lambda: shared([first, two], set(partitions(name, 2))), "a common assignor")
    assert admin.describe_groups([group])[group]["protocol_data"] == "roundrobin"


@pytest.mark.feature("consumer groups")
def test_a_member_with_no_common_assignor_is_refused(member, topic, group):
    name = topic()
    first = member(name, group_id=group, partition_assignment_strategy=[RangePartitionAssignor])
    eventually(lambda: shared([first], set(partitions(name, 1))), "the first member's assignment")
    two = member(name, group_id=group, partition_assignment_strategy=[RoundRobinPartitionAssignor])
    eventually(lambda: two.error, "the second member to be rejected")
    assert isinstance(two.error, InconsistentGroupProtocolError)
    assert shared([first], set(partitions(name, 1)))


@pytest.mark.feature("consumer groups")
def test_a_group_sees_partitions_and_matching_topics_that_come_later(consumer, member, topic, admin, group):
    first = topic(partitions=1)
    stem = first.rsplit("-", 1)[0]
    reader = consumer(group_id=group, metadata_max_age_ms=300, heartbeat_interval_ms=200)
    reader.subscribe(pattern=f"^{stem}-.*")
    polling = Member(reader)
    eventually(lambda: shared([polling], set(partitions(first, 1))), "the first topic")
    second = topic(partitions=2)
    expected = set(partitions(first, 1)) | set(partitions(second, 2))
    eventually(lambda: shared([polling], expected), "the second topic")
    admin.create_partitions({first: 3})
    expected |= set(partitions(first, 3))
    eventually(lambda: shared([polling], expected), "the new partitions")
    polling.leave()


@pytest.mark.feature("static membership")
def test_a_static_member_comes_back_without_a_rebalance(member, topic, group):
    name = topic(partitions=4)
    everything = set(partitions(name, 4))
    stays = member(name, group_id=group, group_instance_id="stays")
    leaves = member(name, group_id=group, group_instance_id="leaves")
    eventually(lambda: shared([stays, leaves], everything), "four partitions over two static members")
    generation, share = stays.generation, leaves.assignment
    leaves.leave()
    returned = member(name, group_id=group, group_instance_id="leaves")
    eventually(lambda: shared([stays, returned], everything), "the member that came back")
    assert returned.assignment == share
    assert stays.generation == generation == returned.generation


@pytest.mark.feature("static membership")
def test_the_second_owner_of_an_instance_id_fences_the_first(member, topic, group):
    name = topic()
    first = member(name, group_id=group, group_instance_id="only-one", auto_commit_interval_ms=500)
    eventually(lambda: shared([first], set(partitions(name, 1))), "the first owner's assignment")
    second = member(name, group_id=group, group_instance_id="only-one")
    eventually(lambda: shared([second], set(partitions(name, 1))), "the second owner's assignment")
    eventually(lambda: first.error, "the first owner to be fenced")
    assert isinstance(first.error, FencedInstanceIdError)


class Revocations(ConsumerRebalanceListener):
    """Records the partitions that were revoked."""

    def __init__(self) -> None:
        self.revoked: set[object] = set()

    def on_partitions_revoked(self, revoked):
        self.revoked |= set(revoked)

    def on_partitions_assigned(self, assigned):
        pass


@pytest.mark.feature("cooperative rebalance")
def test_a_cooperative_member_gives_up_only_what_moves(consumer, member, producer, topic, group):
    name = topic(partitions=4)
    everything = set(partitions(name, 4))
    settings = {"group_id": group, "partition_assignment_strategy": [CooperativeStickyAssignor]}
    reader, listener = consumer(heartbeat_interval_ms=200, **settings), Revocations()
    reader.subscribe([name], listener=listener)
    first = Member(reader)
    eventually(lambda: shared([first], everything), "everything for the first member")
    second = member(name, **settings)
    eventually(lambda: shared([first, second], everything), "two partitions for each")
    moved = second.assignment
    assert len(moved) == 2
    assert listener.revoked == moved, "only the partitions that moved were revoked"
    sender = producer()
    for n in range(8):
        sender.send(name, str(n).encode(), partition=n % 4)
    sender.flush(DEADLINE_S)
    eventually(lambda: len(first.records) == 4 == len(second.records), "four records for each")
    assert {r.partition for r in second.records} == {tp.partition for tp in moved}
    first.leave()
