"""Clients that never finish their logins, certificates that change: others are served meanwhile."""

import hashlib
import re
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import kafka
import pytest

from protocol.errors import ErrorCode
from protocol.scram import ClientExchange, ScramMechanism
from tests.compat.security.secure_broker import LOGINS, Login, SecureBroker
from tests.compat.support import DEADLINE_S, eventually, unique

pytestmark = [pytest.mark.feature("security"), pytest.mark.client("wire")]
TLS_LOGIN = Login("SASL_SSL", "SCRAM-SHA-512", "alice", "scram secret")
CLIENT_HELLO_START = bytes.fromhex("16030100c8010000c4")


def produce(secure: SecureBroker) -> None:
    """A bystander connects, logs in and produces."""
    producer = kafka.KafkaProducer(**secure.kafka_python(TLS_LOGIN))
    producer.send(unique("bystander"), b"x").get(DEADLINE_S)
    producer.close()


def test_half_open_logins_delay_nobody(secure: SecureBroker) -> None:
    """Some send nothing, some a part of a handshake, byte by byte, some announce a large frame."""
    connections = []
    for number in range(400):
        tls, plain = (secure.ports[protocol] for protocol in ("SASL_SSL", "SASL_PLAINTEXT"))
        connection = socket.create_connection(("127.0.0.1", tls if number % 2 else plain), DEADLINE_S)
        start = CLIENT_HELLO_START if number % 2 else b"\0\0\xff\xff\0\x11\0\1"
        if number % 3:
            connection.sendall(start[: number % 8 + 1])
        connections.append(connection)
    begin = time.monotonic()
    produce(secure)
    # Within the time of the strangers.
    assert time.monotonic() - begin < DEADLINE_S
    with_large_frame = socket.create_connection(("127.0.0.1", secure.ports["SASL_PLAINTEXT"]), DEADLINE_S)
    with_large_frame.sendall((524_289).to_bytes(4) + b"\0\x11\0\1")
    # All are closed: none of these waits fails.
    for connection in [*connections, with_large_frame]:
        connection.settimeout(DEADLINE_S)
        with suppress(ConnectionResetError):
            assert connection.recv(1) == b""
        connection.close()
    produce(secure)


def test_bytes_that_are_no_handshake(secure: SecureBroker) -> None:
    for start in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\x10" + bytes(16),
        b"\x16\x03\x01\x40\x00" + bytes(300_000),
        b"\xff",
    ):
        with (
            socket.create_connection(("127.0.0.1", secure.ports["SASL_SSL"]), DEADLINE_S) as connection,
            suppress(ConnectionResetError, BrokenPipeError),
        ):
            connection.sendall(start)
            # An alert may arrive before the end.
            while connection.recv(1000):
                continue
    produce(secure)
    assert "an HTTP request on a listener with TLS" in secure.errors
    assert "Traceback" not in secure.errors


def test_records_of_large_requests_and_responses(secure: SecureBroker) -> None:
    """Frames of many TLS records, with several of them in flight."""
    topic, settings = unique("large"), secure.kafka_python(LOGINS[3])
    records = [bytes([number]) * 900_000 for number in range(12)]
    producer = kafka.KafkaProducer(**settings)
    for future in [producer.send(topic, record) for record in records]:
        future.get(DEADLINE_S)
    producer.close()
    consumer = kafka.KafkaConsumer(topic, **settings, auto_offset_reset="earliest", max_partition_fetch_bytes=5 << 20)
    received = [message.value for _, message in zip(records, consumer, strict=False)]
    consumer.close()
    assert received == records


def send(connection: socket.socket, key: int, body: bytes) -> bytes:
    """Send a request of SaslHandshake or SaslAuthenticate in version 1, and return the body of its response."""
    frame = key.to_bytes(2) + bytes([0, 1, 0, 0, 0, 7, 0xFF, 0xFF]) + body
    connection.sendall(len(frame).to_bytes(4) + frame)
    response = connection.makefile("rb")
    return response.read(int.from_bytes(response.read(4)))[4:]


def final_of(exchange: ClientExchange, first: bytes, change: Callable[[list[bytes]], list[bytes]]) -> bytes:
    return b",".join(change(exchange.final(first).split(b",")))


# As Apache Kafka 4.4.0 refuses them, with these messages.
INVALID = "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256"
OTHER_ID = "Authentication failed: Client requested an authorization id that is different from username"
HOSTILE_LOGINS: dict[str, tuple[str, bytes, Callable[[list[bytes]], list[bytes]]]] = {
    # CVE-2024-56128: the nonce of another login, or none of the broker.
    "another nonce": (INVALID, b"n,,", lambda parts: [parts[0], parts[1][:-3] + b"abc", parts[2]]),
    "the client's nonce only": (INVALID, b"n,,", lambda parts: [parts[0], b"r=nonce", parts[2]]),
    # CVE-2017-12610.
    "another authorization id": (OTHER_ID, b"n,a=bob,", list),
    "a channel binding": (INVALID, b"p=tls-unique,,", list),
}


@pytest.mark.parametrize("name", HOSTILE_LOGINS)
def test_hostile_scram_logins(secure: SecureBroker, name: str) -> None:
    message, header, change = HOSTILE_LOGINS[name]
    with socket.create_connection(("127.0.0.1", secure.ports["SASL_PLAINTEXT"]), DEADLINE_S) as connection:
        assert send(connection, 17, b"\0\x0dSCRAM-SHA-256")[:2] == b"\0\0"
        exchange = ClientExchange(ScramMechanism.SCRAM_SHA_256, "alice", "scram secret", "nonce")
        first = header + exchange.first.removeprefix(b"n,,")
        response = send(connection, 36, len(first).to_bytes(4) + first)
        if response[:2] == b"\0\0":
            size = int.from_bytes(response[4:8])
            final = final_of(exchange, response[8 : 8 + size], change)
            response = send(connection, 36, len(final).to_bytes(4) + final)
        assert int.from_bytes(response[:2]) == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert response[4 : 4 + int.from_bytes(response[2:4])].decode() == message
        assert connection.recv(1) == b""


def test_a_stranger_costs_little_memory(secure: SecureBroker) -> None:
    """CVE-2022-34917: at most 128 KiB for a connection, however much it has announced and sent."""
    status = Path(f"/proc/{secure.pid}/status")

    def resident_bytes() -> int:
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status.read_text())[0]) * 1024

    produce(secure)
    before, strangers = resident_bytes(), []
    for _ in range(200):
        stranger = socket.create_connection(("127.0.0.1", secure.ports["SASL_PLAINTEXT"]), DEADLINE_S)
        # SaslAuthenticate with a token of almost 64 KiB, but for its last byte.
        stranger.sendall((64 * 1024).to_bytes(4) + b"\0\x24\0\1" + bytes(64 * 1024 - 5))
        strangers.append(stranger)
    # The broker has read what they have sent, since it responds to another one.
    produce(secure)
    assert resident_bytes() - before < len(strangers) * 128 * 1024
    for stranger in strangers:
        stranger.close()


def test_no_client_renegotiates(secure: SecureBroker) -> None:
    """A client could make the broker calculate a key exchange again and again."""
    address = secure.address(TLS_LOGIN)
    # R is the command of s_client to renegotiate, which TLS 1.3 does not have.
    command = ["openssl", "s_client", "-connect", address, "-tls1_2", "-CAfile", secure.certificates.path("ca.pem")]
    ended = subprocess.run(command, input="R\n", capture_output=True, text=True, timeout=DEADLINE_S)
    assert "Verify return code: 0 (ok)" in ended.stdout
    assert "no renegotiation" in ended.stderr
    produce(secure)


def certificate_of(secure: SecureBroker) -> str:
    context = ssl.create_default_context(cafile=secure.certificates.path("ca.pem"))
    with (
        socket.create_connection(("127.0.0.1", secure.ports["SASL_SSL"]), DEADLINE_S) as connection,
        context.wrap_socket(connection, server_hostname="localhost") as secured,
    ):
        certificate = secured.getpeercert(binary_form=True)
    assert certificate is not None
    return hashlib.sha256(certificate).hexdigest()


def test_a_new_certificate_is_used_without_a_restart(secure: SecureBroker) -> None:
    open_before = kafka.KafkaProducer(**secure.kafka_python(TLS_LOGIN))
    open_before.send(unique("before"), b"x").get(DEADLINE_S)
    former = certificate_of(secure)
    secure.certificates.sign("server")
    eventually(lambda: certificate_of(secure) != former, "the new certificate")
    open_before.send(unique("after"), b"x").get(DEADLINE_S)
    open_before.close()
    produce(secure)
