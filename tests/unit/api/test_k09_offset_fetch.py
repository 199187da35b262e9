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


def keep(broker: Harness, group_id: str, offset: int, topic: str = "t") -> None:
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
def test_every_version_gives_what_was_committed(group_broker: Harness, version: int) -> None:
    keep(group_broker, "g", 5)
    answer = group_broker.call(request_for(group_broker, version), version)
    topics = answer.topics if version < 8 else answer.groups[0].topics
    rows = [(one.partition_index, one.committed_offset, one.metadata, one.error_code) for one in topics[0].partitions]
    assert rows == [(0, 5, "meta", 0), (1, -1, "", 0)]
    if version >= 5:
        assert [one.committed_leader_epoch for one in topics[0].partitions] == [3, -1]


@pytest.mark.parametrize("version", range(1, 11))
def test_every_version_says_that_the_coordinator_is_elsewhere(group_broker: Harness, version: int) -> None:
    group_broker.lose_group()
    answer = group_broker.call(request_for(group_broker, version), version)
    if version < 2:
        assert {one.error_code for one in answer.topics[0].partitions} == {ErrorCode.NOT_COORDINATOR}
    elif version < 8:
        assert (answer.error_code, answer.topics) == (ErrorCode.NOT_COORDINATOR, [])
    else:
        assert (answer.groups[0].error_code, answer.groups[0].topics) == (ErrorCode.NOT_COORDINATOR, [])


def test_each_of_several_groups_has_its_own_answer(group_broker: Harness) -> None:
    other = next(name for name in "abcdef" if group_broker.groups.runtime.partition_for(name) != 0)
    keep(group_broker, other, 6)
    group_broker.lose_group(other)
    names = ["g", other]
    groups = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
    answer = group_broker.call(OffsetFetchRequest(groups=groups), 9)
    assert [(one.group_id, one.error_code) for one in answer.groups] == [("g", 0), (other, ErrorCode.NOT_COORDINATOR)]


def test_an_offset_of_an_earlier_topic_of_the_name_is_not_this_ones(group_broker: Harness) -> None:
    old = OffsetAndMetadata(5, commit_ms=1, topic_id=b"\1" * 16)
    group_broker.commit_offset("t", 0, old)
    by_id = group_broker.call(request_for(group_broker, 10), 10)
    assert by_id.groups[0].topics[0].partitions[0].committed_offset == -1
    by_name = group_broker.call(request_for(group_broker, 9), 9)
    assert by_name.groups[0].topics[0].partitions[0].committed_offset == 5


def test_all_by_id_leaves_out_topics_that_have_none(group_broker: Harness) -> None:
    gone = OffsetAndMetadata(5, commit_ms=1)
    group_broker.commit_offset("gone", 0, gone)
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
    assert [topic.name for topic in group_broker.call(request, 9).groups[0].topics] == ["gone"]
    assert group_broker.call(request, 10).groups[0].topics == []
