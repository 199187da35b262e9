"""One connection: frames, responses, a client that does not read, the end."""

from struct import Struct
from typing import Any

import pytest

from kbroker.server.backlog import MAX_BACKLOG_BYTES
from kbroker.server.connection import MAX_FRAMES
from kbroker.server.response_queue import MAX_OVERLAPPING
from tests.unit.support.server_connection import (
    COROUTINE,
    DELAYED,
    ECHO,
    FAILING,
    HEADER,
    MALFORMED,
    MAX_FRAME,
    NO_RESPONSE,
    OVERLAPPING,
    PARTS,
    SHARING,
    UNSUPPORTED,
    ConnectionUnderTest,
)


@pytest.fixture
def client() -> ConnectionUnderTest:
    return ConnectionUnderTest()


# Frames.


def test_frames_cut_at_every_byte(client: ConnectionUnderTest):
    bodies = [b"", b"x", b"hello " * 40]
    stream = b"".join(client.frame(ECHO, body, name) for body in bodies for name in (b"me", None, b""))
    for cut in range(1, len(stream)):
        other = ConnectionUnderTest()
        other.receive(stream[:cut])
        other.receive(stream[cut:])
        assert other.bodies() == [body for body in bodies for _ in range(3)]
        assert other.transport.closed == ""


@pytest.mark.parametrize("max_read_bytes", [1, 2, 3, 5, 7, 64])
def test_frames_in_small_pieces(client: ConnectionUnderTest, max_read_bytes: int):
    bodies = [bytes([i]) * (17 * i) for i in range(40)]
    client.receive(b"".join(client.frame(ECHO, body) for body in bodies), max_read_bytes)
    client.server.run()
    assert client.responses() == [(i + 1, body) for i, body in enumerate(bodies)]


def test_many_frames_in_one_read_alternate_with_other_connections(client: ConnectionUnderTest):
    bodies = [b"%d" % i for i in range(500)]
    client.receive(b"".join(client.frame(ECHO, body) for body in bodies))
    assert len(client.server.handled) == MAX_FRAMES
    client.receive(client.frame(ECHO, b"after them"))
    assert len(client.server.handled) == MAX_FRAMES
    client.server.run()
    assert client.responses() == [(i + 1, body) for i, body in enumerate([*bodies, b"after them"])]


def test_a_frame_larger_than_the_receive_buffer(client: ConnectionUnderTest):
    body = bytes(range(256)) * 300
    client.receive(client.frame(ECHO, b"before") + client.frame(ECHO, body) + client.frame(ECHO, b"after"), 10_000)
    assert client.bodies() == [b"before", body, b"after"]


def test_memory_follows_what_has_arrived_and_not_what_is_claimed(client: ConnectionUnderTest):
    client.server.max_request_bytes = 2**31 - 1
    client.receive(HEADER.pack(2**31 - 1, ECHO, 0, 1, 0))
    assert len(client.connection.get_buffer(-1)) < 20_000
    client.receive(bytes(100_000))
    assert len(client.connection.get_buffer(-1)) < 300_000
    assert client.transport.closed == ""


@pytest.mark.parametrize("length", [-1, -(2**31), MAX_FRAME + 1, 2**31 - 1])
@pytest.mark.parametrize("cut", [4, 3, 1])
def test_an_impossible_length_closes_the_connection(client: ConnectionUnderTest, length: int, cut: int):
    head = Struct(">i").pack(length)
    client.receive(client.frame(ECHO, b"good"))
    client.receive(head[:cut])
    client.receive(head[cut:])
    assert client.transport.closed
    assert client.responses() == [(1, b"good")]
    client.connection.buffer_updated(0)


def test_the_largest_frame_is_served(client: ConnectionUnderTest):
    body = bytes(MAX_FRAME - 10)
    client.receive(client.frame(ECHO, body, b""))
    assert client.responses() == [(1, body)]


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\0",
        HEADER.pack(0, ECHO, 0, 1, 50)[4:],
        HEADER.pack(0, UNSUPPORTED, 0, 1, 0)[4:],
        HEADER.pack(0, MALFORMED, 0, 1, 0)[4:],
        HEADER.pack(0, FAILING, 0, 1, 0)[4:],
    ],
    ids=["empty", "short", "client id too long", "no such API", "body", "bug"],
)
def test_a_request_that_cannot_be_served_closes_the_connection(client: ConnectionUnderTest, frame: bytes):
    good, unseen = client.frame(ECHO, b"good"), client.frame(ECHO, b"unseen")
    client.receive(good + Struct(">i").pack(len(frame)) + frame + unseen)
    assert client.transport.closed
    assert client.responses() == [(1, b"good")]
    assert b"unseen" not in client.server.handled


def test_a_client_id_that_exceeds_its_frame_is_malformed_even_if_it_begins_as_the_last_one(client: ConnectionUnderTest):
    client.receive(client.frame(ECHO, b"good", b"me"))
    client.receive(HEADER.pack(12, ECHO, 0, 2, 7) + b"me")
    assert client.transport.closed
    assert client.responses() == [(1, b"good")]


def test_client_ids(client: ConnectionUnderTest):
    seen: list[str | None] = []

    def handle(services: object, context: Any, request: bytes) -> None:
        seen.append(context.client_id)

    client.server.handle = handle  # type: ignore[method-assign]
    for name in (b"one", b"one", b"two", None, b"", b"two", "größer".encode(), b"caf\xe9"):
        client.receive(client.frame(NO_RESPONSE, b"", name))
    assert seen == ["one", "one", "two", None, "", "two", "größer", "caf\ufffd"]


# Responses.


def test_responses_are_sent_in_the_order_of_the_requests(client: ConnectionUnderTest):
    client.receive(
        client.frame(OVERLAPPING) + client.frame(OVERLAPPING) + client.frame(ECHO, b"3") + client.frame(PARTS, b"4!")
    )
    assert client.server.handled == [b"", b"", b"3", b"4!"]
    assert client.responses() == []
    client.server.respond(1)
    assert client.responses() == []
    client.server.respond(0)
    assert client.responses() == [(1, b"late 1"), (2, b"late 2"), (3, b"3"), (4, b"4!")]
    assert not client.connection.is_waiting


def test_no_request_is_handled_while_one_runs_that_must_not_overlap(client: ConnectionUnderTest):
    client.receive(client.frame(OVERLAPPING) + client.frame(DELAYED) + client.frame(ECHO, b"3"))
    client.receive(client.frame(ECHO, b"4"))
    assert client.server.handled == [b"", b""]
    client.server.respond(1)
    client.server.run()
    assert client.server.handled == [b"", b"", b"3", b"4"]
    assert client.responses() == []
    client.server.respond(0)
    assert client.responses() == [(1, b"late 1"), (2, b"late 2"), (3, b"3"), (4, b"4")]


def test_requests_of_one_api_overlap_and_share_a_send(client: ConnectionUnderTest):
    client.receive(client.frame(SHARING, b"1") + client.frame(SHARING, b"2"))
    client.receive(client.frame(SHARING, b"3"))
    assert client.server.handled == [b"1", b"2", b"3"]
    client.server.respond(1)
    client.server.respond(0)
    client.server.respond(0)
    assert client.responses() == [(1, b"late 1"), (2, b"late 2"), (3, b"late 3")]
    assert client.transport.writes == 1


def test_requests_of_other_apis_wait_for_those_that_overlap_with_their_own(client: ConnectionUnderTest):
    client.receive(client.frame(SHARING, b"1") + client.frame(ECHO, b"2") + client.frame(SHARING, b"3"))
    client.receive(client.frame(SHARING, b"4"))
    assert client.server.handled == [b"1"]
    client.server.respond()
    client.server.run()
    assert client.server.handled == [b"1", b"2", b"3", b"4"]
    client.server.respond(1)
    client.server.respond(0)
    assert [number for number, _ in client.responses()] == [1, 2, 3, 4]


def test_a_produce_waits_for_requests_that_overlap_with_their_own_api(client: ConnectionUnderTest):
    client.receive(client.frame(OVERLAPPING, b"1") + client.frame(SHARING, b"2") + client.frame(SHARING, b"3"))
    assert client.server.handled == [b"1", b"2", b"3"]
    client.receive(client.frame(OVERLAPPING, b"4"))
    assert client.server.handled == [b"1", b"2", b"3"]
    client.server.respond(1)
    client.server.run()
    assert client.server.handled == [b"1", b"2", b"3"]
    client.server.respond(1)
    client.server.run()
    assert client.server.handled == [b"1", b"2", b"3", b"4"]


def test_no_request_overlaps_if_the_client_does_not_read(client: ConnectionUnderTest):
    client.receive(client.frame(SHARING, b"1"))
    client.connection.pause_writing()
    client.receive(client.frame(SHARING, b"2"))
    assert client.server.handled == [b"1"]
    client.connection.resume_writing()
    client.server.run()
    assert client.server.handled == [b"1"]
    client.server.respond()
    client.server.run()
    assert client.server.handled == [b"1", b"2"]


def test_a_delayed_response_handles_no_request_within_its_call(client: ConnectionUnderTest):
    """It may be completed by another connection's append."""
    client.receive(client.frame(DELAYED) + client.frame(ECHO, b"2"))
    client.server.respond()
    assert client.server.handled == [b""]
    client.server.run()
    assert client.server.handled == [b"", b"2"]


@pytest.mark.parametrize("api", [OVERLAPPING, SHARING])
def test_the_number_of_overlapping_requests_is_limited(client: ConnectionUnderTest, api: int):
    client.receive(b"".join(client.frame(api) for _ in range(200)))
    client.server.run()
    assert len(client.server.handled) == MAX_OVERLAPPING
    for _ in range(200):
        client.server.respond()
        client.server.run()
    assert [number for number, _ in client.responses()] == list(range(1, 201))


def test_a_coroutine_responds(client: ConnectionUnderTest):
    client.receive(client.frame(COROUTINE, b"1") + client.frame(ECHO, b"2"))
    assert client.responses() == []
    client.server.run_task()
    assert client.responses() == [(1, b"1"), (2, b"2")]


def test_requests_without_a_response(client: ConnectionUnderTest):
    client.receive(client.frame(NO_RESPONSE) + client.frame(COROUTINE, b"no response") + client.frame(ECHO, b"3"))
    client.server.run_task()
    assert client.responses() == [(3, b"3")]
    assert not client.connection.is_waiting


@pytest.mark.parametrize("body", [b"bad", b"bug"])
def test_a_coroutine_that_raises_closes_the_connection(client: ConnectionUnderTest, body: bytes):
    client.receive(client.frame(COROUTINE, body) + client.frame(ECHO, b"unseen"))
    client.server.run_task()
    assert client.transport.closed
    assert b"unseen" not in client.server.handled


def test_response_headers_with_tags(client: ConnectionUnderTest):
    client.receive(client.frame(ECHO, b"body", version=1))
    assert client.responses() == [(1, b"\0body")]


# A client that does not read its responses, or sends faster than it is served.


def test_a_full_backlog_pauses_reading_and_order_is_kept(client: ConnectionUnderTest):
    bodies = [bytes([i % 256]) * 900 for i in range(300)]
    client.receive(client.frame(DELAYED))
    frames = [client.frame(ECHO, body) for body in bodies]
    sent = 0
    while client.transport.is_reading:
        client.receive(frames[sent])
        sent += 1
    assert len(client.connection._received.backlog) < MAX_BACKLOG_BYTES + 1000
    client.server.respond()
    client.server.run()
    assert client.transport.is_reading
    for frame in frames[sent:]:
        client.receive(frame)
    client.server.run()
    assert client.bodies()[1:] == bodies


def test_an_incomplete_frame_in_the_backlog(client: ConnectionUnderTest):
    client.receive(client.frame(DELAYED))
    frame = client.frame(ECHO, b"in two parts")
    client.receive(frame[:9])
    client.server.respond()
    client.server.run()
    client.receive(frame[9:])
    assert client.responses() == [(1, b"late 1"), (2, b"in two parts")]


def test_a_frame_that_is_completed_while_the_connection_is_blocked_waits(client: ConnectionUnderTest):
    client.receive(client.frame(OVERLAPPING))
    frame = client.frame(ECHO, b"large " * 5000)
    client.receive(frame[:100])
    client.connection.pause_writing()
    client.receive(frame[100:])
    assert len(client.server.handled) == 1
    client.connection.resume_writing()
    client.server.run()
    assert len(client.server.handled) == 2


def test_a_client_that_does_not_read_is_not_served(client: ConnectionUnderTest):
    client.transport.is_full = True
    frames = [client.frame(ECHO, bytes(400)) for _ in range(10)]
    client.receive(b"".join(frames))
    assert len(client.server.handled) == 3
    assert client.server.unsent_bytes == client.transport.buffered == 3 * 408
    client.server.run()
    assert len(client.server.handled) == 3
    client.transport.drain()
    assert client.server.unsent_bytes == 0
    client.server.run()
    assert len(client.responses()) == 10


def test_delayed_responses_to_a_client_that_does_not_read_are_counted(client: ConnectionUnderTest):
    client.receive(client.frame(OVERLAPPING))
    client.receive(client.frame(OVERLAPPING))
    client.transport.is_full = True
    client.server.respond(0, bytes(2000))
    client.server.respond(0, bytes(500))
    assert client.server.unsent_bytes == client.transport.buffered == 2516
    client.connection.connection_lost(None)
    assert client.server.unsent_bytes == 0


# Responses that are complete at the same time.


def test_the_responses_to_one_read_share_a_write(client: ConnectionUnderTest):
    client.receive(client.frame(ECHO, b"a") + client.frame(PARTS, b"bc") + client.frame(NO_RESPONSE))
    client.receive(client.frame(ECHO, b"d") + client.frame(ECHO, b"e")[:-1])
    assert client.bodies() == [b"a", b"bc", b"d"]
    assert client.transport.writes == 2


def test_large_responses_are_not_gathered(client: ConnectionUnderTest):
    client.receive(b"".join(client.frame(ECHO, bytes(size)) for size in (100, 100, 100, 400, 1)))
    assert [len(body) for body in client.bodies()] == [100, 100, 100, 400, 1]
    assert client.transport.writes == 3


def test_responses_that_complete_at_the_same_time_share_a_write(client: ConnectionUnderTest):
    client.receive(b"".join(client.frame(OVERLAPPING) for _ in range(3)) + client.frame(ECHO, b"after"))
    for _ in range(3):
        client.server.respond()
    assert client.bodies() == [b"late 1", b"late 2", b"late 3", b"after"]
    assert client.transport.writes == 1


def test_a_response_does_not_wait_for_those_that_do_not_complete(client: ConnectionUnderTest):
    client.receive(b"".join(client.frame(OVERLAPPING) for _ in range(3)))
    client.server.respond()
    assert client.bodies() == []
    client.server.run()
    assert client.bodies() == [b"late 1"]
    client.server.respond(1)
    client.server.run()
    assert client.bodies() == [b"late 1"]
    client.server.respond()
    assert client.bodies() == [b"late 1", b"late 2", b"late 3"]


def test_gathered_responses_are_sent_before_the_connection_is_closed(client: ConnectionUnderTest):
    client.receive(client.frame(OVERLAPPING) + client.frame(OVERLAPPING))
    client.server.respond()
    client.connection.close_quietly()
    assert client.bodies() == [b"late 1"]
    client.server.run()
    assert client.transport.writes == 1


# The end.


def test_closing_abandons_delayed_responses(client: ConnectionUnderTest):
    client.receive(client.frame(OVERLAPPING) + client.frame(ECHO) + client.frame(DELAYED))
    client.connection.connection_lost(None)
    assert [(number, delayed.is_done) for number, delayed in client.server.delayed] == [(1, True), (3, True)]
    client.server.respond()
    client.server.run()
    assert client.responses() == []
    assert client.server.connections == []


def test_a_client_that_does_not_read_is_disconnected_at_once(client: ConnectionUnderTest):
    client.transport.is_full = True
    client.receive(client.frame(ECHO, bytes(2000)) + client.frame(ECHO))
    assert client.server.unsent_bytes > 0
    client.connection.close_quietly()
    assert client.transport.closed == "aborted"
    assert client.server.unsent_bytes == 0
    assert len(client.server.connections) == 1
    client.connection.connection_lost(None)
    assert client.server.connections == []


def test_the_last_responses_have_time_to_be_sent(client: ConnectionUnderTest):
    client.transport.is_full = True
    client.receive(client.frame(ECHO, b"short") + client.frame(MALFORMED))
    assert client.transport.closed == "closed"
    (abort,) = client.server.timers
    abort()
    assert client.transport.closed == "aborted"
    client.connection.connection_lost(None)
    assert client.server.timers == []


def test_closing_twice_and_bytes_after_it(client: ConnectionUnderTest):
    client.connection.close("first")
    client.connection.close("second")
    client.receive(client.frame(ECHO))
    client.connection.resume_writing()
    client.server.run()
    assert client.responses() == []
    client.connection.connection_lost(None)


def test_every_read_and_every_delayed_response_is_activity(client: ConnectionUnderTest):
    client.server.now_ns = 5
    frame = client.frame(DELAYED)
    client.receive(frame[:3])
    assert client.connection.last_active_ns == 5
    client.server.now_ns = 6
    client.receive(frame[3:])
    assert client.connection.is_waiting
    client.server.now_ns = 900
    client.server.respond()
    assert client.connection.last_active_ns == 900
    assert not client.connection.is_waiting
