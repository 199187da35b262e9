"""Connections on a simulated network without faults behave as asyncio's do."""

import asyncio

import pytest

from kbroker.simulation.runtime.loop import UnhandledError
from tests.unit.support.simulated_network import ListeningBroker, assert_reset, simulated_pair

HOUR = 3600.0

pair_test = simulated_pair([1])


@pair_test
async def test_a_stream_arrives_in_order_in_pieces_of_any_size(s, client, broker):
    parts = [bytes([i]) * (50 * i) for i in range(100)]
    for part in parts:
        if len(part) % 20:
            buffer = bytearray(part)
            client.transport.write(memoryview(buffer))
            buffer[:] = bytes(len(buffer))
        else:
            client.transport.writelines([part[:7], part[7:]])
        await asyncio.sleep(0.000_1)
    stream = b"".join(parts)
    await s.until(lambda: len(broker.received) == len(stream))
    assert broker.received == stream
    assert {len(piece) for piece in broker.pieces} - {len(part) for part in parts}


@pair_test
async def test_a_writer_pauses_while_its_peer_does_not_read(s, client, broker):
    client.transport.set_write_buffer_limits(high=1000)
    assert client.transport.get_write_buffer_limits() == (250, 1000)
    broker.transport.pause_reading()
    assert not broker.transport.is_reading()
    size = 0
    while "pause" not in client.events:
        client.write(bytes(10_000))
        size += 10_000
    assert client.transport.get_write_buffer_size() > 1000
    await asyncio.sleep(HOUR)
    assert (broker.pieces, client.events) == ([], ["made", "pause"])
    broker.transport.resume_reading()
    await s.until(lambda: len(broker.received) == size)
    assert client.events == ["made", "pause", "resume"]
    assert client.transport.get_write_buffer_size() == 0


@pair_test
async def test_a_half_closed_connection(s, client, broker):
    broker.keeps_open = True
    client.write(b"request")
    client.transport.write_eof()
    with pytest.raises(RuntimeError):
        client.write(b"more")
    await s.until(lambda: "eof" in broker.events)
    assert broker.received == b"request"
    broker.write(b"response")
    broker.transport.close()
    assert await client.lost is None
    assert client.received == b"response"


@pair_test
async def test_abort_resets_the_peer(s, client, broker):
    client.write(bytes(1000))
    client.transport.abort()
    assert await client.lost is None
    await assert_reset(broker)
    assert (broker.received, broker.events) == (b"", ["made", "lost"])


def test_a_protocol_that_raises_fails_the_simulation():
    async def test(s: ListeningBroker) -> None:
        client, broker = await s.pair()
        broker.data_received = lambda data: 1 / 0
        client.write(b"data")
        await asyncio.sleep(1)

    with pytest.raises(UnhandledError, match="protocol failed"):
        ListeningBroker(1).run(test)
