"""Compression codecs: data of other clients, levels, decompression bombs, damaged data."""

import contextlib
import gzip
import itertools
import random
import tracemalloc

import cramjam
import lz4.frame
import pytest
from aiokafka.codec import gzip_decode, lz4_decode, snappy_decode, snappy_encode, zstd_decode
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import MalformedError
from protocol.records.compression import (
    CODEC_NAMES,
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    TooLargeError,
    _decompress_plain_lz4,
    compress,
    decompress,
    decompress_mapped,
)

CODECS = (GZIP, SNAPPY, LZ4, ZSTD)
MIB = 1 << 20


def prose(size: int) -> bytes:
    rnd = random.Random(size)
    return bytes(rnd.choice(b"the quick brown fox ") for _ in range(size))


@pytest.mark.parametrize("codec", range(5), ids=CODEC_NAMES)
@pytest.mark.parametrize("size", [0, 1, 100, 32 * 1024, 200_000])
def test_round_trip(codec, size):
    data = prose(size)
    packed = compress(codec, memoryview(data))
    assert decompress(codec, memoryview(packed), size) == data


@given(st.sampled_from(CODECS), st.binary(max_size=3000))
def test_any_bytes_round_trip(codec, data):
    assert decompress(codec, compress(codec, data), len(data)) == data


@pytest.mark.parametrize(
    ("codec", "reader"), [(GZIP, gzip_decode), (SNAPPY, snappy_decode), (LZ4, lz4_decode), (ZSTD, zstd_decode)]
)
def test_other_clients_read_compressed_data(codec, reader):
    data = prose(150_000)
    assert bytes(reader(compress(codec, data))) == data


def test_data_compressed_by_other_clients_is_read():
    data = prose(150_000)
    assert decompress(GZIP, gzip.compress(data), MIB) == data
    assert decompress(SNAPPY, snappy_encode(data), MIB) == data
    assert decompress(SNAPPY, snappy_encode(data, xerial_compatible=False), MIB) == data
    assert decompress(LZ4, cramjam.lz4.compress(data), MIB) == data
    assert decompress(ZSTD, cramjam.zstd.compress(data), MIB) == data


@pytest.mark.parametrize(("codec", "low", "high"), [(GZIP, 1, 9), (LZ4, 1, 17), (ZSTD, -5, 19)])
def test_levels_trade_size(codec, low, high):
    data = prose(100_000)
    assert len(compress(codec, data, high)) < len(compress(codec, data, low))


def test_default_levels_are_kafkas():
    data = prose(20_000)
    assert compress(GZIP, data) == compress(GZIP, data, -1) == compress(GZIP, data, 6)
    assert compress(LZ4, data) == compress(LZ4, data, 9) != compress(LZ4, data, 8)
    assert compress(ZSTD, data) == compress(ZSTD, data, 3)


def test_lz4_blocks_are_independent():
    # The Java client's reader refuses a frame of linked blocks.
    flags = compress(LZ4, prose(100))[4]
    assert flags >> 6 == 1
    assert flags & 0x20


def lz4_frames(data):
    """Return frames with blocks of all sizes, linked or not, with all checksums."""
    for block_size, is_linked, has_checksum, has_block_checksums in itertools.product(
        range(4, 8), *[(False, True)] * 3
    ):
        yield lz4.frame.compress(
            data, block_size=block_size, block_linked=is_linked, content_checksum=has_checksum,
            block_checksum=has_block_checksums, store_size=False,
        )  # fmt: skip


@pytest.mark.parametrize("size", [0, 1, 300, 65_536, 65_537, 5_000_000])
def test_lz4_frames_of_every_kind(size):
    # Random bytes are stored in blocks that are not compressed.
    data = (prose(1000) * (size // 2000) + random.Random(1).randbytes(size))[:size]
    for frame in lz4_frames(data):
        assert decompress(LZ4, memoryview(frame), size) == data
        is_plain = frame[4] == 0x60
        assert (_decompress_plain_lz4(frame, size) is not None) == is_plain
        with pytest.raises(TooLargeError):
            decompress(LZ4, frame, size - 1) if size else decompress(LZ4, lz4.frame.compress(b"1"), 0)


def test_lz4_frames_that_are_cut_off_or_have_a_tail_or_a_wrong_header():
    frame = lz4.frame.compress(
        prose(1000) * 70 + random.Random(2).randbytes(70_000), block_linked=False, store_size=False
    )
    for end in [*range(30), 40_000, len(frame) - 5, len(frame) - 4, len(frame) - 1]:
        with pytest.raises(MalformedError):
            decompress(LZ4, frame[:end], MIB)
    for pos in range(7):
        damaged = bytearray(frame)
        damaged[pos] ^= 0x10
        with pytest.raises(MalformedError):
            decompress(LZ4, damaged, MIB)


@pytest.mark.parametrize("codec", range(5), ids=CODEC_NAMES)
def test_one_byte_more_than_allowed_is_too_large(codec):
    packed = compress(codec, prose(10_000))
    assert len(decompress(codec, packed, 10_000)) == 10_000
    with pytest.raises(TooLargeError):
        decompress(codec, packed, 9_999)
    with pytest.raises(TooLargeError):
        decompress(codec, packed, 0)


@pytest.mark.parametrize("codec", CODECS, ids=CODEC_NAMES[1:])
def test_a_decompression_bomb_reserves_no_more_than_the_limit(codec):
    bomb = compress(codec, bytes(64 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(TooLargeError):
            decompress(codec, bomb, MIB)
        assert tracemalloc.get_traced_memory()[1] < 3 * MIB
    finally:
        tracemalloc.stop()


def test_a_claimed_snappy_size_reserves_no_memory():
    claim = b"\xff\xff\xff\xff\x0f" + bytes(20)
    tracemalloc.start()
    try:
        for packed in (claim, compress(SNAPPY, b"")[:16] + len(claim).to_bytes(4, "big") + claim):
            with pytest.raises(MalformedError):
                decompress(SNAPPY, packed, 1 << 40)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("tail", [b"\0", b"\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x05abc"])
def test_snappy_blocks_that_are_cut_off(tail):
    with pytest.raises(MalformedError):
        decompress(SNAPPY, compress(SNAPPY, b"data") + tail, MIB)


def test_unknown_codecs_are_malformed():
    for codec in (5, 6, 7, -1):
        with pytest.raises(MalformedError):
            decompress(codec, b"", MIB)
        with pytest.raises(ValueError, match="codec"):
            compress(codec, b"")
    assert compress(NONE, b"plain") == b"plain"


@given(st.sampled_from(CODECS), st.data())
def test_damaged_data_is_malformed_or_decompresses_to_other_bytes(codec, data):
    packed = bytearray(compress(codec, prose(500)))
    for _ in range(data.draw(st.integers(min_value=1, max_value=4))):
        packed[data.draw(st.integers(min_value=0, max_value=len(packed) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(min_value=0, max_value=len(packed)))
    for piece in (packed, packed[:cut]):
        with contextlib.suppress(MalformedError):
            assert len(decompress(codec, piece, 100_000)) <= 100_000


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize("read", [decompress, decompress_mapped])
def test_a_codec_that_cannot_be_loaded_says_nothing_of_the_data(monkeypatch, codec, read):
    """Running out of file descriptors is not a damaged batch."""
    packed = compress(codec, b"value")

    def fail(name: str) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("protocol.records.compression._module", fail)
        with pytest.raises(OSError, match="Too many open files"):
            read(codec, packed, 100)
    assert bytes(read(codec, packed, 100)) == b"value"
