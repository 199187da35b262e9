"""Batches whose records take a long time to validate keep their order, and other requests are served meanwhile."""

import asyncio
from random import Random

import pytest

from kbroker.common import KafkaError
from kbroker.metadata.image import PartitionRegistration
from kbroker.replica.produce.batch_validation import validate_batch
from kbroker.replica.produce.record_rules import SLICE, walk_records
from kbroker.replica.produce.slow_validation import MAX_DECOMPRESSED, MEDIUM_DECOMPRESSED, QUICK_SLICES, RecordValidator
from protocol.errors import ErrorCode, MalformedError
from protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from protocol.records.batch import assemble_batch, body_of, parse_header
from protocol.records.compression import CODEC_NAMES, LZ4, ZSTD, compress, decompress, decompress_mapped
from protocol.records.record import encode_record, iter_records
from tests.unit.support.client import EPOCH_MS, batch
from tests.unit.support.log_lab import NOW, config
from tests.unit.support.record_validation import needs_slow_validation, validate_completely
from tests.unit.support.simulated_broker import Machine, broker_test

MANY = 40 * SLICE


def many_records(count: int = MANY, codec: int = 0, at_ms: int = EPOCH_MS) -> bytearray:
    return batch(*[b"%d" % number for number in range(count)], codec=codec, at_ms=at_ms, size=20)


def validator_of(m: Machine) -> RecordValidator:
    return m.broker.services.replicas.record_validator


def is_validating(m: Machine) -> bool:
    validator = validator_of(m)
    return any(lock.locked() for lock in (validator._medium, validator._large, validator._walking))


# What is validated at once, in slices, and in threads.


def validate(records: bytearray, calls: list[str] | None = None, **configs: object) -> None:
    topic = config(kbroker_record_validation="full", **configs)
    validate_completely(lambda: validate_batch(memoryview(records), topic, NOW, produce_version=13), calls)


def is_slow(records: bytearray, **configs: object) -> bool:
    topic = config(**({"kbroker_record_validation": "full"} | configs))
    return needs_slow_validation(lambda: validate_batch(memoryview(records), topic, NOW, produce_version=13))


def slices(records: bytearray) -> int:
    header = parse_header(records)
    pauses: list[None] = []
    walk_records(body_of(records, 0, header.size), header, config(), NOW, lambda: pauses.append(None))
    return len(pauses)


def test_records_and_headers_are_walked_in_slices() -> None:
    assert not is_slow(many_records(SLICE - 1, at_ms=NOW))
    assert is_slow(many_records(10 * SLICE, at_ms=NOW))
    assert slices(many_records(10 * SLICE, at_ms=NOW)) == 10
    record = encode_record(0, 0, b"k", b"v", [(b"", None)] * 10 * SLICE)
    headers = assemble_batch(record, count=1, last_offset_delta=0, base_timestamp=NOW, max_timestamp=NOW)
    assert is_slow(headers)
    assert slices(headers) == 10


def test_the_records_of_an_ordinary_topic_are_not_walked() -> None:
    assert not is_slow(many_records(at_ms=NOW), kbroker_record_validation="header", cleanup_policy="delete")


@pytest.mark.parametrize("codec", range(1, 5), ids=CODEC_NAMES[1:])
def test_large_batches_are_decompressed_in_a_thread(codec: int) -> None:
    def threads(size: int) -> list[str]:
        calls: list[str] = []
        validate(batch(b"v" * size, codec=codec, at_ms=NOW), calls, max_message_bytes=8 << 20)
        return calls

    assert threads(100) == []
    assert threads(MEDIUM_DECOMPRESSED // 2) == ["decompress_mapped"]
    assert threads(2 * MEDIUM_DECOMPRESSED) == 2 * ["decompress_mapped"]
    with pytest.raises(KafkaError) as refused:
        threads(MAX_DECOMPRESSED)
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_many_empty_gzip_members_are_decompressed_in_a_thread() -> None:
    """They decompress to nothing, but take time."""
    body = compress(1, b"") * 1000 + compress(1, encode_record(0, 0, b"k", b"v"))
    records = assemble_batch(body, count=1, last_offset_delta=0, base_timestamp=NOW, max_timestamp=NOW, attributes=1)
    calls: list[str] = []
    validate(records, calls)
    assert calls == ["decompress_mapped"]


@pytest.mark.parametrize("codec", range(1, 5), ids=CODEC_NAMES[1:])
def test_decompressing_in_a_thread_has_the_same_result(codec: int) -> None:
    random = Random(codec)
    for size in (0, 1, 100, 70_000):
        data = random.randbytes(size)
        packed = bytearray(compress(codec, data))
        assert bytes(decompress_mapped(codec, packed, size + 1)) == data
        for _ in range(50):
            damaged = bytearray(packed)
            if damaged:
                damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
            assert result(decompress, codec, damaged) == result(decompress_mapped, codec, damaged)
    assert result(decompress_mapped, 7, b"") is MalformedError


def result(function: object, codec: int, data: bytes) -> object:
    try:
        return bytes(function(codec, data, 1 << 17))  # type: ignore[operator]
    except MalformedError as error:
        return type(error)


def test_validation_accepts_the_records_that_iter_records_reads() -> None:
    random = Random(5)
    topic = config(kbroker_record_validation="full")
    counts = {True: 0, False: 0}
    for _ in range(3000):
        headers = [(b"h", random.choice([None, b"x"]))] * random.randrange(3)
        values = [random.choice([None, b"", b"v" * random.randrange(200)]) for _ in range(4)]
        body = bytearray().join(
            encode_record(n, n, random.choice([None, b"k"]), v, headers) for n, v in enumerate(values)
        )
        if random.random() < 0.8:
            body[random.randrange(len(body))] = random.randrange(256)
        records = assemble_batch(body, count=4, last_offset_delta=3, base_timestamp=NOW, max_timestamp=NOW + 3)
        try:
            read = list(iter_records(body, 4, NOW))
        except MalformedError:
            read = []
        try:
            validate_completely(
                lambda records=records: validate_batch(memoryview(records), topic, NOW, produce_version=13)
            )  # type: ignore[misc]
            is_accepted = True
        except KafkaError as error:
            is_accepted = error.code == ErrorCode.INVALID_TIMESTAMP
        assert is_accepted == bool(read)
        counts[is_accepted] += 1
    assert min(counts.values()) > 300


# In a broker.


@broker_test
async def test_batches_of_a_connection_keep_their_order(m: Machine) -> None:
    client, other = await m.client(), await m.client()
    await client.create_topic("t", cleanup_policy="compact")
    m.threads.held.add("decompress_mapped")
    long = client.send_produce("t", many_records(codec=ZSTD))
    after = client.send_produce("t", batch(b"after"))
    last = client.send_produce("t", batch(b"last"), acks=1)
    await m.until(lambda: is_validating(m))
    assert (await other.produce("t", batch(b"others"))).base_offset == 0
    assert not long.done()
    m.threads.release("decompress_mapped")
    assert (await long).base_offset == 1
    assert (await after).base_offset == 1 + MANY
    assert (await last).base_offset == 2 + MANY
    assert (await client.read("t"))[-2:] == [b"after", b"last"]
    assert not is_validating(m)


@broker_test
async def test_the_other_batches_of_a_request_wait(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", 3, cleanup_policy="compact")
    await client.create_topic("plain", flush_before_ack=True)
    keyless = batch(b"x", key=None)
    parts = [
        (0, batch(b"a")),
        (1, many_records(codec=ZSTD)),
        (0, many_records()),
        (2, keyless),
        (9, batch(b"x")),
        (0, batch(b"b")),
    ]
    topics = [
        TopicProduceData(name="t", partition_data=[]),
        TopicProduceData(name="t", partition_data=[PartitionProduceData(index=i, records=r) for i, r in parts]),
        TopicProduceData(name="plain", partition_data=[PartitionProduceData(index=0, records=batch(b"c"))]),
    ]
    request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics)
    response = await client.request(request, 9, ProduceResponse)
    results = [
        (p.index, p.error_code, p.base_offset) for topic in response.responses for p in topic.partition_responses
    ]
    assert results == [
        (0, 0, 0), (1, 0, 0), (0, 0, 1), (2, ErrorCode.INVALID_RECORD, -1),
        (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1), (0, 0, 1 + MANY), (0, 0, 0),
    ]  # fmt: skip
    assert [topic.name for topic in response.responses] == ["t", "plain"]
    assert (await client.read("t"))[-1] == b"b"
    assert await client.read("plain") == [b"c"]


@broker_test
async def test_acks_0(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", cleanup_policy="compact")
    client.produce_acks_0("t", many_records())
    client.produce_acks_0("t", many_records(codec=LZ4))
    assert (await client.produce("t", batch(b"after"))).base_offset == 2 * MANY
    client.produce_acks_0("t", batch(*[b"x"] * MANY, key=None))
    await client.closed
    assert m.partition("t").log.log_end_offset == 2 * MANY + 1


@broker_test
async def test_batches_of_disconnected_clients_are_appended_and_their_memory_is_counted(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", cleanup_policy="compact", max_message_bytes=8 << 20)
    m.threads.held.add("decompress_mapped")
    memory = m.broker._server.context.memory
    large = batch(b"v" * 2 * MEDIUM_DECOMPRESSED, codec=ZSTD)
    for count in range(1, 5):
        other = await m.client()
        other.send_produce("t", bytearray(large)).add_done_callback(lambda response: response.exception())
        await m.until(lambda count=count: memory.in_progress_bytes == count * len(large))  # type: ignore[misc]
        other.close()
    await asyncio.sleep(1)
    assert memory.held_bytes == memory.in_progress_bytes == 4 * len(large)
    m.threads.release("decompress_mapped")
    await m.until(lambda: memory.held_bytes == 0)
    assert not is_validating(m)
    assert m.partition("t").log.log_end_offset == 4


@broker_test
async def test_large_batches_are_decompressed_one_at_a_time(m: Machine) -> None:
    clients = [await m.client() for _ in range(6)]
    await clients[0].create_topic("t", cleanup_policy="compact", max_message_bytes=8 << 20)
    large = batch(b"v" * 2 * MEDIUM_DECOMPRESSED, codec=ZSTD)
    m.threads.held.add("decompress_mapped")
    responses = [client.send_produce("t", bytearray(large)) for client in clients]
    maximum = 0
    while not all(response.done() for response in responses):
        await asyncio.sleep(1)
        maximum = max(maximum, len(m.threads._waiting))
        m.threads.release_waiting("decompress_mapped")
    # A large one, and one that is tried with the limit of medium ones first.
    assert maximum == 2
    assert sorted([(await response).base_offset for response in responses]) == list(range(6))
    assert not is_validating(m)


@broker_test
async def test_batches_are_walked_in_turn(m: Machine) -> None:
    """A small batch does not wait until larger ones are validated."""
    clients = [await m.client() for _ in range(4)]
    await clients[0].create_topic("t", cleanup_policy="compact", max_message_bytes=8 << 20)
    large = [client.send_produce("t", many_records(10 * QUICK_SLICES * SLICE)) for client in clients[:3]]
    await m.until(lambda: m.broker._server.context.memory.in_progress_bytes)
    assert (await clients[3].produce("t", many_records(4 * SLICE))).base_offset == 0
    assert not any(response.done() for response in large)
    assert sorted([(await response).error_code for response in large]) == [0, 0, 0]


@broker_test
async def test_a_topic_that_is_deleted_during_the_validation(m: Machine) -> None:
    client, admin = await m.client(), await m.client()
    await admin.create_topic("t", cleanup_policy="compact")
    m.threads.held.add("decompress_mapped")
    response = client.send_produce("t", batch(b"v" * MEDIUM_DECOMPRESSED, codec=ZSTD))
    await m.until(lambda: is_validating(m))
    await admin.delete_topic("t")
    await admin.create_topic("t")
    m.threads.release("decompress_mapped")
    assert (await response).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert m.partition("t").log.log_end_offset == 0


@broker_test
async def test_a_leadership_that_is_lost_during_the_validation(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", cleanup_policy="compact")
    partition = m.partition("t")
    m.threads.held.add("decompress_mapped")
    response = client.send_produce("t", batch(b"v" * MEDIUM_DECOMPRESSED, codec=ZSTD), acks=1)
    await m.until(lambda: is_validating(m))
    follower = PartitionRegistration(2, partition.leader_epoch + 1, [1, 2], [1, 2], partition_epoch=9)
    partition.apply_registration(follower, 1, 0)
    m.threads.release("decompress_mapped")
    assert (await response).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.log.log_end_offset == 0


@broker_test
async def test_a_retry_on_another_connection_is_stored_once(m: Machine) -> None:
    client, other = await m.client(), await m.client()
    await client.create_topic("t", cleanup_policy="compact")
    records = batch(*[b"v"] * MANY, producer=(5, 0, 0))
    first, retry = client.send_produce("t", bytearray(records)), other.send_produce("t", bytearray(records))
    assert {(await first).base_offset, (await retry).base_offset} == {0}
    assert m.partition("t").log.log_end_offset == MANY


@broker_test
async def test_stopping_during_the_validation(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", cleanup_policy="compact")
    m.threads.held.add("decompress_mapped")
    client.send_produce("t", many_records(codec=ZSTD)).add_done_callback(lambda response: response.exception())
    await m.until(lambda: is_validating(m))
    await m.restart()
    m.threads.release("decompress_mapped")
    assert m.partition("t").log.log_end_offset == 0


def test_a_timestamp_that_exceeds_a_long_overflows() -> None:
    """Kafka computes with overflow, as Java does: the timestamp that is stored must fit into a long."""
    body = encode_record(0, 2**63 - 1, b"k", b"v")
    records = assemble_batch(body, count=1, last_offset_delta=0, base_timestamp=EPOCH_MS, max_timestamp=EPOCH_MS)
    topic = config(
        kbroker_record_validation="full",
        message_timestamp_after_max_ms=2**63 - 1,
        message_timestamp_before_max_ms=2**63 - 1,
    )
    batch_, header, _ = validate_completely(lambda: validate_batch(memoryview(records), topic, NOW, produce_version=13))
    assert parse_header(batch_) == header
    assert header.max_timestamp == -1
    assert len(body_of(batch_, 0, header.size)) == len(body)
