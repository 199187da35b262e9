"""Idempotency keys over the wire: duplicates are acknowledged and not stored, also after restarts and failures."""

import asyncio
from collections.abc import Sequence

import pytest

from kbroker.simulation.runtime.environment import EPOCH_MS
from protocol.errors import ErrorCode
from protocol.messages.k00_produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from protocol.records.batch import TRANSACTIONAL, build_batch, iter_headers
from protocol.records.compression import GZIP, LZ4, NONE, ZSTD
from tests.unit.support.client import Client, records_of, values_of
from tests.unit.support.simulated_broker import Machine, broker_test
from tests.unit.support.transactional_producer import Producer, init_producer

WINDOW_MS = 60_000
Pairs = Sequence[tuple[bytes | None, bytes]]


def keyed(pairs: Pairs, *, codec: int = NONE, producer: tuple[int, int, int] = (-1, -1, -1), attributes: int = 0,
          at_ms: int = EPOCH_MS) -> bytearray:  # fmt: skip
    """Build a batch of (idempotency key or None, value)."""
    records = [
        (at_ms, None, value, () if key is None else ((b"other", b"1"), (b"IDEMPOTENCY_KEY", key)))
        for key, value in pairs
    ]
    producer_id, epoch, sequence = producer
    return build_batch(
        records, codec=codec, attributes=attributes, producer_id=producer_id, producer_epoch=epoch,
        base_sequence=sequence,
    )  # fmt: skip


async def client_with_topic(m: Machine, **configs: object) -> Client:
    client = await m.client()
    await client.create_topic("t", kbroker_dedup_window_ms=WINDOW_MS, **configs)
    return client


async def offset_of(client: Client, *pairs: tuple[bytes | None, bytes], **options: object) -> int:
    response = await client.produce("t", keyed(pairs, **options))  # type: ignore[arg-type]
    assert response.error_code == 0, response.error_message
    return response.base_offset


@broker_test
async def test_a_duplicate_has_the_offset_of_the_first_record_and_is_not_stored(m: Machine) -> None:
    client = await client_with_topic(m)
    assert await offset_of(client, (b"a", b"1")) == 0
    assert await offset_of(client, (b"b", b"2")) == 1
    assert await offset_of(client, (b"a", b"again")) == 0
    assert await offset_of(client, (None, b"3")) == 2
    assert await offset_of(client, (None, b"3")) == 3
    assert await client.read("t") == [b"1", b"2", b"3", b"3"]


@broker_test
async def test_a_key_counts_until_the_window_has_passed(m: Machine) -> None:
    client = await client_with_topic(m)
    await offset_of(client, (b"a", b"1"))
    await asyncio.sleep(WINDOW_MS / 1000 - 1)
    assert await offset_of(client, (b"a", b"2")) == 0
    await asyncio.sleep(2)
    assert await offset_of(client, (b"a", b"3")) == 1
    assert await offset_of(client, (b"a", b"4")) == 1
    assert await client.read("t") == [b"1", b"3"]


@pytest.mark.parametrize("codec", [NONE, GZIP, LZ4, ZSTD])
def test_only_new_records_of_a_batch_are_stored(codec: int) -> None:
    @broker_test
    async def story(m: Machine) -> None:
        client = await client_with_topic(m)
        await offset_of(client, (b"b", b"0"))
        pairs = [(b"a", b"1"), (b"b", b"2"), (None, b"3"), (b"a", b"4"), (b"c", b"5")]
        # The offset of a duplicate would be that of a gap.
        assert await offset_of(client, *pairs, codec=codec) == -5
        data = await client.fetch_partition("t", 0)
        assert values_of(data) == [b"0", b"1", b"3", b"5"]
        (_, first), (_, header) = iter_headers(records_of(data))
        assert (first.last_offset, header.base_offset, header.last_offset, header.count) == (0, 1, 5, 3)
        assert header.codec == codec
        # A repeated batch: all of its records with keys are known.
        assert await offset_of(client, (b"c", b"6")) == 5
        assert await offset_of(client, (b"a", b"7"), (b"c", b"8")) == -2
        assert await offset_of(client, (b"b", b"9"), (b"a", b"10")) == 0

    story()


@broker_test
async def test_a_response_has_the_offsets_of_consecutive_originals_only(m: Machine) -> None:
    """Clients compute the offsets of a batch's records from the first one's. All of those that are unknown are < 0."""
    client = await client_with_topic(m)
    for number, key in enumerate((b"a", b"b", b"c", b"d")):
        assert await offset_of(client, (key, b"1")) == number
    cases = {b"abc": 0, b"bcd": 1, b"ba": -2, b"ac": -2, b"aa": -2, b"abce": -4, b"ef": -2, b"gh": 10, b"i-i": -3}
    for keys, expected in cases.items():
        pairs = [(None if key == ord("-") else bytes([key]), b"2") for key in keys]
        assert await offset_of(client, *pairs) == expected, keys


@broker_test
async def test_the_retry_of_a_producer_has_the_same_offsets(m: Machine) -> None:
    client = await client_with_topic(m)
    sequence = 0
    for keys in (b"ab", b"ab", b"bc", b"-c", b"--", b"de", b"ed", b"-f", b"gg"):
        pairs = [(None if key == ord("-") else bytes([key]), b"2") for key in keys]
        offsets = [await offset_of(client, *pairs, producer=(7, 0, sequence)) for _ in range(3)]
        assert len(set(offsets)) == 1, (keys, offsets)
        sequence += len(keys)


@broker_test
async def test_the_offset_of_a_retry_whose_key_has_expired_is_unknown(m: Machine) -> None:
    client = await client_with_topic(m)
    assert await offset_of(client, (b"a", b"1")) == 0
    assert await offset_of(client, (b"a", b"2"), producer=(7, 0, 0)) == 0
    await asyncio.sleep(WINDOW_MS / 1000 + 1)
    assert await offset_of(client, (b"a", b"2"), producer=(7, 0, 0)) == -1


@broker_test
async def test_records_of_a_large_batch_are_left_out_in_a_thread(m: Machine) -> None:
    client = await client_with_topic(m)
    large = [(b"%d" % number, b"x" * 500) for number in range(1000)]
    assert await offset_of(client, *large[:500], codec=GZIP) == 0
    assert await offset_of(client, *large, codec=GZIP) == -1000
    assert await offset_of(client, *large[:500], codec=GZIP) == 0
    assert await offset_of(client, *large[500:], codec=GZIP) == 1000
    assert await offset_of(client, *large, codec=GZIP) == -1000
    assert len(await client.read("t")) == 1000
    assert m.partition("t").log.log_end_offset == 1500


@broker_test
async def test_the_sequences_of_an_idempotent_producer_continue(m: Machine) -> None:
    client = await client_with_topic(m)
    assert await offset_of(client, (b"a", b"1"), producer=(7, 0, 0)) == 0
    assert await offset_of(client, (b"a", b"2"), producer=(7, 0, 1)) == 0
    # The retry of the duplicate is told the same.
    assert await offset_of(client, (b"a", b"2"), producer=(7, 0, 1)) == 0
    assert await offset_of(client, (b"b", b"3"), producer=(7, 0, 2)) == 2
    assert await offset_of(client, (b"b", b"3"), producer=(7, 0, 2)) == 2
    await m.restart()
    client = await m.client()
    assert await offset_of(client, (b"a", b"4"), producer=(7, 0, 3)) == 0
    response = await client.produce("t", keyed([(b"a", b"5")], producer=(7, 0, 9)))
    assert response.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await client.read("t") == [b"1", b"3"]


@broker_test
async def test_keys_survive_stops_and_crashes(m: Machine) -> None:
    client = await client_with_topic(m)
    await offset_of(client, (b"a", b"1"), at_ms=m.now_ms)
    await m.restart()
    client = await m.client()
    assert await offset_of(client, (b"a", b"2")) == 0
    await offset_of(client, (b"b", b"3"), at_ms=m.now_ms)
    # The snapshot of the stop has only the first key.
    await m.crash()
    await m.start()
    client = await m.client()
    assert await offset_of(client, (b"a", b"4")) == 0
    assert await offset_of(client, (b"b", b"5")) == 1
    assert await client.read("t") == [b"1", b"3"]


@pytest.mark.parametrize("codec", [NONE, LZ4])
def test_keys_of_a_batch_that_lacks_records_survive_a_crash(codec: int) -> None:
    @broker_test
    async def story(m: Machine) -> None:
        client = await client_with_topic(m)
        await offset_of(client, (b"a", b"1"), at_ms=m.now_ms)
        pairs = [(b"b", b"2"), (b"a", b"3"), (b"c", b"4"), (b"b", b"5")]
        assert await offset_of(client, *pairs, codec=codec, at_ms=m.now_ms) == -4
        await m.crash()
        await m.start()
        client = await m.client()
        assert await offset_of(client, (b"b", b"6")) == 1
        assert await offset_of(client, (b"c", b"7")) == 3
        assert await client.read("t") == [b"1", b"2", b"4"]

    story()


@broker_test
async def test_a_damaged_snapshot_is_ignored(m: Machine) -> None:
    client = await client_with_topic(m)
    await offset_of(client, (b"a", b"1"), at_ms=m.now_ms)
    await m.stop()
    path = "/data/t-0/idempotency-keys.snapshot"
    data = bytearray(m.disk.read(path))
    data[-1] ^= 1
    m.disk.write_atomic(path, bytes(data))
    await m.start()
    client = await m.client()
    assert await offset_of(client, (b"a", b"2")) == 0


@broker_test
async def test_a_produce_request_waits_until_the_keys_are_loaded(m: Machine) -> None:
    client = await client_with_topic(m)
    await offset_of(client, (b"a", b"1"), at_ms=m.now_ms)
    m.threads.held.add("_read_snapshot_blocking")
    await m.restart()
    client = await m.client()
    response = client.send_produce("t", keyed([(b"a", b"2")]))
    await asyncio.sleep(5)
    assert not response.done()
    m.threads.release("_read_snapshot_blocking")
    assert (await response).base_offset == 0


@broker_test
async def test_headers_that_cannot_be_keys_are_refused(m: Machine) -> None:
    client = await client_with_topic(m)
    for key, message in ((b"", "must not be empty"), (b"x" * 1025, "1025 bytes; the maximum is 1024")):
        response = await client.produce("t", keyed([(b"a", b"1"), (key, b"2")]))
        assert response.error_code == ErrorCode.INVALID_RECORD
        (error,) = response.record_errors
        assert error.batch_index == 1
        assert message in (error.batch_index_error_message or "")
    assert await client.read("t") == []
    assert await offset_of(client, (b"a", b"3")) == 0


@broker_test
async def test_a_key_in_a_header_of_other_case_is_refused(m: Machine) -> None:
    client = await client_with_topic(m)
    for headers, code in (
        ([(b"Idempotency_Key", b"a")], ErrorCode.INVALID_RECORD),
        ([(b"Idempotency_Key", b"a"), (b"IDEMPOTENCY_KEY", b"a")], ErrorCode.NONE),
    ):
        response = await client.produce("t", build_batch([(EPOCH_MS, None, b"1", headers)]))
        assert response.error_code == code
        if code:
            assert "must be named IDEMPOTENCY_KEY, not Idempotency_Key" in (response.error_message or "")


@broker_test
async def test_a_hidden_batch_of_a_client_is_refused(m: Machine) -> None:
    client = await client_with_topic(m)
    response = await client.produce("t", keyed([(b"a", b"1")], attributes=0x4000))
    assert response.error_code == ErrorCode.INVALID_RECORD


@broker_test
async def test_a_topic_without_a_window_any_more_stores_everything(m: Machine) -> None:
    client = await client_with_topic(m)
    await offset_of(client, (b"a", b"1"))
    await client.alter_topic("t", kbroker_dedup_window_ms=0)
    assert await offset_of(client, (b"a", b"2")) == 1
    await client.alter_topic("t", kbroker_dedup_window_ms=WINDOW_MS)
    assert await offset_of(client, (b"b", b"3")) == 2
    assert await offset_of(client, (b"b", b"4")) == 2


@broker_test
async def test_keys_count_after_their_records_were_deleted(m: Machine) -> None:
    client = await client_with_topic(m)
    await offset_of(client, (b"a", b"1"))
    await client.delete_records("t", 1)
    assert await offset_of(client, (b"a", b"2")) == 0


# Transactions.


async def send(producer: Producer, key: bytes, value: bytes, sequence: int) -> PartitionProduceResponse:
    data = keyed(
        [(key, value)], producer=(producer.producer_id, producer.epoch, sequence), attributes=TRANSACTIONAL
    )  # fmt: skip
    part = PartitionProduceData(index=0, records=data)
    request = ProduceRequest(
        transactional_id=producer.transactional_id,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(name="t", partition_data=[part])],
    )
    response = await producer.client.request(request, 12, ProduceResponse)
    return response.responses[0].partition_responses[0]


@broker_test
async def test_a_key_of_an_aborted_transaction_is_forgotten(m: Machine) -> None:
    client = await client_with_topic(m)
    producer = await init_producer(m, "a", v2=True)
    assert (await send(producer, b"a", b"1", 0)).base_offset == 0
    assert (await send(producer, b"a", b"again", 1)).base_offset == 0
    assert await producer.end(False) == 0
    assert m.partition("t").append_extension is not None
    offset = await offset_of(client, (b"a", b"2"))
    assert offset > 1
    assert await offset_of(client, (b"a", b"3")) == offset


@broker_test
async def test_a_key_of_a_committed_transaction_counts_for_all(m: Machine) -> None:
    client = await client_with_topic(m)
    producer = await init_producer(m, "a", v2=True)
    await send(producer, b"a", b"1", 0)
    # Another record with the key is stored while the transaction may still abort.
    assert await offset_of(client, (b"a", b"2")) == 1
    await send(producer, b"b", b"3", 1)
    assert await producer.end(True) == 0
    assert await offset_of(client, (b"b", b"4")) == 2
    assert await offset_of(client, (b"a", b"5")) == 1


@broker_test
async def test_an_open_transaction_survives_a_restart(m: Machine) -> None:
    client = await client_with_topic(m)
    aborting, committing = await init_producer(m, "a", v2=True), await init_producer(m, "b", v2=True)
    await send(aborting, b"a", b"1", 0)
    await send(committing, b"b", b"2", 0)
    await m.restart()
    client = await m.client()
    for producer in (aborting, committing):
        producer.client = await m.client()
    for producer, committed in ((aborting, False), (committing, True)):
        while (code := await producer.end(committed)) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            await asyncio.sleep(0.1)
        assert code == 0
    assert await offset_of(client, (b"b", b"3")) == 1
    assert await offset_of(client, (b"a", b"4")) > 1


@broker_test
async def test_consumers_pass_a_batch_of_duplicates(m: Machine) -> None:
    client = await client_with_topic(m)
    assert await offset_of(client, (b"a", b"1"), producer=(7, 0, 0)) == 0
    assert await offset_of(client, (b"a", b"again"), producer=(7, 0, 1)) == 0
    for version, is_control in ((4, False), (10, False), (11, True)):
        fetched = await client.fetch_partition("t", 1, version=version)
        [(_, header)] = iter_headers(memoryview(fetched.records or b""))
        assert (header.is_control, header.next_offset, header.producer_id) == (is_control, 2, -1)
