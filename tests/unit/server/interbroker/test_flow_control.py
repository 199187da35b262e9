"""A broker that does not read its responses, and responses from the files of the log."""

import asyncio
from typing import Any

from kbroker.runtime.delayed_response import DelayedResponse
from kbroker.server.interbroker.inter_broker_connection import MAX_IN_PROGRESS, InterBrokerConnection
from protocol.framing import encode_frame
from protocol.messages.k63_broker_heartbeat import BrokerHeartbeatResponse
from tests.unit.support.peer_brokers import PeerBrokers
from tests.unit.support.simulated_hosts import simulated

SEEDS = [1]
MIB = 1 << 20


def connection_of(s: PeerBrokers) -> InterBrokerConnection:
    (connection,) = s.two.server.connections
    return connection


@simulated(PeerBrokers, SEEDS)
async def test_requests_are_not_read_while_responses_are_not(s: PeerBrokers) -> None:
    await s.one.loop.run(s.one.fetch(2, 1))
    (connection,) = s.two.server.connections
    s.one.loop.pause()
    transport: Any = connection.transport
    # Responses with an unknown correlation id.
    transport.write(encode_frame(b"", bytes(MIB // 16)) * 16)
    assert not transport.is_reading()
    s.one.loop.resume()
    await s.until(transport.is_reading)


@simulated(PeerBrokers, SEEDS)
async def test_the_requests_in_progress_are_bounded(s: PeerBrokers) -> None:
    waiting: list[DelayedResponse[BrokerHeartbeatResponse]] = []

    def wait(context: object, request: object) -> DelayedResponse[BrokerHeartbeatResponse]:
        waiting.append(DelayedResponse())
        return waiting[-1]

    s.two.on_heartbeat = wait
    requests = [s.one.loop.run(s.one.heartbeat(2, n)) for n in range(3 * MAX_IN_PROGRESS)]
    await asyncio.sleep(1)
    # Requests that have already been received are handled.
    assert MAX_IN_PROGRESS <= len(waiting) < 3 * MAX_IN_PROGRESS
    assert not connection_of(s).transport.is_reading()  # type: ignore[union-attr]
    # The others are read as soon as these have their responses.
    for delayed in waiting:
        delayed.complete(BrokerHeartbeatResponse())
    s.two.on_heartbeat = lambda context, request: BrokerHeartbeatResponse()
    await asyncio.gather(*requests)


@simulated(PeerBrokers, SEEDS)
async def test_a_delayed_response_is_abandoned_with_its_connection(s: PeerBrokers) -> None:
    delayed: DelayedResponse[BrokerHeartbeatResponse] = DelayedResponse()
    s.two.on_heartbeat = lambda context, request: delayed
    s.one.loop.run(s.one.heartbeat(2))
    await s.until(lambda: s.two.received)
    s.kill(s.one)
    await s.until(lambda: delayed.is_done)
    delayed.complete(BrokerHeartbeatResponse())


@simulated(PeerBrokers, SEEDS)
async def test_stopping_the_server_cancels_requests_in_progress(s: PeerBrokers) -> None:
    ended: list[str] = []

    async def wait(context: object, request: object) -> BrokerHeartbeatResponse:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append("cancelled")
        return BrokerHeartbeatResponse()

    s.two.on_heartbeat = wait
    s.one.loop.run(s.one.heartbeat(2)).add_done_callback(lambda future: future.exception())
    await s.until(lambda: s.two.received)
    await s.two.loop.run(s.two.server.stop())
    await s.until(lambda: ended)
    await s.until(lambda: not s.two.server.connections)
