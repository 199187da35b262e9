"""Produce (key 0): acknowledgements, idempotent producers, order on a connection, durability."""

import asyncio

import pytest

from protocol.errors import ErrorCode
from protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from protocol.messages.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from tests.unit.support.client import Client, batch, values_of
from tests.unit.support.simulated_broker import Machine, broker_test

PRODUCER = 4000


async def codes(*responses: "asyncio.Future[object]") -> list[ErrorCode]:
    return [ErrorCode(response.error_code) for response in await asyncio.gather(*responses)]  # type: ignore[attr-defined]


# Acknowledgements.


@broker_test
@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("acks", [1, -1])
async def test_each_version_is_acknowledged(m: Machine, version: int, acks: int) -> None:
    client = await m.client()
    await client.create_topic("t", 2)
    response = await client.produce("t", batch(b"a", b"b"), 1, version=version, acks=acks)
    assert (response.error_code, response.base_offset, response.index) == (0, 0, 1)
    response = await client.produce("t", batch(b"c"), 1, version=version, acks=acks)
    assert (response.error_code, response.base_offset, response.log_append_time_ms) == (0, 2, -1)
    assert await client.read("t", 0, 1) == [b"a", b"b", b"c"]
    assert await client.read("t", 0, 0) == []


@broker_test
async def test_acks_0_has_no_response(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    bytes_received = client.bytes_received
    client.produce_acks_0("t", batch(b"a"))
    client.produce_acks_0("t", batch(b"b"), version=3)
    await asyncio.sleep(1)
    assert client.bytes_received == bytes_received
    assert (await client.produce("t", batch(b"c"))).base_offset == 2


@broker_test
@pytest.mark.parametrize("wrong", ["topic", "batch", "acks"])
async def test_an_error_with_acks_0_closes_the_connection(m: Machine, wrong: str) -> None:
    client = await m.client()
    await client.create_topic("t")
    before = client.send_produce("t", batch(b"before"), acks=1)
    if wrong == "topic":
        client.produce_acks_0("nothing", batch(b"a"))
    elif wrong == "batch":
        damaged = batch(b"a")
        damaged[-1] ^= 1
        client.produce_acks_0("t", damaged)
    else:
        request = client.produce_request("t", {0: batch(b"a")}, acks=7)
        response = await client.request(request, 9, ProduceResponse)
        code = response.responses[0].partition_responses[0].error_code
        assert code == ErrorCode.INVALID_REQUIRED_ACKS
        return
    later = client.send_produce("t", batch(b"after"), acks=1)
    assert (await before).base_offset == 0
    with pytest.raises(ConnectionResetError):
        await later
    other = await m.client()
    assert await other.read("t") == [b"before"]


@broker_test
async def test_several_partitions_and_errors_beside_successes(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", 3)
    damaged = batch(b"x")
    damaged[-1] ^= 1
    topics = [
        TopicProduceData(
            name="t",
            partition_data=[
                PartitionProduceData(index=0, records=batch(b"a")),
                PartitionProduceData(index=1, records=damaged),
                PartitionProduceData(index=2, records=None),
                PartitionProduceData(index=3, records=batch(b"b")),
            ],
        ),
        TopicProduceData(name="u", partition_data=[PartitionProduceData(index=0, records=batch(b"c"))]),
    ]
    response = await client.request(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=topics), 9, ProduceResponse)
    errors = {(topic.name, part.index): ErrorCode(part.error_code) for topic in response.responses
             for part in topic.partition_responses}  # fmt: skip
    assert errors == {
        ("t", 0): ErrorCode.NONE,
        ("t", 1): ErrorCode.CORRUPT_MESSAGE,
        ("t", 2): ErrorCode.INVALID_RECORD,
        ("t", 3): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("u", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert await client.read("t", 0, 0) == [b"a"]
    assert m.partition("t", 1).log.log_end_offset == 0


@broker_test
async def test_topics_by_id(m: Machine) -> None:
    client = await m.client()
    old = await client.create_topic("t")
    await client.delete_topic("t")
    await client.create_topic("t")
    new, client.ids["t"] = client.ids["t"], old
    assert await codes(client.send_produce("t", batch(b"a"), version=13)) == [ErrorCode.UNKNOWN_TOPIC_ID]
    client.ids["t"] = new
    assert await codes(client.send_produce("t", batch(b"a"), version=13)) == [ErrorCode.NONE]


@broker_test
async def test_clients_cannot_append_to_internal_topics(m: Machine) -> None:
    client = await m.client()
    await m.broker.services.auto_topic_creation.ensure_internal_topic("__consumer_offsets")
    response = await client.produce("__consumer_offsets", batch(b"a"))
    assert response.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert response.error_message == "Cannot append to internal topic __consumer_offsets"
    assert m.partition("__consumer_offsets").log.log_end_offset == 0


@broker_test
async def test_min_insync_replicas(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", min_insync_replicas=2)
    # At most the number of replicas are required (KAFKA-15583).
    assert await codes(client.send_produce("t", batch(b"a"))) == [ErrorCode.NONE]
    m.partition("t").state.update_replicas_and_isr([1, 2], [1])
    assert await codes(client.send_produce("t", batch(b"a"))) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert await codes(client.send_produce("t", batch(b"a"), acks=1)) == [ErrorCode.NONE]


@broker_test
async def test_log_append_time(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", message_timestamp_type="LogAppendTime")
    response = await client.produce("t", batch(b"a", at_ms=5))
    assert m.now_ms - 10 <= response.log_append_time_ms <= m.now_ms


# Idempotent producers.


@broker_test
async def test_a_duplicate_gets_the_response_of_its_original(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    for sequence in range(0, 12, 2):
        assert (await client.produce("t", batch(b"a", b"b", producer=(PRODUCER, 0, sequence)))).base_offset == sequence
    for sequence in range(2, 12, 2):
        response = await client.produce("t", batch(b"a", b"b", producer=(PRODUCER, 0, sequence)))
        assert (response.error_code, response.base_offset) == (0, sequence)
    assert m.partition("t").log.log_end_offset == 12
    # Only the last five batches of a producer are known.
    response = await client.produce("t", batch(b"a", b"b", producer=(PRODUCER, 0, 0)))
    assert response.error_code in (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)


@broker_test
async def test_sequences_and_epochs(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")

    async def produce(epoch: int, sequence: int) -> ErrorCode:
        return (await codes(client.send_produce("t", batch(b"a", producer=(PRODUCER, epoch, sequence)))))[0]

    assert await produce(0, 0) is ErrorCode.NONE
    assert await produce(0, 2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await produce(0, 1) is ErrorCode.NONE
    assert await produce(1, 0) is ErrorCode.NONE
    assert await produce(0, 2) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert await produce(1, 1) is ErrorCode.NONE
    assert m.partition("t").log.log_end_offset == 4


@broker_test
async def test_batches_after_a_lost_one_are_rejected_until_it_is_sent_again(m: Machine) -> None:
    """Five requests in flight, as with max.in.flight.requests.per.connection=5; the first is damaged on its way."""
    client = await m.client()
    await client.create_topic("t")
    batches = [batch(b"%d" % n, producer=(PRODUCER, 0, n)) for n in range(6)]
    assert await codes(client.send_produce("t", batches[0])) == [ErrorCode.NONE]
    damaged = bytearray(batches[1])
    damaged[-1] ^= 1
    first = [client.send_produce("t", data) for data in [damaged, *batches[2:]]]
    assert await codes(*first) == [ErrorCode.CORRUPT_MESSAGE] + [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER] * 4
    assert await codes(*[client.send_produce("t", data) for data in batches[1:]]) == [ErrorCode.NONE] * 5
    assert await client.read("t") == [b"0", b"1", b"2", b"3", b"4", b"5"]


@broker_test
@pytest.mark.parametrize("stop", ["stop", "kill", "power"])
async def test_producer_state_survives_a_restart(m: Machine, stop: str) -> None:
    client = await m.client()
    await client.create_topic("t", flush_before_ack=True)
    for sequence in range(7):
        await client.produce("t", batch(b"%d" % sequence, producer=(PRODUCER, 3, sequence)))
    if stop == "stop":
        await m.stop()
    else:
        await m.crash(power=stop == "power")
    await m.start()
    client = await m.client()
    for sequence in range(2, 7):
        response = await client.produce("t", batch(b"%d" % sequence, producer=(PRODUCER, 3, sequence)))
        assert (response.error_code, response.base_offset) == (0, sequence)
    assert (await client.produce("t", batch(b"7", producer=(PRODUCER, 3, 7)))).base_offset == 7
    response = await client.produce("t", batch(b"9", producer=(PRODUCER, 3, 9)))
    assert response.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await client.read("t") == [b"%d" % n for n in range(8)]


# Order on a connection.


@broker_test
async def test_responses_to_pipelined_requests_are_in_order(m: Machine) -> None:
    """The requests after a Produce that waits for its sync are handled, but their responses are sent later."""
    client = await m.client()
    await client.create_topic("slow", flush_before_ack=True)
    await client.create_topic("fast")
    m.threads.held.add("flush_blocking")
    waiting = [client.send_produce("slow", batch(b"%d" % n)) for n in range(3)]
    others = [client.send_produce("fast", batch(b"%d" % n)) for n in range(3)]
    versions = client.send(ApiVersionsRequest(), 0, ApiVersionsResponse)
    await m.until(lambda: m.partition("fast").log.log_end_offset == 3)
    await asyncio.sleep(1)
    assert not any(response.done() for response in [*waiting, *others, versions])
    m.threads.release("flush_blocking")
    # The client checks the order.
    await asyncio.gather(*waiting, *others, versions)


@broker_test
async def test_a_fetch_after_a_produce_that_waits(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", flush_before_ack=True)
    m.threads.held.add("flush_blocking")
    produced = client.send_produce("t", batch(b"a"))
    fetched = client.send_fetch({("t", 0): 0}, max_wait_ms=10_000)
    behind = client.send_produce("t", batch(b"b"))
    await asyncio.sleep(1)
    assert not fetched.done()
    assert m.partition("t").log.log_end_offset == 1
    m.threads.release("flush_blocking")
    assert (await produced).error_code == 0
    assert (await fetched).responses[0].partitions[0].high_watermark == 1
    assert (await behind).base_offset == 1


# Durability before the acknowledgement.


async def flushed_topic(m: Machine, **configs: object) -> Client:
    client = await m.client()
    await client.create_topic("t", **(configs or {"flush_before_ack": True}))
    m.threads.held.add("flush_blocking")
    return client


@broker_test
@pytest.mark.parametrize("configs", [{"flush_before_ack": True}, {"flush_messages": 1}])
@pytest.mark.parametrize("acks", [1, -1])
async def test_acknowledged_only_when_synced(m: Machine, acks: int, configs: dict[str, object]) -> None:
    client = await flushed_topic(m, **configs)
    produced = client.send_produce("t", batch(b"a"), acks=acks)
    other = await m.client()
    await m.until(lambda: m.partition("t").log.log_end_offset == 1)
    await asyncio.sleep(5)
    assert not produced.done()
    assert await other.read("t") == []
    response = await other.fetch_partition("t", 1)
    assert (response.error_code, response.high_watermark) == (0, 0)
    m.threads.release("flush_blocking")
    assert (await produced).error_code == 0
    assert await other.read("t") == [b"a"]


@broker_test
async def test_one_sync_acknowledges_all_waiting_requests(m: Machine) -> None:
    client = await flushed_topic(m)
    await client.create_topic("other")
    first = client.send_produce("t", batch(b"first"))
    await m.until(lambda: m.threads.started["flush_blocking"] == 1)
    others = [await m.client() for _ in range(20)]
    responses = [other.send_produce("t", batch(b"x")) for other in others for _ in range(3)]
    await asyncio.sleep(1)
    m.threads.release("flush_blocking")
    assert await codes(first, *responses) == [ErrorCode.NONE] * 61
    assert m.threads.started["flush_blocking"] == 2


@broker_test
async def test_acks_0_does_not_wait(m: Machine) -> None:
    client = await flushed_topic(m)
    client.produce_acks_0("t", batch(b"a"))
    await client.request(ApiVersionsRequest(), 0, ApiVersionsResponse)
    assert m.partition("t").log.log_end_offset == 1


@broker_test
async def test_a_duplicate_waits_for_the_sync_of_its_original(m: Machine) -> None:
    client, other = await flushed_topic(m), await m.client()
    data = batch(b"a", producer=(PRODUCER, 0, 0))
    original = client.send_produce("t", data, acks=1)
    await m.until(lambda: m.partition("t").log.log_end_offset == 1)
    later = client.send_produce("t", batch(b"b", producer=(PRODUCER, 0, 1)), acks=1)
    await m.until(lambda: m.partition("t").log.log_end_offset == 2)
    duplicate = other.send_produce("t", data, acks=1)
    await asyncio.sleep(1)
    assert not original.done()
    assert not duplicate.done()
    # The sync in progress covers the original. What was appended later needs another one.
    m.threads.release_waiting("flush_blocking")
    assert (await duplicate).base_offset == (await original).base_offset == 0
    assert not later.done()
    m.threads.release("flush_blocking")
    assert (await later).base_offset == 1


@broker_test
async def test_a_produce_that_times_out(m: Machine) -> None:
    client = await flushed_topic(m)
    began = m.elapsed_ms
    response = await client.produce("t", batch(b"a"), timeout_ms=1500)
    assert response.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert 1500 <= m.elapsed_ms - began < 1510
    m.threads.release("flush_blocking")
    await m.until(lambda: m.partition("t").high_watermark == 1)
    assert (await client.produce("t", batch(b"b"))).base_offset == 1


@broker_test
async def test_a_failed_sync_is_never_repeated(m: Machine) -> None:
    client, consumer = await m.client(), await m.client()
    await client.create_topic("t", flush_before_ack=True)
    await client.create_topic("other")
    await client.produce("t", batch(b"synced"))
    waiting = consumer.send_fetch({("t", 0): 1}, max_wait_ms=100_000)
    await asyncio.sleep(1)
    path = "/data/t-0/00000000000000000000.log"
    before = m.disk.syncs[path]
    m.disk.faults.fail_next("sync")
    original = batch(b"lost", producer=(PRODUCER, 0, 0))
    assert await codes(client.send_produce("t", original)) == [ErrorCode.KAFKA_STORAGE_ERROR]
    # A waiting fetch gets the error at once.
    assert (await waiting).responses[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    # A retry is not acknowledged as a duplicate of a batch that was appended and perhaps lost.
    assert await codes(client.send_produce("t", original)) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert await codes(client.send_produce("t", batch(b"more"), acks=1)) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert await codes(client.send_produce("other", batch(b"fine"))) == [ErrorCode.NONE]
    await asyncio.sleep(3600)
    client = await m.client()
    # Only what was synced before can be read.
    assert values_of(await client.fetch_partition("t", 0)) == [b"synced"]
    assert (await client.fetch_partition("t", 1)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert m.partition("t").log.recovery_point == 1
    await m.stop()
    assert m.disk.syncs[path] == before + 1
    assert not m.disk.exists("/data/.kafka_cleanshutdown")
    await m.start()
    client = await m.client()
    assert (await client.read("t"))[:1] == [b"synced"]
    assert await codes(client.send_produce("t", batch(b"again"))) == [ErrorCode.NONE]


@broker_test
async def test_a_sync_by_a_checkpoint_acknowledges_waiting_requests(m: Machine) -> None:
    client = await flushed_topic(m)
    produced = client.send_produce("t", batch(b"a"), timeout_ms=100_000)
    await m.until(lambda: m.threads.started["flush_blocking"] == 1)
    partition = m.partition("t")
    partition.log.durability.checkpoint()
    await m.until(lambda: partition.log.recovery_point == 1)
    m.threads.release("flush_blocking")
    assert (await produced).error_code == 0


@broker_test
async def test_flush_before_ack_can_be_changed(m: Machine) -> None:
    client, admin = await flushed_topic(m), await m.client()
    produced = client.send_produce("t", batch(b"a"), timeout_ms=100_000)
    await asyncio.sleep(1)
    assert not produced.done()
    await admin.alter_topic("t", flush_before_ack=False)
    assert (await produced).error_code == 0
    assert (await client.produce("t", batch(b"b"))).error_code == 0
    await admin.alter_topic("t", flush_before_ack=True)
    produced = client.send_produce("t", batch(b"c"))
    await asyncio.sleep(1)
    assert not produced.done()
    assert m.partition("t").high_watermark == 2
    m.threads.release("flush_blocking")
    assert (await produced).error_code == 0


@broker_test
async def test_deleting_a_topic_while_a_produce_waits(m: Machine) -> None:
    client, admin = await flushed_topic(m), await m.client()
    produced = client.send_produce("t", batch(b"a"))
    await asyncio.sleep(1)
    deletion = asyncio.ensure_future(admin.delete_topic("t"))
    assert (await produced).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    m.threads.release("flush_blocking")
    await deletion
    assert await codes(client.send_produce("t", batch(b"a"))) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
