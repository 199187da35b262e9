"""Decompression bombs, and wrong batch headers, in topics whose records the broker has to decompress.

The attacks are like CVE-2023-34455 and CVE-2023-43642 (snappy trusted lengths), and the bombs of every codec.
"""

import struct
from functools import cache
from itertools import product

import cramjam
import pytest
from crc32c import crc32c

from protocol.errors import ErrorCode
from protocol.records.batch import assemble_batch, build_batch
from protocol.records.compression import CODEC_NAMES, compress
from protocol.records.record import encode_record
from tests.compat.hostile.raw_client import (
    PRODUCE_VERSION,
    RawClient,
    create_topic,
    framed,
    produce_batch,
    produce_request,
)
from tests.compat.hostile.target import MIB, Target

pytestmark = [pytest.mark.feature("hostile clients"), pytest.mark.client("wire")]

NOW = 1_760_000_000_000
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
BOMB = 256 * MIB
REJECTED = {
    ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_TIMESTAMP,
}  # fmt: skip
# The reasons for which the broker decompresses records.
TOPICS = {
    "compacted": {"cleanup_policy": "compact"},
    "converted": {"compression_type": "zstd"},
    "unpacked": {"compression_type": "uncompressed"},
    "validated": {"kbroker_record_validation": "full"},
    "stamped": {"message_timestamp_type": "LogAppendTime", "compression_type": "gzip"},
}


@pytest.fixture(scope="module", autouse=True)
def topics(shared_target: Target) -> None:
    for name, configs in TOPICS.items():
        create_topic(shared_target.bootstrap, name, max_message_bytes=8 * MIB, **configs)


# Topics whose records are decompressed whatever their codec is.
ALWAYS_DECOMPRESSED = ("compacted", "unpacked", "validated")


def batch_of(codec: int, body: bytes, count: int = 1, **fields: int) -> bytes:
    head = {"last_offset_delta": count - 1, "base_timestamp": NOW, "max_timestamp": NOW, "attributes": codec} | fields
    return bytes(assemble_batch(body, count=count, **head))


def xerial(*blocks: bytes) -> bytes:
    parts = (struct.pack(">i", len(block)) + block for block in blocks)
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(parts)


@cache
def bombs() -> dict[str, tuple[int, bytes]]:
    """Return bodies of up to a few MB that decompress to hundreds of MB or more."""
    zeros = bytes(BOMB)
    block = bytes(cramjam.snappy.compress_raw(bytes(2 * MIB)))
    gzip = bytes(cramjam.gzip.compress(zeros))
    zstd = bytes(cramjam.zstd.compress(zeros))
    return {
        "gzip": (GZIP, gzip),
        "gzip of many members": (GZIP, bytes(cramjam.gzip.compress(bytes(MIB))) * 1000),
        "gzip of members of nothing": (GZIP, bytes(cramjam.gzip.compress(b"")) * 100_000),
        "gzip in gzip": (GZIP, bytes(cramjam.gzip.compress(gzip))),
        "raw snappy": (SNAPPY, bytes(cramjam.snappy.compress_raw(bytes(100 * MIB)))),
        "snappy of many blocks": (SNAPPY, xerial(*[block] * 60)),
        "snappy that claims 4 GB": (SNAPPY, b"\xff\xff\xff\xff\x0f" + b"\xfe\x01\0" * 1000),
        "lz4": (LZ4, bytes(cramjam.lz4.compress(zeros))),
        "lz4 that claims 4 TB": (LZ4, b"\x04\x22\x4d\x18\x68\x40" + struct.pack("<Q", 2**42) + b"\0" + bytes(4)),
        "zstd": (ZSTD, zstd),
        "zstd of many frames": (ZSTD, bytes(cramjam.zstd.compress(bytes(8 * MIB))) * 2000),
        "zstd with a window of 2 TB": (ZSTD, b"\x28\xb5\x2f\xfd\0\xf8" + b"\1\0\0"),
        "zstd that claims 4 GB": (ZSTD, b"\x28\xb5\x2f\xfd\xa0\xff\xff\xff\xff" + b"\1\0\0"),
        "zstd of blocks of nothing": (ZSTD, b"\x28\xb5\x2f\xfd\0\0" + bytes(3) * 700_000 + b"\1\0\0"),
    }


def check_is_rejected(target: Target, topic: str, batch: bytes) -> None:
    with RawClient(target.bootstrap) as client:
        assert produce_batch(client, topic, batch) in REJECTED


@pytest.mark.parametrize("codec", CODEC_NAMES[1:])
def test_bombs(target: Target, codec: str) -> None:
    batches = [batch_of(number, body) for number, body in bombs().values() if CODEC_NAMES[number] == codec]

    def attack() -> None:
        for number, batch in enumerate(batches):
            check_is_rejected(target, ALWAYS_DECOMPRESSED[number % 3], batch)
            target.pace(100)

    target.attacked(f"bombs of {codec}", attack)


def test_many_bombs_at_once(target: Target) -> None:
    """20 bombs do not take twenty times the memory of one."""
    every_bomb = [batch_of(number, body) for number, body in bombs().values()]
    batches = [every_bomb[number % len(every_bomb)] for number in range(20)]

    def attack() -> None:
        clients = [RawClient(target.bootstrap) for _ in batches]
        for number, (client, batch) in enumerate(zip(clients, batches, strict=True)):
            client.try_send(framed(produce_request(ALWAYS_DECOMPRESSED[number % 3], batch), PRODUCE_VERSION))
            target.pace(50)
        for client in clients:
            client.try_receive()
            client.close()

    target.attacked("20 bombs at once", attack, request_bytes=sum(map(len, batches)))


def test_millions_of_tiny_records(target: Target) -> None:
    """A batch of some hundred bytes with 150,000 records, each of which is validated."""
    record = b"\x0e\0\0\0\2k\1\0"
    batch = batch_of(ZSTD, bytes(cramjam.zstd.compress(record * 150_000)), 150_000)
    target.attacked("150,000 records in a batch", lambda: check_is_rejected(target, "compacted", batch))


def test_records_with_many_headers(target: Target) -> None:
    headers = [(b"", None)] * 100_000
    body = b"".join(encode_record(delta, 0, b"k", b"v", headers) for delta in range(50))
    batch = batch_of(ZSTD, compress(ZSTD, body), 50, last_offset_delta=49)

    def attack() -> None:
        with RawClient(target.bootstrap) as client:
            assert produce_batch(client, "converted", batch) == 0

    target.attacked("5 million record headers", attack)


def test_small_batches_that_are_expensive(target: Target) -> None:
    """The broker recompresses batches of 2,000 records, which 10 connections send."""
    records = [(NOW, b"k%d" % number, b"v", ()) for number in range(2000)]
    batch = bytes(build_batch(records, codec=GZIP))

    def attack() -> None:
        clients = [RawClient(target.bootstrap) for _ in range(10)]
        for _ in range(5):
            for client in clients:
                assert produce_batch(client, "converted", batch) == 0
                target.pace(5)
        for client in clients:
            client.close()

    target.attacked("batches of 2,000 records to recompress", attack)


# Headers.

GOOD = bytes(build_batch([(NOW, b"k", b"v", ())]))
FIELDS = {
    "base_offset": (0, ">q"), "length": (8, ">i"), "leader_epoch": (12, ">i"), "magic": (16, ">b"),
    "attributes": (21, ">h"), "last_offset_delta": (23, ">i"), "base_timestamp": (27, ">q"),
    "max_timestamp": (35, ">q"), "producer_id": (43, ">q"), "producer_epoch": (51, ">h"),
    "base_sequence": (53, ">i"), "count": (57, ">i"),
}  # fmt: skip


def altered(**changes: int) -> bytes:
    batches = bytearray(GOOD)
    for name, value in changes.items():
        struct.pack_into(FIELDS[name][1], batches, FIELDS[name][0], value)
    struct.pack_into(">I", batches, 17, crc32c(bytes(batches[21:])))
    return bytes(batches)


def extremes(form: str) -> tuple[int, ...]:
    bits = 8 * struct.calcsize(form)
    return (2 ** (bits - 1) - 1, -(2 ** (bits - 1)), -1, 0, 1)


def wrong_headers() -> list[bytes]:
    batches = [altered(**{name: value}) for name, (_, form) in FIELDS.items() for value in extremes(form)]
    counts = (2**31 - 1, -(2**31), 0, 2, 4_793_490)
    batches += [altered(count=count, last_offset_delta=delta) for count, delta in product(counts, (*counts, 2**31 - 2))]
    batches += [
        altered(count=count, last_offset_delta=count - 1, attributes=codec)
        for count in counts[3:]
        for codec in range(8)
    ]
    batches += [
        altered(producer_id=2**63 - 1, producer_epoch=2**15 - 1, base_sequence=2**31 - 1, max_timestamp=2**63 - 1)
    ]
    batches += [altered(length=length) + GOOD for length in (-1, 0, 13, 48, 49, len(GOOD), 2**31 - 13)]
    # Batches inside each other, and after each other.
    batches += [
        GOOD + GOOD,
        GOOD[:40] + GOOD,
        GOOD + GOOD[:40],
        GOOD[:-1],
        GOOD[:12],
        b"",
        altered(length=2 * len(GOOD) - 12) + GOOD,
    ]
    return batches


def test_wrong_batch_headers(target: Target) -> None:
    """Extreme values in every field: the batch is rejected, or stored so that it can be read."""
    create_topic(target.bootstrap, "ordinary")
    batches = wrong_headers()
    codes = set()

    def attack() -> None:
        for number, batch in enumerate(batches):
            with RawClient(target.bootstrap) as client:
                codes.add(produce_batch(client, ("ordinary", *TOPICS)[number % 6], batch))
            target.pace()

    target.attacked("headers of batches", attack)
    assert len(codes) > 4


def test_wrong_record_counts(target: Target) -> None:
    record = encode_record(0, 0, b"k", b"v")
    batches = [batch_of(codec, compress(codec, record), count) for codec in range(5) for count in (2, 1000, 4_000_000)]
    batches += [batch_of(codec, compress(codec, record * 3), 2) for codec in range(5)]
    batches += [
        batch_of(NONE, body)
        for body in (b"\xfe\xff\xff\xff\x0f" + bytes(30), b"\x28\0\0\0\xfe\xff\xff\xff\x0f" + bytes(30), b"\xff" * 50)
    ]
    for batch in batches:
        check_is_rejected(target, "validated", batch)
