"""Connections on a simulated network without faults behave as asyncio's do."""

import asyncio

import pytest

from kbroker.simulation.runtime.loop import SimLoop, UnhandledError
from tests.unit.support.simulated_hosts import simulated
from tests.unit.support.simulated_network import PORT, ListeningBroker, Recorder, assert_reset, simulated_pair

HOUR = 3600.0

network_test = simulated(ListeningBroker, [1])
pair_test = simulated_pair([1])


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1000):
        writer.write(data)
        await writer.drain()
    writer.close()


async def use_echo_server(loop: SimLoop, trace: list[tuple[int, int]]) -> None:
    async with await asyncio.start_server(echo, "127.0.0.1", PORT):
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
        text = bytes(range(256)) * 40
        for _ in range(5):
            writer.write(text)
            received = b""
            while len(received) < len(text):
                received += await reader.read(1 << 16)
                trace.append((loop.elapsed_ns, len(received)))
            assert received == text
            await asyncio.sleep(5 * HOUR)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 100 * HOUR)
        writer.close()
        await writer.wait_closed()
        await asyncio.sleep(1)


def test_asyncio_streams_work_and_equal_seeds_give_equal_traces():
    def trace_of(seed: int) -> list[tuple[int, int]]:
        loop = SimLoop(seed)
        trace: list[tuple[int, int]] = []
        loop.run_until_complete(use_echo_server(loop, trace))
        loop.close()
        return trace

    trace = trace_of(3)
    assert trace == trace_of(3)
    assert trace != trace_of(4)
    assert len(trace) > 10, "a write arrives in several pieces"


@pair_test
async def test_addresses(s, client, broker):
    name = client.transport.get_extra_info("sockname")
    assert (name[0], client.transport.get_extra_info("peername")) == ("client", ("broker", PORT))
    assert broker.transport.get_extra_info("sockname") == ("broker", PORT)
    assert broker.transport.get_extra_info("peername") == name
    assert client.transport.get_extra_info("socket") is None
    listener = await s.loop.create_server(lambda: Recorder(s.loop), None, 0)
    host, port = listener.sockets[0].getsockname()
    assert host == "0.0.0.0"
    transport, _ = await s.loop.create_connection(lambda: Recorder(s.loop), "localhost", port, local_addr=("rack-7", 5))
    assert transport.get_extra_info("sockname") == ("rack-7", 5)


@network_test
async def test_listening(s):
    async def refused() -> None:
        with pytest.raises(ConnectionRefusedError):
            await s.loop.create_connection(lambda: Recorder(s.loop), "other", PORT)

    await refused()
    server = await s.loop.create_server(lambda: Recorder(s.loop), "other", PORT, start_serving=False)
    await refused()
    await server.start_serving()
    await s.loop.create_connection(lambda: Recorder(s.loop), "other", PORT)
    with pytest.raises(OSError, match="in use"):
        await s.loop.create_server(lambda: Recorder(s.loop), "other", PORT)
    server.close()
    await refused()
    await s.loop.create_server(lambda: Recorder(s.loop), "other", PORT)


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


class BufferedRecorder(asyncio.BufferedProtocol):
    """Accepts 10 bytes at a time and pauses reading after 25."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.buffer = bytearray(10)
        self.received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self.buffer[:nbytes]
        if len(self.received) >= 25:
            self.transport.pause_reading()


@network_test
async def test_buffered_protocols_receive_into_their_own_buffer(s):
    recorder = BufferedRecorder()
    await s.loop.create_server(lambda: recorder, "other", PORT)
    _, client = await s.loop.create_connection(lambda: Recorder(s.loop), "other", PORT)
    stream = bytes(range(100))
    client.write(stream)
    await asyncio.sleep(1)
    assert 25 <= len(recorder.received) < 35
    while len(recorder.received) < 100:
        recorder.transport.resume_reading()
        await asyncio.sleep(1)
    assert recorder.received == stream


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
async def test_close_delivers_the_written_bytes(s, client, broker):
    stream = bytes(300_000)
    client.write(stream)
    client.transport.close()
    assert client.transport.is_closing()
    client.write(b"ignored")
    assert await broker.lost is None
    assert await client.lost is None
    assert broker.received == stream
    assert client.events[-1] == "lost"
    assert broker.events == ["made", "eof", "lost"]


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


@pair_test
async def test_writing_to_a_closed_connection_is_reset(s, client, broker):
    client.keeps_open = True
    broker.transport.close()
    client.write(b"?")
    assert await broker.lost is None
    await assert_reset(client)


def test_a_protocol_that_raises_fails_the_simulation():
    async def test(s: ListeningBroker) -> None:
        client, broker = await s.pair()
        broker.data_received = lambda data: 1 / 0
        client.write(b"data")
        await asyncio.sleep(1)

    with pytest.raises(UnhandledError, match="protocol failed"):
        ListeningBroker(1).run(test)
