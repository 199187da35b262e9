"""Strangers on listeners with TLS and logins: handshakes and tokens that never end, and logins that fail.

The client that is measured has its own listener, like the brokers of a cluster.
"""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from protocol.messages.k17_sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.compat.hostile.conftest import AttackedBroker
from tests.compat.hostile.raw_client import RawClient, framed
from tests.compat.hostile.target import Target

pytestmark = [pytest.mark.feature("hostile clients"), pytest.mark.client("wire")]

TOKEN_BYTES = 64 * 1024
LARGEST_BYTES = 512 * 1024


@pytest.fixture
def strangers(attacked: AttackedBroker, target: Target) -> "Strangers":
    return Strangers(attacked, target)


class Strangers:
    def __init__(self, broker: AttackedBroker, target: Target) -> None:
        self._broker, self._target = broker, target

    @contextmanager
    def connect(self, listener: str, sent: list[bytes]) -> Iterator[list[RawClient]]:
        """Open a connection for each of these, send it, and close all at the end, one per millisecond."""
        clients: list[RawClient] = []
        try:
            for data in sent:
                clients.append(RawClient(f"127.0.0.1:{self._broker.secured[listener]}"))
                clients[-1].try_send(data)
                self._target.pace(2)
            yield clients
        finally:
            for client in clients:
                client.close()
                self._target.pace()


def client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def test_thousands_of_handshakes_that_never_end(target: Target, strangers: Strangers) -> None:
    """Some send nothing, some a part of their first message, and every tenth all of it."""
    hello = client_hello()
    sent = [hello if number % 10 == 0 else hello[: number % 10 - 1] for number in range(1000)]

    def attack() -> None:
        with strangers.connect("SASL_SSL", sent):
            target.wait_for_round_trips()

    target.attacked("1,000 half-open handshakes", attack)


def test_handshakes_byte_by_byte(target: Target, strangers: Strangers) -> None:
    hello = client_hello()

    def attack() -> None:
        with strangers.connect("SASL_SSL", [b""] * 100) as clients:
            for pos in range(5):
                for number, client in enumerate(clients):
                    client.try_send(hello[pos : pos + 1])
                    if number % 4 == 0:
                        target.pace()

    target.attacked("100 handshakes byte by byte", attack)


def test_tokens_that_never_end(target: Target, strangers: Strangers) -> None:
    """200 of 64 KiB, and 100 that announce the largest size, of which most are refused."""
    start = b"\0\x24\0\1"
    sent = [TOKEN_BYTES.to_bytes(4) + start + bytes(TOKEN_BYTES - 5)] * 200
    sent += [LARGEST_BYTES.to_bytes(4) + start] * 100

    def attack() -> None:
        with strangers.connect("SASL_PLAINTEXT", sent):
            target.wait_for_round_trips()

    target.attacked("300 tokens that never end", attack)


def test_wrong_passwords(target: Target, strangers: Strangers) -> None:
    login = framed(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    login += framed(SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"), 2)

    def attack() -> None:
        with strangers.connect("SASL_PLAINTEXT", [login] * 100) as clients:
            for client in clients:
                while client.try_receive() is not None:
                    continue

    target.attacked("100 wrong passwords", attack)
