"""Codecs in steps: the same results as the others, in steps of a bounded size."""

from random import Random
from typing import Any

import pytest

from protocol.errors import MalformedError
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.k14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from protocol.schema.codec import decode, decode_in_steps, encode, encode_in_steps
from protocol.schema.decoder_source import COPIED_AT_ONCE, STEP_BYTES
from protocol.schema.encoder_source import STEP_BUFFERS
from protocol.schema.message import Message, message_info
from tests.unit.support.random_messages import all_messages, random_message


def decoded(cls: type[Message], data: bytes | memoryview, version: int) -> tuple[Any, int]:
    steps = decode_in_steps(cls, data, version, 0)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: tuple[Any, int] = end.value
            return result


def encoded(message: Message, version: int) -> bytes:
    out: list[Any] = []
    for _ in encode_in_steps(message, version, out):
        pass
    return b"".join(out)


@pytest.mark.parametrize("cls", all_messages(), ids=lambda cls: cls.__name__)
def test_the_results_are_those_of_the_other_codecs(cls: type[Message]) -> None:
    info = message_info(cls)
    for version in {info.min_version, info.max_version}:
        for seed in range(5):
            message = random_message(cls, version, Random(seed))
            data = encode(message, version)
            assert encoded(message, version) == data
            assert decoded(cls, data, version) == (decode(cls, data, version), len(data))
        if data:
            with pytest.raises(MalformedError) as expected:
                decode(cls, data[:-1], version)
            with pytest.raises(MalformedError) as raised:
                decoded(cls, data[:-1], version)
            assert str(raised.value) == str(expected.value)


def metadata(count: int, size: int) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name="x" * size) for _ in range(count)])


@pytest.mark.parametrize(("count", "size"), [(50_000, 1), (1_000, 1_000), (100, 32_000)])
def test_a_step_has_a_bounded_size(count: int, size: int) -> None:
    message = metadata(count, size)
    data = encode(message, 4)
    out: list[Any] = []
    largest, before = 0, 0
    for _ in encode_in_steps(message, 4, out):
        largest, before = max(largest, len(out) - before), len(out)
    assert largest <= STEP_BUFFERS + 3
    steps = sum(1 for _ in decode_in_steps(MetadataRequest, data, 4, 0))
    assert steps >= len(data) // (STEP_BYTES + 2 + size)


def test_bytes_are_copied_in_steps() -> None:
    assignment = bytes(range(256)) * (5 * COPIED_AT_ONCE // 256)
    message = SyncGroupRequest(assignments=[SyncGroupRequestAssignment(assignment=assignment)])
    data = memoryview(bytearray(encode(message, 5)))
    assert sum(1 for _ in decode_in_steps(SyncGroupRequest, data, 5, 0)) >= 5
    result, _ = decoded(SyncGroupRequest, data, 5)
    assert result == message
    assert isinstance(result.assignments[0].assignment, bytes)
