"""After a heavy request only Produce and Fetch go on at once; what is large or has piled up takes turns."""

from itertools import repeat

from kbroker.server.fair_scheduler import FairScheduler
from tests.unit.support.server_connection import Desk, Wire

PRODUCE, HEAVY, LIGHT = 0, 8, 9


def rest(wire: Wire) -> None:
    """The time after a heavy request is over."""
    assert len(wire.desk.delayed) == 1
    wire.desk.delayed.pop()()


def bodies(wire: Wire) -> list[bytes]:
    return [body for _, body in wire.answers()]


def wires(desk: Desk) -> Wire:
    """Another connection of the same server."""
    other = Wire()
    other.connection.server = desk  # type: ignore[assignment]
    other.desk = desk
    desk.connections.append(other.connection)
    return other


def test_what_follows_a_heavy_request_waits() -> None:
    wire = Wire()
    wire.receive(wire.frame(HEAVY, b"1") + wire.frame(LIGHT, b"2") + wire.frame(LIGHT, b"3"))
    wire.desk.run()
    assert bodies(wire) == [b"1"]
    rest(wire)
    wire.desk.run()
    assert bodies(wire) == [b"1", b"2", b"3"]
    assert wire.desk.delayed == []


def test_nothing_waits_where_nobody_produces_or_fetches() -> None:
    wire = Wire()
    wire.desk.data = repeat(1)
    wire.receive(wire.frame(HEAVY, b"1") + wire.frame(LIGHT, b"2"))
    wire.desk.run()
    assert bodies(wire) == [b"1"], "there was some before it"
    rest(wire)
    wire.receive(wire.frame(HEAVY, b"3") + wire.frame(LIGHT, b"4"))
    wire.desk.run()
    assert bodies(wire) == [b"1", b"2", b"3", b"4"]
    assert wire.desk.delayed == []


def test_produce_goes_on_whoever_was_heavy() -> None:
    wire = Wire()
    other = wires(wire.desk)
    wire.receive(wire.frame(HEAVY, b"1") + wire.frame(PRODUCE, b"2") + wire.frame(HEAVY, b"3"))
    other.receive(other.frame(PRODUCE, b"a"))
    wire.desk.run()
    assert (bodies(wire), bodies(other)) == ([b"1", b"2"], [b"a"])
    other.receive(other.frame(LIGHT, b"b"))
    wire.desk.run()
    assert bodies(other) == [b"a"]
    other.receive(other.frame(PRODUCE, b"c"))
    wire.desk.run()
    assert bodies(other) == [b"a"], "the order of a connection's requests was not kept"
    rest(wire)
    wire.desk.run()
    # Who asked for much first is served first, and the other after it.
    assert (bodies(wire), bodies(other)) == ([b"1", b"2", b"3"], [b"a"])
    rest(wire)
    wire.desk.run()
    assert bodies(other) == [b"a", b"b", b"c"]


def test_one_that_goes_while_it_waits() -> None:
    wire = Wire()
    other = wires(wire.desk)
    wire.receive(wire.frame(HEAVY, b"1"))
    other.receive(other.frame(LIGHT, b"a"))
    other.connection.connection_lost(None)
    wire.receive(wire.frame(LIGHT, b"2"))
    rest(wire)
    wire.desk.run()
    assert bodies(wire) == [b"1", b"2"]
    assert wire.desk.memory.held == 0


def test_a_large_request_that_arrives_in_parts_waits_too() -> None:
    wire = Wire()
    wire.receive(wire.frame(HEAVY, b"1"))
    wire.receive(wire.frame(LIGHT, b"2" * 50_000), 3000)
    wire.desk.run()
    assert bodies(wire) == [b"1"]
    assert wire.desk.memory.held > 50_000
    rest(wire)
    wire.desk.run()
    assert bodies(wire) == [b"1", b"2" * 50_000]
    assert wire.desk.memory.held == 0


def test_a_line_moves_one_a_turn() -> None:
    desk = Desk()
    turns = FairScheduler(desk.soon, desk.later, lambda: 0)
    sent: list[int] = []
    for number in range(5):
        turns.pieces.add(lambda number=number: sent.append(number))  # type: ignore[misc]
    for turn in range(1, 6):
        assert len(desk.queue) == 1
        desk.queue.pop()()
        assert sent == list(range(turn))
    assert desk.queue == []


def test_what_clients_have_sent_ahead_is_served_one_client_a_turn() -> None:
    first = Wire()
    desk = first.desk
    crowd = [first, wires(desk), wires(desk)]
    for wire in crowd:
        wire.receive(b"".join(wire.frame(LIGHT, b"%d" % number) for number in range(100)))
    # The first had nobody beside it; those after it get less at once, since it waits already.
    assert [len(bodies(wire)) for wire in crowd] == [64, 8, 8]
    turns = []
    had = [64, 8, 8]
    while desk.queue:
        assert len(desk.queue) == 1
        desk.queue.pop()()
        have = [len(bodies(wire)) for wire in crowd]
        turns.append([now - before for now, before in zip(have, had, strict=True)])
        had = have
    assert all(sum(map(bool, turn)) == 1 for turn in turns), "two clients in one turn, or none"
    for wire in crowd:
        assert bodies(wire) == [b"%d" % number for number in range(100)]
    assert desk.memory.held == 0
