"""One connection: frames, answers, a client that does not keep up, the end."""

from struct import Struct

import pytest

from kbroker.server import connection as net
from tests.unit.support.server_connection import (
    AWAIT,
    ECHO,
    FAIL,
    HEADER,
    LATER,
    MALFORMED,
    MAX_FRAME,
    OVERLAP,
    PARTS,
    SILENT,
    Wire,
)


@pytest.fixture
def wire() -> Wire:
    return Wire()


# Frames.


def test_frames_cut_at_every_byte(wire):
    bodies = [b"", b"x", b"hello " * 40]
    stream = b"".join(wire.frame(ECHO, body, client) for body in bodies for client in (b"me", None, b""))
    for cut in range(1, len(stream)):
        one = Wire()
        one.receive(stream[:cut])
        one.receive(stream[cut:])
        assert [body for _, body in one.answers()] == [body for body in bodies for _ in range(3)]
        assert one.socket.closed == ""


@pytest.mark.parametrize("most", [1, 2, 3, 5, 7, 64])
def test_frames_in_small_pieces(wire, most):
    bodies = [bytes([i]) * (17 * i) for i in range(40)]
    wire.receive(b"".join(wire.frame(ECHO, body) for body in bodies), most)
    wire.desk.run()
    assert wire.answers() == [(i + 1, body) for i, body in enumerate(bodies)]


def test_many_frames_in_one_read_take_turns_with_other_connections(wire):
    bodies = [b"%d" % i for i in range(500)]
    wire.receive(b"".join(wire.frame(ECHO, body) for body in bodies))
    assert len(wire.desk.served) == net._FRAMES_A_TURN
    wire.receive(wire.frame(ECHO, b"after them"))
    assert len(wire.desk.served) == net._FRAMES_A_TURN
    wire.desk.run()
    assert wire.answers() == [(i + 1, body) for i, body in enumerate([*bodies, b"after them"])]


def test_a_frame_larger_than_the_receive_buffer(wire):
    body = bytes(range(256)) * 300
    wire.receive(wire.frame(ECHO, b"before") + wire.frame(ECHO, body) + wire.frame(ECHO, b"after"), 10_000)
    assert [size for _, size in wire.answers()] == [b"before", body, b"after"]


def test_memory_follows_what_has_arrived_and_not_what_is_claimed(wire):
    wire.desk.max_request_bytes = 2**31 - 1
    wire.receive(HEADER.pack(2**31 - 1, ECHO, 0, 1, 0))
    assert len(wire.connection.get_buffer(-1)) < 20_000
    wire.receive(bytes(100_000))
    assert len(wire.connection.get_buffer(-1)) < 300_000
    assert wire.socket.closed == ""


@pytest.mark.parametrize("length", [-1, -(2**31), MAX_FRAME + 1, 2**31 - 1])
@pytest.mark.parametrize("cut", [4, 3, 1])
def test_a_length_that_cannot_be_closes_the_connection(wire, length, cut):
    head = Struct(">i").pack(length)
    wire.receive(wire.frame(ECHO, b"good"))
    wire.receive(head[:cut])
    wire.receive(head[cut:])
    assert wire.socket.closed
    assert wire.answers() == [(1, b"good")]
    wire.connection.buffer_updated(0)


def test_the_largest_frame_is_served(wire):
    body = bytes(MAX_FRAME - 10)
    wire.receive(wire.frame(ECHO, body, b""))
    assert wire.answers() == [(1, body)]


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\0",
        HEADER.pack(0, ECHO, 0, 1, 50)[4:],
        HEADER.pack(0, 99, 0, 1, 0)[4:],
        HEADER.pack(0, MALFORMED, 0, 1, 0)[4:],
        HEADER.pack(0, FAIL, 0, 1, 0)[4:],
    ],
    ids=["empty", "short", "client id too long", "no such API", "body", "our mistake"],
)
def test_what_cannot_be_served_closes_the_connection(wire, frame):
    wire.receive(wire.frame(ECHO, b"good") + Struct(">i").pack(len(frame)) + frame + wire.frame(ECHO, b"unseen"))
    assert wire.socket.closed
    assert wire.answers() == [(1, b"good")]
    assert b"unseen" not in wire.desk.served


def test_client_ids(wire):
    seen = []
    wire.desk.handle = lambda services, context, request: seen.append(context.client_id)
    for client in (b"one", b"one", b"two", None, b"", b"two", "größer".encode(), b"caf\xe9"):
        wire.receive(wire.frame(SILENT, b"", client))
    assert seen == ["one", "one", "two", None, "", "two", "größer", "caf\ufffd"]


# Answers.


def test_answers_of_one_that_waits_and_others_behind_it_come_in_order(wire):
    wire.receive(wire.frame(OVERLAP) + wire.frame(OVERLAP) + wire.frame(ECHO, b"3") + wire.frame(PARTS, b"4!"))
    assert wire.desk.served == [b"", b"", b"3", b"4!"]
    assert wire.answers() == []
    wire.desk.respond(1)
    assert wire.answers() == []
    wire.desk.respond(0)
    assert wire.answers() == [(1, b"late 1"), (2, b"late 2"), (3, b"3"), (4, b"4!")]
    assert not wire.connection.waiting


def test_nothing_is_served_behind_one_that_must_be_alone(wire):
    wire.receive(wire.frame(OVERLAP) + wire.frame(LATER) + wire.frame(ECHO, b"3"))
    wire.receive(wire.frame(ECHO, b"4"))
    assert wire.desk.served == [b"", b""]
    wire.desk.respond(1)
    wire.desk.run()
    assert wire.desk.served == [b"", b"", b"3", b"4"]
    assert wire.answers() == []
    wire.desk.respond(0)
    assert wire.answers() == [(1, b"late 1"), (2, b"late 2"), (3, b"3"), (4, b"4")]


def test_an_answer_serves_nothing_in_the_middle_of_what_caused_it(wire):
    """It may come from within another connection's append."""
    wire.receive(wire.frame(LATER) + wire.frame(ECHO, b"2"))
    wire.desk.respond()
    assert wire.desk.served == [b""]
    wire.desk.run()
    assert wire.desk.served == [b"", b"2"]


def test_as_many_may_overlap_as_there_is_room_for(wire):
    wire.receive(b"".join(wire.frame(OVERLAP) for _ in range(200)))
    wire.desk.run()
    assert len(wire.desk.served) == net._MAX_OVERLAPPING
    for _ in range(200):
        wire.desk.respond()
        wire.desk.run()
    assert [number for number, _ in wire.answers()] == list(range(1, 201))


def test_a_coroutine_answers(wire):
    wire.receive(wire.frame(AWAIT, b"1") + wire.frame(ECHO, b"2"))
    assert wire.answers() == []
    wire.desk.run_task()
    assert wire.answers() == [(1, b"1"), (2, b"2")]


@pytest.mark.parametrize("body", [b"bad", b"mistake"])
def test_a_coroutine_that_fails_closes_the_connection(wire, body):
    wire.receive(wire.frame(AWAIT, body) + wire.frame(ECHO, b"unseen"))
    wire.desk.run_task()
    assert wire.socket.closed
    assert b"unseen" not in wire.desk.served


def test_response_headers_with_tags(wire):
    wire.receive(wire.frame(ECHO, b"body", version=1))
    assert wire.answers() == [(1, b"\0body")]


# A client that does not keep up.


def test_the_backlog_stops_the_reading_and_goes_on_in_order(wire):
    bodies = [bytes([i % 256]) * 900 for i in range(300)]
    wire.receive(wire.frame(LATER))
    frames = [wire.frame(ECHO, body) for body in bodies]
    sent = 0
    while wire.socket.reading:
        wire.receive(frames[sent])
        sent += 1
    assert len(wire.connection._holdings.backlog) < net._MAX_BACKLOG + 1000
    wire.desk.respond()
    wire.desk.run()
    assert wire.socket.reading
    for frame in frames[sent:]:
        wire.receive(frame)
    wire.desk.run()
    assert [body for _, body in wire.answers()[1:]] == bodies


def test_a_partial_frame_in_the_backlog(wire):
    wire.receive(wire.frame(LATER))
    frame = wire.frame(ECHO, b"in two parts")
    wire.receive(frame[:9])
    wire.desk.respond()
    wire.desk.run()
    wire.receive(frame[9:])
    assert wire.answers() == [(1, b"late 1"), (2, b"in two parts")]


def test_a_frame_that_completes_while_another_is_served_waits_for_its_turn(wire):
    wire.receive(wire.frame(OVERLAP))
    frame = wire.frame(ECHO, b"large " * 5000)
    wire.receive(frame[:100])
    wire.connection._paused = True
    wire.receive(frame[100:])
    assert len(wire.desk.served) == 1
    wire.connection.resume_writing()
    wire.desk.run()
    assert len(wire.desk.served) == 2


def test_who_does_not_read_is_not_served(wire):
    wire.socket.full = True
    frames = [wire.frame(ECHO, bytes(400)) for _ in range(10)]
    wire.receive(b"".join(frames))
    assert len(wire.desk.served) == 3
    assert wire.desk.unsent_bytes == wire.socket.unsent == 3 * 408
    wire.desk.run()
    assert len(wire.desk.served) == 3
    wire.socket.drain()
    assert wire.desk.unsent_bytes == 0
    wire.desk.run()
    assert len(wire.answers()) == 10


def test_answers_that_come_while_the_client_does_not_read_are_counted(wire):
    wire.receive(wire.frame(OVERLAP))
    wire.receive(wire.frame(OVERLAP))
    wire.socket.full = True
    wire.desk.respond(0, bytes(2000))
    wire.desk.respond(0, bytes(500))
    assert wire.desk.unsent_bytes == wire.socket.unsent == 2516
    wire.connection.connection_lost(None)
    assert wire.desk.unsent_bytes == 0


# The end.


def test_closing_abandons_delayed_responses(wire):
    wire.receive(wire.frame(OVERLAP) + wire.frame(ECHO) + wire.frame(LATER))
    wire.connection.connection_lost(None)
    assert [(number, delayed.is_done) for number, delayed in wire.desk.waiting] == [(1, True), (3, True)]
    wire.desk.respond()
    wire.desk.run()
    assert wire.answers() == []
    assert wire.desk.connections == []


def test_one_who_does_not_read_is_cut_off(wire):
    wire.socket.full = True
    wire.receive(wire.frame(ECHO, bytes(2000)) + wire.frame(ECHO))
    assert wire.desk.unsent_bytes > 0
    wire.connection.close_quietly()
    assert wire.socket.closed == "aborted"
    assert wire.desk.unsent_bytes == 0
    assert len(wire.desk.connections) == 1
    wire.connection.connection_lost(None)
    assert wire.desk.connections == []


def test_last_answers_have_their_time_to_leave(wire):
    wire.socket.full = True
    wire.receive(wire.frame(ECHO, b"short") + wire.frame(MALFORMED))
    assert wire.socket.closed == "closed"
    (give_up,) = wire.desk.delayed
    give_up()
    assert wire.socket.closed == "aborted"
    wire.connection.connection_lost(None)
    assert wire.desk.delayed == []


def test_closing_twice_and_bytes_after_it(wire):
    wire.connection.close("first")
    wire.connection.close("second")
    wire.receive(wire.frame(ECHO))
    wire.connection.resume_writing()
    wire.desk.run()
    assert wire.answers() == []
    wire.connection.connection_lost(None)


def test_every_read_and_every_answer_is_a_sign_of_life(wire):
    wire.desk.now = 5
    wire.receive(wire.frame(LATER)[:3])
    assert wire.connection.last_active_ns == 5
    wire.sent = 0
    wire.desk.now = 6
    wire.receive(wire.frame(LATER)[3:])
    assert wire.connection.waiting
    wire.desk.now = 900
    wire.desk.respond()
    assert wire.connection.last_active_ns == 900
    assert not wire.connection.waiting
