"""After an expensive request only Produce and Fetch are handled at once; large responses and backlogs alternate."""

from itertools import repeat

import pytest

from kbroker.server.connection import MAX_FRAMES, MAX_FRAMES_IF_OTHERS_WAIT
from kbroker.server.fair_scheduler import CallQueue
from tests.unit.support.server_connection import CHEAP, EXPENSIVE, ConnectionUnderTest, FakeServer

PRODUCE = 0


def end_pause(client: ConnectionUnderTest) -> None:
    assert len(client.server.timers) == 1
    client.server.timers.pop()()


def test_requests_wait_after_an_expensive_one() -> None:
    client = ConnectionUnderTest()
    client.receive(client.frame(EXPENSIVE, b"1") + client.frame(CHEAP, b"2") + client.frame(CHEAP, b"3"))
    client.server.run()
    assert client.bodies() == [b"1"]
    end_pause(client)
    client.server.run()
    assert client.bodies() == [b"1", b"2", b"3"]
    assert client.server.timers == []


def test_no_request_waits_without_produce_and_fetch() -> None:
    client = ConnectionUnderTest()
    client.server.data_time_ns = repeat(1)
    client.receive(client.frame(EXPENSIVE, b"1") + client.frame(CHEAP, b"2"))
    client.server.run()
    assert client.bodies() == [b"1"], "there were Produce requests before it"
    end_pause(client)
    client.receive(client.frame(EXPENSIVE, b"3") + client.frame(CHEAP, b"4"))
    client.server.run()
    assert client.bodies() == [b"1", b"2", b"3", b"4"]
    assert client.server.timers == []


def test_produce_requests_of_all_connections_are_handled_during_the_pause() -> None:
    client = ConnectionUnderTest()
    other = ConnectionUnderTest(client.server)
    client.receive(client.frame(EXPENSIVE, b"1") + client.frame(PRODUCE, b"2") + client.frame(EXPENSIVE, b"3"))
    other.receive(other.frame(PRODUCE, b"a"))
    client.server.run()
    assert (client.bodies(), other.bodies()) == ([b"1", b"2"], [b"a"])
    other.receive(other.frame(CHEAP, b"b"))
    client.server.run()
    assert other.bodies() == [b"a"]
    other.receive(other.frame(PRODUCE, b"c"))
    client.server.run()
    assert other.bodies() == [b"a"], "the order of a connection's requests was not kept"
    end_pause(client)
    client.server.run()
    # The expensive request has waited longer, so it is handled first.
    assert (client.bodies(), other.bodies()) == ([b"1", b"2", b"3"], [b"a"])
    end_pause(client)
    client.server.run()
    assert other.bodies() == [b"a", b"b", b"c"]


def test_a_connection_is_closed_while_its_request_waits() -> None:
    client = ConnectionUnderTest()
    other = ConnectionUnderTest(client.server)
    client.receive(client.frame(EXPENSIVE, b"1"))
    other.receive(other.frame(CHEAP, b"a"))
    other.connection.connection_lost(None)
    client.receive(client.frame(CHEAP, b"2"))
    end_pause(client)
    client.server.run()
    assert client.bodies() == [b"1", b"2"]
    assert client.server.memory.held_bytes == 0


def test_a_large_request_that_arrives_in_parts_waits_too() -> None:
    client = ConnectionUnderTest()
    client.receive(client.frame(EXPENSIVE, b"1"))
    client.receive(client.frame(CHEAP, b"2" * 50_000), 3000)
    client.server.run()
    assert client.bodies() == [b"1"]
    assert client.server.memory.held_bytes > 50_000
    end_pause(client)
    client.server.run()
    assert client.bodies() == [b"1", b"2" * 50_000]
    assert client.server.memory.held_bytes == 0


@pytest.mark.parametrize("at_once", [1, 4])
def test_a_call_queue_makes_a_few_calls_in_each_iteration_of_the_event_loop(at_once: int) -> None:
    server = FakeServer()
    queue = CallQueue(server.call_soon, at_once)
    made: list[int] = []
    for number in range(10):
        queue.add(lambda number=number: made.append(number))  # type: ignore[misc]
    queue.calls[2] = lambda: queue.add(lambda: made.append(10))
    while server.calls_soon:
        ready = server.calls_soon[:]
        assert len(ready) <= at_once
        server.calls_soon.clear()
        for call in ready:
            call()
    assert made == [0, 1, 3, 4, 5, 6, 7, 8, 9, 10]
    assert not queue.calls


def test_backlogs_are_handled_one_connection_in_each_iteration_of_the_event_loop() -> None:
    first = ConnectionUnderTest()
    server = first.server
    clients = [first, ConnectionUnderTest(server), ConnectionUnderTest(server)]
    for client in clients:
        client.receive(b"".join(client.frame(CHEAP, b"%d" % number) for number in range(100)))
    counts = [len(client.bodies()) for client in clients]
    assert counts == [MAX_FRAMES, MAX_FRAMES_IF_OTHERS_WAIT, MAX_FRAMES_IF_OTHERS_WAIT]
    while server.calls_soon:
        assert len(server.calls_soon) == 1
        server.calls_soon.pop()()
        before, counts = counts, [len(client.bodies()) for client in clients]
        served = [now > earlier for now, earlier in zip(counts, before, strict=True)]
        assert sum(served) == 1, "two connections in one iteration, or none"
    for client in clients:
        assert client.bodies() == [b"%d" % number for number in range(100)]
    assert server.memory.held_bytes == 0
