"""A decoder that remembers how requests begin decodes all requests as one that does not."""

from collections.abc import Callable
from random import Random

import pytest

from protocol.errors import MalformedError
from protocol.fast import produce
from protocol.fast.produce import ProduceDecoder, decode_produce_request
from protocol.fast.produce import ProduceRequest as Decoded
from protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.schema.codec import encode
from protocol.varints import encode_uvarint

# Lengths at which the number of bytes of a length changes, and those of the shortest and the longest name of a topic.
NAME_SIZES = (0, 1, 9, 126, 127, 128, 249, 255, 256, 300)
VERSIONS = (3, 8, 9, 12, 13)


def frame(
    version: int, records: bytes | None, *, name_size: int = 9, index: int = 0, transactional_id: str | None = None
) -> bytes:
    data = PartitionProduceData(index=index, records=records)
    topic: dict[str, str | bytes] = {"topic_id": bytes(16)} if version >= 13 else {"name": "n" * name_size}
    rows = [TopicProduceData(**topic, partition_data=[data])]
    request = ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=30_000, topic_data=rows)
    return encode(request, version)


def result(decode: Callable[[memoryview, int, int], Decoded], data: bytes, version: int) -> object:
    """Return what a decoder makes of a request that is in the middle of a buffer."""
    buffer = memoryview(b"head" + data)
    try:
        transactional_id, acks, timeout_ms, topics = decode(buffer, 4, version)
    except MalformedError:
        return MalformedError
    rows = [(key, [(index, None if data is None else bytes(data)) for index, data in parts]) for key, parts in topics]
    return transactional_id, acks, timeout_ms, rows


def assert_equal(decoder: ProduceDecoder, data: bytes, version: int) -> None:
    assert result(decoder.decode, data, version) == result(decode_produce_request, data, version)


@pytest.mark.parametrize("version", range(3, 14))
def test_repeated_requests(version: int):
    decoder = ProduceDecoder(version)
    for _ in range(2):
        for name_size in NAME_SIZES:
            for index in (0, 1, 1 << 20):
                for records in (b"r" * 100, b"", b"s" * 300, None):
                    for transactional_id in (None, "", "t" * 7):
                        data = frame(
                            version, records, name_size=name_size, index=index, transactional_id=transactional_id
                        )
                        assert_equal(decoder, data, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_second_request_is_not_decoded_again(version: int, monkeypatch: pytest.MonkeyPatch):
    decoder = ProduceDecoder(version)
    expected = result(decoder.decode, frame(version, b"r" * 300), version)
    monkeypatch.delattr(produce, "decode_produce_request")
    assert result(decoder.decode, frame(version, b"r" * 300), version) == expected
    assert result(decoder.decode, frame(version, b"s"), version) != expected


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name_size", [9, 127, 256])
def test_damaged_requests_after_a_good_one(version: int, name_size: int):
    rng = Random(version)
    decoder = ProduceDecoder(version)
    good = frame(version, b"r" * 30, name_size=name_size, index=5)
    for at in range(len(good)):
        assert_equal(decoder, good, version)
        assert_equal(decoder, good[:at], version)
        for value in (0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)):
            assert_equal(decoder, good[:at] + bytes((value,)) + good[at + 1 :], version)


@pytest.mark.parametrize("version", [9, 13])
def test_tagged_fields_after_the_records(version: int):
    decoder = ProduceDecoder(version)
    good = frame(version, b"r" * 30)
    tagged = encode_uvarint(1) + encode_uvarint(7) + encode_uvarint(2) + b"xx"
    for at in (-3, -2, -1):
        data = good[:at] + tagged + good[len(good) + at + 1 :]
        for _ in range(2):
            assert_equal(decoder, good, version)
            assert_equal(decoder, data, version)
            assert result(decoder.decode, data, version) == result(decoder.decode, good, version)


# Names, indexes and records that look like lengths, so that a head with a wrong size is likely to go unnoticed.
LOOK_ALIKES = (0, 0, 0, 0, 1, 2, 0x80, 0x82)


def look_alike(rng: Random, size: int) -> bytes:
    return bytes(rng.choices(LOOK_ALIKES, k=size))


def long_varint(rng: Random, value: int) -> bytes:
    """Encode a varint, sometimes in more bytes than necessary."""
    data = encode_uvarint(value)
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        data = data[:-1] + bytes((data[-1] | 0x80, 0))
    return data


def look_alike_frame(rng: Random, version: int, names: list[bytes]) -> bytes:
    flexible = version >= 9
    name, index, records = rng.choice(names), look_alike(rng, 4), look_alike(rng, rng.choice((0, 1, 2, 8, 200)))
    if not flexible:
        count, size = (1).to_bytes(4, "big"), len(records).to_bytes(4, "big")
        topics = count + len(name).to_bytes(2, "big") + name + count + index + size + records
    else:
        length = b"" if version >= 13 else long_varint(rng, len(name) + 1)
        topics = long_varint(rng, 2) + length + name + long_varint(rng, 2) + index
        topics += long_varint(rng, len(records) + 1) + records + bytes(3)
    return (b"\0" if flexible else b"\xff\xff") + b"\xff\xff" + bytes(4) + topics


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_that_look_alike(version: int):
    rng = Random(version)
    decoder = ProduceDecoder(version)
    sizes = [16] * 20 if version >= 13 else [0, 1, 1, 2, 2, 3, 126, 127, 128, *[256] * 40]
    names = [look_alike(rng, size) for size in sizes]
    for _ in range(3000):
        data = look_alike_frame(rng, version, names)
        assert_equal(decoder, data, version)
        assert_equal(decoder, data, version)
    assert len(decoder._heads) > 5


def test_the_number_of_remembered_heads_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(produce, "MAX_HEADS", 3)
    decoder = ProduceDecoder(8)
    for index in (*range(10), *range(10)):
        assert_equal(decoder, frame(8, b"r", index=index), 8)
        assert len(decoder._heads) <= 3
