"""Requests with the most elements and the longest names: other clients are served between the slices of each."""

from collections.abc import Callable

import pytest

from protocol.messages.k02_list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.k08_offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest
from protocol.messages.k11_classic_groups import LeaveGroupRequest, MemberIdentity
from protocol.messages.k15_groups import DescribeGroupsRequest
from protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest
from protocol.schema.message import Message
from tests.compat.hostile.raw_client import RawClient, framed
from tests.compat.hostile.target import MAX_RATIO, ROUNDS, Target

pytestmark = [pytest.mark.feature("hostile clients"), pytest.mark.client("wire")]

COUNT = 99_000
SMALL_REQUESTS = 50
WINDOWS = 3
# On a quiet machine. A round trip is two requests; each waits for a turn of 0.25 ms. At the end of a large
# request 100,000 objects are released at once, which takes some milliseconds. Without slices it would be 100 to 500.
TOLERATED_MS = 10.0


def list_offsets() -> Message:
    partitions = [ListOffsetsPartition(partition_index=index) for index in range(COUNT)]
    return ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=partitions)])


def metadata() -> Message:
    topics = [MetadataRequestTopic(name=f"n{number}") for number in range(COUNT)]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False)


def offset_commit() -> Message:
    partitions = [OffsetCommitRequestPartition(partition_index=index) for index in range(COUNT)]
    topics = [OffsetCommitRequestTopic(name="t", partitions=partitions)]
    return OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=topics)


def find_coordinator() -> Message:
    # Only 10 KB.
    return FindCoordinatorRequest(coordinator_keys=[""] * 9_980)


def describe_groups() -> Message:
    return DescribeGroupsRequest(groups=[f"{number:05d}{'x' * 32_000}" for number in range(300)])


def create_topics() -> Message:
    # None of them is created.
    return CreateTopicsRequest(topics=[CreatableTopic(name=f"n{number}", num_partitions=0) for number in range(COUNT)])


def leave_group() -> Message:
    members = [MemberIdentity(member_id=f"m{number}", reason="r" * 400) for number in range(9_990)]
    return LeaveGroupRequest(group_id="g", members=members)


# (request, version). Each is built by its test: hundreds of thousands of objects.
REQUESTS: dict[str, tuple[Callable[[], Message], int]] = {
    "partitions of ListOffsets": (list_offsets, 7),
    "names of Metadata": (metadata, 12),
    "partitions of OffsetCommit": (offset_commit, 8),
    "empty keys of FindCoordinator": (find_coordinator, 6),
    "long names of DescribeGroups": (describe_groups, 5),
    "names of CreateTopics": (create_topics, 7),
    "members of LeaveGroup": (leave_group, 5),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_bystander_is_delayed_by_slices_only(target: Target, name: str) -> None:
    """The 99th percentile of its round trips is at most twice that during small requests.

    If the machine has other work, a busy process waits longer for its processor than an idle one. So the small requests
    keep the broker as busy as the large ones. A round that fails is repeated, as in Target.attacked.
    """
    request, version = REQUESTS[name]
    large, small = framed(request(), version), framed(MetadataRequest(topics=[]), 12) * SMALL_REQUESTS
    rounds = []
    with RawClient(target.bootstrap, "largest") as client:

        def send_large() -> None:
            assert client.try_send(large)
            assert client.try_receive() is not None

        def send_small() -> None:
            assert client.try_send(small)
            for _ in range(SMALL_REQUESTS):
                assert client.try_receive() is not None

        send_large()
        for _ in range(ROUNDS):
            busy, attacked = target.p99_during([send_small, send_large], WINDOWS)
            rounds.append(f"{busy:.1f} -> {attacked:.1f} ms")
            if attacked <= MAX_RATIO * busy + TOLERATED_MS * target.slowness:
                return
    raise AssertionError(f"{name}: {'; '.join(rounds)}")
