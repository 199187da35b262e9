"""What comes to the listener for brokers and is not from a broker of this cluster: refused, with one log line each."""

import asyncio
import logging

import pytest

from kbroker.interbroker.handshake import BrokerIdentity, InitiatorHandshake
from kbroker.interbroker.peers import PeerUnavailable
from kbroker.server.interbroker.handshake_state import HANDSHAKE_TIMEOUT_S
from kbroker.server.interbroker.inter_broker_server import MAX_STRANGERS
from protocol.apis import ApiKey
from protocol.framing import encode_frame, encode_request_header
from protocol.messages.k63_broker_heartbeat import BrokerHeartbeatRequest
from protocol.schema.codec import encode
from tests.unit.support.peer_brokers import CLUSTER, PORT, SECRET, PeerBrokers
from tests.unit.support.simulated_hosts import simulated
from tests.unit.support.simulated_network import Recorder

HEARTBEAT = encode_frame(
    encode_request_header(ApiKey.BROKER_HEARTBEAT, 2, 1, None), encode(BrokerHeartbeatRequest(broker_id=1), 2)
)


def frame(payload: bytes) -> bytes:
    return encode_frame(b"", payload)


class StrangerTest(PeerBrokers):
    """Broker 2, to which strangers connect."""

    async def stranger(self, *data: bytes) -> Recorder:
        """Connect, and send the bytes."""
        host = self.host("stranger")
        _, protocol = await host.run(host.create_connection(lambda: Recorder(self.loop), "b2", PORT))
        for piece in data:
            protocol.write(piece)
        return protocol

    async def received(self, recorder: Recorder) -> bytes:
        """Return the first frame that was received, without its length."""
        await self.until(lambda: len(recorder.received) >= 4 + int.from_bytes(recorder.received[:4], "big") > 4)
        return recorder.received[4:]

    def hello(self, secret: bytes = SECRET, cluster_id: str = CLUSTER, nonce: bytes = b"n" * 32) -> InitiatorHandshake:
        return InitiatorHandshake(BrokerIdentity(cluster_id, secret, 1, 11), (2, 22), 0, nonce)


def refused(caplog: pytest.LogCaptureFixture, reason: str, count: int = 1) -> None:
    """Assert that there is one warning for each refused connection."""
    lines = [str(record.msg) for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == count, lines
    assert all(f'reason="inter-broker: {reason}"' in line for line in lines), lines


@pytest.mark.parametrize(
    "data",
    [
        HEARTBEAT,
        encode_frame(encode_request_header(ApiKey.API_VERSIONS, 3, 1, "app"), b"\1\1\0"),
        frame(b"\0"),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"r" * 500,
        (100 << 20).to_bytes(4, "big") + b"x" * 10_000,
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
    ],
    ids=["request", "client", "small", "http", "tls", "large", "empty", "negative"],
)
@simulated(StrangerTest, [1])
async def test_bytes_before_the_handshake(s: StrangerTest, caplog: pytest.LogCaptureFixture, data: bytes) -> None:
    stranger = await s.stranger(data)
    await stranger.lost
    assert s.two.received == []
    assert not s.two.server.strangers
    refused(caplog, "request before the handshake")


@simulated(StrangerTest, [1])
async def test_a_frame_that_is_too_large_reserves_nothing(s: StrangerTest, caplog: pytest.LogCaptureFixture) -> None:
    stranger = await s.stranger((1024).to_bytes(4, "big") + b"x")
    await s.until(lambda: s.two.server.strangers)
    (state,) = s.two.server.strangers
    await s.until(lambda: state._partial is not None)
    assert len(state._partial or b"") == 1028
    await stranger.lost
    refused(caplog, "no handshake in time")
    before = s.loop.time()
    too_large = await s.stranger((1025).to_bytes(4, "big") + b"x")
    await too_large.lost
    assert s.loop.time() - before < 1


@simulated(StrangerTest, [1])
async def test_a_silent_stranger_is_closed(s: StrangerTest, caplog: pytest.LogCaptureFixture) -> None:
    before = s.loop.time()
    stranger = await s.stranger()
    await stranger.lost
    assert HANDSHAKE_TIMEOUT_S <= s.loop.time() - before < HANDSHAKE_TIMEOUT_S + 1
    refused(caplog, "no handshake in time")


@simulated(StrangerTest, [1])
async def test_half_a_handshake_is_closed(s: StrangerTest, caplog: pytest.LogCaptureFixture) -> None:
    stranger = await s.stranger(frame(s.hello().hello))
    await s.received(stranger)
    await stranger.lost
    refused(caplog, "no handshake in time")


@simulated(StrangerTest, [1])
async def test_a_wrong_proof(s: StrangerTest, caplog: pytest.LogCaptureFixture) -> None:
    # The request follows immediately, in the same segment.
    stranger = await s.stranger(frame(s.hello().hello) + frame(b"p" * 32) + HEARTBEAT)
    await stranger.lost
    assert s.two.received == []
    refused(caplog, "the peer does not know the cluster's secret")


@simulated(StrangerTest, [1])
async def test_a_replayed_handshake(s: StrangerTest, caplog: pytest.LogCaptureFixture) -> None:
    handshake = s.hello()
    broker = await s.stranger(frame(handshake.hello))
    proof = frame(handshake.answer(await s.received(broker)))
    broker.write(proof + HEARTBEAT)
    await s.until(lambda: s.two.received)
    replay = await s.stranger(frame(handshake.hello) + proof + HEARTBEAT)
    await replay.lost
    assert len(s.two.received) == 1
    refused(caplog, "the peer does not know the cluster's secret")


@simulated(StrangerTest, [1])
async def test_a_broker_of_another_cluster(s: StrangerTest, caplog: pytest.LogCaptureFixture) -> None:
    stranger = await s.stranger(frame(s.hello(cluster_id="theirs").hello))
    assert b"a broker of another cluster" in await s.received(stranger)
    await stranger.lost
    refused(caplog, "a broker of another cluster")
    assert "cluster=theirs broker=1" in str(caplog.records[-1].msg)


@simulated(StrangerTest, [1])
async def test_a_broker_that_does_not_know_of_the_restart_is_refused_without_a_warning(
    s: StrangerTest, caplog: pytest.LogCaptureFixture
) -> None:
    handshake = InitiatorHandshake(BrokerIdentity(CLUSTER, SECRET, 1, 11), (2, 21), 0, b"n" * 32)
    stranger = await s.stranger(frame(handshake.hello))
    assert b"another epoch of this broker is meant" in await s.received(stranger)
    await stranger.lost
    assert not s.two.server.strangers
    refused(caplog, "", count=0)


@simulated(StrangerTest, [1])
async def test_a_broker_with_another_secret(s: StrangerTest, caplog: pytest.LogCaptureFixture) -> None:
    """It was given the right address: for example a restored backup of the coordination service."""
    three = await s.broker(3, 33, secret=b"\6" * 32)
    s.introduce()
    with pytest.raises(PeerUnavailable, match="does not know the cluster's secret"):
        await three.loop.run(three.heartbeat(2))
    with pytest.raises(PeerUnavailable, match="does not know the cluster's secret"):
        await s.one.loop.run(s.one.heartbeat(3))
    assert s.two.received == three.received == []
    lines = [str(record.msg) for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(lines) == 2
    assert all("handshake failed" in line for line in lines)


@simulated(StrangerTest, [1])
async def test_many_strangers_do_not_keep_brokers_out(s: StrangerTest, caplog: pytest.LogCaptureFixture) -> None:
    strangers = [await s.stranger() for _ in range(MAX_STRANGERS + 20)]
    await s.one.loop.run(s.one.heartbeat(2))
    await s.until(lambda: sum(stranger.is_open for stranger in strangers) <= MAX_STRANGERS)
    assert not strangers[0].is_open
    assert strangers[-1].is_open
    assert len(s.two.server.strangers) <= MAX_STRANGERS
    assert s.two.server.context.errors.closed["inter-broker: too many connections without a handshake"] == 21
    # Five lines a minute, then a number.
    refused(caplog, "too many connections without a handshake", 5)


# After the handshake.


async def greeted(s: StrangerTest) -> Recorder:
    """Return a connection after the handshake, to send anything."""
    handshake = s.hello()
    broker = await s.stranger(frame(handshake.hello))
    broker.write(frame(handshake.answer(await s.received(broker))))
    await s.until(lambda: s.two.server.connections)
    return broker


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (frame(encode_request_header(ApiKey.PRODUCE, 11, 1, None)), "API not served"),
        (frame(encode_request_header(ApiKey.BROKER_HEARTBEAT, 2, 1, None) + b"\1"), "malformed request"),
        (frame(b"\0"), "malformed request"),
        (frame(encode_request_header(ApiKey.BROKER_HEARTBEAT, 2, 1, "x" * 500)[:-200]), "malformed request"),
        ((1 << 30).to_bytes(4, "big"), "frame too large"),
        ((-5).to_bytes(4, "big", signed=True), "malformed frame"),
    ],
)
@simulated(StrangerTest, [1])
async def test_a_broker_that_sends_nonsense(
    s: StrangerTest, caplog: pytest.LogCaptureFixture, data: bytes, reason: str
) -> None:
    broker = await greeted(s)
    broker.write(data)
    await broker.lost
    assert s.two.received == []
    refused(caplog, reason)


@simulated(StrangerTest, [1])
async def test_a_handler_that_fails_closes_the_connection(s: StrangerTest, caplog: pytest.LogCaptureFixture) -> None:
    def fail(context: object, request: object) -> object:
        raise RuntimeError

    s.two.on_heartbeat = fail
    with pytest.raises(PeerUnavailable):
        await s.one.loop.run(s.one.heartbeat(2))
    lines = [str(record.msg).partition(" peer")[0] for record in caplog.records if record.levelno >= logging.WARNING]
    assert lines == ["request failed", "connection closed"]
    s.two.on_heartbeat = lambda context, request: asyncio.sleep(0, None)
    with pytest.raises(PeerUnavailable, match="REQUEST_TIMED_OUT"):
        await s.one.loop.run(s.one.heartbeat(2, timeout_ms=100))
