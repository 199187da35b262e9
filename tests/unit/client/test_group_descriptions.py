"""Groups of each kind, as the API of their kind describes them."""

from typing import Any

import pytest

from kbroker.client.group_descriptions import GroupMember, describe_group
from protocol.client import UnsupportedVersionError
from protocol.errors import ErrorCode
from protocol.messages.k15_groups import DescribedGroup, DescribedGroupMember, DescribeGroupsResponse
from protocol.messages.k68_consumer_groups import (
    ConsumerGroupDescribeAssignment,
    ConsumerGroupDescribeMember,
    ConsumerGroupDescribeResponse,
    ConsumerGroupDescribeTopicPartitions,
    DescribedConsumerGroup,
)
from protocol.messages.k76_share_groups import (
    DescribedAssignment,
    DescribedShareGroup,
    DescribedShareGroupMember,
    DescribedTopicPartitions,
    ShareGroupDescribeResponse,
)
from protocol.messages.k88_streams_groups import (
    DescribedStreamsGroup,
    DescribedStreamsGroupMember,
    StreamsAssignment,
    StreamsGroupDescribeResponse,
    StreamsSubtopology,
    StreamsTaskIds,
    StreamsTopicInfo,
    StreamsTopology,
)

NOT_FOUND = ErrorCode.GROUP_ID_NOT_FOUND
MEMBER = {"member_id": "m", "client_id": "c", "client_host": "/10.0.0.1"}
STATE = {"group_id": "g", "group_state": "Stable", "group_epoch": 3, "assignment_epoch": 2}


class Cluster:
    """Responds with one message of each class; a broker that does not know the API of a class has none."""

    def __init__(self, *responses: Any) -> None:
        self.responses = {type(response): response for response in responses}
        self.asked: list[type] = []

    def coordinated(self, key: str, request: Any, response_class: type, error_code: Any) -> Any:
        if response_class not in self.responses:
            raise UnsupportedVersionError
        self.asked.append(response_class)
        return self.responses[response_class]


def consumer(**group: Any) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(groups=[DescribedConsumerGroup(**group)])


def share(**group: Any) -> ShareGroupDescribeResponse:
    return ShareGroupDescribeResponse(groups=[DescribedShareGroup(**group)])


def streams(**group: Any) -> StreamsGroupDescribeResponse:
    return StreamsGroupDescribeResponse(groups=[DescribedStreamsGroup(**group)])


def classic(**group: Any) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(groups=[DescribedGroup(**group)])


def of_consumer(*partitions: int) -> ConsumerGroupDescribeAssignment:
    topic = ConsumerGroupDescribeTopicPartitions(topic_name="t", partitions=list(partitions))
    return ConsumerGroupDescribeAssignment(topic_partitions=[topic])


def test_a_consumer_group_and_its_target():
    members = [
        ConsumerGroupDescribeMember(
            **MEMBER, instance_id="i", member_epoch=2, assignment=of_consumer(2, 0), target_assignment=of_consumer(0, 1)
        ),
        ConsumerGroupDescribeMember(
            **MEMBER, member_epoch=3, assignment=of_consumer(3), target_assignment=of_consumer(3), member_type=0
        ),
    ]
    found = describe_group(Cluster(consumer(**STATE, assignor_name="uniform", members=members)), "g")
    assert (found.type, found.state, found.assignor, found.epoch, found.assignment_epoch) == (
        "consumer", "Stable", "uniform", 3, 2,
    )  # fmt: skip
    assert found.members == [
        GroupMember("m", "i", "c", "10.0.0.1", 2, {"t": [0, 2]}, {"t": [0, 1]}),
        GroupMember("m", None, "c", "10.0.0.1", 3, {"t": [3]}, is_classic=True),
    ]


def test_a_share_group():
    assignment = DescribedAssignment(topic_partitions=[DescribedTopicPartitions(topic_name="t", partitions=[1])])
    member = DescribedShareGroupMember(**MEMBER, member_epoch=3, assignment=assignment)
    found = describe_group(Cluster(consumer(error_code=NOT_FOUND), share(**STATE, members=[member])), "g")
    assert (found.type, found.epoch) == ("share", 3)
    assert found.members == [GroupMember("m", None, "c", "10.0.0.1", 3, {"t": [1]})]


def test_a_streams_group_reads_the_sources_of_its_active_tasks():
    topology = StreamsTopology(
        subtopologies=[
            StreamsSubtopology(subtopology_id="0", source_topics=["a", "b"]),
            StreamsSubtopology(
                subtopology_id="1", repartition_source_topics=[StreamsTopicInfo(name="r", partitions=2)]
            ),
        ]
    )
    assignment = StreamsAssignment(
        active_tasks=[
            StreamsTaskIds(subtopology_id="0", partitions=[1, 0]), StreamsTaskIds(subtopology_id="1", partitions=[1]),
        ],
        standby_tasks=[StreamsTaskIds(subtopology_id="1", partitions=[0])],
    )  # fmt: skip
    member = DescribedStreamsGroupMember(**MEMBER, member_epoch=3, assignment=assignment)
    found = describe_group(Cluster(streams(**STATE, topology=topology, members=[member])), "g")
    tasks = {"active": ["0_0", "0_1", "1_1"], "standby": ["1_0"], "warmup": []}
    partitions = {"a": [0, 1], "b": [0, 1], "r": [1]}
    assert found.type == "streams"
    assert found.members == [GroupMember("m", None, "c", "10.0.0.1", 3, partitions, None, tasks)]


def test_a_classic_group_is_that_of_an_older_broker_or_no_other():
    member = DescribedGroupMember(member_id="m", client_id="c", client_host="/10.0.0.1")
    group = {"group_id": "g", "group_state": "Empty", "protocol_type": "consumer", "members": [member]}
    older = describe_group(Cluster(classic(**group)), "g")
    others = consumer(error_code=NOT_FOUND), share(error_code=ErrorCode.UNSUPPORTED_VERSION)
    assert describe_group(Cluster(*others, classic(**group)), "g") == older
    assert (older.type, older.state, older.epoch) == ("classic", "Empty", None)
    assert older.members == [GroupMember("m", None, "c", "10.0.0.1", None, {}, is_classic=True)]


@pytest.mark.parametrize("code", [ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_any_other_error_ends_the_search(code: ErrorCode):
    cluster = Cluster(consumer(error_code=code, error_message="no"), classic())
    found = describe_group(cluster, "g")
    assert (found.error_code, found.error_message) == (code, "no")
    assert cluster.asked == [ConsumerGroupDescribeResponse]
