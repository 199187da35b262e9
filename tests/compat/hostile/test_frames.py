"""Frames whose counts and lengths are lies: nothing is reserved for them, nobody waits for them.

In the manner of CVE-2022-34917, KAFKA-14063, KAFKA-5062 and KAFKA-2878 (counts of arrays for which Kafka took memory at
once), and of tagged fields by the million.
"""

import random
import socket
import struct
from collections.abc import Iterator

import pytest

from protocol.apis import APIS, ApiKey
from protocol.framing import encode_request_header
from protocol.varints import encode_uvarint
from tests.compat.hostile.peer import Peer
from tests.compat.hostile.shapes import I16, I32, Mark, Shape, all_shapes
from tests.compat.hostile.target import MIB, Target

pytestmark = [pytest.mark.feature("hostile clients"), pytest.mark.client("wire")]

ENDLESS = b"\xff" * 12
COUNTS = (2**31 - 1, 100_000_000, -2)
TAGS = (20_000_000, 2**32 - 1)
MAX_REQUEST = 100 * MIB
# How a request begins that is worth waiting for.
PRODUCE = encode_request_header(ApiKey.PRODUCE, 9, 1, "hostile")


def lies(shape: Shape, mark: Mark) -> Iterator[bytes]:
    """What is written where a count or length was."""
    if mark.kind == "tags":
        yield from map(encode_uvarint, TAGS)
        # One field whose content is as long as that.
        yield from (b"\1\x63" + encode_uvarint(size) for size in TAGS)
        yield ENDLESS
    elif shape.flexible:
        # -2 cannot be said; the largest number is what it would be.
        yield from (encode_uvarint(count % 2**32 + 1 if count > 0 else 2**32 - 1) for count in COUNTS)
        yield ENDLESS
    elif mark.size == 2:
        yield from (I16.pack(size) for size in (2**15 - 1, -2, -(2**15)))
    else:
        yield from (I32.pack(count) for count in COUNTS)


def end_of(target: Target, frame: bytes) -> bool:
    """Whether the broker closes the connection for it; an answer will do as well."""
    with Peer(target.bootstrap) as peer:
        return not peer.send(frame) or peer.answer() is None


def test_counts_and_lengths_in_every_api(target: Target) -> None:
    frames = [shape.changed(mark, lie) for shape in all_shapes() for mark in shape.marks for lie in lies(shape, mark)]
    assert len(frames) > 3000
    random.Random(1).shuffle(frames)
    # All of them in a run that may take long, a sample otherwise.
    frames = frames if target.thorough else frames[::3]
    ends = []

    def attack() -> None:
        for number, frame in enumerate(frames):
            ends.append(end_of(target, frame))
            if number % 10 == 0:
                target.pace()

    target.attacked("counts and lengths in every API", attack)
    assert ends.count(True) > 0.9 * len(ends)
    assert "malformed request" in target.log()


def test_tagged_fields_by_the_million(target: Target) -> None:
    """Declared with nothing after them, and really sent: two bytes each, in the header and in the body."""
    shapes = [Shape(ApiKey.API_VERSIONS, APIS[ApiKey.API_VERSIONS].max_version), Shape(ApiKey.METADATA, 12)]
    frames = []
    for shape in shapes:
        for mark in (shape.marks[0], shape.marks[-1]):
            frames.append(shape.changed(mark, encode_uvarint(20_000_000)))
            frames.append(shape.changed(mark, encode_uvarint(20_000_000), b"\x63\0" * 2_000_000))
            frames.append(shape.changed(mark, encode_uvarint(100), b"\x63" + encode_uvarint(10_000) + bytes(10_000)))

    def attack() -> None:
        for frame in frames:
            assert end_of(target, frame)
            target.pace(50)

    target.attacked("tagged fields", attack)


def nested(shape: Shape) -> Iterator[bytes]:
    """Every array in the others says that it has as many elements as there are bytes left."""
    arrays = [mark for mark in shape.marks if mark.kind == "array"]
    if len(arrays) < 2:
        return
    body = bytearray()
    pos = 0
    for mark in arrays:
        body += shape.body[pos : mark.pos] + (encode_uvarint(60_000) if shape.flexible else I32.pack(60_000))
        pos = mark.pos + mark.size
    yield shape.framed(bytes(body) + bytes(100_000))
    # Of the outermost there are many, whose inner ones each fit as well.
    first, second = arrays[:2]
    one = shape.body[first.pos + first.size : second.pos] + (
        encode_uvarint(50_000) if shape.flexible else I32.pack(50_000)
    )
    head = shape.body[: first.pos] + (encode_uvarint(50_000) if shape.flexible else I32.pack(50_000))
    yield shape.framed(head + one * 10_000)


def test_nested_arrays_whose_product_is_huge(target: Target) -> None:
    frames = [
        frame for key in APIS for version in {APIS[key].max_version, APIS[key].flexible_from - 1}
        if max(0, APIS[key].min_version) <= version <= APIS[key].max_version and (key != ApiKey.PRODUCE or version >= 3)
        for frame in nested(Shape(key, version))
    ]  # fmt: skip
    assert len(frames) > 30

    def attack() -> None:
        for frame in frames:
            end_of(target, frame)
            target.pace(5)

    target.attacked("nested arrays", attack)


def test_lengths_of_frames(target: Target) -> None:
    """2 GB before anything else, and what no request can have."""

    def attack() -> None:
        for length in (2**31 - 1, -1, -(2**31), 0, 1, 3, MAX_REQUEST + 1):
            for _ in range(10):
                assert end_of(target, struct.pack(">i", length) + bytes(8))
                target.pace()

    target.attacked("lengths of frames", attack)


def test_the_largest_request(target: Target) -> None:
    """Announced by many connections of which none sends it, nor goes away."""

    def attack() -> None:
        peers = [Peer(target.bootstrap) for _ in range(200)]
        for peer in peers:
            assert peer.send(struct.pack(">i", MAX_REQUEST) + PRODUCE + bytes(20_000))
        target.wait_for_round_trips()
        for peer in peers:
            peer.close()

    target.attacked("largest request announced", attack)


def test_large_requests_that_are_half_sent(target: Target) -> None:
    """60 connections have sent 4 MiB each of a request that is never whole."""

    def attack() -> None:
        peers = [Peer(target.bootstrap) for _ in range(60)]
        part = struct.pack(">i", MAX_REQUEST) + PRODUCE + bytes(4 * MIB)
        for peer in peers:
            peer.socket.setblocking(False)
        left = {peer: memoryview(part) for peer in peers}
        for _ in range(50):
            for peer in list(left):
                target.pace(0.2)
                try:
                    left[peer] = left[peer][peer.socket.send(left[peer][:65536]) :]
                except BlockingIOError:
                    continue
                except OSError:
                    left[peer] = memoryview(b"")
                if not left[peer]:
                    del left[peer]
        target.wait_for_round_trips()
        for peer in peers:
            peer.close()

    target.attacked("half-sent requests", attack)


def test_what_is_no_kafka(target: Target) -> None:
    """HTTP, TLS (its hello is a length of 369,295,616), SASL before it is asked for, and noise."""
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
            with Peer(target.bootstrap) as peer:
                peer.send(start)
                peer.socket.shutdown(socket.SHUT_WR)
                peer.receive(100)
            target.pace()

    target.attacked("no Kafka at all", attack)
