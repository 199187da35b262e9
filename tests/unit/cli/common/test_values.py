"""Values of the command line, parsed and formatted."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from kbroker.cli.common.errors import CliError
from kbroker.cli.common.values import (
    PartitionPosition,
    TopicPartitions,
    count_text,
    format_duration,
    format_size,
    format_timestamp,
    parse_assignments,
    parse_config_changes,
    parse_duration_ms,
    parse_host_port,
    parse_integer,
    parse_position,
    parse_rate,
    parse_size,
    parse_time_ms,
    parse_topic_partitions,
)

NOW = 1_795_000_000_000


def test_an_assignment_may_have_an_empty_value_and_equal_signs_in_it() -> None:
    assert parse_assignments(["a=1", "b.c=", "d=x=y"]) == {"a": "1", "b.c": "", "d": "x=y"}


INVALID: list[tuple[Callable[[str], object], list[str], str]] = [
    (lambda text: parse_assignments([text]), ["a", "=1", ""], "NAME=VALUE"),
    (parse_duration_ms, ["", "5", "h", "1y", "-1h", "P", "PT", "1h 30m"], "duration"),
    (lambda text: parse_time_ms(text, NOW), ["", "yesterday", "2026-13-01", "-5"], "expected a time"),
    (lambda text: parse_position(text, NOW), ["", "first", "-", "--5", "1.5", "@", "²"], "."),
    (parse_topic_partitions, ["", ":1", "orders:", "orders:x", "orders:1,,2"], "."),
    (
        lambda text: parse_host_port(text, "--listen"),
        ["localhost", "localhost:", "localhost:http", "h:70000", "::1:9092"],
        "--listen",
    ),
]


@pytest.mark.parametrize(
    ("parse", "text", "reason"), [(parse, text, reason) for parse, texts, reason in INVALID for text in texts]
)
def test_an_invalid_value_is_wrong_usage(parse: Callable[[str], object], text: str, reason: str) -> None:
    with pytest.raises(CliError, match=reason) as error:
        parse(text)
    assert error.value.status == 2


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("250ms", 250),
        ("90s", 90_000),
        ("1h30m", 5_400_000),
        ("2d", 172_800_000),
        ("1w", 604_800_000),
        ("PT15M", 900_000),
        ("P1DT2H", 93_600_000),
        ("PT1.5S", 1_500),
    ],
)
def test_durations(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1795000000123", 1_795_000_000_123),
        ("15m", NOW - 900_000),
        ("2026-11-21T10:00:00.250Z", round(datetime(2026, 11, 21, 10, tzinfo=UTC).timestamp() * 1000) + 250),
        ("2026-11-21T12:00+02:00", round(datetime(2026, 11, 21, 10, tzinfo=UTC).timestamp() * 1000)),
        # Without a zone it is UTC, as in Kafka's tools.
        ("2026-11-21T10:00", round(datetime(2026, 11, 21, 10, tzinfo=UTC).timestamp() * 1000)),
        ("2026-11-21", round(datetime(2026, 11, 21, tzinfo=UTC).timestamp() * 1000)),
    ],
)
def test_times(text: str, ms: int) -> None:
    assert parse_time_ms(text, NOW) == ms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", PartitionPosition("earliest")),
        ("beginning", PartitionPosition("earliest")),
        ("latest", PartitionPosition("latest")),
        ("end", PartitionPosition("latest")),
        ("0", PartitionPosition("offset", 0)),
        ("42", PartitionPosition("offset", 42)),
        ("-5", PartitionPosition("last", 5)),
        ("@1795000000000", PartitionPosition("time", NOW)),
        ("@1h", PartitionPosition("time", NOW - 3_600_000)),
    ],
)
def test_positions(text: str, expected: PartitionPosition) -> None:
    assert parse_position(text, NOW) == expected


def test_a_topic_may_have_partitions() -> None:
    assert parse_topic_partitions("orders") == TopicPartitions("orders", None)
    assert parse_topic_partitions("orders:0,2") == TopicPartitions("orders", (0, 2))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("localhost:9092", ("localhost", 9092)), ("[::1]:9092", ("::1", 9092)), (":9092", ("", 9092)), ("h:0", ("h", 0))],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert parse_host_port(text, "--listen") == expected


def test_included_partitions() -> None:
    assert [parse_topic_partitions("t:0,2").includes("t", index) for index in (0, 1, 2)] == [True, False, True]
    assert parse_topic_partitions("t").includes("t", 7)
    assert not parse_topic_partitions("t").includes("other", 0)


def test_integers_must_fit_into_64_bits() -> None:
    assert parse_integer("0" * 30 + "7", "it") == 7
    assert parse_integer(str(2**63 - 1), "it") == 2**63 - 1
    with pytest.raises(CliError, match="it is too large"):
        parse_integer(str(2**63), "it")


def test_a_config_is_changed_at_most_once() -> None:
    assert parse_config_changes(["a=1"], ["b"], ["c=x"], ["d=y"]) == {
        "b": ("DELETE", None),
        "a": ("SET", "1"),
        "c": ("APPEND", "x"),
        "d": ("SUBTRACT", "y"),
    }
    with pytest.raises(CliError, match="a is changed twice"):
        parse_config_changes(["a=1"], ["a"], [], [])


@pytest.mark.parametrize(("text", "size"), [("0", 0), ("4096", 4096), ("1.5 GiB", 3 * 2**29), ("64k", 2**16)])
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_rates_are_bytes_per_second() -> None:
    assert [parse_rate(text) for text in ("20MiB", "20MiB/s", "5000000")] == [20 * 2**20, 20 * 2**20, 5_000_000]
    for text in ("0", "fast", "1MiB/h", "9" * 20):
        with pytest.raises(CliError) as error:
            parse_rate(text)
        assert error.value.status == 2


def test_counts() -> None:
    assert [count_text(n, "record") for n in (0, 1, 2)] == ["0 records", "1 record", "2 records"]


def test_formatted_sizes() -> None:
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
