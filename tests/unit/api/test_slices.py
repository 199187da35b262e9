"""Large requests in slices: the responses are those to the whole request."""

from typing import Any

import pytest

from kbroker.api.slices import ELEMENT_COST, SLICE_COST, Division
from protocol.messages.k15_describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from protocol.messages.k23_offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    OffsetForLeaderTopicResult,
)

GROUPS = Division(("groups",), ("groups",))
PARTITIONS = Division(("topics", "partitions"), ("topics", "partitions"))
SLICE = SLICE_COST // ELEMENT_COST


def describe(request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(groups=[DescribedGroup(group_id=name) for name in request.groups])


def end_offsets(request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[EpochEndOffset(partition=partition.partition) for partition in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def request_of(counts: list[int]) -> OffsetForLeaderEpochRequest:
    topics = [
        OffsetForLeaderTopic(
            topic=f"t{number}", partitions=[OffsetForLeaderPartition(partition=index) for index in range(count)]
        )
        for number, count in enumerate(counts)
    ]
    return OffsetForLeaderEpochRequest(replica_id=7, topics=topics)


def joined(division: Division, request: Any, handle: Any) -> tuple[Any, int]:
    """Return the joined response and the number of slices."""
    response, slices = None, 0
    for part, continues in division.divide(request):
        slices += 1
        if response is None:
            response = handle(part)
        else:
            division.join(response, handle(part), continues)
    return response, slices


@pytest.mark.parametrize(
    ("names", "slices"),
    [([], 1), (["g"], 1), (["g"] * 5 * SLICE, 6), (["x" * 32_000] * 100, 50), (["x" * 32_767, "y"], 1)],
)
def test_names(names: list[str], slices: int) -> None:
    request = DescribeGroupsRequest(groups=names)
    assert joined(GROUPS, request, describe) == (describe(request), slices)
    assert request.groups == names


@pytest.mark.parametrize(
    "counts",
    [
        [],
        [0],
        [1],
        [0, 0, 0],
        [SLICE - 2],
        [SLICE - 1],
        [SLICE],
        [3 * SLICE],
        [3 * SLICE, 0, 2, 4 * SLICE + 1, 1],
        [1] * 3 * SLICE,
        [SLICE // 2] * 7,
    ],
)
def test_partitions_of_topics(counts: list[int]) -> None:
    request = request_of(counts)
    response, slices = joined(PARTITIONS, request, end_offsets)
    assert response == end_offsets(request)
    assert request == request_of(counts), "the request is not changed"
    assert slices <= 1 + 3 * (sum(counts) + len(counts)) // SLICE
    for part, _ in PARTITIONS.divide(request):
        assert part.replica_id == 7
        assert sum(1 + len(topic.partitions) for topic in part.topics) <= SLICE
