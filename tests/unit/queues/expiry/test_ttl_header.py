"""The values of the header TTL_MS."""

import pytest

from kbroker.queues.expiry import parse_ttl
from kbroker.queues.record_headers import InvalidHeaderError


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], None),
        ([(b"other", b"x")], None),
        ([(b"ttl_ms", b"x")], None),
        ([(b"TTL_MS", b"0")], 0),
        ([(b"other", b"x"), (b"TTL_MS", b"007")], 7),
        ([(b"TTL_MS", b"9223372036854775807")], (1 << 63) - 1),
    ],
)
def test_valid(headers: list[tuple[bytes, bytes | None]], expected: int | None) -> None:
    assert parse_ttl(headers) == expected


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "null"),
        (b"", "''"),
        (b"-1", "'-1'"),
        (b"+1", "'+1'"),
        (b" 1", "' 1'"),
        (b"1.5", "'1.5'"),
        (b"5s", "'5s'"),
        (b"9223372036854775808", "'9223372036854775808'"),
        (b"1" * 5000, "'" + "1" * 40 + "'"),
        ("٣".encode(), r"'\\xd9\\xa3'"),
    ],
)
def test_malformed_values_are_shown(value: bytes | None, shown: str) -> None:
    with pytest.raises(InvalidHeaderError) as error:
        parse_ttl([(b"TTL_MS", value)])
    assert f"TTL_MS is {shown};" in str(error.value)


def test_two_headers_are_refused_even_if_they_agree() -> None:
    with pytest.raises(InvalidHeaderError, match="2 times"):
        parse_ttl([(b"TTL_MS", b"1"), (b"TTL_MS", b"1")])
