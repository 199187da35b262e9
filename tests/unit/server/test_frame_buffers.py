"""Large frames are received into a few reused buffers."""

from kbroker.server.frame_buffers import BUFFER_BYTES, MAX_BUFFERS, FrameBuffers
from kbroker.server.receive_buffer import MAPPED_BYTES
from tests.unit.support.server_connection import ECHO, ConnectionUnderTest, FakeServer

BODY = bytes(range(256)) * 300


def begin_frame(server: FakeServer, body: bytes = BODY, arrived: int = 1000) -> tuple[ConnectionUnderTest, bytes]:
    """Return a client that has sent the start of a frame, and the rest of the frame."""
    client = ConnectionUnderTest(server)
    frame = client.frame(ECHO, body)
    client.receive(frame[:arrived])
    return client, frame[arrived:]


def test_a_large_frame_needs_no_larger_buffer_as_it_arrives() -> None:
    client, rest = begin_frame(FakeServer())
    assert len(client.connection.get_buffer(-1)) == len(rest)
    client.receive(rest, 5_000)
    assert client.bodies() == [BODY]


def test_the_buffer_of_a_complete_frame_is_used_again() -> None:
    server = FakeServer()
    buffers = server.memory.frame_buffers
    for body in (BODY, BODY[::-1], BODY[1:]):
        client, rest = begin_frame(server, body)
        client.receive(rest)
        assert client.bodies() == [body]
    assert buffers._created == len(buffers._free) == 1


def test_frames_at_the_same_time_have_a_buffer_each() -> None:
    server = FakeServer()
    bodies = [bytes([number]) * 50_000 for number in range(MAX_BUFFERS + 2)]
    started = [begin_frame(server, body) for body in bodies]
    assert server.memory.frame_buffers._created == MAX_BUFFERS
    # The last two have buffers that grow, and whose bytes are counted.
    sizes = [client.connection._received.size for client, _ in started]
    assert sizes[:-2] == [0] * MAX_BUFFERS
    assert server.memory.held_bytes == sum(sizes) == 2 * 16 * 1024
    for client, rest in started:
        client.receive(rest)
    assert [client.bodies() for client, _ in started] == [[body] for body in bodies]
    assert server.memory.held_bytes == 0
    assert len(server.memory.frame_buffers._free) == MAX_BUFFERS


def test_a_closed_connection_releases_its_buffer() -> None:
    server = FakeServer()
    client, _ = begin_frame(server)
    assert server.memory.frame_buffers._free == []
    client.connection.connection_lost(None)
    assert len(server.memory.frame_buffers._free) == 1


def test_small_frames_do_not_use_them_and_larger_ones_cannot() -> None:
    server = FakeServer()
    server.max_request_bytes = 2 * BUFFER_BYTES
    for size in (10_000, BUFFER_BYTES + 1):
        begin_frame(server, bytes(size))
    assert server.memory.frame_buffers._created == 0


def test_no_more_buffers_than_the_bound_are_created() -> None:
    buffers = FrameBuffers()
    taken = [buffers.take() for _ in range(MAX_BUFFERS + 1)]
    assert taken[-1] is None
    last = taken[0]
    assert last is not None
    buffers.release(last)
    assert buffers.take() is last
    assert buffers.take() is None


def test_a_frame_of_megabytes_is_copied_only_at_its_start() -> None:
    """A copy of a frame of 100 MiB would keep the event loop busy for 50 ms."""
    server = FakeServer()
    server.max_request_bytes = 16 << 20
    body = BODY * (server.max_request_bytes // len(BODY) - 1)
    client, rest = begin_frame(server, body)
    received = client.connection._received
    buffers: list[object] = []
    remaining = memoryview(rest)
    while remaining:
        view = client.connection.get_buffer(-1)
        assert len(view) <= 1 << 20
        assert received.partial_frame is not None
        if received.filled > MAPPED_BYTES and received.partial_frame.obj not in buffers:
            buffers.append(received.partial_frame.obj)
        part = remaining[: len(view)]
        view[: len(part)] = part
        remaining = remaining[len(part) :]
        # The memory that counts grows with the bytes that have arrived.
        assert received.size <= max(16 * 1024, 2 * (received.filled + len(part)))
        client.connection.buffer_updated(len(part))
        server.run()
    assert client.bodies() == [body]
    assert len(buffers) == 1
    assert server.memory.held_bytes == 0
