"""Connections between two brokers with TLS, over real sockets."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.config import BrokerConfig, ConfigError
from kbroker.interbroker.fencing_check import _contact
from kbroker.interbroker.handshake import BrokerIdentity, HandshakeError
from kbroker.interbroker.isolation import Contact
from kbroker.interbroker.peers import Peers, PeerUnavailable
from kbroker.metadata.image import BrokerEndpoint, BrokerRegistration, MetadataImage
from kbroker.runtime.system import direct_socket, new_event_loop, system_environment
from kbroker.server.authentication import tls_context
from kbroker.server.interbroker import inter_broker_server
from kbroker.server.interbroker.broker_tls import BrokerTls
from kbroker.server.interbroker.inter_broker_server import InterBrokerServer
from protocol.messages.k63_broker_heartbeat import BrokerHeartbeatResponse
from tests.unit.support.certificates import CertificateAuthority
from tests.unit.support.peer_brokers import CLUSTER, SECRET, PeerBroker, response_bytes
from tests.unit.support.server_connection import DispatchTo

HOST = "127.0.0.1"
DEADLINE_S = 20.0


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    authority = CertificateAuthority(tmp_path_factory.mktemp("certificates"))
    authority.sign("broker")
    return authority


def real_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a coroutine function as a test on the event loop of brokers."""

    @wraps(test)
    def run_test(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(asyncio.wait_for(test(*args, **kwargs), DEADLINE_S))

    return run_test


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


class TlsBroker(PeerBroker):
    """A broker with the listeners SSL and PLAINTEXT. `configs`: further ones, or others."""

    def __init__(self, broker_id: int, ca: CertificateAuthority, configs: dict[str, str]) -> None:
        self.id = broker_id
        self.host = HOST
        self.identity = BrokerIdentity(CLUSTER, SECRET, broker_id, 11 * broker_id)
        self.image = MetadataImage()
        self.received: list[int] = []
        self.on_heartbeat = lambda context, request: BrokerHeartbeatResponse(is_fenced=False)
        self.environment = system_environment(asyncio.get_running_loop())
        self.config = BrokerConfig.load(
            {
                "listeners": f"SSL://{HOST}:1,PLAINTEXT://{HOST}:2",
                "inter.broker.listener.name": "SSL",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(ca.directory / "broker.pem"),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(ca.ca),
                "ssl.client.auth": "required",
            }
            | configs
        )
        tls = BrokerTls(lambda: self.config)
        dispatch = DispatchTo(self._find)
        self.server = InterBrokerServer(self.environment, self.config, dispatch, self.identity, tls.accepting)
        self.peers = Peers(self.environment, self.identity, self.image, tls.connecting)
        self.port = 0

    @property
    def registration(self) -> BrokerRegistration:
        endpoints = tuple(BrokerEndpoint(*endpoint) for endpoint in self.config.advertised_listeners)
        return BrokerRegistration(
            self.id, HOST, 1, epoch=self.identity.broker_epoch, inter_broker_host=HOST, inter_broker_port=self.port,
            inter_broker_listener=self.config.inter_broker_listener_name, endpoints=endpoints,
        )  # fmt: skip

    async def start(self) -> None:
        self.port = await self.server.bind(HOST, 0)
        await self.server.serve(cast(Any, SimpleNamespace(metadata=self.image)))

    async def failure(self, to: int) -> BaseException | None:
        """Return the cause why a request fails."""
        with pytest.raises(PeerUnavailable) as raised:
            await self.heartbeat(to, timeout_ms=3000)
        return raised.value.__cause__

    @property
    def transports(self) -> list[asyncio.Transport]:
        """Those of the connections that it has accepted."""
        transports = [connection.transport for connection in self.server.connections]
        return [transport for transport in transports if transport is not None]

    @property
    def is_encrypted(self) -> list[bool]:
        return [transport.get_extra_info("ssl_object") is not None for transport in self.transports]


@asynccontextmanager
async def two_brokers(
    ca: CertificateAuthority, one: dict[str, str] | None = None, two: dict[str, str] | None = None
) -> AsyncIterator[tuple[TlsBroker, TlsBroker]]:
    """Brokers 1 and 2, which know each other."""
    brokers = TlsBroker(1, ca, one or {}), TlsBroker(2, ca, two or {})
    try:
        for broker in brokers:
            await broker.start()
        for broker in brokers:
            broker.learn(*(other.registration for other in brokers))
        yield brokers
    finally:
        for broker in brokers:
            await broker.stop()
        await asyncio.sleep(0)


@pytest.mark.parametrize("versions", ["TLSv1.2", "TLSv1.3"])
@real_loop
async def test_all_requests_are_encrypted(ca: CertificateAuthority, versions: str) -> None:
    configs = {"ssl.enabled.protocols": versions}
    async with two_brokers(ca, configs, configs) as (one, two):
        seen: list[object] = []
        two.on_heartbeat = lambda context, request: seen.append(context.peer_broker) or BrokerHeartbeatResponse()
        await one.heartbeat(2, 7)
        assert (two.received, seen) == ([7], [(1, 11)])
        sizes = [0, 1, 65_535, 200_000, 3 << 20]
        bodies = await asyncio.gather(*(one.fetch(2, size) for size in sizes))
        assert [bytes(body) for body in bodies] == [response_bytes(size) for size in sizes]
        await two.heartbeat(1, 8)
        assert (two.is_encrypted, one.is_encrypted) == ([True, True], [True])
        # Records never go from the file to the socket.
        assert all(direct_socket(transport) is None for transport in two.transports)


@pytest.mark.parametrize("lacks", [None, "SSL"])
@real_loop
async def test_inter_broker_listeners_may_differ_while_they_are_changed(
    ca: CertificateAuthority, lacks: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    former = {"inter.broker.listener.name": "PLAINTEXT"}
    if lacks:
        former = {"listeners": f"PLAINTEXT://{HOST}:2", "ssl.client.auth": "none"}
        former |= {"ssl.keystore.location": "", "ssl.truststore.location": ""}
        former |= {"ssl.keystore.type": "JKS", "ssl.truststore.type": "JKS"} | {
            "inter.broker.listener.name": "PLAINTEXT"
        }
    async with two_brokers(ca, former) as (one, two):
        await two.heartbeat(1)
        assert one.is_encrypted == [False]
        assert "the connection to a broker is not encrypted" in caplog.text
        if not lacks:
            await one.heartbeat(2)
            assert two.is_encrypted == [True]
            return
        cause = await one.failure(2)
        assert isinstance(cause, HandshakeError)
        assert "this broker lacks the inter-broker listener of the other" in caplog.text
        assert two.received == []


# Certificates that are not accepted.


@pytest.mark.parametrize(
    ("certificate", "reason"),
    [
        ({"days": -1}, "certificate has expired"),
        ({"host": "DNS:other.example"}, "IP address mismatch, certificate is not valid for '127.0.0.1'"),
    ],
)
@real_loop
async def test_a_broker_does_not_start_with_a_certificate_that_others_refuse(
    ca: CertificateAuthority, certificate: dict[str, Any], reason: str
) -> None:
    broker = TlsBroker(1, ca, {"listener.name.ssl.ssl.keystore.location": str(ca.sign("wrong", **certificate))})
    with pytest.raises(ConfigError, match=f"^listener.name.ssl.ssl.keystore.location: brokers with .* {reason}"):
        await broker.start()


@pytest.mark.parametrize(
    ("fault", "reasons"),
    [
        # What the connecting broker finds, and what the accepting one does.
        ("expired", ("certificate has expired", "CERTIFICATE_EXPIRED")),
        ("unknown CA", ("unable to get local issuer certificate", "UNKNOWN_CA")),
        ("other host", ("certificate is not valid for '127.0.0.1'", "")),
    ],
)
@real_loop
async def test_a_refused_certificate_is_reported_and_is_no_silence(
    ca: CertificateAuthority, tmp_path: Path, fault: str, reasons: tuple[str, str], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """The certificate of broker 2 has expired, or was replaced by a wrong one, since it was started."""
    monkeypatch.setattr(tls_context, "check_handshake", lambda *_: None)
    if fault == "unknown CA":
        file = CertificateAuthority(tmp_path / "other").sign("wrong")
    else:
        file = ca.sign("wrong", **({"days": -1} if fault == "expired" else {"host": "DNS:other.example"}))
    async with two_brokers(ca, two={"ssl.keystore.location": str(file)}) as (one, two):
        for broker, other, reason in ((one, two, reasons[0]), (two, one, reasons[1])):
            if not reason:
                await broker.heartbeat(other.id)
                continue
            cause = await broker.failure(other.id)
            assert isinstance(cause, HandshakeError), cause
            assert _contact(cause) is Contact.RESPONSE
            lines = [str(record.msg) for record in caplog.records if record.levelno == logging.ERROR]
            assert f"broker={other.id}" in lines[-1]
            assert 'reason="TLS handshake failed"' in lines[-1]
            assert reason in lines[-1]
            assert reason in broker.peers.failed_handshakes()[other.id]
            assert other.received == []


@real_loop
async def test_a_certificate_of_the_ca_does_not_make_a_broker(
    ca: CertificateAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    """A client's certificate is accepted where host names are not checked, but its owner cannot pass a handshake on."""
    unchecked = {"ssl.endpoint.identification.algorithm": ""}
    async with two_brokers(ca, unchecked, unchecked) as (one, two):
        accepting, connecting = (ssl.SSLContext(side) for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT))
        connecting.check_hostname = False
        for context in (accepting, connecting):
            context.load_cert_chain(ca.sign("client", "DNS:client.example"))
            context.load_verify_locations(ca.ca)
        pumps = []

        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(65536):
                writer.write(data)
            writer.close()

        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            inner = await asyncio.open_connection(HOST, two.port, ssl=connecting)
            pumps.extend([asyncio.create_task(pump(reader, inner[1])), asyncio.create_task(pump(inner[0], writer))])

        relay = await asyncio.start_server(pass_on, HOST, 0, ssl=accepting)
        one.learn(two.registration._replace(inter_broker_port=relay.sockets[0].getsockname()[1], epoch=22))
        cause = await one.failure(2)
        assert isinstance(cause, HandshakeError)
        assert cause.reason == "the peer does not know the cluster's secret"
        assert two.received == []
        relay.close()
        await asyncio.gather(*pumps, return_exceptions=True)


# New certificates.


@real_loop
async def test_new_connections_use_a_new_certificate_and_open_ones_stay(
    ca: CertificateAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    renewed = ca.sign("renewed")
    configs = {"ssl.keystore.location": str(renewed)}
    async with two_brokers(ca, configs, configs) as (one, two):
        await one.heartbeat(2)
        (before,) = two.transports
        ca.sign("renewed")
        await one.fetch(2, 10)
        assert len(two.transports) == 2
        assert two.transports[0] is before

        def serial(transport: asyncio.Transport) -> str:
            return str(transport.get_extra_info("ssl_object").getpeercert()["serialNumber"])

        assert serial(before) != serial(two.transports[1])
        # A wrong one is reported, and the former stays.
        ca.sign("renewed", days=-1)
        await two.heartbeat(1)
        assert "certificates not reloaded" in caplog.text
        assert "certificate has expired" in caplog.text


# Strangers.


@real_loop
async def test_strangers_are_refused_and_bounded(
    ca: CertificateAuthority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(inter_broker_server, "MAX_STRANGERS", 3)
    async with two_brokers(ca) as (one, two):
        reader, writer = await asyncio.open_connection(HOST, two.port)
        writer.write(b"\0\0\0\x10" + b"kbroker-inter-br")
        assert await reader.read() == b""
        assert "a client without TLS on a listener with TLS" in caplog.text
        writer.close()
        silent = [await asyncio.open_connection(HOST, two.port) for _ in range(5)]
        await until(lambda: len(two.server.strangers) == 3)
        # The oldest are closed, though no TLS handshake has begun.
        assert await silent[0][0].read() == await silent[1][0].read() == b""
        assert "too many connections without a handshake" in caplog.text
        await one.heartbeat(2)
        assert len(two.server.strangers) == 2
        for _, each in silent:
            each.close()
        await until(lambda: not two.server.strangers)
