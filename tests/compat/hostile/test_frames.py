"""Frames with wrong counts and lengths: the broker neither allocates memory for them nor delays other clients.

The attacks are like CVE-2022-34917, KAFKA-14063, KAFKA-5062 and KAFKA-2878 (Kafka allocated arrays by their counts);
others send millions of tagged fields.
"""

import random
import socket
import struct
from collections.abc import Iterator

import pytest

from protocol.apis import APIS, CLIENT_LISTENER_APIS, ApiKey
from protocol.framing import encode_request_header
from protocol.varints import encode_uvarint
from tests.compat.hostile.raw_client import RawClient
from tests.compat.hostile.request_templates import I16, I32, LengthField, RequestTemplate, all_request_templates
from tests.compat.hostile.target import MIB, Target

pytestmark = [pytest.mark.feature("hostile clients"), pytest.mark.client("wire")]

ENDLESS_VARINT = b"\xff" * 12
COUNTS = (2**31 - 1, 100_000_000, -2)
TAGS = (20_000_000, 2**32 - 1)
MAX_REQUEST = 100 * MIB
# The header of a valid request.
PRODUCE_HEADER = encode_request_header(ApiKey.PRODUCE, 9, 1, "hostile")


def wrong_values(template: RequestTemplate, field: LengthField) -> Iterator[bytes]:
    """Yield wrong values for a count or length."""
    if field.kind == "tags":
        yield from map(encode_uvarint, TAGS)
        # One tagged field of that size.
        yield from (b"\1\x63" + encode_uvarint(size) for size in TAGS)
        yield ENDLESS_VARINT
    elif template.flexible:
        # -2 cannot be encoded; the largest number takes its place.
        yield from (encode_uvarint(count % 2**32 + 1 if count > 0 else 2**32 - 1) for count in COUNTS)
        yield ENDLESS_VARINT
    elif field.size == 2:
        yield from (I16.pack(size) for size in (2**15 - 1, -2, -(2**15)))
    else:
        yield from (I32.pack(count) for count in COUNTS)


def is_closed_after(target: Target, frame: bytes) -> bool:
    """Send a frame, and return whether the broker closes the connection; it may also respond."""
    with RawClient(target.bootstrap) as client:
        return not client.try_send(frame) or client.try_receive() is None


def test_counts_and_lengths_in_every_api(target: Target) -> None:
    frames = [
        template.frame_with(field, value)
        for template in all_request_templates()
        for field in template.length_fields
        for value in wrong_values(template, field)
    ]
    assert len(frames) > 3000
    random.Random(1).shuffle(frames)
    frames = frames if target.thorough else frames[::6]
    is_closed = []

    def attack() -> None:
        for number, frame in enumerate(frames):
            is_closed.append(is_closed_after(target, frame))
            if number % 10 == 0:
                target.pace()

    target.attacked("counts and lengths in every API", attack)
    assert is_closed.count(True) > 0.9 * len(is_closed)
    assert "malformed request" in target.log()


def test_millions_of_tagged_fields(target: Target) -> None:
    """The fields are declared but not sent, or are sent with two bytes each, in the header or in the body."""
    templates = [
        RequestTemplate(ApiKey.API_VERSIONS, APIS[ApiKey.API_VERSIONS].max_version),
        RequestTemplate(ApiKey.METADATA, 12),
    ]
    frames = []
    for template in templates:
        for field in (template.length_fields[0], template.length_fields[-1]):
            frames.append(template.frame_with(field, encode_uvarint(20_000_000)))
            frames.append(template.frame_with(field, encode_uvarint(20_000_000), b"\x63\0" * 2_000_000))
            frames.append(
                template.frame_with(field, encode_uvarint(100), b"\x63" + encode_uvarint(10_000) + bytes(10_000))
            )

    def attack() -> None:
        for frame in frames:
            assert is_closed_after(target, frame)
            target.pace(50)

    target.attacked("tagged fields", attack)


def nested(template: RequestTemplate) -> Iterator[bytes]:
    """Yield frames whose nested arrays all have a count that the rest of the frame could hold."""
    arrays = [field for field in template.length_fields if field.kind == "array"]
    if len(arrays) < 2:
        return
    body = bytearray()
    pos = 0
    for field in arrays:
        body += template.body[pos : field.pos] + (encode_uvarint(60_000) if template.flexible else I32.pack(60_000))
        pos = field.pos + field.size
    yield template.frame(bytes(body) + bytes(100_000))
    # Many elements of the outer array, each with an inner array that fits as well.
    first, second = arrays[:2]
    one_element = template.body[first.pos + first.size : second.pos] + (
        encode_uvarint(50_000) if template.flexible else I32.pack(50_000)
    )
    head = template.body[: first.pos] + (encode_uvarint(50_000) if template.flexible else I32.pack(50_000))
    yield template.frame(head + one_element * 10_000)


def test_nested_arrays_with_a_huge_product(target: Target) -> None:
    frames = [
        frame for api in CLIENT_LISTENER_APIS.values() for version in {api.max_version, api.flexible_from - 1}
        if api.serves(version)
        for frame in nested(RequestTemplate(api.key, version))
    ]  # fmt: skip
    assert len(frames) > 30

    def attack() -> None:
        for frame in frames:
            is_closed_after(target, frame)
            target.pace(5)

    target.attacked("nested arrays", attack)


def test_frame_lengths(target: Target) -> None:
    """The lengths are up to 2 GB, or are lengths that no request can have."""

    def attack() -> None:
        for length in (2**31 - 1, -1, -(2**31), 0, 1, 3, MAX_REQUEST + 1):
            for _ in range(10):
                assert is_closed_after(target, struct.pack(">i", length) + bytes(8))
                target.pace()

    target.attacked("lengths of frames", attack)


def test_announcing_the_largest_request(target: Target) -> None:
    """200 connections announce the largest request, do not send it, and stay open."""

    def attack() -> None:
        clients = [RawClient(target.bootstrap) for _ in range(200)]
        for client in clients:
            assert client.try_send(struct.pack(">i", MAX_REQUEST) + PRODUCE_HEADER + bytes(20_000))
        target.wait_for_round_trips()
        for client in clients:
            client.close()

    target.attacked("largest request announced", attack)


def test_incomplete_large_requests(target: Target) -> None:
    """60 connections send 4 MiB each of a request and never the rest."""

    def attack() -> None:
        clients = [RawClient(target.bootstrap) for _ in range(60)]
        part = struct.pack(">i", MAX_REQUEST) + PRODUCE_HEADER + bytes(4 * MIB)
        for client in clients:
            client.socket.setblocking(False)
        unsent = {client: memoryview(part) for client in clients}
        for _ in range(50):
            for client in list(unsent):
                target.pace(0.2)
                try:
                    unsent[client] = unsent[client][client.socket.send(unsent[client][:65536]) :]
                except BlockingIOError:
                    continue
                except OSError:
                    unsent[client] = memoryview(b"")
                if not unsent[client]:
                    del unsent[client]
        target.wait_for_round_trips()
        for client in clients:
            client.close()

    target.attacked("half-sent requests", attack)


def test_other_protocols(target: Target) -> None:
    """Clients send HTTP, TLS (its hello reads as a length of 369,295,616), unexpected SASL, and random bytes."""
    noise = random.Random(3)
    sasl = struct.pack(">hhih", 17, 1, 1, -1) + struct.pack(">h", 5) + b"PLAIN"
    starts = [
        b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
        bytes.fromhex("16030100c8010000c40303") + bytes(189),
        struct.pack(">i", len(sasl)) + sasl,
        *(struct.pack(">i", 300) + noise.randbytes(300) for _ in range(30)),
    ]

    def attack() -> None:
        for start in starts:
            with RawClient(target.bootstrap) as client:
                client.try_send(start)
                client.socket.shutdown(socket.SHUT_WR)
                client.receive(100)
            target.pace()

    target.attacked("other protocols", attack)
