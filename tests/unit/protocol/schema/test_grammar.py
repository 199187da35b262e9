"""Fields that the construct grammars report: every byte of a message, and the field at which a truncated one ends."""

from itertools import pairwise
from random import Random

import pytest

from protocol.messages.k01_fetch import FetchRequest
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.k11_classic_groups import HeartbeatRequest
from protocol.schema.codec import encode
from protocol.schema.grammar import FieldError, ParsedField, parse_fields
from protocol.schema.message import Message, message_info
from tests.unit.support.random_messages import all_messages, random_message


def parsed(cls: type[Message], version: int, data: bytes, position: int = 0) -> tuple[list[ParsedField], int]:
    fields: list[ParsedField] = []
    return fields, parse_fields(cls, version, data, position, fields.append)


def test_fields_have_paths_values_and_positions() -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    assert parsed(MetadataRequest, 1, b"head" + encode(request, 1), 4) == (
        [ParsedField(("topics",), "array", 1, 4, 8), ParsedField(("topics", "[0]", "name"), "string", "t", 8, 11)],
        11,
    )


def test_tagged_fields_known_and_unknown() -> None:
    encoded = encode(FetchRequest(cluster_id="c"), 12)
    fields, _ = parsed(FetchRequest, 12, encoded)
    assert fields[-1] == ParsedField(("cluster_id",), "string", "c", len(encoded) - 2, len(encoded))
    body = encode(HeartbeatRequest(), 4)[:-1]
    fields, end = parsed(HeartbeatRequest, 4, body + b"\1\x63\3abc")
    assert fields[-1] == ParsedField(("tag 99",), "tag", b"abc", len(body) + 1, end)


@pytest.mark.parametrize("cls", all_messages(), ids=lambda cls: cls.__name__)
def test_every_message_to_its_end_and_to_every_truncation(cls: type[Message]) -> None:
    info = message_info(cls)
    for version in range(info.min_version, info.max_version + 1):
        encoded = encode(random_message(cls, version, Random(f"{cls.__name__} {version}")), version)
        fields, end = parsed(cls, version, encoded)
        assert end == len(encoded)
        assert all(before.end <= after.start for before, after in pairwise(fields))
        for size in {0, len(encoded) // 2, len(encoded) - 1} - {len(encoded), -1}:
            before: list[ParsedField] = []
            with pytest.raises(FieldError) as caught:
                parse_fields(cls, version, encoded[:size], 0, before.append)
            assert before == fields[: len(before)]
            assert caught.value.position <= size


@pytest.mark.parametrize(
    ("data", "position", "reason"),
    [
        (b"\0\0\0\3\0\0", 0, "3 elements in 2 bytes"),
        (b"\0\0\0\1\0\5ab", 6, "5 bytes expected, 2 remain"),
        (b"\0\0\0\1\xff\xff", 4, "null in a field that is not nullable"),
        (b"\xff\xff\xff\xf0", 0, "length -16"),
    ],
)
def test_the_error_has_position_and_reason(data: bytes, position: int, reason: str) -> None:
    with pytest.raises(FieldError) as caught:
        parsed(MetadataRequest, 1, data)
    assert (caught.value.position, caught.value.reason) == (position, reason)
