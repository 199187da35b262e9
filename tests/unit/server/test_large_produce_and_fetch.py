"""Produce and Fetch of thousands of partitions: handled in turns, with the same results as small requests."""

import asyncio

import pytest

from kbroker.replica.fetch.partition_reads import MAX_INCREMENTAL_RESULTS
from kbroker.runtime.turns import TURN_ELEMENTS
from protocol.errors import ErrorCode
from protocol.messages.k00_produce import ProduceResponse
from protocol.messages.k01_fetch import FetchResponse
from protocol.records.batch import TRANSACTIONAL, build_batch
from tests.unit.support.client import Client, batch, by_partition
from tests.unit.support.simulated_broker import Machine, broker_test
from tests.unit.support.turns import count_turns, hold_turns

PARTITIONS = 10
COUNT = 20 * TURN_ELEMENTS
LONG_MS = 100_000
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
OFFSETS = {("t", index): 0 for index in range(COUNT)}


async def connected(m: Machine) -> Client:
    client = await m.client()
    await client.create_topic("t", partitions=PARTITIONS)
    return client


@broker_test
@pytest.mark.parametrize("version", [7, 9, 13])
@pytest.mark.parametrize("acks", [1, -1])
async def test_produce(m: Machine, monkeypatch: pytest.MonkeyPatch, version: int, acks: int) -> None:
    client = await connected(m)
    turns = count_turns(monkeypatch)
    request = client.produce_request("t", dict.fromkeys(range(COUNT), batch(b"a")), acks=acks)
    for base_offset in (0, 1):
        before = turns()
        response = await client.request(request, version, ProduceResponse)
        # Validation, appends and the report of errors.
        assert turns() - before >= 2 * COUNT // TURN_ELEMENTS
        results = response.responses[0].partition_responses
        assert [result.index for result in results] == list(range(COUNT))
        assert {(result.error_code, result.base_offset) for result in results[:PARTITIONS]} == {(0, base_offset)}
        assert {result.error_code for result in results[PARTITIONS:]} == {UNKNOWN}
    assert await client.read("t", partition=PARTITIONS - 1) == [b"a", b"a"]
    assert m.broker._server.context.memory.in_progress_bytes == 0


@broker_test
async def test_others_are_served_during_a_large_produce_request(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    client, other = await connected(m), await m.client()
    may_continue = hold_turns(m, monkeypatch)
    large = client.send(client.produce_request("t", dict.fromkeys(range(COUNT), batch(b"a"))), 9, ProduceResponse)
    after = client.send_produce("t", batch(b"b"))
    await m.until(lambda: m.broker._server.context.memory.in_progress_bytes > 0)
    assert (await other.produce("t", batch(b"c"), PARTITIONS - 1)).base_offset == 0
    assert not large.done()
    may_continue.set()
    assert (await large).responses[0].partition_responses[PARTITIONS - 1].base_offset == 1
    assert (await after).base_offset == 1, "the order of a connection's requests was not kept"


@broker_test
async def test_a_large_produce_request_without_acknowledgement_closes_the_connection(m: Machine) -> None:
    client = await connected(m)
    request = client.produce_request("t", dict.fromkeys(range(COUNT), batch(b"a")), acks=0)
    future = client.send(request, 9, ProduceResponse)
    with pytest.raises(ConnectionResetError):
        await future
    assert m.broker._server.context.errors.closed["Produce with acks=0 failed"] == 1


@broker_test
async def test_a_large_produce_request_with_transactional_batches_is_refused(m: Machine) -> None:
    client = await connected(m)
    batches = dict.fromkeys(range(COUNT), batch(b"a"))
    batches[COUNT - 1] = build_batch([(0, b"k", b"v", ())], producer_id=1, producer_epoch=0, attributes=TRANSACTIONAL)
    response = await client.request(client.produce_request("t", batches), 9, ProduceResponse)
    codes = {result.error_code for result in response.responses[0].partition_responses}
    assert codes == {ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
    assert await client.read("t") == []


@broker_test
@pytest.mark.parametrize("version", [4, 11, 12, 16])
async def test_fetch(m: Machine, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    client = await connected(m)
    for index in range(PARTITIONS):
        await client.produce("t", batch(b"%d" % index), index)
    turns = count_turns(monkeypatch)
    request = client.fetch_request(OFFSETS)
    response = await client.request(request, version, FetchResponse)
    # The session, reads, results, the report of errors and the end of the session.
    assert turns() >= 2 * COUNT // TURN_ELEMENTS
    assert len(response.responses[0].partitions) == COUNT
    monkeypatch.setattr("kbroker.server.connection.LARGE_REQUEST_BYTES", 1 << 30)
    assert await client.request(request, version, FetchResponse) == response
    assert all(not partition.fetchers for partition in m.broker.services.replicas.partitions.values())


@broker_test
async def test_a_large_fetch_waits_for_records(m: Machine) -> None:
    client, producer = await m.client(), await m.client()
    await client.create_topic("t", partitions=COUNT // 4)
    offsets = {("t", index): 0 for index in range(COUNT // 4)}
    waiting = client.send_fetch(offsets, max_wait_ms=LONG_MS)
    await asyncio.sleep(50)
    assert not waiting.done()
    await producer.produce("t", batch(b"a"), 3)
    assert [data.partition_index for data in (await waiting).responses[0].partitions if data.records] == [3]
    began = m.elapsed_ms
    await client.fetch({key: 1 for key in offsets if key[1] == 3} | dict.fromkeys(list(offsets)[4:], 0), max_wait_ms=70)
    assert 70 <= m.elapsed_ms - began < 100
    waiting = client.send_fetch(dict.fromkeys(list(offsets)[4:], 0), max_wait_ms=LONG_MS)
    await asyncio.sleep(50)
    client.close()
    with pytest.raises(ConnectionResetError):
        await waiting
    await m.until(lambda: m.broker._server.context.memory.in_progress_bytes == 0)
    assert all(not partition.fetchers for partition in m.broker.services.replicas.partitions.values())
    assert len(m.broker.services.replicas.purgatory) == 0


@broker_test
async def test_a_session_is_busy_during_a_large_request(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    client, other = await connected(m), await m.client()
    session_id = (await client.fetch(OFFSETS, session=(0, 0))).session_id
    assert session_id
    [session] = m.broker.services.fetching.sessions.all()
    may_continue = hold_turns(m, monkeypatch, lambda: session.is_busy)
    large = client.send_fetch(OFFSETS, session=(session_id, 1))
    await m.until(lambda: session.is_busy)
    response = await other.fetch({}, session=(session_id, 2))
    assert response.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    # Its session is closed meanwhile.
    response = await other.fetch({("t", 0): 0}, session=(session_id, -1))
    assert response.error_code == 0
    may_continue.set()
    assert (await large).error_code == 0
    assert all(not partition.fetchers for partition in m.broker.services.replicas.partitions.values())


@broker_test
async def test_a_small_request_of_a_large_session_reads_a_part(m: Machine) -> None:
    client = await connected(m)
    session_id = (await client.fetch(OFFSETS, session=(0, 0))).session_id
    seen: set[int] = set()
    for epoch in range(1, 2 + COUNT // MAX_INCREMENTAL_RESULTS):
        response = await client.fetch({}, session=(session_id, epoch), max_wait_ms=LONG_MS)
        results = by_partition(response)
        assert len(results) <= MAX_INCREMENTAL_RESULTS
        seen |= {index for _, index in results}
    # Partitions with an error are in each round of responses.
    assert seen == set(range(PARTITIONS, COUNT))
