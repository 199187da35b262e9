"""The memory of incomplete requests is bounded, and one of them can always be completed."""

import asyncio

import pytest

from kbroker.server.request_memory import LIMIT, MAX_FRAME_S, SMALL_FRAME, SMALL_FRAME_RESERVE
from protocol.framing import encode_request_header
from protocol.messages.k03_metadata import MetadataRequest, MetadataResponse
from tests.unit.support.client import Client, batch
from tests.unit.support.simulated_broker import Machine, broker_test

MIB = 1 << 20
FRAME = 60 * MIB
REQUEST_START = FRAME.to_bytes(4, "big") + encode_request_header(0, 9, 1, "half")


async def begin_request(m: Machine, size: int, start: bytes = REQUEST_START) -> Client:
    """Return a client that has sent the start of a request and `size` more bytes."""
    client = await m.client()
    client.transport.write(start + bytes(size))
    return client


def held_bytes(m: Machine) -> int:
    return m.broker._server.context.memory.held_bytes


async def wait_until_stable(m: Machine) -> None:
    """Wait until the number of held bytes does not change."""
    before = -1
    while before != held_bytes(m):
        before = held_bytes(m)
        await asyncio.sleep(0.5)


@broker_test
async def test_held_bytes_are_bounded(m: Machine) -> None:
    slow_clients = [await begin_request(m, 4 * MIB) for _ in range(30)]
    await wait_until_stable(m)
    assert LIMIT // 2 < held_bytes(m) <= LIMIT + SMALL_FRAME_RESERVE + 2 * FRAME
    other = await m.client()
    assert (await other.request(MetadataRequest(topics=[]), 12, MetadataResponse)).brokers
    for client in slow_clients:
        client.close()
    await m.until(lambda: held_bytes(m) == 0)


@broker_test
async def test_a_large_request_is_served_when_slow_connections_are_closed(
    m: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    client = await m.client()
    await client.create_topic("t", max_message_bytes=FRAME)
    slow_clients = [await begin_request(m, 4 * MIB) for _ in range(30)]
    await wait_until_stable(m)
    began = m.loop.time()
    assert (await client.produce("t", batch(bytes(20 * MIB)))).error_code == 0
    assert MAX_FRAME_S / 2 < m.loop.time() - began < 6 * MAX_FRAME_S
    assert "reason=request too slow while others wait for memory" in "\n".join(caplog.messages).replace('"', "")
    for client in slow_clients:
        client.close()
    await m.until(lambda: held_bytes(m) == 0)


@broker_test
async def test_small_requests_have_reserved_memory(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    slow_clients = [await begin_request(m, 4 * MIB) for _ in range(30)]
    await wait_until_stable(m)
    began = m.loop.time()
    for size in (10, 10_000, SMALL_FRAME - 1000):
        assert (await client.produce("t", batch(bytes(size)))).error_code == 0
    assert m.loop.time() - began < 2
    for client in slow_clients:
        client.close()


@broker_test
async def test_slow_requests_are_not_closed_while_there_is_memory(m: Machine) -> None:
    slow = await begin_request(m, 4 * MIB)
    await asyncio.sleep(5 * MAX_FRAME_S)
    assert not slow.closed.done()
    slow.transport.write(bytes(FRAME))
    await slow.closed


@broker_test
async def test_the_backlog_of_a_waiting_request_is_counted(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    waiting = client.send_fetch({("t", 0): 0}, max_wait_ms=5000)
    client.transport.write(REQUEST_START + bytes(2 * MIB))
    await wait_until_stable(m)
    assert 0 < held_bytes(m) < 512 * 1024
    await waiting
    await m.until(lambda: held_bytes(m) > MIB)
    client.close()
    await m.until(lambda: held_bytes(m) == 0)


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n", "an HTTP request on a listener without TLS"),
        (bytes.fromhex("05030100c8010000c40303") + bytes(20), "API not served"),
        ((1000).to_bytes(4, "big") + encode_request_header(0, 1, 1, None), "version not served"),
        ((1000).to_bytes(4, "big") + encode_request_header(999, 1, 1, None), "API not served"),
    ],
)
@broker_test
async def test_unsupported_requests_are_closed_before_they_are_complete(
    m: Machine, caplog: pytest.LogCaptureFixture, start: bytes, reason: str
) -> None:
    client = await begin_request(m, 0, start)
    await client.closed
    assert reason in caplog.text
    assert held_bytes(m) == 0
