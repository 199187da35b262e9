"""Administration of consumer groups with confluent-kafka's AdminClient."""

import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from tests.compat.confluent_kafka.helpers import Member, code_of, everything, shared
from tests.compat.support import DEADLINE_S, eventually, unique


@pytest.fixture
def member(consumer, topic):
    """The only member of the test's group, owner of a topic of two partitions: (member, topic)."""
    name = topic(partitions=2)
    only = Member(consumer({"enable.auto.commit": False}), [name])
    eventually(lambda: shared([only], everything(name, 2)), "an assignment")
    return only, name


def listed(admin, **filters):
    listing = admin.list_consumer_groups(**filters).result(DEADLINE_S)
    assert listing.errors == []
    return {group.group_id: group for group in listing.valid}


def described(admin, group):
    return admin.describe_consumer_groups([group])[group].result(DEADLINE_S)


def failure(future):
    with pytest.raises(KafkaException) as raised:
        future.result(DEADLINE_S)
    return code_of(raised.value)


@pytest.mark.feature("group admin")
def test_a_group_is_listed_and_described(admin, member, group):
    only, name = member
    entry = listed(admin)[group]
    assert (entry.state, entry.type) == (ConsumerGroupState.STABLE, ConsumerGroupType.CLASSIC)
    assert not entry.is_simple_consumer_group
    assert group in listed(admin, states={ConsumerGroupState.STABLE})
    assert group not in listed(admin, states={ConsumerGroupState.EMPTY})
    assert group not in listed(admin, types={ConsumerGroupType.CONSUMER})
    detail = described(admin, group)
    assert (detail.state, detail.partition_assignor) == (ConsumerGroupState.STABLE, "range")
    [member_detail] = detail.members
    assert member_detail.member_id == only.consumer.memberid()
    assert {(tp.topic, tp.partition) for tp in member_detail.assignment.topic_partitions} == everything(name, 2)
    assert detail.coordinator.id == admin.describe_cluster().result(DEADLINE_S).nodes[0].id


@pytest.mark.feature("group admin")
def test_a_group_is_deleted_when_it_is_empty(admin, member, group):
    only, _name = member
    assert failure(admin.delete_consumer_groups([group])[group]) == KafkaError.NON_EMPTY_GROUP
    only.consumer.close()
    eventually(lambda: described(admin, group).state == ConsumerGroupState.EMPTY, "an empty group")
    assert admin.delete_consumer_groups([group])[group].result(DEADLINE_S) is None
    eventually(lambda: group not in listed(admin), "the group to disappear")
    absent = unique("absent")
    assert failure(admin.delete_consumer_groups([absent])[absent]) == KafkaError.GROUP_ID_NOT_FOUND


@pytest.mark.feature("group admin")
def test_offsets_of_a_group_are_listed_and_altered(admin, topic, group):
    name = topic(partitions=2)
    offsets = [TopicPartition(name, 0, 5, metadata="by hand"), TopicPartition(name, 1, 7)]
    request = ConsumerGroupTopicPartitions(group, offsets)
    admin.alter_consumer_group_offsets([request])[group].result(DEADLINE_S)
    every = ConsumerGroupTopicPartitions(group)
    partitions = admin.list_consumer_group_offsets([every])[group].result(DEADLINE_S).topic_partitions
    assert sorted((tp.partition, tp.offset) for tp in partitions) == [(0, 5), (1, 7)]
    named = ConsumerGroupTopicPartitions(group, [TopicPartition(name, 0), TopicPartition(name, 9)])
    result = admin.list_consumer_group_offsets([named])[group].result(DEADLINE_S).topic_partitions
    assert [(tp.partition, tp.offset) for tp in result] == [(0, 5), (9, OFFSET_INVALID)]


@pytest.mark.feature("group admin")
def test_an_administrator_cannot_alter_offsets_of_a_group_with_members(admin, member, group):
    _only, name = member
    request = ConsumerGroupTopicPartitions(group, [TopicPartition(name, 0, 5)])
    [result] = admin.alter_consumer_group_offsets([request])[group].result(DEADLINE_S).topic_partitions
    assert result.error.code() == KafkaError.UNKNOWN_MEMBER_ID
