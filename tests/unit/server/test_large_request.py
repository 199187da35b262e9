"""Large requests have the same responses and log lines as small ones, and other clients are served in between."""

import asyncio
from importlib import import_module
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any

import pytest

from kbroker.api.k03_metadata import PARTITIONS_AT_ONCE
from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.runtime.turns import RELEASED_AT_ONCE, TURN_ELEMENTS
from kbroker.server.large_request import (
    LARGE_REQUEST_BYTES,
    MAX_BUFFER_BYTES,
    _join_buffers,
    release_elements,
)
from kbroker.server.receive_buffer import release_pages
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages import message_classes
from protocol.messages.k03_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from protocol.messages.k08_offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from protocol.messages.k09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.k15_groups import DescribeGroupsRequest, DescribeGroupsResponse, ListGroupsRequest
from protocol.messages.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest
from protocol.messages.k32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from protocol.messages.k33_alter_configs import AlterConfigsRequest, AlterConfigsResource
from protocol.messages.k35_describe_log_dirs import DescribeLogDirsRequest
from protocol.messages.k37_create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from protocol.messages.k43_elect_leaders import ElectLeadersRequest
from protocol.messages.k44_incremental_alter_configs import AlterConfigsResource as IncrementallyAltered
from protocol.messages.k44_incremental_alter_configs import IncrementalAlterConfigsRequest
from protocol.messages.k45_partition_reassignments import ListPartitionReassignmentsRequest
from protocol.messages.k61_describe_producers import DescribeProducersRequest, DescribeProducersResponse, TopicRequest
from protocol.messages.k65_describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from protocol.messages.k66_list_transactions import ListTransactionsRequest
from protocol.messages.k74_list_config_resources import ListConfigResourcesRequest
from protocol.messages.k75_describe_topic_partitions import DescribeTopicPartitionsRequest
from protocol.messages.k10011_delayed_records import DelayedRecordsRequest
from protocol.records.batch import build_batch
from protocol.schema.message import Message, message_info
from tests.unit.queues.delay.test_delivery import DELAY_MS
from tests.unit.support.client import Client
from tests.unit.support.simulated_broker import Machine, broker_test
from tests.unit.support.turns import pauses_of

LONGEST = 32_767


def count_pauses(m: Machine, monkeypatch: pytest.MonkeyPatch, elements: int = 1) -> list[None]:
    """Return a list that gets an element each time a request lets others be served, after this number of elements."""
    monkeypatch.setattr("kbroker.runtime.turns.TURN_ELEMENTS", elements)
    pauses: list[None] = []
    turns = m.broker._server.context.turns
    next_turn = turns._next_turn

    async def counted() -> None:
        pauses.append(None)
        await next_turn()

    monkeypatch.setattr(turns, "_next_turn", counted)
    return pauses


async def connected(m: Machine) -> Client:
    client = await m.client()
    await client.request(FindCoordinatorRequest(key="g"), 2, FindCoordinatorResponse)
    return client


@broker_test
@pytest.mark.parametrize(("count", "size", "least"), [(9_000, 1, 25), (600, LONGEST - 10, 300), (1, LONGEST, 3)])
async def test_describe_groups(m: Machine, monkeypatch: pytest.MonkeyPatch, count: int, size: int, least: int) -> None:
    """In one turn, 600 names of 32 KB would keep the event loop busy for seconds."""
    client = await connected(m)
    pauses = count_pauses(m, monkeypatch)
    names = [f"{number:05d}" + "x" * (size - 5) for number in range(count)]
    response = await client.request(DescribeGroupsRequest(groups=names), 5, DescribeGroupsResponse)
    assert [group.group_id for group in response.groups] == names
    assert {group.group_state for group in response.groups} == {"Dead"}
    assert len(pauses) >= least


@broker_test
async def test_find_coordinator(m: Machine) -> None:
    client = await connected(m)
    names = [f"{number:05d}" + "x" * 30_000 for number in range(100)]
    request = FindCoordinatorRequest(coordinator_keys=names)
    response = await client.request(request, 6, FindCoordinatorResponse)
    assert [(found.key, found.error_code, found.node_id) for found in response.coordinators] == [
        (name, 0, 1) for name in names
    ]


@broker_test
async def test_a_small_request_with_many_elements(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """10 KB of empty keys would keep the event loop busy for 15 to 30 ms."""
    client = await connected(m)
    pauses = count_pauses(m, monkeypatch, TURN_ELEMENTS)
    request = FindCoordinatorRequest(coordinator_keys=[""] * 9_900)
    response = await client.request(request, 6, FindCoordinatorResponse)
    assert len(response.coordinators) == 9_900
    assert len(pauses) >= 9_900 // TURN_ELEMENTS


@broker_test
async def test_a_response_above_the_limit_closes_the_connection(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more than 2 GiB, the size did not fit into the frame: the client waited for ever."""
    monkeypatch.setattr("kbroker.server.large_request.MAX_RESPONSE_BYTES", 1_000_000)
    client = await connected(m)
    resources = [DescribeConfigsResource(resource_type=4, resource_name="1")] * 1_000
    request = DescribeConfigsRequest(resources=resources, include_documentation=True)
    with pytest.raises(ConnectionResetError):
        await client.request(request, 4, DescribeConfigsResponse)
    context = m.broker._server.context
    assert context.errors.closed["response too large"] == 1
    assert context.memory.in_progress_bytes == 0


@broker_test
async def test_what_a_request_names_twice_is_described_once(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 names of one large group would otherwise take gigabytes."""
    described: list[object] = []
    client = await connected(m)
    await client.create_topic("t")
    three_times: list[tuple[str, Message, int, type[Message], str]] = [
        ("k09_offset_fetch._fetch", OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)] * 3),
         8, OffsetFetchResponse, "groups"),
        ("k15_groups._describe", DescribeGroupsRequest(groups=["g"] * 3), 5, DescribeGroupsResponse, "groups"),
        ("k32_describe_configs._result",
         DescribeConfigsRequest(resources=[DescribeConfigsResource(resource_type=2, resource_name="t")] * 3), 4,
         DescribeConfigsResponse, "results"),
        ("k61_describe_producers._partition",
         DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])] * 3), 0,
         DescribeProducersResponse, "topics"),
        ("k65_describe_transactions._described", DescribeTransactionsRequest(transactional_ids=["t"] * 3), 0,
         DescribeTransactionsResponse, "transaction_states"),
    ]  # fmt: skip
    for name, request, version, response_class, results in three_times:
        path = f"kbroker.api.{name}"
        module, _, function = path.rpartition(".")
        original = getattr(import_module(module), function)

        def counted(*arguments: Any, original: Any = original, **options: Any) -> Any:
            described.append(None)
            return original(*arguments, **options)

        monkeypatch.setattr(path, counted)
        described.clear()
        response = await client.request(request, version, response_class)
        assert (len(getattr(response, results)), len(described)) == (3, 1), name


@broker_test
async def test_responses_to_requests_after_a_large_one_are_sent_after_its_response(m: Machine) -> None:
    client = await connected(m)
    done: list[str] = []
    large = client.send(DescribeGroupsRequest(groups=["g" * 100] * 5000), 5, DescribeGroupsResponse)
    small = client.send(ApiVersionsRequest(), 0, ApiVersionsResponse)
    large.add_done_callback(lambda _: done.append("large"))
    small.add_done_callback(lambda _: done.append("small"))
    await asyncio.wait([large, small])
    assert done == ["large", "small"]
    assert m.broker._server.context.memory.in_progress_bytes == 0


@broker_test
async def test_errors_are_counted(m: Machine) -> None:
    client = await connected(m)
    topics = [MetadataRequestTopic(name=f"a/{number}") for number in range(LARGE_REQUEST_BYTES // 4)]
    response = await client.request(MetadataRequest(topics=topics), 9, MetadataResponse)
    assert {topic.error_code for topic in response.topics} == {ErrorCode.INVALID_TOPIC_EXCEPTION}
    counted = m.broker._server.context.errors.errors
    assert counted[ApiKey.METADATA, ErrorCode.INVALID_TOPIC_EXCEPTION] == len(topics)


@broker_test
async def test_a_malformed_large_request_closes_the_connection(m: Machine) -> None:
    client = await connected(m)
    frame, future = client.prepare(DescribeGroupsRequest(groups=["g" * 100] * 5000), 5, DescribeGroupsResponse)
    client.transport.write(frame[:-300] + b"\xff" * 300)
    with pytest.raises(ConnectionResetError):
        await future
    context = m.broker._server.context
    assert context.errors.closed["malformed request"] == 1
    assert context.memory.in_progress_bytes == 0


@broker_test
async def test_a_connection_that_is_closed_during_a_large_request(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    client, other = await connected(m), await connected(m)
    closed = asyncio.Event()
    monkeypatch.setattr(m.broker._server.context.turns, "_next_turn", closed.wait)
    large = client.send(DescribeGroupsRequest(groups=["g" * 100] * 5000), 5, DescribeGroupsResponse)
    await m.until(lambda: m.broker._server.context.memory.in_progress_bytes > 0)
    client.close()
    with pytest.raises(ConnectionResetError):
        await large
    await other.request(ApiVersionsRequest(), 0, ApiVersionsResponse)
    await m.until(lambda: len(m.broker._server.connections) == 1)
    closed.set()
    await m.until(lambda: m.broker._server.context.memory.in_progress_bytes == 0)


T, G = "t", "g"
SMALL_WITH_LARGE_RESPONSES: list[tuple[Message, int]] = [
    (MetadataRequest(topics=None), 12),
    (MetadataRequest(topics=[MetadataRequestTopic(name=T)]), 12),
    (OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=G, topics=None)]), 8),
    (OffsetFetchRequest(group_id=G, topics=None), 5),
    (DescribeGroupsRequest(groups=[G]), 5),
    (ListGroupsRequest(), 5),
    (CreateTopicsRequest(topics=[CreatableTopic(name="new", num_partitions=1, replication_factor=1)]), 7),
    (DescribeConfigsRequest(resources=[DescribeConfigsResource(resource_type=2, resource_name=T)]), 4),
    (AlterConfigsRequest(resources=[AlterConfigsResource(resource_type=2, resource_name=T)]), 2),
    (DescribeLogDirsRequest(topics=None), 4),
    (CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=T, count=2)]), 3),
    (ElectLeadersRequest(topic_partitions=None), 2),
    (IncrementalAlterConfigsRequest(resources=[IncrementallyAltered(resource_type=2, resource_name=T)]), 1),
    (ListPartitionReassignmentsRequest(topics=None), 0),
    (DescribeProducersRequest(topics=[TopicRequest(name=T, partition_indexes=[0])]), 0),
    (DescribeTransactionsRequest(transactional_ids=["x"]), 0),
    (ListTransactionsRequest(state_filters=["x"]), 2),
    (ListConfigResourcesRequest(), 1),
    (DescribeTopicPartitionsRequest(topics=[]), 0),
    (DelayedRecordsRequest(topic_name="delayed", max_records=10), 0),
]


@broker_test
async def test_small_requests_with_large_responses(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are served in turns as large ones are. Others are not: that would only take time."""
    client = await connected(m)
    await client.create_topic(T)
    await client.create_topic("delayed", **{"kbroker.delay.enable": "true"})
    await client.produce("delayed", build_batch([(m.now_ms, b"k", b"v", ((DELAY_MS, b"60000"),))]))
    committed = OffsetCommitRequestTopic(name=T, partitions=[OffsetCommitRequestPartition(committed_offset=0)])
    commit = OffsetCommitRequest(group_id=G, generation_id_or_member_epoch=-1, topics=[committed])
    await client.request(commit, 8, OffsetCommitResponse)
    m.broker.services.groups.runtime.contexts()[0].shard.groups["h"] = ClassicGroup("h")
    pauses = count_pauses(m, monkeypatch)
    for request, version in SMALL_WITH_LARGE_RESPONSES:
        pauses.clear()
        await client.request(request, version, message_classes(message_info(type(request)).key)[1])
        assert pauses, type(request)
    pauses.clear()
    await client.request(FindCoordinatorRequest(coordinator_keys=["g"]), 6, FindCoordinatorResponse)
    await client.request(FindCoordinatorRequest(key="h"), 2, FindCoordinatorResponse)
    assert not pauses


@broker_test
async def test_metadata_of_many_partitions_is_built_in_turns_and_cached(
    m: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await connected(m)
    await client.create_topic("t", partitions=1000)
    pauses = count_pauses(m, monkeypatch)
    large, all_topics = MetadataRequest(topics=[MetadataRequestTopic(name="t")]), MetadataRequest(topics=None)
    for request in (large, all_topics):
        pauses.clear()
        response = await client.request(request, 12, MetadataResponse)
        assert sum(len(topic.partitions) for topic in response.topics) >= 1000
        assert len(pauses) >= 1000 // PARTITIONS_AT_ONCE
        pauses.clear()
        assert await client.request(request, 12, MetadataResponse) == response
        assert not pauses


@broker_test
async def test_a_response_is_not_cached_if_the_image_changes_between_its_turns(
    m: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = await connected(m), await connected(m)
    await client.create_topic("t")
    paused, created = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        paused.set()
        await created.wait()

    with monkeypatch.context() as patch:
        patch.setattr("kbroker.runtime.turns.TURN_ELEMENTS", 1)
        patch.setattr(m.broker._server.context.turns, "_next_turn", wait)
        future = client.send(MetadataRequest(topics=None), 12, MetadataResponse)
        await paused.wait()
    await other.create_topic("u")
    created.set()
    await future
    response = await client.request(MetadataRequest(topics=None), 12, MetadataResponse)
    assert {"t", "u"} <= {topic.name for topic in response.topics}


def test_the_elements_of_a_message_are_freed_between_pauses() -> None:
    partitions = [MetadataResponsePartition(replica_nodes=[1]) for _ in range(10 * RELEASED_AT_ONCE)]
    replicas = partitions[0].replica_nodes
    topics = [MetadataResponseTopic(partitions=partitions), MetadataResponseTopic()]
    pauses = list(pauses_of(release_elements, MetadataResponse(topics=topics)))
    assert topics == partitions == []
    # Lists of numbers may be those of the image.
    assert replicas == [1]
    assert len(pauses) >= 10
    groups = ["g"] * (5 * RELEASED_AT_ONCE)
    assert len(list(pauses_of(release_elements, DescribeGroupsRequest(groups=groups)))) == 5
    assert groups == []


def test_the_pages_of_a_large_frame_are_returned_between_pauses() -> None:
    mapped = mmap(-1, 5 << 20, MAP_PRIVATE | MAP_ANONYMOUS)
    mapped[:] = b"x" * len(mapped)
    assert len(list(pauses_of(release_pages, memoryview(mapped)[4:]))) == 5
    assert mapped[:] == bytes(len(mapped))
    assert list(pauses_of(release_pages, b"copied")) == []


def test_very_large_buffers_of_a_response_are_split_instead_of_copied() -> None:
    large = bytes(range(256)) * (5 * MAX_BUFFER_BYTES // 512)
    body: list[Any] = []
    _join_buffers([b"head", b"er", large, b"tail"], body)
    assert b"".join(body) == b"header" + large + b"tail"
    assert max(map(len, body)) == MAX_BUFFER_BYTES
    assert body[1].obj is large
