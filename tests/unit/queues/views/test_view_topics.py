"""Views as topics: how they are created, changed and deleted, what is refused, and what follows from their source."""

import pytest

from protocol.errors import ErrorCode
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.messages.k19_create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from protocol.messages.k37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from protocol.messages.k43_elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from protocol.messages.k45_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from protocol.messages.k61_describe_producers import DescribeProducersRequest, DescribeProducersResponse, TopicRequest
from tests.unit.support.client import values_of
from tests.unit.support.simulated_broker import Machine, broker_test
from tests.unit.support.views import create, create_view, delete, describe, tagged


@broker_test
async def test_a_view_grows_with_its_source_and_survives_a_restart(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("orders")
    await create_view(client)
    grow = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="orders", count=3, assignments=None)], timeout_ms=1000
    )
    await client.request(grow, 3, CreatePartitionsResponse)
    await client.produce("orders", tagged((b"1", b"paid", None)), 2)
    assert await client.read("paid", partition=2) == [b"1"]
    await m.restart()
    client = await m.client()
    assert len((await describe(client, "paid")).topics[0].partitions) == 3
    assert await client.read("paid", partition=2) == [b"1"]
    offsets = ListOffsetsRequest(
        replica_id=-1,
        topics=[ListOffsetsTopic(name="paid", partitions=[ListOffsetsPartition(partition_index=2, timestamp=-1)])],
    )
    listed = await client.request(offsets, 7, ListOffsetsResponse)
    assert (listed.topics[0].partitions[0].error_code, listed.topics[0].partitions[0].offset) == (0, 1)


@broker_test
async def test_a_changed_filter_and_a_deleted_view(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("orders")
    await create_view(client)
    await client.produce("orders", tagged((b"1", b"paid", None), (b"2", b"open", None)))
    first = await client.fetch({("paid", 0): 0}, session=(0, 0))
    assert values_of(first.responses[0].partitions[0]) == [b"1"]
    await client.alter_topic("paid", kbroker_view_filter="open")
    second = await client.fetch({("paid", 0): 0}, session=(first.session_id, 1))
    assert values_of(second.responses[0].partitions[0]) == [b"2"]
    assert await delete(client, "paid") == {"paid": (0, "")}
    third = await client.fetch({("paid", 0): 0}, session=(first.session_id, 2))
    assert third.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await client.read("orders") == [b"1", b"2"]


@broker_test
async def test_a_source_with_views_is_not_deleted_alone(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("orders")
    await create_view(client)
    code, message = (await delete(client, "orders"))["orders"]
    assert code == ErrorCode.INVALID_REQUEST
    assert "paid" in message
    assert await delete(client, "orders", "paid") == {"orders": (0, ""), "paid": (0, "")}


@broker_test
async def test_what_is_refused(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("orders", 2)
    await create_view(client)
    view = "kbroker.view.of"
    for name, configs, expected, text in (
        ("a", {view: "absent"}, ErrorCode.INVALID_CONFIG, "does not exist"),
        ("a", {view: "paid"}, ErrorCode.INVALID_CONFIG, "view of a view"),
        ("a", {view: "orders", "kbroker.view.filter": "a b"}, ErrorCode.INVALID_CONFIG, "'a b'"),
        ("a", {view: "orders", "retention.ms": "1"}, ErrorCode.INVALID_CONFIG, "retention.ms"),
        ("a", {"kbroker.view.filter": "a"}, ErrorCode.INVALID_CONFIG, "requires"),
    ):
        code, message = await create(client, name, configs)
        assert (code, text in message) == (expected, True), message
    assert (await create(client, "a", {view: "orders"}, partitions=3))[0] == ErrorCode.INVALID_PARTITIONS
    assert (await create(client, "a", {view: "orders"}, factor=2))[0] == ErrorCode.INVALID_REPLICATION_FACTOR
    # Nothing was stored.
    assert (await describe(client, "a")).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    result = await client.produce("paid", tagged((b"1", b"paid", None)))
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    grow = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="paid", count=3, assignments=None)], timeout_ms=1000
    )
    grown = await client.request(grow, 3, CreatePartitionsResponse)
    assert grown.results[0].error_code == ErrorCode.INVALID_REQUEST
    assert "its source" in (grown.results[0].error_message or "")
    move = AlterPartitionReassignmentsRequest(
        timeout_ms=1000,
        topics=[ReassignableTopic(name="paid", partitions=[ReassignablePartition(partition_index=0, replicas=[1])])],
    )
    moved = await client.request(move, 0, AlterPartitionReassignmentsResponse)
    refusal = moved.responses[0].partitions[0]
    assert (refusal.error_code, "its source" in (refusal.error_message or "")) == (ErrorCode.INVALID_REQUEST, True)
    elect = ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="paid", partitions=[0])], timeout_ms=1000)
    elected = await client.request(elect, 2, ElectLeadersResponse)
    outcome = elected.replica_election_results[0].partition_result[0]
    assert (outcome.error_code, "its source" in (outcome.error_message or "")) == (ErrorCode.INVALID_REQUEST, True)
    with pytest.raises(AssertionError):
        await client.alter_topic("orders", kbroker_view_of="paid")


@broker_test
async def test_a_source_is_created_before_the_request_that_creates_its_view(m: Machine) -> None:
    client = await m.client()
    view = [CreatableTopicConfig(name="kbroker.view.of", value="orders")]
    topics = [
        CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, configs=configs)
        for name, configs in (("orders", []), ("paid", view))
    ]
    response = await client.request(CreateTopicsRequest(topics=topics, timeout_ms=1000), 7, CreateTopicsResponse)
    results = {result.name: result for result in response.topics}
    assert results["orders"].error_code == ErrorCode.NONE
    assert results["paid"].error_code == ErrorCode.INVALID_CONFIG
    assert "create it first, in a request of its own" in (results["paid"].error_message or "")
    await create_view(client)


@broker_test
async def test_a_view_has_no_producers(m: Machine) -> None:
    """Tools that look for hanging transactions ask for the producers of all topics."""
    client = await m.client()
    await client.create_topic("orders")
    await create_view(client)
    request = DescribeProducersRequest(topics=[TopicRequest(name="paid", partition_indexes=[0])])
    (topic,) = (await client.request(request, 0, DescribeProducersResponse)).topics
    assert (topic.partitions[0].error_code, topic.partitions[0].active_producers) == (ErrorCode.NONE, [])


@broker_test
async def test_a_source_that_is_created_again_has_new_views(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("orders")
    await create_view(client)
    await client.produce("orders", tagged((b"1", b"paid", None), (b"2", b"open", None)))
    first = await client.fetch({("paid", 0): 0}, session=(0, 0))
    assert values_of(first.responses[0].partitions[0]) == [b"1"]
    assert await delete(client, "orders", "paid") == {"orders": (0, ""), "paid": (0, "")}
    await client.create_topic("orders")
    # The name of a view can be that of an ordinary topic, or of another view.
    second = await client.fetch({("paid", 0): 2}, session=(first.session_id, 1))
    assert second.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await create_view(client, expression="open")
    await client.produce("orders", tagged((b"3", b"open", None), (b"4", b"paid", None)))
    third = await client.fetch({("paid", 0): 0}, session=(first.session_id, 2))
    assert values_of(third.responses[0].partitions[0]) == [b"3"]
    assert await client.read("paid") == [b"3"]
