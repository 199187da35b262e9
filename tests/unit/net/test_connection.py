"""One connection against a socket and a dispatch table of this test's own."""

import asyncio
from collections.abc import Callable, Coroutine
from struct import Struct
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.api.dispatch import Entry, Refused
from kbroker.api.services import PENDING, RequestContext
from kbroker.net import connection as net
from kbroker.net.connection import Connection
from kbroker.net.listener import Server
from protocol.errors import MalformedError

HEADER = Struct(">ihhih")
# APIs of the table: answer at once, answer later (alone, or overlapping as Produce does), await, fail, say nothing.
ECHO, LATER, OVERLAP, AWAIT, MALFORMED, FAIL, SILENT, INSIDE = range(8)
MAX_FRAME = 100_000


class Socket:
    """The transport: what was written, whether reading goes on. It takes `room` bytes before it is full."""

    def __init__(self) -> None:
        self.protocol: Connection
        self.written = bytearray()
        self.unsent = 0
        self.full = False
        self.reading = True
        self.closed = ""
        self.high = 0

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("10.0.0.7", 5000)

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written += data
        if self.full:
            before, self.unsent = self.unsent, self.unsent + len(data)
            if before <= self.high < self.unsent:
                self.protocol.pause_writing()

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def drain(self) -> None:
        """The client has read everything."""
        was_paused, self.unsent, self.full = self.unsent > self.high, 0, False
        if was_paused:
            self.protocol.resume_writing()

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def close(self) -> None:
        self.closed = self.closed or "closed"

    def abort(self) -> None:
        self.closed = "aborted"


class Desk:
    """The server: a dispatch table, a queue of callbacks, counts."""

    def __init__(self) -> None:
        self.receive_view = memoryview(bytearray(64 * 1024))
        self.write_high_water = 1000
        self.max_request_bytes = MAX_FRAME
        self.services = None
        self.dispatch = SimpleNamespace(find=self.find, skip_tags=None)
        self.unsent_bytes = 0
        self.connections: list[Connection] = []
        self.queue: list[Callable[[], None]] = []
        self.delayed: list[Callable[[], None]] = []
        self.tasks: list[Coroutine[Any, Any, None]] = []
        self.waiting: list[RequestContext] = []
        self.served: list[bytes] = []
        self.now = 0

    def mono_ms(self) -> int:
        return self.now

    def opened(self, connection: Connection) -> None:
        self.connections.append(connection)

    def closed(self, connection: Connection) -> None:
        self.connections.remove(connection)

    def unsent(self, size: int) -> None:
        self.unsent_bytes += size

    def soon(self, callback: Callable[[], None]) -> None:
        self.queue.append(callback)

    def later(self, seconds: float, callback: Callable[[], None]) -> Any:
        self.delayed.append(callback)
        return SimpleNamespace(cancel=lambda: self.delayed.remove(callback))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(work)

    def run(self) -> None:
        while self.queue:
            self.queue.pop(0)()

    # The APIs: each answers with what it was sent.

    def find(self, key: int, version: int) -> Entry:
        if key == 99:
            raise Refused("api key 99 is not served")
        return Entry(self.serve, False, version > 0, key == OVERLAP)

    def serve(self, services: object, context: RequestContext, frame: memoryview, pos: int) -> Any:
        body = bytes(frame[pos:])
        self.served.append(body)
        match context.api_key:
            case 0:
                return body
            case 1 | 2:
                self.waiting.append(context)
                return PENDING
            case 3:
                return self.eventually(body)
            case 4:
                raise MalformedError("bad body")
            case 5:
                raise KeyError("a mistake of ours")
            case 7:
                context.respond([body[:1], body[1:]])
                return PENDING
        return None

    async def eventually(self, body: bytes) -> bytes:
        if body == b"bad":
            raise MalformedError("bad later")
        if body == b"mistake":
            raise KeyError("a mistake of ours")
        return body

    def answer(self, number: int = 0) -> None:
        context = self.waiting.pop(number)
        context.respond(b"late %d" % context.correlation_id)


class Wire:
    """One connection, with both its ends in hand."""

    def __init__(self) -> None:
        self.desk = Desk()
        self.socket = Socket()
        self.connection = Connection(cast(Server, self.desk))
        self.socket.protocol = self.connection
        self.connection.connection_made(cast(asyncio.Transport, self.socket))
        self.sent = 0

    def frame(self, api: int, body: bytes = b"", client: bytes | None = b"me", version: int = 0) -> bytes:
        self.sent += 1
        size = -1 if client is None else len(client)
        rest = (client or b"") + body
        return HEADER.pack(10 + len(rest), api, version, self.sent, size) + rest

    def receive(self, data: bytes, most: int = 1 << 30) -> None:
        """Bytes arrive, at most so many in one read, as the transport would hand them over."""
        pos = 0
        while pos < len(data):
            buffer = self.connection.get_buffer(-1)
            size = min(len(buffer), most, len(data) - pos)
            buffer[:size] = data[pos : pos + size]
            # The buffer is shared: what was given must not be looked at again.
            self.connection.buffer_updated(size)
            self.desk.receive_view[:] = b"\xee" * len(self.desk.receive_view)
            pos += size

    def answers(self) -> list[tuple[int, bytes]]:
        """(correlation id, body) of what was written, which ends with a whole frame."""
        data, found = bytes(self.socket.written), []
        while data:
            size, number = Struct(">ii").unpack_from(data)
            assert len(data) >= 4 + size
            found.append((number, data[8 : 4 + size]))
            data = data[4 + size :]
        return found


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
    wire.desk.serve = lambda services, context, frame, pos: seen.append(context.client_id)
    for client in (b"one", b"one", b"two", None, b"", b"two", "größer".encode(), b"caf\xe9"):
        wire.receive(wire.frame(SILENT, b"", client))
    assert seen == ["one", "one", "two", None, "", "two", "größer", "caf\ufffd"]


# Answers.


def test_answers_of_one_that_waits_and_others_behind_it_come_in_order(wire):
    wire.receive(wire.frame(OVERLAP) + wire.frame(OVERLAP) + wire.frame(ECHO, b"3") + wire.frame(INSIDE, b"4!"))
    assert wire.desk.served == [b"", b"", b"3", b"4!"]
    assert wire.answers() == []
    wire.desk.answer(1)
    assert wire.answers() == []
    wire.desk.answer(0)
    assert wire.answers() == [(1, b"late 1"), (2, b"late 2"), (3, b"3"), (4, b"4!")]
    assert not wire.connection.waiting


def test_nothing_is_served_behind_one_that_must_be_alone(wire):
    wire.receive(wire.frame(OVERLAP) + wire.frame(LATER) + wire.frame(ECHO, b"3"))
    wire.receive(wire.frame(ECHO, b"4"))
    assert wire.desk.served == [b"", b""]
    wire.desk.answer(1)
    wire.desk.run()
    assert wire.desk.served == [b"", b"", b"3", b"4"]
    assert wire.answers() == []
    wire.desk.answer(0)
    assert wire.answers() == [(1, b"late 1"), (2, b"late 2"), (3, b"3"), (4, b"4")]


def test_an_answer_serves_nothing_in_the_middle_of_what_caused_it(wire):
    """It may come from within another connection's append."""
    wire.receive(wire.frame(LATER) + wire.frame(ECHO, b"2"))
    wire.desk.answer()
    assert wire.desk.served == [b""]
    wire.desk.run()
    assert wire.desk.served == [b"", b"2"]


def test_as_many_may_overlap_as_there_is_room_for(wire):
    wire.receive(b"".join(wire.frame(OVERLAP) for _ in range(200)))
    wire.desk.run()
    assert len(wire.desk.served) == net._MAX_OVERLAPPING
    for _ in range(200):
        wire.desk.answer()
        wire.desk.run()
    assert [number for number, _ in wire.answers()] == list(range(1, 201))


def test_a_coroutine_answers(wire):
    wire.receive(wire.frame(AWAIT, b"1") + wire.frame(ECHO, b"2"))
    assert wire.answers() == []
    asyncio.run(wire.desk.tasks.pop())
    wire.desk.run()
    assert wire.answers() == [(1, b"1"), (2, b"2")]


@pytest.mark.parametrize("body", [b"bad", b"mistake"])
def test_a_coroutine_that_fails_closes_the_connection(wire, body):
    wire.receive(wire.frame(AWAIT, body) + wire.frame(ECHO, b"unseen"))
    asyncio.run(wire.desk.tasks.pop())
    wire.desk.run()
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
    assert len(wire.connection._backlog) < net._MAX_BACKLOG + 1000
    wire.desk.answer()
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
    wire.desk.answer()
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
    wire.desk.waiting.pop(0).respond(bytes(2000))
    wire.desk.waiting.pop(0).respond(bytes(500))
    assert wire.desk.unsent_bytes == wire.socket.unsent == 2516
    wire.connection.connection_lost(None)
    assert wire.desk.unsent_bytes == 0


# The end.


def test_closing_gives_up_what_is_owed(wire):
    given_up = []
    wire.receive(wire.frame(OVERLAP) + wire.frame(ECHO) + wire.frame(LATER))
    for context in wire.desk.waiting:
        context.on_abandoned = lambda number=context.correlation_id: given_up.append(number)
    wire.connection.connection_lost(None)
    assert given_up == [1, 3]
    wire.desk.answer()
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
    assert wire.connection.last_active_ms == 5
    wire.sent = 0
    wire.desk.now = 6
    wire.receive(wire.frame(LATER)[3:])
    assert wire.connection.waiting
    wire.desk.now = 900
    wire.desk.answer()
    assert wire.connection.last_active_ms == 900
    assert not wire.connection.waiting
