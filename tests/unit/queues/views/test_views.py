"""Views in a broker: what consumers see of the source, and what is refused."""

import asyncio
from random import Random

import pytest

from kbroker.config.tag_expression import parse_tag_expression
from kbroker.queues.views.tag_filter import TagFilter
from kbroker.simulation.runtime.clock import EPOCH_MS
from protocol.errors import ErrorCode, MalformedError
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from protocol.messages.k09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic, OffsetFetchResponse
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.k19_create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from protocol.messages.k37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from protocol.messages.k43_elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from protocol.messages.k45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from protocol.messages.k61_describe_producers import DescribeProducersRequest, DescribeProducersResponse, TopicRequest
from protocol.records.batch import (
    TRANSACTIONAL,
    assemble_batch,
    build_batch,
    iter_batch_records,
    iter_headers,
    parse_header,
)
from protocol.records.record import Record
from tests.unit.support.client import Client, records_of, values_of
from tests.unit.support.simulated_broker import Machine, broker_test
from tests.unit.support.transactional_producer import init_producer

Tagged = tuple[bytes, bytes | None, bytes | None]


def tagged(*records: Tagged, codec: int = 0) -> bytearray:
    """Build a batch of (value, TAGS, KEYS)."""
    encoded = []
    for value, tag, keys in records:
        headers = [(name, text) for name, text in ((b"TAGS", tag), (b"KEYS", keys)) if text is not None]
        encoded.append((EPOCH_MS, b"k", value, headers))
    return build_batch(encoded, codec=codec)


async def create(
    client: Client, name: str, configs: dict[str, str], partitions: int = -1, factor: int = -1
) -> tuple[int, str]:
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=1000)
    response = await client.request(request, 7, CreateTopicsResponse)
    return response.topics[0].error_code, response.topics[0].error_message or ""


async def create_view(client: Client, name: str = "paid", expression: str = "paid", source: str = "orders") -> None:
    configs = {"kbroker.view.of": source, "kbroker.view.filter": expression}
    assert await create(client, name, configs) == (0, "")


async def delete(client: Client, *names: str) -> dict[str, tuple[int, str]]:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names], timeout_ms=1000)
    response = await client.request(request, 6, DeleteTopicsResponse)
    return {result.name or "": (result.error_code, result.error_message or "") for result in response.responses}


async def metadata(client: Client, name: str) -> MetadataResponse:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    return await client.request(request, 12, MetadataResponse)


@broker_test
async def test_a_view_has_the_records_with_its_tags(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("orders", 2)
    await create_view(client, "paid", "paid || KEYS in (k1, k2)")
    await client.produce("orders", tagged((b"1", b"paid", None), (b"2", b"open", None), (b"paid", None, b"x k2")), 1)
    await client.produce("orders", tagged((b"\x08TAGS\x08paid", None, None), (b"k1", b"open", b"k11")), 1)
    assert await client.read("paid", partition=1) == [b"1", b"paid"]
    assert await client.read("orders", partition=1) == [b"1", b"2", b"paid", b"\x08TAGS\x08paid", b"k1"]
    response = await metadata(client, "paid")
    assert [partition.partition_index for partition in response.topics[0].partitions] == [0, 1]
    assert response.topics[0].topic_id != (await metadata(client, "orders")).topics[0].topic_id


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
    assert len((await metadata(client, "paid")).topics[0].partitions) == 3
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
    assert (await metadata(client, "a")).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    result = await client.produce("paid", tagged((b"1", b"paid", None)))
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    grow = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="paid", count=3, assignments=None)], timeout_ms=1000
    )
    grown = await client.request(grow, 3, CreatePartitionsResponse)
    assert grown.results[0].error_code == ErrorCode.INVALID_REQUEST
    assert "orders" in (grown.results[0].error_message or "")
    move = AlterPartitionReassignmentsRequest(
        timeout_ms=1000,
        topics=[ReassignableTopic(name="paid", partitions=[ReassignablePartition(partition_index=0, replicas=[1])])],
    )
    moved = await client.request(move, 0, AlterPartitionReassignmentsResponse)
    refusal = moved.responses[0].partitions[0]
    assert (refusal.error_code, "orders" in (refusal.error_message or "")) == (ErrorCode.INVALID_REQUEST, True)
    elect = ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="paid", partitions=[0])], timeout_ms=1000)
    elected = await client.request(elect, 2, ElectLeadersResponse)
    outcome = elected.replica_election_results[0].partition_result[0]
    assert (outcome.error_code, "orders" in (outcome.error_message or "")) == (ErrorCode.INVALID_REQUEST, True)
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
async def test_a_long_poll_of_a_view_waits_for_a_selected_record(m: Machine) -> None:
    client, producer = await m.client(), await m.client()
    await client.create_topic("orders")
    await create_view(client)
    waiting = asyncio.ensure_future(client.fetch_partition("paid", 0, max_wait_ms=60_000))
    await producer.produce("orders", tagged((b"1", b"open", None)))
    await asyncio.sleep(1)
    assert not waiting.done()
    await producer.produce("orders", tagged((b"2", b"paid", None)))
    assert values_of(await waiting) == [b"2"]


@broker_test
async def test_a_view_has_what_a_consumer_would_select(m: Machine) -> None:
    """Random batches, codecs and fetch sizes."""
    random = Random(7)
    client = await m.client()
    await client.create_topic("orders", segment_bytes=1 << 20)
    await create_view(client, expression="a || KEYS in (x)")
    expected = []
    for number in range(150):
        records: list[Tagged] = []
        for index in range(random.randrange(1, 12)):
            tag = random.choice([None, b"a", b"b", b"aa"])
            keys = random.choice([None, b"x", b"y x", b"xy"])
            value = b"%d-%d" % (number, index) + random.choice([b"", b"\x08TAGS\x02a"]) + b"x" * random.randrange(2000)
            records.append((value, tag, keys))
            if tag == b"a" or keys in (b"x", b"y x"):
                expected.append(value)
        await client.produce("orders", tagged(*records, codec=random.randrange(5)))
    found: list[bytes] = []
    offset = 0
    while offset < 2_000:
        data = await client.fetch_partition("paid", offset, max_bytes=random.choice([1, 5_000, 100_000]), max_wait_ms=0)
        headers = list(iter_headers(records_of(data)))
        if not headers:
            break
        found += values_of(data, offset)
        assert headers[-1][1].next_offset > offset
        offset = headers[-1][1].next_offset
    assert found == expected


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


@broker_test
async def test_a_session_fetches_the_partitions_that_are_added_to_the_source(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("orders")
    await create_view(client)
    first = await client.fetch({("paid", 0): 0, ("paid", 1): 0}, session=(0, 0))
    codes = [partition.error_code for partition in first.responses[0].partitions]
    assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    grow = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="orders", count=2, assignments=None)], timeout_ms=1000
    )
    await client.request(grow, 3, CreatePartitionsResponse)
    await client.produce("orders", tagged((b"1", b"paid", None)), 1)
    second = await client.fetch({}, session=(first.session_id, 1), max_wait_ms=10_000)
    (partition,) = second.responses[0].partitions
    assert (partition.partition_index, values_of(partition)) == (1, [b"1"])


@broker_test
async def test_groups_commit_offsets_of_a_view(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("orders", 2)
    await create_view(client)

    def commit(topic: str, *partitions: int) -> OffsetCommitRequest:
        rows = [OffsetCommitRequestPartition(partition_index=index, committed_offset=7) for index in partitions]
        return OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name=topic, partitions=rows)])

    async def committed(topic: str) -> list[int]:
        topics = [OffsetFetchRequestTopic(name=topic, partition_indexes=[0, 1])]
        request = OffsetFetchRequest(group_id="g", topics=topics)
        response = await client.request(request, 7, OffsetFetchResponse)
        while response.error_code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR):
            await asyncio.sleep(0.1)
            response = await client.request(request, 7, OffsetFetchResponse)
        assert response.error_code == 0
        return [partition.committed_offset for partition in response.topics[0].partitions]

    find = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
    while (await client.request(find, 4, FindCoordinatorResponse)).coordinators[0].error_code:
        await asyncio.sleep(0.1)
    while True:
        response = await client.request(commit("paid", 1, 2), 8, OffsetCommitResponse)
        codes = [partition.error_code for partition in response.topics[0].partitions]
        if ErrorCode.COORDINATOR_LOAD_IN_PROGRESS not in codes and ErrorCode.NOT_COORDINATOR not in codes:
            break
        await asyncio.sleep(0.1)
    assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert await committed("paid") == [-1, 7]
    # Those of the source are others.
    assert await committed("orders") == [-1, -1]
    await m.restart()
    client = await m.client()
    while (await client.request(find, 4, FindCoordinatorResponse)).coordinators[0].error_code:
        await asyncio.sleep(0.1)
    assert await committed("paid") == [-1, 7]
    # They end with the view, and not with the source's other views.
    await delete(client, "paid")
    await create_view(client)
    assert await committed("paid") == [-1, -1]


@broker_test
async def test_read_committed_with_aborted_and_open_transactions(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("orders")
    await create_view(client)
    producer = await init_producer(m)

    def transactional(*records: Tagged) -> bytearray:
        data = tagged(*records, codec=3)
        header = parse_header(data)
        body = bytes(data[61:])
        return assemble_batch(
            body, count=header.count, last_offset_delta=header.last_offset_delta, base_timestamp=header.base_timestamp,
            max_timestamp=header.max_timestamp, attributes=header.attributes | TRANSACTIONAL,
            producer_id=producer.producer_id, producer_epoch=producer.epoch, base_sequence=0,
        )  # fmt: skip

    for number, end in enumerate(("abort", "commit", "open")):
        data = transactional((b"%d-paid" % number, b"paid", None), (b"%d-open" % number, b"open", None))
        ((response,),) = await producer.send_all({"orders": {0: data}}, version=12)
        assert response.error_code == 0
        if end != "open":
            assert await (producer.commit() if end == "commit" else producer.abort()) == 0
            await producer.wait_until_completed()
    fetched = await client.fetch_partition("paid", 0, isolation_level=1, max_wait_ms=0)
    # Records 0-1, a marker, records 3-4, a marker, and the open transaction from 6 on.
    assert (fetched.last_stable_offset, fetched.high_watermark) == (6, 8)
    (aborted,) = fetched.aborted_transactions or ()
    assert (aborted.producer_id, aborted.first_offset) == (producer.producer_id, 0)
    assert values_of(fetched) == [b"0-paid", b"1-paid"]
    kinds = [(header.base_offset, header.is_control) for _, header in iter_headers(records_of(fetched))]
    # The client needs the markers: with the abort marker it ends the aborted transaction.
    assert kinds == [(0, False), (2, True), (3, False), (5, True)]
    uncommitted = await client.fetch_partition("paid", 0, max_wait_ms=0)
    assert values_of(uncommitted) == [b"0-paid", b"1-paid", b"2-paid"]
    # An aborted transaction without a selected record before the abort marker still ends.
    assert await producer.abort() == 0
    await producer.wait_until_completed()
    fetched = await client.fetch_partition("paid", 6, isolation_level=1, max_wait_ms=0)
    assert [row.first_offset for row in fetched.aborted_transactions or ()] == [6]


@broker_test
@pytest.mark.parametrize("codec", range(5))
async def test_large_compressed_batches_are_filtered_in_a_thread(m: Machine, codec: int) -> None:
    random = Random(codec)
    client = await m.client()
    await client.create_topic("orders")
    await create_view(client)
    rows: list[Tagged] = [
        (b"%d:" % number + random.randbytes(3000), random.choice([b"paid", b"open"]), None) for number in range(200)
    ]
    assert (await client.produce("orders", tagged(*rows, codec=codec))).error_code == 0
    assert await client.read("paid") == [value for value, tag, _ in rows if tag == b"paid"]
    assert (m.threads.started["read_cold_blocking"] > 0) == (codec > 0)


def records(data: bytes) -> list[Record]:
    return list(iter_batch_records(data, parse_header(data)))


@pytest.mark.parametrize("codec", range(5))
def test_rewritten_batches_keep_offsets(codec: int) -> None:
    data = tagged((b"1", b"a", None), (b"2", b"b", None), (b"3", b"a", None), codec=codec)
    header = parse_header(data)
    kept = TagFilter(parse_tag_expression("a")).filter_batch(memoryview(data), header, 0, 1 << 20)
    assert kept is not None
    rewritten = parse_header(kept)
    assert (rewritten.base_offset, rewritten.last_offset_delta, rewritten.count) == (0, 2, 2)
    assert [(record.offset_delta, record.value) for record in records(bytes(kept))] == [(0, b"1"), (2, b"3")]


def test_a_batch_that_is_selected_completely_is_not_copied() -> None:
    data = memoryview(tagged((b"1", b"a", None), (b"2", b"a", None)))
    assert TagFilter(parse_tag_expression("a")).filter_batch(data, parse_header(data), 0, 1 << 20) is data


@pytest.mark.parametrize("terms", [2, 255])
def test_a_filter_of_many_terms_selects_the_same_records(terms: int) -> None:
    """With many terms the headers of all records are decoded; otherwise the bytes of the terms are searched."""
    random = Random(terms)
    expression = " || ".join([f"t{number}" for number in range(terms)]) + " || KEYS in (k)"
    read_filter = TagFilter(parse_tag_expression(expression))
    for _ in range(100):
        rows: list[Tagged] = []
        for _ in range(random.randrange(1, 30)):
            tag = random.choice([b"t1", b"t0", b"u", b"t1x", None])
            value = random.choice([b"x", b"\x08TAGS\x04t1", b"k", b"y" * 300])
            rows.append((value, tag, random.choice([None, b"k", b"kk", b"a k"])))
        data = tagged(*rows)
        kept = read_filter.filter_batch(memoryview(data), parse_header(data), 0, 1 << 20)
        expected = [
            index for index, (_, tag, keys) in enumerate(rows) if tag in (b"t0", b"t1") or keys in (b"k", b"a k")
        ]
        assert ([record.offset_delta for record in records(bytes(kept))] if kept else []) == expected


def test_damaged_records_are_reported() -> None:
    data = tagged((b"1", b"a", None), (b"2", b"a", None))
    data[61] = 0x7F
    with pytest.raises(MalformedError):
        TagFilter(parse_tag_expression("a")).filter_batch(memoryview(data), parse_header(data), 0, 1 << 20)
