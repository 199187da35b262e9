"""Requests to any broker, to several at once, to leaders, coordinators and the controller."""

from collections.abc import Callable, Iterator
from time import monotonic

import pytest

from kbroker.client import admin, cluster, groups, offsets, retries
from kbroker.client.cluster import ClusterClient, UnknownBroker
from kbroker.client.connection import BrokerUnreachable
from kbroker.client.group_summaries import summarize_groups
from kbroker.client.requests import TRANSACTION, BrokerError
from kbroker.common import TopicPartition
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from protocol.messages.k03_metadata import MetadataResponsePartition, MetadataResponseTopic
from protocol.messages.k09_offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from protocol.messages.k10_find_coordinator import Coordinator, FindCoordinatorResponse
from protocol.messages.k15_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsResponse,
)
from protocol.messages.k19_create_topics import CreateTopicsResponse
from protocol.messages.k20_delete_topics import DeletableTopicResult, DeleteTopicsResponse
from protocol.messages.k60_describe_cluster import DescribeClusterResponse
from protocol.messages.k10003_describe_broker import DescribeBrokerRequest, DescribeBrokerResponse
from tests.unit.support.socket_broker import SocketBroker, metadata

Start = Callable[..., tuple[ClusterClient, list[SocketBroker]]]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start brokers 1, 2, ..., and return a client that knows the addresses of all."""
    running: list[SocketBroker] = []
    clients: list[ClusterClient] = []
    monkeypatch.setattr(retries, "RETRY_EVERY_S", 0.0)

    def start_brokers(count: int, **versions: int) -> tuple[ClusterClient, list[SocketBroker]]:
        limits = {ApiKey[name.upper()]: version for name, version in versions.items()}
        brokers = [SocketBroker(max_versions=limits) for _ in range(count)]
        for broker in brokers:
            broker.handlers[ApiKey.METADATA] = metadata(*brokers, controller_id=count)
        running.extend(brokers)
        client = ClusterClient([broker.address for broker in brokers], client_id="test", timeout_s=10.0)
        clients.append(client)
        return client, brokers

    yield start_brokers
    for client in clients:
        client.close()
    for broker in running:
        broker.close()


def test_a_read_is_sent_to_another_broker_while_one_cannot_be_reached(start: Start) -> None:
    client, (first, second) = start(2)
    assert client.broker_ids() == [1, 2]
    first.close()
    assert client.cluster_id() == "abc"
    client.metadata([])
    assert [len(broker.requests) for broker in (first, second)] == [2, 1]


def test_without_any_broker_a_command_fails_at_once(start: Start) -> None:
    client, brokers = start(2)
    for broker in brokers:
        broker.close()
    addresses = "; ".join(f"127.0.0.1:{broker.port}: Connection refused" for broker in brokers)
    with pytest.raises(BrokerUnreachable, match=f"^cannot connect to {addresses}$"):
        client.metadata([])
    with pytest.raises(BrokerUnreachable, match=addresses):
        cluster.require_reachable([broker.address for broker in brokers])


def test_a_request_that_changes_something_is_sent_once(start: Start) -> None:
    client, (first, second) = start(2)
    client.metadata([])
    with pytest.raises(BrokerUnreachable):
        admin.create_topics(client, {"t": admin.TopicSpec()})
    assert (len(first.requests), len(second.requests)) == (2, 0)


def test_a_connection_that_the_broker_has_closed_is_opened_again(start: Start) -> None:
    client, (broker,) = start(1)
    broker.closes_idle = True
    broker.handlers[ApiKey.CREATE_TOPICS] = lambda _: CreateTopicsResponse()
    client.metadata([])
    (connection,) = client._connections.values()
    deadline = monotonic() + 10
    while connection.is_usable() and monotonic() < deadline:
        pass
    assert admin.create_topics(client, {"t": admin.TopicSpec()}) == []
    assert broker.connections == 2


def test_all_brokers_at_once_and_those_that_respond(start: Start) -> None:
    client, brokers = start(3)
    for number, broker in enumerate(brokers, 1):
        broker.handlers[ApiKey.DESCRIBE_BROKER] = lambda _, number=number: DescribeBrokerResponse(broker_id=number)
    brokers[1].close()
    found = client.request_all(
        [(broker, DescribeBrokerRequest()) for broker in (1, 2, 3, 9)], DescribeBrokerResponse, 10.0
    )
    assert [(broker, response.broker_id) for broker, response in found] == [(1, 1), (3, 3)]
    assert client.request_all([], DescribeBrokerResponse, 10.0) == []


def test_a_broker_that_clients_do_not_know(start: Start) -> None:
    client, _ = start(1)
    with pytest.raises(UnknownBroker, match="there is no broker 7"):
        client.request(DescribeBrokerRequest(), DescribeBrokerResponse, 7)


def test_fenced_brokers_are_asked_for_where_the_broker_knows_them(start: Start) -> None:
    for version, expected in ((2, True), (1, False)):
        client, (broker,) = start(1, describe_cluster=version)
        broker.handlers[ApiKey.DESCRIBE_CLUSTER] = lambda _: DescribeClusterResponse(cluster_id="abc")
        assert admin.describe_cluster(client).cluster_id == "abc"
        assert broker.requests[-1].include_fenced_brokers is expected


def test_brokers_without_describe_cluster(start: Start) -> None:
    client, _ = start(2, describe_cluster=-1)
    found = admin.describe_cluster(client)
    assert (found.cluster_id, found.controller_id, [row.broker_id for row in found.brokers]) == ("abc", 2, [1, 2])


@pytest.mark.parametrize("version", [6, 3])
def test_a_request_follows_its_coordinator(start: Start, version: int) -> None:
    client, (first, second) = start(2, find_coordinator=version)
    found = iter([(ErrorCode.COORDINATOR_NOT_AVAILABLE, first), (0, first), (0, second)])

    def find_coordinator(request: object) -> FindCoordinatorResponse:
        code, broker = next(found)
        row = {"node_id": 1 if broker is first else 2, "host": "127.0.0.1", "port": broker.port, "error_code": code}
        return (
            FindCoordinatorResponse(coordinators=[Coordinator(**row)])
            if version > 3
            else FindCoordinatorResponse(**row)
        )

    def offsets(code: int) -> OffsetFetchResponse:
        rows = [
            OffsetFetchResponsePartitions(partition_index=index, committed_offset=at) for index, at in ((0, 5), (1, -1))
        ]
        topics = [OffsetFetchResponseTopics(name="t", partitions=rows)]
        return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", error_code=code, topics=topics)])

    first.handlers[ApiKey.FIND_COORDINATOR] = find_coordinator
    first.handlers[ApiKey.OFFSET_FETCH] = lambda _: offsets(ErrorCode.NOT_COORDINATOR)
    second.handlers[ApiKey.OFFSET_FETCH] = lambda _: offsets(0)
    assert groups.committed_offsets(client, "g") == {TopicPartition("t", 0): 5}


def test_committed_offsets_of_older_brokers(start: Start) -> None:
    client, (broker,) = start(1, offset_fetch=7)
    row = Coordinator(node_id=1, host="127.0.0.1", port=broker.port)
    broker.handlers[ApiKey.FIND_COORDINATOR] = lambda _: FindCoordinatorResponse(coordinators=[row])
    offset = OffsetFetchResponsePartition(partition_index=0, committed_offset=5)
    broker.handlers[ApiKey.OFFSET_FETCH] = lambda _: OffsetFetchResponse(
        topics=[OffsetFetchResponseTopic(name="t", partitions=[offset])]
    )
    assert groups.committed_offsets(client, "g") == {TopicPartition("t", 0): 5}
    assert broker.requests[-1].group_id == "g"


def test_an_error_of_a_coordinator_names_what_it_is_about(start: Start) -> None:
    client, (broker,) = start(1)
    row = Coordinator(error_code=ErrorCode.INVALID_REQUEST, error_message="No.")
    broker.handlers[ApiKey.FIND_COORDINATOR] = lambda _: FindCoordinatorResponse(coordinators=[row])
    with pytest.raises(BrokerError, match=r"^transactional id x: No \(INVALID_REQUEST\)$"):
        client.find_coordinator("x", TRANSACTION)


def topic(leader: int, code: int = 0) -> MetadataResponseTopic:
    row = MetadataResponsePartition(partition_index=0, leader_id=leader)
    return MetadataResponseTopic(name="t", error_code=code, partitions=[] if code else [row])


def test_offsets_are_asked_of_the_leader_also_while_it_changes(start: Start) -> None:
    client, brokers = start(2)
    leaders = iter([topic(-1), topic(1), topic(2)])
    for broker in brokers:
        broker.handlers[ApiKey.METADATA] = lambda request: metadata(
            *brokers, topics=[next(leaders)] if request.topics else []
        )(request)

    def offset(**fields: int) -> ListOffsetsResponse:
        row = ListOffsetsPartitionResponse(partition_index=0, **fields)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[row])])

    asked: list[ListOffsetsRequest] = []
    brokers[0].handlers[ApiKey.LIST_OFFSETS] = lambda _: offset(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    brokers[1].handlers[ApiKey.LIST_OFFSETS] = lambda request: asked.append(request) or offset(offset=7)
    assert offsets.list_offsets(client, {("t", 0): offsets.EARLIEST}, offsets.READ_COMMITTED) == {
        TopicPartition("t", 0): 7
    }
    assert asked[0].isolation_level == 1
    assert asked[0].topics[0].partitions[0].timestamp == offsets.EARLIEST


def test_a_topic_that_does_not_exist_has_no_offsets(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "NEW_TOPIC_FOR_S", 0.0)
    client, (broker,) = start(1)
    broker.handlers[ApiKey.METADATA] = metadata(broker, topics=[topic(-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)])
    with pytest.raises(BrokerError, match=r"^t-0: UNKNOWN_TOPIC_OR_PARTITION$"):
        offsets.list_offsets(client, {("t", 0): offsets.LATEST})
    with pytest.raises(BrokerError, match=r"^topic t: UNKNOWN_TOPIC_OR_PARTITION$"):
        client.leader("t", 0)


def test_offsets_of_brokers_that_respond(start: Start) -> None:
    client, brokers = start(2)
    row = ListOffsetsPartitionResponse(partition_index=0, offset=7)
    brokers[0].handlers[ApiKey.LIST_OFFSETS] = lambda _: ListOffsetsResponse(
        topics=[ListOffsetsTopicResponse(name="t", partitions=[row])]
    )
    brokers[1].close()
    partitions = {1: [("t", 0)], 2: [("t", 0)]}
    assert offsets.offsets_at_brokers(client, partitions, offsets.LATEST) == {(1, ("t", 0)): 7}


def test_a_broker_that_does_not_forward_to_the_controller(start: Start) -> None:
    client, brokers = start(2, delete_topics=5)
    for broker, code in zip(brokers, (ErrorCode.NOT_CONTROLLER, ErrorCode.NONE), strict=True):
        result = DeletableTopicResult(name="t", error_code=code)
        broker.handlers[ApiKey.DELETE_TOPICS] = lambda _, result=result: DeleteTopicsResponse(responses=[result])
    assert [result.error_code for result in admin.delete_topics(client, ["t"])] == [0]
    assert brokers[1].requests[-1].topic_names == ["t"]


@pytest.mark.parametrize("version", [7, 9])
def test_an_overview_of_groups_takes_few_requests(start: Start, version: int) -> None:
    """Brokers before Kafka 3.0 have no OffsetFetch for several groups."""
    client, [broker] = start(1, offset_fetch=version)
    ids = [f"g{number}" for number in range(3)]
    partitions = [MetadataResponsePartition(partition_index=0, leader_id=1)]
    topic = MetadataResponseTopic(name="t", partitions=partitions)
    broker.handlers[ApiKey.METADATA] = metadata(broker, topics=[topic])
    coordinator = Coordinator(node_id=1, host="127.0.0.1", port=broker.port)
    row = OffsetFetchResponsePartitions(partition_index=0, committed_offset=4)
    old_row = OffsetFetchResponsePartition(partition_index=0, committed_offset=4)
    fetched = [
        OffsetFetchResponseGroup(group_id=each, topics=[OffsetFetchResponseTopics(name="t", partitions=[row])])
        for each in ids
    ]
    latest = ListOffsetsPartitionResponse(partition_index=0, offset=7)
    members = [DescribedGroupMember(member_id="m")]
    broker.handlers |= {
        ApiKey.LIST_GROUPS: lambda _: ListGroupsResponse(groups=[ListedGroup(group_id=each) for each in ids]),
        ApiKey.DESCRIBE_GROUPS: lambda request: DescribeGroupsResponse(
            groups=[DescribedGroup(group_id=each, members=members) for each in request.groups]
        ),
        ApiKey.FIND_COORDINATOR: lambda _: FindCoordinatorResponse(coordinators=[coordinator]),
        ApiKey.OFFSET_FETCH: lambda _: (
            OffsetFetchResponse(groups=fetched)
            if version > 7
            else OffsetFetchResponse(topics=[OffsetFetchResponseTopic(name="t", partitions=[old_row])])
        ),
        ApiKey.LIST_OFFSETS: lambda _: ListOffsetsResponse(
            topics=[ListOffsetsTopicResponse(name="t", partitions=[latest])]
        ),
    }
    assert [(*summary[:5], summary.lag) for summary in summarize_groups(client)] == [
        (each, None, None, None, 1, 3) for each in ids
    ]
    names = [type(request).__name__.removesuffix("Request") for request in broker.requests]
    counts = {name: names.count(name) for name in ("ListGroups", "DescribeGroups", "OffsetFetch", "ListOffsets")}
    assert counts == {"ListGroups": 1, "DescribeGroups": 1, "OffsetFetch": 1 if version > 7 else 3, "ListOffsets": 1}
