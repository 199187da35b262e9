"""Fetch (key 1): waiting, limits, errors, incremental sessions (KIP-227)."""

import asyncio

import pytest

from kbroker.simulation.disk.file import SimFile
from protocol.errors import ErrorCode
from protocol.messages.k01_fetch import FetchResponse
from tests.unit.support.client import Client, base_offsets, batch, by_partition, errors, records_of, values_of
from tests.unit.support.simulated_broker import Machine, broker_test

LONG_MS = 100_000


# Waiting.


@broker_test
@pytest.mark.parametrize("version", range(4, 19))
async def test_each_version(m: Machine, version: int) -> None:
    client = await m.client()
    await client.create_topic("t")
    await client.produce("t", batch(b"a", b"b"))
    response = await client.fetch_partition("t", 0, version=version)
    assert (response.error_code, response.high_watermark, response.last_stable_offset) == (0, 2, 2)
    assert values_of(response) == [b"a", b"b"]
    assert response.aborted_transactions is None
    response = await client.fetch_partition("t", 0, version=version, isolation_level=1)
    assert values_of(response) == [b"a", b"b"]
    assert response.aborted_transactions == []


@broker_test
async def test_the_batch_that_contains_the_offset_is_complete(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    await client.produce("t", batch(b"a", b"b", b"c"))
    response = await client.fetch_partition("t", 2)
    assert values_of(response) == [b"a", b"b", b"c"]


@broker_test
async def test_an_append_completes_a_waiting_fetch(m: Machine) -> None:
    client, producer = await m.client(), await m.client()
    await client.create_topic("t")
    waiting = client.send_fetch({("t", 0): 0}, max_wait_ms=LONG_MS)
    await asyncio.sleep(50)
    assert not waiting.done()
    began = m.elapsed_ms
    await producer.produce("t", batch(b"a"))
    assert values_of((await waiting).responses[0].partitions[0]) == [b"a"]
    assert m.elapsed_ms - began < 5
    assert len(m.broker.services.replicas.purgatory) == 0


@broker_test
async def test_a_waiting_fetch_ends_at_its_deadline(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    for wait_ms in (500, 0, 7, 3_600_000):
        began = m.elapsed_ms
        response = await client.fetch_partition("t", 0, max_wait_ms=wait_ms)
        assert (response.error_code, records_of(response)) == (0, b"")
        # Deadlines are in whole milliseconds.
        assert wait_ms - 1 < m.elapsed_ms - began < wait_ms + 5
        await asyncio.sleep(1)


@broker_test
async def test_deadlines_of_several_waiting_fetches(m: Machine) -> None:
    admin = await m.client()
    await admin.create_topic("t")
    clients = [await m.client() for _ in range(6)]
    began = m.elapsed_ms
    waits = [3000, 1000, 2000, 1500, 500, 2500]

    async def wait(client: Client, wait_ms: int) -> None:
        await client.fetch({("t", 0): 0}, max_wait_ms=wait_ms)
        # Deadlines are in whole milliseconds.
        assert wait_ms - 1 < m.elapsed_ms - began < wait_ms + 5

    await asyncio.gather(*map(wait, clients, waits))


@broker_test
async def test_min_bytes(m: Machine) -> None:
    client, producer = await m.client(), await m.client()
    await client.create_topic("t")
    await producer.produce("t", batch(b"0", size=500))
    began = m.elapsed_ms
    waiting = client.send_fetch({("t", 0): 0}, max_wait_ms=LONG_MS, min_bytes=2000)
    for n in range(1, 4):
        assert not waiting.done()
        await producer.produce("t", batch(b"%d" % n, size=500))
        await asyncio.sleep(1)
    response = await waiting
    assert base_offsets(response) == {("t", 0): [0, 1, 2, 3]}
    # With fewer bytes it waits until its deadline.
    began = m.elapsed_ms
    assert base_offsets(await client.fetch({("t", 0): 3}, max_wait_ms=700, min_bytes=2000)) == {("t", 0): [3]}
    assert 700 <= m.elapsed_ms - began < 705


@broker_test
async def test_min_bytes_count_synced_bytes(m: Machine) -> None:
    client, producer = await m.client(), await m.client()
    await client.create_topic("t", flush_before_ack=True)
    waiting = client.send_fetch({("t", 0): 0}, max_wait_ms=LONG_MS, min_bytes=2000)
    for n in range(4):
        assert not waiting.done()
        await producer.produce("t", batch(b"%d" % n, size=500))
        await asyncio.sleep(1)
    assert base_offsets(await waiting) == {("t", 0): [0, 1, 2, 3]}


@broker_test
async def test_a_fetch_does_not_wait_for_more_than_the_largest_response(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    for _ in range(12):
        await client.produce("t", batch(b"v", size=900_000))
    began = m.elapsed_ms
    response = await client.fetch(
        {("t", 0): 0}, max_wait_ms=LONG_MS, min_bytes=50 << 20, max_bytes=60 << 20, partition_max_bytes=60 << 20
    )
    assert len(base_offsets(response)[("t", 0)]) == 9
    assert m.elapsed_ms - began < 1000


@broker_test
async def test_appends_of_one_iteration_share_a_response(m: Machine) -> None:
    client, producer = await m.client(), await m.client()
    await client.create_topic("t")
    waiting = client.send_fetch({("t", 0): 0}, max_wait_ms=LONG_MS)
    await asyncio.sleep(1)
    frames = [producer.encode_produce_acks_0("t", batch(b"v"), version=9) for _ in range(5)]
    connection = next(iter(c for c in m.broker._server.connections if not c.is_waiting))
    data = b"".join(frames)
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))
    assert base_offsets(await waiting) == {("t", 0): [0, 1, 2, 3, 4]}


# Limits.


@broker_test
async def test_size_limits(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", 2)
    for index in range(2):
        for _ in range(10):
            await client.produce("t", batch(b"v", size=1000), index)
    both = {("t", 0): 0, ("t", 1): 0}
    # The first batch is returned even if it exceeds the limits; the others respect them (KIP-74).
    assert base_offsets(await client.fetch(both, partition_max_bytes=1)) == {("t", 0): [0], ("t", 1): []}
    assert base_offsets(await client.fetch(both, max_bytes=1)) == {("t", 0): [0], ("t", 1): []}
    assert base_offsets(await client.fetch(both, max_bytes=0, partition_max_bytes=0)) == {("t", 0): [0], ("t", 1): []}
    three_batches = 3 * (1000 + 80)
    assert base_offsets(await client.fetch(both, partition_max_bytes=three_batches)) == {
        ("t", 0): [0, 1, 2],
        ("t", 1): [0, 1, 2],
    }
    assert base_offsets(await client.fetch(both, max_bytes=three_batches)) == {("t", 0): [0, 1, 2], ("t", 1): []}
    offsets = base_offsets(await client.fetch(both, max_bytes=4 * three_batches, partition_max_bytes=3 * three_batches))
    assert offsets == {("t", 0): list(range(9)), ("t", 1): [0, 1, 2]}


@broker_test(fetch_max_bytes=5000)
async def test_fetch_max_bytes_of_the_broker(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    for _ in range(10):
        await client.produce("t", batch(b"v", size=1000))
    assert base_offsets(await client.fetch({("t", 0): 0})) == {("t", 0): [0, 1, 2, 3]}


# Errors.


@broker_test
async def test_a_leader_that_reaches_no_other_broker_resets_no_consumer(m: Machine) -> None:
    """The consumer may come from the new leader, which has more records."""
    client = await m.client()
    await client.create_topic("t")
    await client.produce("t", batch(b"a", b"b"))
    m.broker.services.replicas.may_be_replaced = lambda: True
    assert (await client.fetch_partition("t", 3)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await client.read("t") == [b"a", b"b"]


@broker_test
async def test_errors(m: Machine) -> None:
    client = await m.client()
    topic_id = await client.create_topic("t")
    await client.produce("t", batch(b"a", b"b"))
    assert (await client.fetch_partition("u", 0)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await client.fetch_partition("t", 0, 1)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await client.fetch_partition("t", 3)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (await client.fetch_partition("t", -1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (await client.fetch_partition("t", 2)).error_code == ErrorCode.NONE
    assert (await client.fetch_partition("t", 0, leader_epoch=0)).error_code == ErrorCode.NONE
    assert (await client.fetch_partition("t", 0, leader_epoch=1)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    client.ids["t"] = bytes(15) + b"\1"
    assert (await client.fetch_partition("t", 0, version=13)).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    client.ids["t"] = topic_id
    assert (await client.fetch_partition("t", 0, version=13)).error_code == ErrorCode.NONE


@broker_test
async def test_a_client_cannot_fetch_as_a_follower(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    request = client.fetch_request({("t", 0): 0})
    request.replica_id = 2
    with pytest.raises(ConnectionResetError):
        await client.request(request, 12, FetchResponse)


@broker_test
async def test_a_leader_epoch_from_before_the_restart_is_fenced(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    await m.restart()
    client = await m.client()
    assert (await client.fetch_partition("t", 0, leader_epoch=0)).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert (await client.fetch_partition("t", 0, leader_epoch=1)).error_code == ErrorCode.NONE


@broker_test
async def test_an_error_is_returned_at_once(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    began = m.elapsed_ms
    response = await client.fetch({("t", 0): 0, ("u", 0): 0}, max_wait_ms=LONG_MS)
    assert errors(response) == {("t", 0): ErrorCode.NONE, ("u", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert m.elapsed_ms - began < 10


@broker_test
@pytest.mark.parametrize("version", [12, 13])
@pytest.mark.parametrize("in_session", [False, True])
async def test_a_topic_that_is_deleted_while_a_fetch_waits(m: Machine, version: int, in_session: bool) -> None:
    client, admin = await m.client(), await m.client()
    client.ids["t"] = await admin.create_topic("t")
    await admin.produce("t", batch(b"a"))
    session = (0, -1)
    if in_session:
        response = await client.fetch({("t", 0): 1}, session=(0, 0), version=version)
        session = (response.session_id, 1)
    waiting = client.send_fetch(
        {} if in_session else {("t", 0): 1}, session=session, max_wait_ms=LONG_MS, version=version
    )
    await asyncio.sleep(1)
    await admin.delete_topic("t")
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if version < 13 else ErrorCode.UNKNOWN_TOPIC_ID
    assert list(errors(await waiting).values()) == [unknown]
    # Created again, it is found by its name; its old id remains unknown.
    await admin.create_topic("t")
    await admin.produce("t", batch(b"new"))
    session = (session[0], 2) if in_session else session
    response = await client.fetch({("t", 0): 0}, session=session, version=version)
    (part,) = by_partition(response).values()
    if version < 13:
        assert values_of(part) == [b"new"]
    else:
        assert part.error_code == unknown


@broker_test
async def test_deleting_records_completes_a_waiting_fetch(m: Machine) -> None:
    client, admin = await m.client(), await m.client()
    await client.create_topic("t")
    await admin.produce("t", batch(b"a", b"b", b"c"))
    first = await client.fetch({("t", 0): 3}, session=(0, 0))
    waiting = client.send_fetch({}, session=(first.session_id, 1), max_wait_ms=LONG_MS)
    await asyncio.sleep(1)
    assert await admin.delete_records("t", 2) == (0, 2)
    # The response has the new log start offset.
    (part,) = by_partition(await waiting).values()
    assert (part.error_code, part.log_start_offset) == (0, 2)
    assert (await client.fetch_partition("t", 1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert values_of(await client.fetch_partition("t", 2), 2) == [b"c"]
    assert await admin.delete_records("t", -1) == (0, 3)
    assert (await admin.delete_records("t", 4))[0] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert await admin.delete_records("t", 1) == (0, 3)


# Reads that wait for the disk.


@broker_test
async def test_cold_reads(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", 3)
    for index in range(3):
        for n in range(5):
            await client.produce("t", batch(b"%d" % n), index)
    m.disk.cold = 1.0
    everything = {("t", index): 0 for index in range(3)}
    assert base_offsets(await client.fetch(everything)) == {tp: [0, 1, 2, 3, 4] for tp in everything}
    assert m.threads.started["read_cold_blocking"] == 1
    response = await client.fetch(everything, max_bytes=1)
    assert base_offsets(response) == {("t", 0): [0], ("t", 1): [], ("t", 2): []}
    response = await client.fetch(everything, partition_max_bytes=200)
    assert base_offsets(response) == {tp: [0, 1] for tp in everything}
    assert await client.read("t", 3) == [b"3", b"4"]


@broker_test
async def test_a_cold_partition_gets_its_share_beside_hot_ones(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer of two partitions: the records of one are in memory, those of the other only on the disk."""
    client = await m.client()
    await client.create_topic("t", 2)
    for _ in range(20):
        await client.produce("t", batch(b"old", size=1000), 0)
        await client.produce("t", batch(b"new", size=1000), 1)
    cold = m.partition("t", 0).log.active.file
    hot = SimFile.pread_nowait
    monkeypatch.setattr(SimFile, "pread_nowait", lambda self, size, at: None if self is cold else hot(self, size, at))
    offsets = {("t", 0): 0, ("t", 1): 0}
    response = await client.fetch(offsets, session=(0, 0), max_bytes=2000)
    for epoch in range(1, 30):
        moved = {}
        for tp, batches in base_offsets(response).items():
            if batches:
                offsets[tp] = moved[tp] = batches[-1] + 1
        response = await client.fetch(moved, session=(response.session_id, epoch), max_bytes=2000)
    assert min(offsets.values()) > 10


@broker_test
async def test_a_topic_that_is_deleted_during_a_cold_read(m: Machine) -> None:
    client, admin = await m.client(), await m.client()
    await admin.create_topic("t")
    await admin.produce("t", batch(b"a"))
    m.disk.cold = 1.0
    m.threads.held.add("read_cold_blocking")
    reading = client.send_fetch({("t", 0): 0})
    await asyncio.sleep(1)
    await admin.delete_topic("t")
    m.threads.release("read_cold_blocking")
    assert errors(await reading) == {("t", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@broker_test
async def test_a_client_that_disconnects_during_a_cold_read(m: Machine) -> None:
    client, admin = await m.client(), await m.client()
    await admin.create_topic("t")
    await admin.produce("t", batch(b"a"))
    m.disk.cold = 1.0
    m.threads.held.add("read_cold_blocking")
    client.send_fetch({("t", 0): 0})
    await asyncio.sleep(1)
    client.close()
    await asyncio.sleep(1)
    assert not m.partition("t").fetchers
    m.threads.release("read_cold_blocking")
    await asyncio.sleep(1)


@broker_test
async def test_a_read_that_fails_takes_the_log_offline(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await m.client()
    await client.create_topic("t", 2)
    for index in range(2):
        await client.produce("t", batch(b"a"), index)
    broken = m.partition("t", 0).log.active.file
    hot = SimFile.pread_nowait

    def pread(self: SimFile, size: int, offset: int) -> bytes | None:
        if self is broken:
            raise OSError(5, "Input/output error")
        return hot(self, size, offset)

    monkeypatch.setattr(SimFile, "pread_nowait", pread)
    response = await client.fetch({("t", 0): 0, ("t", 1): 0})
    assert errors(response) == {("t", 0): ErrorCode.KAFKA_STORAGE_ERROR, ("t", 1): ErrorCode.NONE}
    monkeypatch.undo()
    response = await client.fetch({("t", 0): 0, ("t", 1): 0})
    assert errors(response) == {("t", 0): ErrorCode.KAFKA_STORAGE_ERROR, ("t", 1): ErrorCode.NONE}
