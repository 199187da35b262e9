"""The memory and time of decoding in the worst cases: thousands of small elements, and decompression bombs."""

import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from kbroker.common import KafkaError
from kbroker.coordination.journal import Journal, JournalCorrupted
from kbroker.metadata.store import znodes
from kbroker.metadata.store.change_log import decode_change_log
from kbroker.replica.produce.batch_validation import validate_batch
from protocol.errors import MalformedError
from protocol.limits import MAX_REQUEST_ELEMENTS
from protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest
from protocol.records.batch import HEADER_SIZE, build_batch
from protocol.records.compression import CODEC_NAMES, TooLargeError, compress, decompress
from protocol.records.record import MAX_HEADERS, encode_record, encode_varint, iter_records
from protocol.schema.codec import decode, encode
from protocol.schema.message import Message, StructType, message_info
from protocol.schema.primitives import DEFAULTS
from protocol.varints import encode_uvarint
from tests.sampling import third_of
from tests.unit.fuzz.file_targets import empty_disk
from tests.unit.support.log_lab import NOW, config
from tests.unit.support.random_messages import all_messages
from tests.unit.support.record_validation import validate_completely

MIB = 1 << 20
# Decoding a message takes at most this, and ten bytes for each byte of the frame.
MESSAGE_CONSTANT = 64 * MIB
# The number of elements in a measurement.
MANY = 400


def peak_of(work: Callable[[], object]) -> int:
    """Return the peak of the bytes that Python allocates."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# Messages.

Path = tuple[str, ...]


def arrays(cls: StructType, version: int) -> Iterator[Path]:
    """Yield the path of field names of each array in a message."""
    for name, row in cls.__rows__.items():
        kind = row.type[0] if isinstance(row.type, list) else row.type
        if not row.is_in(version):
            continue
        if isinstance(row.type, list):
            yield (name,)
        if isinstance(kind, StructType):
            yield from ((name, *rest) for rest in arrays(kind, version))


def element(kind: Any, version: int, text: str) -> Any:
    """Return a small element; its strings are `text`."""
    if not isinstance(kind, StructType):
        return text if kind == "string" else text.encode() if kind in ("bytes", "records") else DEFAULTS[kind]
    struct = kind()
    for name, row in kind.__rows__.items():
        if row.is_in(version) and row.tag < 0 and row.type in ("string", "bytes"):
            setattr(struct, name, element(row.type, version, text))
    return struct


def dense(cls: type[Message], version: int, path: Path, text: str) -> bytes:
    """Encode a message with MANY elements in one array, and one element in each array around it."""
    message = cls()
    inner: Any = message
    for depth, name in enumerate(path):
        kind = type(inner).__rows__[name].type
        if not isinstance(kind, list):
            setattr(inner, name, kind())
            inner = getattr(inner, name)
            continue
        item = element(kind[0], version, text)
        setattr(inner, name, [item] * (MANY if depth == len(path) - 1 else 1))
        inner = item
    return encode(message, version)


@pytest.mark.parametrize("text", ["", "ab"])
def test_the_memory_of_a_message_is_ten_bytes_per_byte_and_a_constant(text: str) -> None:
    worst = 0.0
    for cls in third_of(all_messages()):
        info = message_info(cls)
        for version in {info.max_version, min(max(info.flexible_from, info.min_version), info.max_version)}:
            for path in arrays(cls, version):
                encoded = dense(cls, version, path, text)
                view = memoryview(encoded)
                decode(cls, view, version)
                beyond = peak_of(lambda: decode(cls, view, version)) - 10 * len(encoded)  # noqa: B023
                worst = max(worst, beyond / MANY)
                assert beyond / MANY * info.max_elements < MESSAGE_CONSTANT, f"{cls.__name__} v{version} {path}"
    assert worst > 0, "nothing was measured"


def test_too_many_elements_are_rejected_before_they_are_decoded() -> None:
    """The frame has the bytes for more elements than are allowed."""
    topics = [CreatableTopic(name="")] * (MAX_REQUEST_ELEMENTS + 1)
    encoded = memoryview(encode(CreateTopicsRequest(topics=topics), 7))

    def rejected() -> None:
        with pytest.raises(MalformedError, match="more than 100000 elements"):
            decode(CreateTopicsRequest, encoded, 7)

    assert peak_of(rejected) < MIB


# Records.


def test_a_record_of_headers_alone_is_bounded() -> None:
    """A header of two bytes takes a hundred bytes in memory, and a compressed batch of a few KB can have millions."""
    head = b"\0\0\0\1\1" + encode_varint(1_000_000)
    body = head + b"\0\1" * 1_000_000
    body = encode_varint(len(body)) + body

    def rejected() -> None:
        with pytest.raises(MalformedError, match="1000000 record headers"):
            list(iter_records(body, 1, NOW))

    assert peak_of(rejected) < MIB
    # In a batch of a few KB:
    batch = build_batch([(NOW, b"k", b"v", [(b"", None)] * (MAX_HEADERS + 1))], codec=4)
    assert len(batch) < 2000
    with pytest.raises(KafkaError, match="record headers"):
        validate_completely(
            lambda: validate_batch(memoryview(batch), config(kbroker_record_validation="full"), NOW, produce_version=13)
        )
    allowed = build_batch([(NOW, b"k", b"v", [(b"", None)] * MAX_HEADERS)], codec=4)
    validate_completely(
        lambda: validate_batch(memoryview(allowed), config(kbroker_record_validation="full"), NOW, produce_version=13)
    )


@pytest.mark.parametrize("codec", range(1, 5), ids=CODEC_NAMES[1:])
def test_decompression_stops_at_the_limit(codec: int) -> None:
    bomb = compress(codec, bytes(64 * MIB))
    limit = 2 * MIB

    def rejected() -> None:
        with pytest.raises(TooLargeError):
            decompress(codec, bomb, limit)

    decompress(codec, compress(codec, b"x"), 100)
    assert peak_of(rejected) <= limit + 4 * len(bomb) + MIB


def test_the_claimed_size_of_a_snappy_block_allocates_nothing() -> None:
    """The block begins with its decompressed size, which the library allocates at once."""
    with pytest.raises(MalformedError, match="claims to hold"):
        decompress(2, encode_uvarint(50 * MIB) + b"\0a", 64 * MIB)


def test_the_count_of_records_is_checked_against_the_bytes() -> None:
    body = encode_record(0, 0, b"k", b"v")
    batch = bytearray(build_batch([(NOW, b"k", b"v", ())]))
    assert bytes(batch[HEADER_SIZE:]) == body
    for count in (2**31 - 1, -1):
        with pytest.raises(MalformedError):
            list(iter_records(body, count, NOW))


# Files.


def test_a_journal_that_looks_like_records_everywhere_is_rejected_in_bounded_time() -> None:
    """There is a plausible length at every fourth byte, and the search for the next record must end."""
    length = (400_000).to_bytes(4, "big")
    disk = empty_disk()
    disk.write_atomic("/d/coordination.journal", length * 250_000)
    started = time.thread_time()
    with pytest.raises(JournalCorrupted):
        Journal(disk, "/d").load()
    assert time.thread_time() - started < 5


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_deeply_nested_json_is_rejected(opening: bytes) -> None:
    data = opening * 100_000
    for decoder in (znodes.decode_topic, znodes.decode_broker, znodes.decode_chunk):
        with pytest.raises(znodes.InvalidNodeData):
            decoder("1", data)  # type: ignore[arg-type]
    with suppress(znodes.InvalidNodeData):
        decode_change_log(data)
        pytest.fail("it was accepted")
