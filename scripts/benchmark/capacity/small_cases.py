"""Cases of requests without records: the same request over and over."""

from collections.abc import Iterator
from contextlib import contextmanager

from protocol.messages.k02_list_offsets import ListOffsetsRequest
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest
from protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from protocol.messages.k12_heartbeat import HeartbeatRequest
from protocol.messages.k13_leave_group import LeaveGroupRequest
from protocol.messages.k14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from protocol.messages.k18_api_versions import ApiVersionsRequest
from protocol.messages.k32_describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from scripts.benchmark.capacity.case import repeating
from scripts.benchmark.capacity.client import Load
from scripts.benchmark.capacity.data_cases import PARTITIONS
from scripts.benchmark.capacity.requests import Topic
from scripts.benchmark.capacity.server import Server

GROUP = "capacity"
SESSION_TIMEOUT_MS = 120_000
# The newest versions in which a join needs one request, and LeaveGroup has one member.
JOIN_VERSION, LEAVE_VERSION = 3, 2
TOPIC_CONFIGS = 2


@contextmanager
def metadata(server: Server) -> Iterator[Load]:
    """Metadata of one topic of 6 partitions."""
    with server.topic(PARTITIONS) as (name, _):
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        with repeating(server, [request], lambda response: response.topics[0], 8, 5) as load:
            yield load


def offset_commit(group: str, topic: Topic) -> OffsetCommitRequest:
    """Return a request that commits the offset of one partition, for a group without members."""
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="")
    topics = [OffsetCommitRequestTopic(name=topic[0], topic_id=topic[1], partitions=[partition])]
    return OffsetCommitRequest(group_id=group, topics=topics)


@contextmanager
def committing(server: Server) -> Iterator[Load]:
    with server.topic(PARTITIONS) as topic:
        server.find_coordinator(GROUP, key_type=0)
        request = offset_commit(GROUP, topic)
        with repeating(server, [request], lambda response: response.topics[0].partitions[0], 4, 5) as load:
            yield load


@contextmanager
def heartbeats(server: Server) -> Iterator[Load]:
    """Heartbeats of 8 groups with one member each."""
    members = [join(server, f"{GROUP}-{number}") for number in range(8)]
    with repeating(server, members, lambda response: response, 8, 5) as load:
        yield load
    for member in members:
        leave = LeaveGroupRequest(group_id=member.group_id, member_id=member.member_id)
        server.request(leave, lambda response: response.error_code, LEAVE_VERSION)


def join(server: Server, group: str) -> HeartbeatRequest:
    """Join a group as its only member; returns the member's heartbeat."""
    server.find_coordinator(group, key_type=0)
    join_group = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        rebalance_timeout_ms=SESSION_TIMEOUT_MS,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range")],
    )
    joined = server.request(join_group, lambda response: response.error_code, JOIN_VERSION)
    assert isinstance(joined, JoinGroupResponse)
    generation, member = joined.generation_id, joined.member_id
    assignments = [SyncGroupRequestAssignment(member_id=member)]
    sync = SyncGroupRequest(group_id=group, generation_id=generation, member_id=member, assignments=assignments)
    server.request(sync, lambda response: response.error_code, JOIN_VERSION)
    return HeartbeatRequest(group_id=group, generation_id=generation, member_id=member)


@contextmanager
def listing_offsets(server: Server) -> Iterator[Load]:
    """List the latest offset of 6 partitions."""
    with server.topic(PARTITIONS) as (name, _):
        request: ListOffsetsRequest = server.offsets_request(name, range(PARTITIONS))
        with repeating(server, [request], lambda response: response.topics[0].partitions[0], 8, 5) as load:
            yield load


@contextmanager
def finding_coordinator(server: Server) -> Iterator[Load]:
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP])
    with repeating(server, [request], lambda response: response.coordinators[0], 8, 5) as load:
        yield load


@contextmanager
def api_versions(server: Server) -> Iterator[Load]:
    request = ApiVersionsRequest(client_software_name="bench", client_software_version="1")
    with repeating(server, [request], lambda response: response, 8, 5) as load:
        yield load


@contextmanager
def describing_configs(server: Server) -> Iterator[Load]:
    """Describe all configs of one topic."""
    with server.topic(PARTITIONS) as (name, _):
        resource = DescribeConfigsResource(resource_type=TOPIC_CONFIGS, resource_name=name, configuration_keys=None)
        request = DescribeConfigsRequest(resources=[resource])
        with repeating(server, [request], lambda response: response.results[0], 8, 5) as load:
            yield load
