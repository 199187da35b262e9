import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kbroker.simulation.runtime.loop import SimLoop

HOUR = 3600.0
PORT = 9092


@pytest.fixture
def loop():
    loop = SimLoop(1)
    yield loop
    loop.close()


def run(loop: SimLoop, program: Callable[[], Awaitable[object]]) -> None:
    loop.run_until_complete(program())


class Recorder(asyncio.Protocol):
    """Writes down what happens to it."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.pieces: list[bytes] = []
        self.events: list[str] = []
        self.transport: asyncio.Transport
        self.lost: asyncio.Future[Exception | None] = loop.create_future()
        self.stays_open = False

    @property
    def received(self) -> bytes:
        return b"".join(self.pieces)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self.stays_open

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")
        self.lost.set_result(exc)

    async def until(self, size: int) -> None:
        while len(self.received) < size:
            await asyncio.sleep(0.001)


class BufferedRecorder(asyncio.BufferedProtocol):
    """Takes 10 bytes at a time, and stops reading after 25 until it is told to go on."""

    def __init__(self) -> None:
        self.buffer = bytearray(10)
        self.pieces: list[bytes] = []
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.pieces.append(bytes(self.buffer[:nbytes]))
        if sum(map(len, self.pieces)) >= 25:
            self.transport.pause_reading()


async def pair(loop: SimLoop) -> tuple[Recorder, Recorder]:
    """Two ends of one connection: the client's and the server's."""
    accepted: list[Recorder] = []

    def accept() -> Recorder:
        accepted.append(Recorder(loop))
        return accepted[0]

    server = await loop.create_server(accept, "broker", PORT)
    _, client = await loop.create_connection(lambda: Recorder(loop), "broker", PORT)
    server.close()
    return client, accepted[0]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1000):
        writer.write(data)
        await writer.drain()
    writer.close()


async def talk(loop: SimLoop, trace: list[tuple[int, int]]) -> None:
    """A patient client of an echo server: it waits for hours, and for an answer that never comes."""
    async with await asyncio.start_server(echo, "127.0.0.1", PORT):
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
        text = bytes(range(256)) * 40
        for _ in range(5):
            writer.write(text)
            back = b""
            while len(back) < len(text):
                back += await reader.read(1 << 16)
                trace.append((loop.elapsed_ns, len(back)))
            assert back == text
            await asyncio.sleep(5 * HOUR)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 100 * HOUR)
        writer.close()
        await writer.wait_closed()
        await asyncio.sleep(1)


def trace_of(seed: int) -> list[tuple[int, int]]:
    loop = SimLoop(seed)
    trace: list[tuple[int, int]] = []
    run(loop, lambda: talk(loop, trace))
    loop.close()
    return trace


def test_streams_work_and_the_same_seed_gives_the_same_trace():
    trace = trace_of(3)
    assert trace == trace_of(3)
    assert trace != trace_of(4)
    assert trace[-1][0] > 20 * HOUR * 1e9
    # Bytes arrive cut at other places than they were written.
    assert len(trace) > 10


def test_addresses(loop):
    async def program() -> None:
        client, server = await pair(loop)
        assert client.transport.get_extra_info("peername") == ("broker", PORT)
        assert server.transport.get_extra_info("sockname") == ("broker", PORT)
        name = client.transport.get_extra_info("sockname")
        assert server.transport.get_extra_info("peername") == name
        assert name[0] == "127.0.0.1"
        assert client.transport.get_extra_info("socket") is None
        listener = await loop.create_server(lambda: Recorder(loop), None, 0)
        host, port = listener.sockets[0].getsockname()
        assert host == "0.0.0.0"
        transport, _ = await loop.create_connection(lambda: Recorder(loop), "localhost", port, local_addr=("rack-7", 5))
        assert transport.get_extra_info("sockname") == ("rack-7", 5)

    run(loop, program)


def test_nobody_serves(loop):
    async def refused(port: int) -> None:
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(lambda: Recorder(loop), "broker", port)

    async def program() -> None:
        await refused(PORT)
        server = await loop.create_server(lambda: Recorder(loop), "broker", PORT, start_serving=False)
        await refused(PORT)
        await server.start_serving()
        await loop.create_connection(lambda: Recorder(loop), "broker", PORT)
        with pytest.raises(OSError, match="in use"):
            await loop.create_server(lambda: Recorder(loop), "broker", PORT)
        server.close()
        await refused(PORT)
        await loop.create_server(lambda: Recorder(loop), "broker", PORT)

    run(loop, program)


def test_a_stream_arrives_in_order_cut_anywhere(loop):
    async def program() -> None:
        client, server = await pair(loop)
        parts = [bytes([i]) * (50 * i) for i in range(100)]
        for part in parts:
            if len(part) % 20:
                client.transport.write(memoryview(part))
            else:
                client.transport.writelines([part[:7], part[7:]])
            await asyncio.sleep(0.000_1)
        stream = b"".join(parts)
        await server.until(len(stream))
        assert server.received == stream
        assert {len(piece) for piece in server.pieces} - {len(part) for part in parts}

    run(loop, program)


def test_what_is_written_is_copied(loop):
    async def program() -> None:
        client, server = await pair(loop)
        buffer = bytearray(b"content")
        client.transport.write(buffer)
        buffer[:] = b"changed"
        await server.until(7)
        assert server.received == b"content"

    run(loop, program)


def test_buffered_protocols_fill_their_own_buffers(loop):
    async def program() -> None:
        recorder = BufferedRecorder()
        await loop.create_server(lambda: recorder, "broker", PORT)
        _, client = await loop.create_connection(lambda: Recorder(loop), "broker", PORT)
        stream = bytes(range(100))
        client.transport.write(stream)
        await asyncio.sleep(1)
        taken = sum(map(len, recorder.pieces))
        assert 25 <= taken < 35
        recorder.transport.resume_reading()
        await asyncio.sleep(1)
        while sum(map(len, recorder.pieces)) < 100:
            recorder.transport.resume_reading()
            await asyncio.sleep(1)
        assert b"".join(recorder.pieces) == stream
        assert max(map(len, recorder.pieces)) == 10

    run(loop, program)


def test_nothing_is_received_while_reading_is_paused(loop):
    async def program() -> None:
        client, server = await pair(loop)
        server.transport.pause_reading()
        assert not server.transport.is_reading()
        client.transport.write(b"data")
        await asyncio.sleep(HOUR)
        assert server.pieces == []
        server.transport.resume_reading()
        await server.until(4)
        assert server.received == b"data"

    run(loop, program)


def test_a_writer_is_paused_while_the_reader_does_not_read(loop):
    async def program() -> None:
        client, server = await pair(loop)
        client.transport.set_write_buffer_limits(high=1000)
        assert client.transport.get_write_buffer_limits() == (250, 1000)
        server.transport.pause_reading()
        size = 0
        while "pause" not in client.events:
            client.transport.write(bytes(10_000))
            size += 10_000
        assert client.transport.get_write_buffer_size() > 1000
        await asyncio.sleep(HOUR)
        assert client.events == ["made", "pause"]
        server.transport.resume_reading()
        await server.until(size)
        assert client.events == ["made", "pause", "resume"]
        assert client.transport.get_write_buffer_size() == 0

    run(loop, program)


def test_close_delivers_what_was_written(loop):
    async def program() -> None:
        client, server = await pair(loop)
        stream = bytes(300_000)
        client.transport.write(stream)
        client.transport.close()
        assert client.transport.is_closing()
        client.transport.write(b"too late")
        assert await server.lost is None
        assert await client.lost is None
        assert server.received == stream
        assert client.events[-1] == "lost"
        assert server.events == ["made", "eof", "lost"]

    run(loop, program)


def test_half_closed(loop):
    async def program() -> None:
        client, server = await pair(loop)
        server.stays_open = True
        client.transport.write(b"question")
        client.transport.write_eof()
        with pytest.raises(RuntimeError):
            client.transport.write(b"more")
        while "eof" not in server.events:
            await asyncio.sleep(0.001)
        assert server.received == b"question"
        server.transport.write(b"answer")
        server.transport.close()
        assert await client.lost is None
        assert client.received == b"answer"

    run(loop, program)


def test_abort_resets_the_peer(loop):
    async def program() -> None:
        client, server = await pair(loop)
        client.transport.write(bytes(1000))
        client.transport.abort()
        assert await client.lost is None
        assert isinstance(await server.lost, ConnectionResetError)
        assert server.received == b""
        assert server.events == ["made", "lost"]

    run(loop, program)


def test_bytes_for_one_who_has_closed_reset_the_writer(loop):
    async def program() -> None:
        client, server = await pair(loop)
        client.stays_open = True
        server.transport.close()
        client.transport.write(b"anybody there?")
        assert await server.lost is None
        assert isinstance(await client.lost, ConnectionResetError)

    run(loop, program)


def test_a_protocol_that_fails_ends_the_run(loop):
    class Failing(Recorder):
        def data_received(self, data: bytes) -> None:
            raise ZeroDivisionError

    async def program() -> None:
        await loop.create_server(lambda: Failing(loop), "broker", PORT)
        _, client = await loop.create_connection(lambda: Recorder(loop), "broker", PORT)
        client.transport.write(b"data")
        await asyncio.sleep(1)

    with pytest.raises(RuntimeError, match="protocol failed"):
        run(loop, program)
