"""OffsetFetch in every version: several groups, and topics by name and by id."""

import pytest

from kbroker.coordinator.group.records import OffsetAndMetadata
from protocol.errors import ErrorCode
from protocol.messages.k09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tests.unit.support.group_coordinator import Harness


def commit(broker: Harness, group_id: str, offset: int, topic: str = "t") -> None:
    topic_id = broker.metadata.topics[topic].topic_id
    committed = OffsetAndMetadata(offset, 3, "meta", commit_ms=1, topic_id=topic_id)
    broker.commit_offset(topic, 0, committed, group_id)


def request_for(broker: Harness, version: int, group_id: str = "g") -> OffsetFetchRequest:
    if version < 8:
        return OffsetFetchRequest(
            group_id=group_id, topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
        )
    topic = OffsetFetchRequestTopics(partition_indexes=[0, 1])
    if version >= 10:
        topic.topic_id = broker.metadata.topics["t"].topic_id
    else:
        topic.name = "t"
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group_id, topics=[topic])])


@pytest.mark.parametrize("version", range(1, 11))
def test_every_version_returns_committed_offsets(group_broker: Harness, version: int) -> None:
    commit(group_broker, "g", 5)
    response = group_broker.call(request_for(group_broker, version), version)
    topics = response.topics if version < 8 else response.groups[0].topics
    partitions = topics[0].partitions
    rows = [(p.partition_index, p.committed_offset, p.metadata, p.error_code) for p in partitions]
    assert rows == [(0, 5, "meta", 0), (1, -1, "", 0)]
    if version >= 5:
        assert [partition.committed_leader_epoch for partition in partitions] == [3, -1]


@pytest.mark.parametrize("version", range(1, 11))
def test_every_version_rejects_a_group_of_another_broker(group_broker: Harness, version: int) -> None:
    group_broker.lose_group()
    response = group_broker.call(request_for(group_broker, version), version)
    if version < 2:
        assert {partition.error_code for partition in response.topics[0].partitions} == {ErrorCode.NOT_COORDINATOR}
    elif version < 8:
        assert (response.error_code, response.topics) == (ErrorCode.NOT_COORDINATOR, [])
    else:
        assert (response.groups[0].error_code, response.groups[0].topics) == (ErrorCode.NOT_COORDINATOR, [])


def test_each_of_several_groups_has_its_own_result(group_broker: Harness) -> None:
    other = next(name for name in "abcdef" if group_broker.groups.runtime.partition_for(name) != 0)
    commit(group_broker, other, 6)
    group_broker.lose_group(other)
    names = ["g", other]
    groups = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
    response = group_broker.call(OffsetFetchRequest(groups=groups), 9)
    assert [(group.group_id, group.error_code) for group in response.groups] == [
        ("g", 0),
        (other, ErrorCode.NOT_COORDINATOR),
    ]


def test_an_offset_of_an_earlier_topic_of_the_same_name_does_not_count_by_id(group_broker: Harness) -> None:
    old = OffsetAndMetadata(5, commit_ms=1, topic_id=b"\1" * 16)
    group_broker.commit_offset("t", 0, old)
    by_id = group_broker.call(request_for(group_broker, 10), 10)
    assert by_id.groups[0].topics[0].partitions[0].committed_offset == -1
    by_name = group_broker.call(request_for(group_broker, 9), 9)
    assert by_name.groups[0].topics[0].partitions[0].committed_offset == 5


def test_all_topics_by_id_are_those_with_an_id(group_broker: Harness) -> None:
    deleted = OffsetAndMetadata(5, commit_ms=1)
    group_broker.commit_offset("gone", 0, deleted)
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
    assert [topic.name for topic in group_broker.call(request, 9).groups[0].topics] == ["gone"]
    assert group_broker.call(request, 10).groups[0].topics == []
