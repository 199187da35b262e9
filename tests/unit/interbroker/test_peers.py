"""Requests between two brokers over a simulated network."""

import asyncio
import logging
from typing import Any

import pytest

from kbroker.interbroker.peers import CONNECT_TIMEOUT_S, PeerUnavailable
from kbroker.runtime.delayed_response import DelayedResponse
from protocol.errors import ErrorCode
from protocol.messages.k63_broker_heartbeat import BrokerHeartbeatResponse
from tests.unit.support.peer_brokers import PeerBroker, PeerBrokers, response_bytes
from tests.unit.support.simulated_hosts import simulated

SEEDS = range(3)
MIB = 1 << 20


def unavailable(error: BaseException | None, code: ErrorCode) -> None:
    assert isinstance(error, PeerUnavailable), error
    assert error.code == code


async def outcome(awaitable: Any) -> BaseException | None:
    """Return the error of an awaitable, None if it has none."""
    return (await asyncio.gather(awaitable, return_exceptions=True))[0]


@simulated(PeerBrokers, SEEDS)
async def test_a_request_and_its_response(s: PeerBrokers) -> None:
    response = await s.one.loop.run(s.one.heartbeat(2, 7))
    assert not response.is_fenced
    assert s.two.received == [7]
    await s.two.loop.run(s.two.heartbeat(1, 8))
    assert s.one.received == [8]
    assert s.connections == {1: 1, 2: 1}


@simulated(PeerBrokers, SEEDS)
async def test_the_handler_knows_the_peer(s: PeerBrokers) -> None:
    seen: list[object] = []
    s.two.on_heartbeat = lambda context, request: seen.append(context.peer_broker) or BrokerHeartbeatResponse()
    await s.one.loop.run(s.one.heartbeat(2))
    assert seen == [(1, 11)]


@simulated(PeerBrokers, SEEDS)
async def test_each_channel_has_one_connection(s: PeerBrokers) -> None:
    heartbeats = [s.one.loop.run(s.one.heartbeat(2, offset)) for offset in range(20)]
    fetches = [s.one.loop.run(s.one.fetch(2, size)) for size in range(20)]
    await asyncio.gather(*heartbeats, *fetches)
    assert s.two.received == list(range(20))
    assert s.connections[2] == 2
    assert s.two.server.accepted == 2


@simulated(PeerBrokers, SEEDS)
async def test_responses_of_any_size_are_complete(s: PeerBrokers) -> None:
    sizes = [0, 1, 251, 65_530, 65_535, 65_536, 200_000, 200_100, 3 * MIB, 3 * MIB + 1, 5]
    for size in sizes:
        body = await s.one.loop.run(s.one.fetch(2, size))
        assert body == response_bytes(size)
    # Several at once, which are kept: no buffer is reused while its response exists.
    bodies = await asyncio.gather(*(s.one.loop.run(s.one.fetch(2, size)) for size in sizes))
    assert [bytes(body) for body in bodies] == [response_bytes(size) for size in sizes]


@simulated(PeerBrokers, SEEDS)
async def test_a_request_that_waits_delays_no_other(s: PeerBrokers) -> None:
    waiting: list[DelayedResponse[BrokerHeartbeatResponse]] = []

    def handle(context: object, request: Any) -> Any:
        if request.current_metadata_offset % 2:
            return BrokerHeartbeatResponse(error_code=request.current_metadata_offset)
        waiting.append(DelayedResponse())
        return waiting[-1]

    s.two.on_heartbeat = handle
    requests = [s.one.loop.run(s.one.heartbeat(2, offset)) for offset in range(6)]
    fast = await asyncio.gather(*requests[1::2])
    assert [response.error_code for response in fast] == [1, 3, 5]
    assert not any(request.done() for request in requests[::2])
    for number, delayed in enumerate(reversed(waiting)):
        delayed.complete(BrokerHeartbeatResponse(error_code=number))
    slow = await asyncio.gather(*requests[::2])
    assert [response.error_code for response in slow] == [2, 1, 0]


@simulated(PeerBrokers, SEEDS)
async def test_a_coroutine_is_a_handler(s: PeerBrokers) -> None:
    async def handle(context: object, request: Any) -> BrokerHeartbeatResponse:
        await asyncio.sleep(1)
        return BrokerHeartbeatResponse(error_code=5)

    s.two.on_heartbeat = handle
    assert (await s.one.loop.run(s.one.heartbeat(2))).error_code == 5


@simulated(PeerBrokers, SEEDS)
async def test_an_unknown_broker_is_unavailable_at_once(s: PeerBrokers) -> None:
    before = s.loop.time()
    unavailable(await outcome(s.one.loop.run(s.one.heartbeat(9))), ErrorCode.NETWORK_EXCEPTION)
    assert s.loop.time() == before


@simulated(PeerBrokers, SEEDS)
async def test_a_request_times_out_and_its_late_response_is_ignored(s: PeerBrokers) -> None:
    delayed: DelayedResponse[BrokerHeartbeatResponse] = DelayedResponse()
    responses = iter([delayed, *(BrokerHeartbeatResponse(error_code=1) for _ in range(3))])
    s.two.on_heartbeat = lambda context, request: next(responses)
    slow = s.one.loop.run(s.one.heartbeat(2, 1, timeout_ms=500))
    # Another response arrives meanwhile, so the connection works and stays open.
    await asyncio.sleep(0.1)
    await s.one.loop.run(s.one.heartbeat(2, 2))
    unavailable(await outcome(slow), ErrorCode.REQUEST_TIMED_OUT)
    delayed.complete(BrokerHeartbeatResponse(error_code=9))
    assert (await s.one.loop.run(s.one.heartbeat(2, 3))).error_code == 1
    assert s.two.server.accepted == 1


@simulated(PeerBrokers, SEEDS)
async def test_a_paused_peer_gets_a_new_connection(s: PeerBrokers) -> None:
    await s.one.loop.run(s.one.heartbeat(2))
    s.two.loop.pause()
    hung = [s.one.loop.run(s.one.heartbeat(2, 1, timeout_ms=ms)) for ms in (300, 90_000)]
    errors = [await outcome(request) for request in hung]
    unavailable(errors[0], ErrorCode.REQUEST_TIMED_OUT)
    # Nothing has arrived for 300 ms, so the other request does not wait for its deadline.
    unavailable(errors[1], ErrorCode.NETWORK_EXCEPTION)
    s.two.loop.resume()
    await s.one.loop.run(s.one.heartbeat(2, 2))
    assert s.two.server.accepted == 2


@simulated(PeerBrokers, SEEDS)
async def test_a_killed_peer_fails_the_requests_in_flight(s: PeerBrokers) -> None:
    s.two.on_heartbeat = lambda context, request: DelayedResponse()
    requests = [s.one.loop.run(s.one.heartbeat(2, offset)) for offset in range(3)]
    await s.until(lambda: len(s.two.received) == 3)
    s.kill(s.two)
    for request in requests:
        unavailable(await outcome(request), ErrorCode.NETWORK_EXCEPTION)


@simulated(PeerBrokers, SEEDS)
async def test_a_new_process_of_a_peer_is_reached_when_the_image_has_it(s: PeerBrokers) -> None:
    await s.one.loop.run(s.one.heartbeat(2))
    s.kill(s.two)
    s.two = await s.broker(2, 33)
    s.two.learn(s.one.registration, s.two.registration)
    # The image still has the former epoch.
    unavailable(await outcome(s.one.loop.run(s.one.heartbeat(2, 1))), ErrorCode.NETWORK_EXCEPTION)
    assert s.two.received == []
    s.introduce()
    await s.one.loop.run(s.one.heartbeat(2, 2))
    assert s.two.received == [2]


@simulated(PeerBrokers, SEEDS)
async def test_connections_to_a_former_process_are_closed(s: PeerBrokers) -> None:
    s.two.on_heartbeat = lambda context, request: DelayedResponse()
    waiting = s.one.loop.run(s.one.heartbeat(2))
    await s.until(lambda: s.two.received)
    s.one.learn(s.two.registration._replace(epoch=44))
    unavailable(await outcome(waiting), ErrorCode.NETWORK_EXCEPTION)
    await s.until(lambda: not s.two.server.connections)


@simulated(PeerBrokers, SEEDS)
async def test_connections_to_a_broker_that_left_are_closed(s: PeerBrokers) -> None:
    await s.one.loop.run(s.one.heartbeat(2))
    s.one.learn(2)
    await s.until(lambda: not s.two.server.connections)
    unavailable(await outcome(s.one.loop.run(s.one.heartbeat(2))), ErrorCode.NETWORK_EXCEPTION)


@simulated(PeerBrokers, SEEDS)
async def test_connections_of_a_former_epoch_are_closed_by_the_peer(s: PeerBrokers) -> None:
    await s.one.loop.run(s.one.heartbeat(2))
    s.two.learn(s.one.registration._replace(epoch=12))
    await s.until(lambda: not s.two.server.connections)
    # It is told in the handshake that it is a former process.
    unavailable(await outcome(s.one.loop.run(s.one.heartbeat(2, timeout_ms=500))), ErrorCode.NETWORK_EXCEPTION)


@simulated(PeerBrokers, SEEDS)
async def test_a_former_process_backs_off(s: PeerBrokers, caplog: pytest.LogCaptureFixture) -> None:
    """Its log does not call that a failed handshake."""
    caplog.set_level(logging.INFO)
    s.two.learn(s.one.registration._replace(epoch=12))
    began = s.loop.time()
    while s.loop.time() < began + 10:
        unavailable(await outcome(s.one.loop.run(s.one.heartbeat(2))), ErrorCode.NETWORK_EXCEPTION)
    assert s.two.server.accepted <= 18
    assert s.two.received == []
    assert "handshake refused broker=2 peer=" in caplog.text
    assert "handshake failed" not in caplog.text


@simulated(PeerBrokers, SEEDS)
async def test_each_request_has_its_own_deadline(s: PeerBrokers) -> None:
    s.two.on_heartbeat = lambda context, request: (
        DelayedResponse() if request.current_metadata_offset else BrokerHeartbeatResponse()
    )
    began, ended = s.loop.time(), dict[int, float]()
    timeouts = [900, 300, 2000, 301, 600, 1500]
    requests = {ms: s.one.loop.run(s.one.heartbeat(2, ms, timeout_ms=ms)) for ms in timeouts}
    for ms, request in requests.items():
        request.add_done_callback(lambda _, ms=ms: ended.setdefault(ms, s.loop.time() - began))  # type: ignore[misc]
    # Responses of another request show that the peer is alive.
    while len(ended) < len(timeouts):
        await s.one.loop.run(s.one.heartbeat(2, 0))
        await asyncio.sleep(0.05)
    for ms, request in requests.items():
        unavailable(request.exception(), ErrorCode.REQUEST_TIMED_OUT)
        assert ended[ms] == pytest.approx(ms / 1000, abs=0.05)
    assert s.one.peers.stats.requests_without_response == len(timeouts)


@simulated(PeerBrokers, SEEDS)
async def test_connections_and_failures_are_counted(s: PeerBrokers) -> None:
    stats = s.one.peers.stats
    await s.one.loop.run(s.one.heartbeat(2))
    await s.one.loop.run(s.one.fetch(2, 1))
    assert (stats.connections, stats.connection_failures, stats.requests_without_response) == (2, 0, 0)
    s.two.on_heartbeat = lambda context, request: DelayedResponse()
    waiting = s.one.loop.run(s.one.heartbeat(2))
    await s.until(lambda: len(s.two.received) == 2)
    s.kill(s.two)
    unavailable(await outcome(waiting), ErrorCode.NETWORK_EXCEPTION)
    unavailable(await outcome(s.one.loop.run(s.one.heartbeat(2))), ErrorCode.NETWORK_EXCEPTION)
    await s.until(lambda: not stats.connections)
    assert (stats.connection_failures, stats.requests_without_response) == (1, 1)


@simulated(PeerBrokers, SEEDS)
async def test_a_broker_that_registers_again_in_its_process_connects_again(s: PeerBrokers) -> None:
    await s.one.loop.run(s.one.heartbeat(2))
    seen: list[object] = []
    s.two.on_heartbeat = lambda context, request: seen.append(context.peer_broker) or BrokerHeartbeatResponse()
    s.one.identity.broker_epoch = 55
    await s.one.loop.run(s.one.heartbeat(2))
    assert seen == [(1, 55)]
    await s.until(lambda: s.connections[2] == 1)


@simulated(PeerBrokers, SEEDS)
async def test_attempts_to_connect_back_off(s: PeerBrokers) -> None:
    s.kill(s.two)
    began, times = s.loop.time(), []
    while s.loop.time() < began + 10:
        unavailable(await outcome(s.one.loop.run(s.one.heartbeat(2))), ErrorCode.NETWORK_EXCEPTION)
        times.append(s.loop.time() - began)
    # 0, 50 ms, 150 ms, 350 ms, 750 ms, 1.55 s, then each second.
    assert 11 <= len(times) <= 18
    assert times[2] < 0.3


@simulated(PeerBrokers, SEEDS)
async def test_connecting_to_an_unreachable_host_times_out(s: PeerBrokers) -> None:
    s.kill(s.two, silent=True)
    began = s.loop.time()
    unavailable(await outcome(s.one.loop.run(s.one.heartbeat(2, timeout_ms=200))), ErrorCode.REQUEST_TIMED_OUT)
    assert s.loop.time() - began == pytest.approx(0.2, abs=0.05)
    unavailable(await outcome(s.one.loop.run(s.one.heartbeat(2, timeout_ms=60_000))), ErrorCode.NETWORK_EXCEPTION)
    assert s.loop.time() - began < CONNECT_TIMEOUT_S + 1


@simulated(PeerBrokers, SEEDS)
async def test_a_peer_that_accepts_but_is_paused_times_out(s: PeerBrokers) -> None:
    s.two.loop.pause()
    began = s.loop.time()
    unavailable(await outcome(s.one.loop.run(s.one.heartbeat(2, timeout_ms=60_000))), ErrorCode.NETWORK_EXCEPTION)
    assert CONNECT_TIMEOUT_S - 1 < s.loop.time() - began < CONNECT_TIMEOUT_S + 1
    s.two.loop.resume()
    await s.one.loop.run(s.one.heartbeat(2, 5))
    assert s.two.received == [5]


@simulated(PeerBrokers, SEEDS)
async def test_stop_fails_what_is_in_flight_and_later_requests(s: PeerBrokers) -> None:
    s.two.on_heartbeat = lambda context, request: DelayedResponse()
    waiting = s.one.loop.run(s.one.heartbeat(2))
    await s.until(lambda: s.two.received)
    await s.one.loop.run(s.one.peers.stop())
    unavailable(await outcome(waiting), ErrorCode.NETWORK_EXCEPTION)
    unavailable(await outcome(s.one.loop.run(s.one.heartbeat(2))), ErrorCode.NETWORK_EXCEPTION)
    await s.until(lambda: not s.two.server.connections)


@simulated(PeerBrokers, SEEDS)
async def test_stop_ends_an_attempt_to_connect(s: PeerBrokers) -> None:
    s.two.loop.pause()
    waiting = s.one.loop.run(s.one.heartbeat(2))
    await asyncio.sleep(0.5)
    await s.one.loop.run(s.one.peers.stop())
    unavailable(await outcome(waiting), ErrorCode.NETWORK_EXCEPTION)
    assert not asyncio.all_tasks(s.one.loop)


@simulated(PeerBrokers, range(20))
async def test_resets_lose_requests_but_never_mix_up_responses(s: PeerBrokers) -> None:
    s.loop.network.reset_chance = 0.02
    s.two.on_heartbeat = lambda context, request: BrokerHeartbeatResponse(error_code=request.current_metadata_offset)

    async def ask(broker: PeerBroker, number: int) -> bool:
        try:
            if number % 2:
                assert (await broker.heartbeat(2, number)).error_code == number
            else:
                assert await broker.fetch(2, number * 100) == response_bytes(number * 100)
        except PeerUnavailable:
            return False
        return True

    succeeded = [await s.one.loop.run(ask(s.one, number)) for number in range(200)]
    assert sum(succeeded) > 100
    assert not all(succeeded)


@simulated(PeerBrokers, SEEDS)
async def test_a_channel_has_one_connection_at_the_peer_after_cuts_too(s: PeerBrokers) -> None:
    """The ends of the former connections never arrive."""
    for _ in range(3):
        await s.one.loop.run(s.one.heartbeat(2))
        await s.one.loop.run(s.one.fetch(2, 1))
        assert s.loop.network.faults.blackhole("b1", "b2") == 2
        s.one.peers.reset()
    await s.one.loop.run(s.one.heartbeat(2))
    await s.one.loop.run(s.one.fetch(2, 1))
    assert s.two.server.accepted == 8
    assert s.connections[2] == 2
