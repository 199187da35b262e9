"""Clients that never finish their logins, certificates that change: others are served meanwhile."""

import hashlib
import socket
import ssl
import time
from contextlib import suppress

import kafka
import pytest

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
    with_large_frame.sendall(b"\0\1\0\1\0\x11\0\1")
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
