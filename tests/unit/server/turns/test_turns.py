"""Connections with large requests in flight are read in turns: a few frames of each in an iteration of the loop."""

from collections import Counter
from itertools import accumulate

import pytest

from kbroker.server.connection import TURN_BYTES, TURN_FRAMES
from kbroker.server.frame_buffers import MAX_BUFFERS
from tests.unit.support.server_connection import ECHO, ConnectionUnderTest, FakeServer

REQUESTS = 15
LARGE = TURN_BYTES + 1000


def serve(server: FakeServer, streams: dict[ConnectionUnderTest, memoryview]) -> None:
    """Run iterations of the event loop until everything is served. Each reads every socket that has bytes."""
    while any(streams.values()):
        before = sum(map(len, streams.values()))
        for client, stream in streams.items():
            streams[client] = stream[client.receive_as_uvloop(stream) :]
        calls, server.calls_soon = server.calls_soon, []
        for call in calls:
            call()
        assert calls or sum(map(len, streams.values())) < before, "nothing happens any more"


def lead(order: list[int], clients: int) -> int:
    """Return by how many requests one client was at most ahead of another one that still had some."""
    counts = accumulate((Counter({number: 1}) for number in order), Counter.__add__)
    return max(max(count[c] for c in range(clients)) - min(count[c] for c in range(clients)) for count in counts)


@pytest.mark.parametrize("size", [LARGE, 4 * TURN_BYTES])
@pytest.mark.parametrize("clients", [4, MAX_BUFFERS + 2])
def test_equal_connections_with_pipelined_large_requests_alternate(size: int, clients: int) -> None:
    server = FakeServer()
    server.max_request_bytes = 2 * size
    streams = {}
    for number in range(clients):
        client = ConnectionUnderTest(server)
        frames = b"".join(client.frame(ECHO, bytes([number]) * size) for _ in range(REQUESTS))
        streams[client] = memoryview(frames)
    serve(server, streams)
    order = [body[0] for body in server.handled]
    assert Counter(order) == dict.fromkeys(range(clients), REQUESTS)
    # A turn may also begin with the rest of a request.
    assert lead(order, clients) <= TURN_FRAMES + 1


def test_a_small_request_waits_for_one_turn_of_each_connection() -> None:
    server = FakeServer()
    server.max_request_bytes = 2 * LARGE
    streams = {}
    for _ in range(3):
        client = ConnectionUnderTest(server)
        streams[client] = memoryview(b"".join(client.frame(ECHO, b"L" * LARGE) for _ in range(REQUESTS)))
    small = ConnectionUnderTest(server)
    streams[small] = memoryview(small.frame(ECHO, b"small"))
    serve(server, streams)
    assert server.handled.index(b"small") <= 3 * TURN_FRAMES


def test_one_very_large_request_is_read_in_turns() -> None:
    server = FakeServer()
    server.max_request_bytes = 40 << 20
    large, small = ConnectionUnderTest(server), ConnectionUnderTest(server)
    streams = {large: memoryview(large.frame(ECHO, bytes(32 << 20))), small: memoryview(small.frame(ECHO, b"small"))}
    serve(server, streams)
    assert server.handled[0] == b"small"


def test_a_frame_in_pieces_does_not_end_the_turn_if_it_is_small() -> None:
    client = ConnectionUnderTest()
    frame = client.frame(ECHO, bytes(10_000))
    for part in (frame[:4000], frame[4000:]):
        client.receive_as_uvloop(memoryview(part))
    assert client.transport.is_reading
    assert client.server.calls_soon == []


def test_a_connection_that_closes_at_the_end_of_its_turn_is_not_read_again() -> None:
    server = FakeServer()
    server.max_request_bytes = 2 * LARGE
    client = ConnectionUnderTest(server)
    client.receive_as_uvloop(memoryview(client.frame(ECHO, bytes(LARGE)) * TURN_FRAMES))
    assert not client.transport.is_reading
    client.connection.close_quietly()
    server.run()
    assert not client.transport.is_reading
