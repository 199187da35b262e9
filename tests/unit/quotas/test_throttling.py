"""A connection that exceeds a quota: the response says it, and nothing more is served until the time is over (KIP-219).

The fake APIs ECHO and DELAYED have the keys of Produce and Fetch.
"""

from dataclasses import replace

import pytest

from kbroker.quotas.entities import QuotaEntity
from kbroker.quotas.request_charge import read_throttle_ms, with_throttle_ms
from protocol.apis import ApiKey
from tests.unit.support.server_connection import DELAYED, ECHO, NO_RESPONSE, ConnectionUnderTest, DispatchTo, FakeServer

USER = QuotaEntity("ANONYMOUS")
ZEROS = bytes(5)


def limited(**rates: float) -> ConnectionUnderTest:
    """Return the client of a broker with quotas. Responses end with the throttle time, and one byte of tags."""
    server = FakeServer()
    server.client_quotas[USER] = rates
    server.quotas.update()
    server.dispatch = DispatchTo(lambda key, version: replace(server.find(key, version), throttle_offset=-5))
    return ConnectionUnderTest(server)


def throttle_times(client: ConnectionUnderTest) -> list[int]:
    return [int.from_bytes(body[-5:-1], "big") for body in client.bodies()]


def pass_time(client: ConnectionUnderTest, ms: int) -> None:
    """Let time pass until the timer of the throttle ends, the only one."""
    client.server.now_ns += ms * 1_000_000
    (end_throttle,) = client.server.timers
    client.server.timers.clear()
    end_throttle()
    client.server.run()


def test_a_producer_above_its_quota_gets_its_response_and_waits():
    client = limited(producer_byte_rate=10)
    client.receive(client.frame(ECHO, b"x" * 110 + ZEROS))
    # 100 bytes are allowed at once, and the header counts, too.
    assert throttle_times(client) == [2700]
    client.receive(client.frame(ECHO, ZEROS) + client.frame(DELAYED, b"other"))
    assert len(client.bodies()) == 1
    assert client.connection.is_waiting
    pass_time(client, 2700)
    assert client.server.handled[1:] == [ZEROS]
    assert throttle_times(client)[1] == 1700
    pass_time(client, 1700)
    assert client.server.handled[2:] == [b"other"]


def test_nothing_is_read_while_the_connection_waits():
    client = limited(producer_byte_rate=10)
    client.receive(client.frame(ECHO, b"x" * 110 + ZEROS))
    client.receive(client.frame(ECHO, b"y" * 40_000))
    assert not client.transport.is_reading
    assert len(client.server.handled) == 1
    pass_time(client, 2700)
    assert client.server.handled[1] == b"y" * 40_000


def test_a_request_without_a_response_counts():
    client = limited(producer_byte_rate=10)
    client.receive(client.frame(ECHO, b"x" * 110 + ZEROS) + client.frame(NO_RESPONSE))
    assert client.server.handled == [b"x" * 110 + ZEROS]
    pass_time(client, 2700)
    assert len(client.server.handled) == 2


def test_a_consumer_waits_after_a_response_above_its_quota():
    client = limited(consumer_byte_rate=10)
    client.receive(client.frame(DELAYED))
    client.server.respond(response=b"x" * 120 + ZEROS)
    assert throttle_times(client) == [2500]
    client.receive(client.frame(DELAYED))
    assert not client.server.delayed
    pass_time(client, 2500)
    assert len(client.server.delayed) == 1


def test_the_time_of_requests_counts():
    client = limited(request_percentage=0.1)
    server = client.server

    def handle(services: object, context: object, request: bytes) -> bytes:
        server.now_ns += 10_000_000
        return request

    server.dispatch[ECHO, 0] = replace(server.dispatch[ECHO, 0], handle=handle)
    # 10 ms are allowed at once.
    for _ in range(2):
        client.receive(client.frame(ECHO, ZEROS))
    # Ten seconds of debt; the connection waits for at most a window, as in Kafka.
    assert throttle_times(client) == [0, 1000]


def test_a_quota_of_another_user_does_not_apply():
    client = limited(producer_byte_rate=10)
    client.server.client_quotas[QuotaEntity("alice")] = client.server.client_quotas.pop(USER)
    client.server.quotas.update()
    client.receive(client.frame(ECHO, b"x" * 500 + ZEROS) * 2)
    assert throttle_times(client) == [0, 0]
    assert not client.server.timers


def test_a_longer_throttle_replaces_a_shorter_one_and_a_closed_connection_has_none():
    client = limited(producer_byte_rate=10)
    client.receive(client.frame(ECHO, b"x" * 110 + ZEROS))
    for duration_ms, count in ((1000, 1), (5000, 1)):
        client.connection._responses.mute(duration_ms)
        assert len(client.server.timers) == count
    client.connection.close_quietly()
    assert not client.server.timers


@pytest.mark.parametrize("body", [bytes(9), [bytes(2), bytes(7)], [bytes(9)]])
def test_the_throttle_time_in_a_body(body: bytes | list[bytes]):
    first = with_throttle_ms(body if isinstance(body, bytes) else [bytes(6), *body], 2, 1000)
    assert read_throttle_ms(first, 2) == 1000
    last = with_throttle_ms(body, -5, 1000)
    joined = last if isinstance(last, bytes) else b"".join(last)  # type: ignore[arg-type]
    assert joined == bytes(4) + (1000).to_bytes(4, "big") + b"\0"
    # Without the field, and before tagged fields, there is no place.
    assert with_throttle_ms(body, None, 1000) is body
    assert with_throttle_ms(b"tagged...", -5, 1000) == b"tagged..."
    assert ApiKey.PRODUCE == ECHO
