"""Codecs with pauses: the same results as without, and pauses after a bounded amount of work."""

from random import Random
from typing import Any

import pytest

from protocol.errors import MalformedError
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.k11_classic_groups import SyncGroupRequest, SyncGroupRequestAssignment
from protocol.schema.codec import decode, decoder, encode, encoder
from protocol.schema.decoder_source import COPIED_AT_ONCE, STEP_BYTES
from protocol.schema.encoder_source import STEP_BUFFERS
from protocol.schema.message import Message, message_info
from tests.unit.support.random_messages import all_messages, random_message


def decoded(cls: type[Message], data: bytes | memoryview, version: int) -> tuple[Any, int, int]:
    """Return the message, the next position, and the number of pauses."""
    pauses: list[None] = []
    message, pos = decoder(cls, version)(data, 0, pause=lambda: pauses.append(None))
    return message, pos, len(pauses)


def encoded(message: Message, version: int) -> tuple[bytes, int]:
    """Return the bytes, and the largest number of buffers between two pauses. Each pause removes them."""
    out: list[Any] = []
    pieces: list[bytes] = []
    sizes: list[int] = []

    def pause() -> None:
        sizes.append(len(out))
        pieces.append(b"".join(out))
        out.clear()

    encoder(type(message), version)(message, out, pause)
    pause()
    return b"".join(pieces), max(sizes)


@pytest.mark.parametrize("cls", all_messages(), ids=lambda cls: cls.__name__)
def test_the_results_are_the_same_as_without_pauses(cls: type[Message]) -> None:
    info = message_info(cls)
    for version in {info.min_version, info.max_version}:
        for seed in range(5):
            message = random_message(cls, version, Random(seed))
            data = encode(message, version)
            assert encoded(message, version)[0] == data
            assert decoded(cls, data, version)[:2] == (decode(cls, data, version), len(data))
        if data:
            with pytest.raises(MalformedError) as expected:
                decode(cls, data[:-1], version)
            with pytest.raises(MalformedError) as raised:
                decoded(cls, data[:-1], version)
            assert str(raised.value) == str(expected.value)


def metadata(count: int, size: int) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name="x" * size) for _ in range(count)])


@pytest.mark.parametrize(("count", "size"), [(50_000, 1), (1_000, 1_000), (100, 32_000)])
def test_the_work_between_two_pauses_is_bounded(count: int, size: int) -> None:
    message = metadata(count, size)
    data = encode(message, 4)
    assert encoded(message, 4)[1] <= STEP_BUFFERS + 3
    assert decoded(MetadataRequest, data, 4)[2] >= len(data) // (STEP_BYTES + 2 + size) - 1


def test_bytes_are_copied_in_pieces() -> None:
    assignment = bytes(range(256)) * (5 * COPIED_AT_ONCE // 256)
    message = SyncGroupRequest(assignments=[SyncGroupRequestAssignment(assignment=assignment)])
    data = memoryview(bytearray(encode(message, 5)))
    result, _, pauses = decoded(SyncGroupRequest, data, 5)
    assert pauses >= 5
    assert result == message
    assert isinstance(result.assignments[0].assignment, bytes)
