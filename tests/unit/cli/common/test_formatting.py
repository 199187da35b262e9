"""Counts, sizes, durations and timestamps as text."""

import pytest

from kbroker.cli.common.formatting import count_text, format_duration, format_size, format_timestamp
from kbroker.cli.common.parsing import parse_duration_ms


def test_counts() -> None:
    assert [count_text(n, "record") for n in (0, 1, 2)] == ["0 records", "1 record", "2 records"]


def test_sizes() -> None:
    assert [format_size(n) for n in (0, 1, 1023, 1024)] == ["0 bytes", "1 byte", "1023 bytes", "1.0 KiB"]


@pytest.mark.parametrize("text", ["0ms", "250ms", "1s", "1s500ms", "1m", "15m", "1h30m", "2d3h", "1h"])
def test_duration_round_trip(text: str) -> None:
    assert format_duration(parse_duration_ms(text)) == text


def test_a_duration_is_formatted_with_at_most_two_units() -> None:
    assert format_duration(parse_duration_ms("1h2m3s")) == "1h2m"
    assert format_duration(parse_duration_ms("1h3s")) == "1h"


def test_a_timestamp_beyond_the_calendar_is_formatted_as_a_number() -> None:
    assert format_timestamp(2**62) == str(2**62)
    assert format_timestamp(0).endswith("00.000")
