"""Requests that are not whole take a bounded amount of memory in all, and somebody can always be finished."""

import asyncio

import pytest

from kbroker.server.request_memory import LIMIT, MAX_FRAME_S, SMALL_FRAME, SMALL_FRAME_RESERVE
from protocol.framing import encode_request_header
from protocol.messages.k03_metadata import MetadataRequest, MetadataResponse
from tests.unit.support.client import Client, batch
from tests.unit.support.simulated_broker import Machine, story

MIB = 1 << 20
FRAME = 60 * MIB
BEGINNING = FRAME.to_bytes(4, "big") + encode_request_header(0, 9, 1, "half")


async def half(m: Machine, size: int, beginning: bytes = BEGINNING) -> Client:
    """A client that has begun with a request, of which `size` bytes are on their way."""
    client = await m.client()
    client.transport.write(beginning + bytes(size))
    return client


def held(m: Machine) -> int:
    return m.broker._server.context.memory.held_bytes


async def settled(m: Machine) -> None:
    """Nothing moves any more."""
    before = -1
    while before != held(m):
        before = held(m)
        await asyncio.sleep(0.5)


@story
async def test_what_is_held_is_bounded(m: Machine) -> None:
    crowd = [await half(m, 4 * MIB) for _ in range(30)]
    await settled(m)
    assert LIMIT // 2 < held(m) <= LIMIT + SMALL_FRAME_RESERVE + 2 * FRAME
    others = await m.client()
    assert (await others.request(MetadataRequest(topics=[]), 12, MetadataResponse)).brokers
    for client in crowd:
        client.close()
    await m.until(lambda: held(m) == 0)


@story
async def test_a_large_request_gets_through_when_the_slow_ones_are_closed(
    m: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    client = await m.client()
    await client.create_topic("t", max_message_bytes=FRAME)
    crowd = [await half(m, 4 * MIB) for _ in range(30)]
    await settled(m)
    began = m.loop.time()
    assert (await client.produce("t", batch(bytes(20 * MIB)))).error_code == 0
    assert MAX_FRAME_S / 2 < m.loop.time() - began < 6 * MAX_FRAME_S
    assert "reason=request too slow while others wait for memory" in "\n".join(caplog.messages).replace('"', "")
    for one in crowd:
        one.close()
    await m.until(lambda: held(m) == 0)


@story
async def test_small_requests_have_room_of_their_own(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    crowd = [await half(m, 4 * MIB) for _ in range(30)]
    await settled(m)
    began = m.loop.time()
    for size in (10, 10_000, SMALL_FRAME - 1000):
        assert (await client.produce("t", batch(bytes(size)))).error_code == 0
    assert m.loop.time() - began < 2
    for one in crowd:
        one.close()


@story
async def test_nobody_is_hurried_while_nobody_waits(m: Machine) -> None:
    slow = await half(m, 4 * MIB)
    await asyncio.sleep(5 * MAX_FRAME_S)
    assert not slow.closed.done()
    slow.transport.write(bytes(FRAME))
    await slow.closed


@story
async def test_what_comes_behind_a_request_that_waits_is_counted(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    waiting = client.send_fetch({("t", 0): 0}, max_wait_ms=5000)
    client.transport.write(BEGINNING + bytes(2 * MIB))
    await settled(m)
    assert 0 < held(m) < 512 * 1024
    await waiting
    await m.until(lambda: held(m) > MIB)
    client.close()
    await m.until(lambda: held(m) == 0)


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n", "frame too large"),
        (bytes.fromhex("05030100c8010000c40303") + bytes(20), "API not served"),
        ((1000).to_bytes(4, "big") + encode_request_header(0, 1, 1, None), "version not served"),
        ((1000).to_bytes(4, "big") + encode_request_header(999, 1, 1, None), "API not served"),
    ],
)
@story
async def test_what_will_not_be_served_is_not_waited_for(
    m: Machine, caplog: pytest.LogCaptureFixture, start: bytes, reason: str
) -> None:
    client = await half(m, 0, start)
    await client.closed
    assert reason in caplog.text
    assert held(m) == 0
