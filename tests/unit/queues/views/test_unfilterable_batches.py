"""Batches that a read filter cannot decode: a fetch of them fails, and no record is sent that was not selected."""

import logging

import pytest

from kbroker.replica.fetch import filter_scan
from kbroker.replica.produce import slow_validation
from kbroker.replica.produce.slow_validation import MAX_DECOMPRESSED
from kbroker.simulation.runtime.environment import EPOCH_MS
from protocol.errors import ErrorCode
from protocol.records.batch import HEADER_SIZE, assemble_batch, build_batch, parse_header
from protocol.records.compression import compress
from protocol.records.record import encode_varint
from tests.unit.support.client import Client, records_of, values_of
from tests.unit.support.simulated_broker import Machine, broker_test
from tests.unit.support.views import create, create_view, tagged

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
TTL, DELAY = {"kbroker.ttl.ms": "3600000"}, {"kbroker.delay.enable": "true"}


def large(codec: int) -> bytearray:
    """Build a batch with more decompressed bytes than a topic may have. Its records have the tag "open"."""
    batch = tagged(*[(bytes(1 << 20), b"open", None)] * ((MAX_DECOMPRESSED >> 20) + 1), codec=codec)
    assert len(batch) < 1 << 21
    return batch


def malformed(codec: int) -> bytearray:
    """Build a batch with a correct header and CRC, whose first record ends after the batch (gzip: not compressed)."""
    body = b"\x7f" + tagged((b"1", b"paid", None), (b"2", b"paid", None))[HEADER_SIZE + 1 :]
    return assembled(bytes(body if codec == GZIP else compress(codec, body)), 2, codec)


def assembled(body: bytes, count: int, codec: int = NONE) -> bytearray:
    times = {"base_timestamp": EPOCH_MS, "max_timestamp": EPOCH_MS}
    return assemble_batch(body, count=count, attributes=codec, last_offset_delta=count - 1, **times)


async def read_view(client: Client, offset: int, view: str = "paid") -> tuple[int, list[bytes]]:
    data = await client.fetch_partition(view, offset)
    return data.error_code, values_of(data) if len(records_of(data)) else []


@broker_test
@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
async def test_a_large_batch_is_an_error(m: Machine, codec: int) -> None:
    client = await m.client()
    await client.create_topic("orders", max_message_bytes=2 << 20)
    await create_view(client)
    await client.produce("orders", tagged((b"before", b"paid", None)))
    await client.produce("orders", large(codec))
    await client.produce("orders", tagged((b"after", b"paid", None)))
    end = parse_header(large(codec)).last_offset_delta + 2
    # What is before it is sent first, and consumers can seek past it.
    assert await read_view(client, 0) == (0, [b"before"])
    for offset in (1, end - 1):
        assert await read_view(client, offset) == (ErrorCode.MESSAGE_TOO_LARGE, [])
    assert await read_view(client, end) == (0, [b"after"])


@broker_test
async def test_a_larger_max_message_bytes_makes_it_readable(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("orders", max_message_bytes=2 << 20)
    await create_view(client, expression="open")
    await client.produce("orders", large(ZSTD))
    assert (await read_view(client, 0))[0] == ErrorCode.MESSAGE_TOO_LARGE
    await client.alter_topic("orders", max_message_bytes=2 * MAX_DECOMPRESSED)
    code, values = await read_view(client, 0)
    assert code == 0
    assert len(values) == (MAX_DECOMPRESSED >> 20) + 1


@broker_test
@pytest.mark.parametrize("codec", range(5))
async def test_malformed_records_are_an_error(m: Machine, codec: int) -> None:
    client = await m.client()
    await client.create_topic("orders")
    await create_view(client)
    # Nothing before it is selected: the position moves up to it.
    await client.produce("orders", tagged((b"before", b"open", None)))
    await client.produce("orders", malformed(codec))
    await client.produce("orders", tagged((b"after", b"paid", None)))
    assert await read_view(client, 0) == (0, [])
    assert await read_view(client, 1) == (ErrorCode.INVALID_RECORD, [])
    assert await read_view(client, 3) == (0, [b"after"])
    session = await client.fetch({("paid", 0): 1}, session=(0, 0))
    assert session.responses[0].partitions[0].error_code == ErrorCode.INVALID_RECORD
    # The source is served as it is.
    assert (await client.fetch_partition("orders", 1)).error_code == 0


@broker_test
async def test_all_filters_have_the_same_rule(m: Machine) -> None:
    """A TTL is set when the batches are there already; a view of an expiring topic has two filters."""
    client = await m.client()
    await create(client, "orders", {"max.message.bytes": str(2 << 20)})
    await client.produce("orders", large(ZSTD))
    end = parse_header(large(ZSTD)).last_offset_delta + 1
    await client.produce("orders", malformed(ZSTD))
    await client.alter_topic("orders", kbroker_ttl_ms=1 << 40)
    await create_view(client, expression="*")
    for topic in ("orders", "paid"):
        assert await read_view(client, 0, topic) == (ErrorCode.MESSAGE_TOO_LARGE, [])
        assert await read_view(client, end, topic) == (ErrorCode.INVALID_RECORD, [])


@broker_test
@pytest.mark.parametrize("configs", [TTL, DELAY, {"kbroker.ttl.enable": "true"}, {"kbroker.dedup.window.ms": "1000"}])
async def test_topics_that_decode_refuse_such_batches_when_they_are_produced(
    m: Machine, configs: dict[str, str]
) -> None:
    client = await m.client()
    await create(client, "t", {"max.message.bytes": str(2 << 20), **configs})
    if configs is TTL:
        # Without headers to read, nothing is decoded: the fetch decides.
        assert (await client.produce("t", large(ZSTD))).error_code == 0
        return
    assert (await client.produce("t", large(ZSTD))).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert (await client.produce("t", malformed(ZSTD))).error_code == ErrorCode.INVALID_RECORD


@broker_test
async def test_validated_sources_refuse_such_batches(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("orders", max_message_bytes=2 << 20, kbroker_record_validation="full")
    assert (await client.produce("orders", large(ZSTD))).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert (await client.produce("orders", malformed(ZSTD))).error_code == ErrorCode.INVALID_RECORD


@broker_test
async def test_one_thread_at_a_time_has_a_large_batch(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """With batches of up to a megabyte several threads work; only with the lock held, a larger one is decompressed."""
    limits: list[int] = []
    real = filter_scan._filter

    def recorded(*args: object) -> object:
        limits.append(args[4])  # type: ignore[arg-type]
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(filter_scan, "_filter", recorded)
    client = await m.client()
    await client.create_topic("orders")
    await create_view(client, expression="open")
    await client.produce("orders", tagged(*[(bytes(1 << 19), b"open", None)] * 3, codec=ZSTD))
    assert len((await read_view(client, 0))[1]) == 3
    loop, medium, largest = limits
    assert (medium, largest) == (slow_validation.MEDIUM_DECOMPRESSED, MAX_DECOMPRESSED)
    assert loop < medium
    assert not m.broker.services.fetching._large_batch.locked()


def endless() -> bytearray:
    """Build a batch whose record has headers of negative lengths, from which a parser's position moves back."""
    headers = encode_varint(2**31 - 1) + b"\x08TAGS\x08none" + b"\1\3" * 2 + b"\x08TAGS\x08paid"
    record = b"\0\0\0\1\1" + headers
    return assembled(encode_varint(len(record)) + record, 1)


@broker_test
async def test_headers_of_negative_lengths_end_the_search(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("orders")
    await create_view(client, expression="paid")
    await client.produce("orders", endless())
    assert await read_view(client, 0) == (ErrorCode.INVALID_RECORD, [])


@broker_test
async def test_the_log_says_why_a_fetch_failed(m: Machine, caplog: pytest.LogCaptureFixture) -> None:
    client = await m.client()
    await client.create_topic("orders")
    await create_view(client)
    await client.produce("orders", build_batch([(0, None, b"1", ())]))
    await client.produce("orders", malformed(ZSTD))
    with caplog.at_level(logging.INFO, "kbroker.server"):
        await read_view(client, 1)
    [line] = [record.getMessage() for record in caplog.records if "request refused" in record.message]
    assert all(part in line for part in ("api=Fetch", "INVALID_RECORD", "offsets 1 to 2")), line
